"""Charts as picture files, rendered here: no browser, no network."""

from typing import Any

import vl_convert

from labcore.charts import PALETTE, Columns

WIDTH = 720
"""Pixels; a chart on a page has the width of its place instead."""


def svg(spec: dict[str, Any], columns: Columns) -> str:
    """A specification with its rows as SVG."""
    return vl_convert.vegalite_to_svg(_whole(spec, columns))


def png(spec: dict[str, Any], columns: Columns) -> bytes:
    """A specification with its rows as PNG, at twice the resolution of the page."""
    return vl_convert.vegalite_to_png(_whole(spec, columns), scale=2)


def _whole(spec: dict[str, Any], columns: Columns) -> dict[str, Any]:
    names = list(columns)
    rows = [dict(zip(names, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    config = spec.get("config", {}) | {"range": {"category": list(PALETTE)}}
    config |= {"background": "white", "font": "sans-serif"}
    return spec | {"data": {"values": rows}, "width": WIDTH, "config": config}
