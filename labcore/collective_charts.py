"""Figures of what collectives cost in the model of time."""

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import altair as alt

from labcore.charts import DASHES, FONT_SIZE, Columns, specification
from labcore.costs import Cost, line
from labcore.schedules import Schedule
from labcore.units import in_bytes, in_seconds

HEIGHT = 220
SMALLEST, LARGEST = 1.0, 1e9
"""Bytes: the extent of the message axis."""

Price = tuple[float, float, float]
"""α in s, β and γ in s per byte."""


def cost_columns(costs: Mapping[str, Cost]) -> Columns:
    """Two rows per algorithm, start-ups and bytes, the fastest first; see `cost_spec`."""
    rows = []
    for place, name in enumerate(sorted(costs, key=lambda name: costs[name].seconds)):
        each = costs[name]
        rounds = f"{each.rounds} round{'s' * (each.rounds != 1)}"
        words = f"{in_seconds(each.seconds)} · {rounds} · {in_bytes(each.busiest_bytes)}"
        moved = each.transfer_seconds + each.adding_seconds
        rows.append((place, name, words, "start-ups (α)", each.startup_seconds))
        rows.append((place, name, words, "bytes (β, γ)", moved))
    names = ("place", "algorithm", "words", "part", "seconds")
    return {name: [row[place] for row in rows] for place, name in enumerate(names)}


@lru_cache(maxsize=16)
def cost_spec(number: int, slowest: float, ink: str = "black") -> dict[str, Any]:
    """Modelled time of every algorithm at one size, split into start-ups and bytes.

    Args:
        number: of algorithms.
        slowest: largest time, in s.
        ink: colour of the words.
    """
    row = alt.Y("place:O", axis=None, scale=alt.Scale(paddingInner=0.62, paddingOuter=0.4))
    length = alt.X("seconds:Q", axis=None, scale=alt.Scale(domain=[0, slowest or 1.0]))
    part = alt.Color(
        "part:N",
        scale=alt.Scale(domain=["start-ups (α)", "bytes (β, γ)"], range=["#D55E00", "#0072B2"]),
        legend=alt.Legend(orient="bottom", title=None, labelFontSize=FONT_SIZE),
    )
    bars = (
        alt.Chart()
        .mark_bar()
        .encode(
            x=length,
            y=row,
            color=part,
            order=alt.Order("part:N", sort="descending"),
            tooltip=["algorithm:N", "part:N", alt.Tooltip("seconds:Q", format=".3s"), "words:N"],
        )
    )
    said = alt.Chart().transform_filter("datum.part == 'bytes (β, γ)'")
    text: dict[str, Any] = {"dy": -17, "fontSize": FONT_SIZE, "color": ink}
    names = said.mark_text(align="left", fontWeight="bold", **text).encode(
        y=row, text="algorithm:N", x=alt.value(0)
    )
    words = said.mark_text(align="right", **text).encode(
        y=row, text="words:N", x=alt.value("width")
    )
    chart = alt.LayerChart(
        layer=[bars, names, words],
        width="container",
        height=46 * number,
        description="Modelled time of every algorithm, split into start-ups and bytes.",
    )
    return specification(chart)


def time_columns(schedules: Mapping[str, Schedule], price: Price, n_bytes: float) -> Columns:
    """Rows of the chart of modelled time over message size.

    A "time" is a point of an algorithm's curve, four sizes per decade; a "crossing" is where the
    fastest algorithm changes; "chosen" is the size on the page.
    """
    steps = 4 * round(math.log10(LARGEST / SMALLEST))
    sizes = [SMALLEST * 10 ** (step / 4) for step in range(steps + 1)]
    lines = {name: line(schedule, *price) for name, schedule in schedules.items()}
    rows = [
        ("time", name, size, fixed + per_byte * size)
        for name, (fixed, per_byte) in lines.items()
        for size in sizes
    ]
    rows += [("crossing", name, size, time) for name, size, time in crossings(schedules, price)]
    rows.append(("chosen", "", max(SMALLEST, n_bytes), 0.0))
    names = ("part", "algorithm", "bytes", "seconds")
    return {name: [row[place] for row in rows] for place, name in enumerate(names)}


