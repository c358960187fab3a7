"""Charts as files, rendered here: no browser, no network."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import vl_convert

from labcore.charts import PALETTE, Columns
from labcore.config import refusal

WIDTH = 720
"""Pixels; a chart on a page has the width of its place instead."""


def svg(spec: dict[str, Any], columns: Columns) -> str:
    """A specification with its rows as SVG."""
    return vl_convert.vegalite_to_svg(_whole(spec, columns))


def png(spec: dict[str, Any], columns: Columns) -> bytes:
    """A specification with its rows as PNG, at twice the resolution of the page."""
    return vl_convert.vegalite_to_png(_whole(spec, columns), scale=2)


def html(spec: dict[str, Any], columns: Columns) -> str:
    """A specification with its rows as a page of its own, with tooltips; it needs no network."""
    return vl_convert.vegalite_to_html(_whole(spec, columns), bundle=True)


FORMATS: dict[str, Callable[[dict[str, Any], Columns], str | bytes]] = {
    ".svg": svg,
    ".png": png,
    ".html": html,
}
"""What a chart can be saved as, by the ending of the file's name."""


def check_chart_file(file: str) -> None:
    """Raise `ConfigError` unless a chart can be saved under this name."""
    if Path(file).suffix.lower() not in FORMATS:
        raise refusal("chart", file, "a file name that ends in " + ", ".join(FORMATS), "chart.svg")
    if not Path(file).absolute().parent.is_dir():
        raise refusal("chart", file, "in a folder that exists", Path(file).name)


def save(file: str, spec: dict[str, Any], columns: Columns) -> None:
    """Write a chart to a file, in the format that its name ends in."""
    content = FORMATS[Path(file).suffix.lower()](spec, columns)
    Path(file).write_bytes(content.encode() if isinstance(content, str) else content)


def _whole(spec: dict[str, Any], columns: Columns) -> dict[str, Any]:
    names = list(columns)
    rows = [dict(zip(names, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    config = spec.get("config", {}) | {"range": {"category": list(PALETTE)}}
    config |= {"background": "white", "font": "sans-serif"}
    return spec | {"data": {"values": rows}, "width": WIDTH, "config": config}