def crossings(schedules: Mapping[str, Schedule], price: Price) -> list[tuple[str, float, float]]:
    """Where the fastest algorithm changes with the size: from which to which, bytes, seconds."""
    lines = {name: line(schedule, *price) for name, schedule in schedules.items()}
    fastest = min(lines, key=lines.__getitem__)
    found: list[tuple[str, float, float]] = []
    while True:
        fixed, per_byte = lines[fastest]
        # Where each line that rises less steeply comes below the fastest one.
        meets = {
            name: (other_fixed - fixed) / (per_byte - other_per_byte)
            for name, (other_fixed, other_per_byte) in lines.items()
            if other_per_byte < per_byte
        }
        if not meets:
            return found
        after = min(meets, key=lambda name: (meets[name], lines[name][1]))
        size = meets[after]
        if SMALLEST < size < LARGEST:
            found.append((f"{fastest} → {after}", size, fixed + per_byte * size))
        fastest = after


@lru_cache(maxsize=16)
def time_spec(names: tuple[str, ...], fastest: float, slowest: float) -> dict[str, Any]:
    """Modelled time over message size, both logarithmic: a line per algorithm.

    Args:
        names: of the algorithms, in the order of their colours.
        fastest: smallest time on the axis, in s.
        slowest: largest time on the axis, in s.
    """
    axis: dict[str, Any] = {"labelFontSize": FONT_SIZE, "titleFontSize": FONT_SIZE}
    legend = alt.Legend(
        orient="bottom",
        title=None,
        labelFontSize=FONT_SIZE,
        labelLimit=200,
        symbolType="stroke",
        symbolStrokeWidth=2,
        symbolSize=300,
        # So many as a phone, a tablet, a laptop have room for.
        columns=alt.ExprRef("width < 300 ? 2 : width < 600 ? 3 : 4"),
    )
    base = alt.Chart().encode(
        x=alt.X(
            "bytes:Q",
            title="message size (bytes)",
            scale=alt.Scale(type="log", domain=[SMALLEST, LARGEST]),
            axis=alt.Axis(format="~s", tickCount=10, **axis),
        ),
        y=alt.Y(
            "seconds:Q",
            title="modelled time (s)",
            scale=alt.Scale(type="log", domain=[fastest, slowest]),
            axis=alt.Axis(format="~s", tickCount=6, **axis),
        ),
        tooltip=[
            alt.Tooltip("algorithm:N"),
            alt.Tooltip("bytes:Q", format=".3s"),
            alt.Tooltip("seconds:Q", format=".3s"),
        ],
    )
    lines = (
        base.transform_filter("datum.part == 'time'")
        .mark_line(strokeWidth=2, clip=True)
        .encode(
            color=alt.Color(
                "algorithm:N",
                scale=alt.Scale(domain=list(names)),
                legend=legend,
            ),
            strokeDash=alt.StrokeDash(
                "algorithm:N",
                scale=alt.Scale(domain=list(names), range=[list(d) for d in DASHES[: len(names)]]),
                legend=legend,
            ),
        )
    )
    marks = base.transform_filter("datum.part == 'crossing'").mark_point(
        shape="diamond", size=90, filled=True, color="gray", opacity=1
    )
    rule = (
        alt.Chart()
        .transform_filter("datum.part == 'chosen'")
        .mark_rule(strokeDash=[2, 3], color="gray")
        .encode(x="bytes:Q")
    )
    described = (
        f"Modelled time of {', '.join(names)} over message size, both logarithmic. "
        "Diamonds mark where the fastest changes."
    )
    chart = alt.LayerChart(
        layer=[rule, lines, marks],
        width="container",
        height=HEIGHT,
        description=described,
        # The height is the plot's alone: on a phone the legend needs four lines of its own.
        autosize=alt.AutoSizeParams(type="fit-x", contains="padding"),
    )
    return specification(chart)
