"""Figures of scaling: the notes' table, a step on p devices, speed-up, and shares.

As in `charts`, rows and specifications are apart. What is modelled says so in its title, as does
what the notes report.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import altair as alt

from labcore.charts import FONT_SIZE, Columns, columns_of, specification
from labcore.models import MODELS
from labcore.reported import ReportedRun
from labcore.scaling import Point, StepTime, sweet_spot
from labcore.uneven import Sharing
from labcore.units import in_seconds

HEIGHT, CURVE_HEIGHT = 240, 138
ROW = 44
"""Pixels of the plots: the step, a curve, and a row with a bar and its words."""

REPORTED = {"accuracy": "test accuracy, reported", "seconds": "seconds per epoch, reported"}
"""What of the notes' table a chart shows, and its axis."""

PARTS = ("fixed cost", "forward", "backward", "waiting for the allreduce")
_PART_COLORS = ("#999999", "#56B4E9", "#0072B2", "#D55E00")
CURVES = ("modelled", "ideal", "Amdahl", "Gustafson")
_CURVE_COLORS = ("#0072B2", "#808080", "#009E73", "#CC79A7")
_CURVE_DASHES = ([1, 0], [2, 3], [8, 3], [8, 3, 2, 3])
WORK, WAITING = "working", "waiting"

_TEXT: dict[str, Any] = {"labelFontSize": FONT_SIZE, "titleFontSize": FONT_SIZE}
_SAID: dict[str, Any] = {"dy": -17, "fontSize": FONT_SIZE}
"""Words above a bar."""
_ROWS = alt.Scale(paddingInner=0.55, paddingOuter=0.4)
# Two columns, which a phone is wide enough for.
_LEGEND = alt.Legend(
    orient="bottom", title=None, labelFontSize=FONT_SIZE, labelLimit=260, columns=2, offset=4
)


def _layered(layers: list[Any], description: str, height: Any = HEIGHT) -> dict[str, Any]:
    chart = alt.LayerChart(
        layer=layers,
        width="container",
        height=height,
        description=description,
        # The height is the plot's alone: legend and axis may need as much as they like.
        autosize=alt.AutoSizeParams(type="fit-x", contains="padding"),
    )
    return specification(chart)


# The notes' table


def reported_columns(runs: Sequence[ReportedRun]) -> Columns:
    """A row per run: run, model, devices, batch, lr, accuracy, seconds; all as reported."""
    rows = [
        (
            # The model last: where a phone has too little room, the others say what differs.
            f"{n}. {run.devices} GPU{'s' * (run.devices > 1)}, batch {run.batch_size:,}, "
            f"lr {run.lr:g}, {MODELS[run.model].label}",
            MODELS[run.model].label,
            run.devices,
            run.batch_size,
            run.lr,
            run.accuracy,
            run.seconds_per_epoch,
        )
        for n, run in enumerate(runs, start=1)
    ]
    return columns_of(("run", "model", "devices", "batch", "lr", "accuracy", "seconds"), rows)


@lru_cache(maxsize=8)
def reported_spec(field: str, number: int, ink: str = "black") -> dict[str, Any]:
    """A bar per run of the notes' table, hollow and dashed as nothing that is measured here.

    Args:
        field: "accuracy" or "seconds".
        number: of runs.
        ink: colour of the words.
    """
    title = REPORTED[field]
    domain: Any = [0, 1] if field == "accuracy" else alt.Undefined
    length = alt.X(
        f"{field}:Q", title=title, scale=alt.Scale(domain=domain), axis=alt.Axis(**_TEXT)
    )
    legend = alt.Legend(orient="bottom", title="GPUs", **_TEXT)
    color = alt.Color("devices:O", scale=alt.Scale(scheme="viridis"), legend=legend)
    base = alt.Chart().encode(y=alt.Y("run:N", sort=None, axis=None, scale=_ROWS))
    bars = base.mark_bar(fillOpacity=0.25, strokeWidth=1.5, strokeDash=[4, 3]).encode(
        x=length,
        color=color,
        stroke=alt.Stroke("devices:O", scale=alt.Scale(scheme="viridis"), legend=None),
        tooltip=["run:N", "devices:Q", "batch:Q", "lr:Q", "accuracy:Q", "seconds:Q"],
    )
    names = base.mark_text(align="left", color=ink, **_SAID).encode(text="run:N", x=alt.value(0))
    words = base.mark_text(
        align="left", dx=6, fontWeight="bold", color=ink, fontSize=FONT_SIZE
    ).encode(
        text=alt.Text(f"{field}:Q", format=".2f" if field == "accuracy" else ".1f"),
        x=alt.value(0),
    )
    described = f"Bars of the notes' runs: {title}; none of it is measured here."
    return _layered([bars, names, words], described, ROW * number)


# One step


def step_columns(points: Sequence[Point], chosen: int) -> Columns:
    """Four rows per number of devices that is a power of two or the chosen one: a step's parts.

    Columns are devices, part, place, seconds, total, words and chosen.
    """
    steps = [point.step for point in points]
    rows = [
        (
            step.devices,
            part,
            place,
            seconds,
            step.seconds,
            _step_words(step),
            step.devices == chosen,
        )
        for step in steps
        if step.devices & (step.devices - 1) == 0 or step.devices == chosen
        for place, (part, seconds) in enumerate(zip(PARTS, _parts(step), strict=True))
    ]
    return columns_of(("devices", "part", "place", "seconds", "total", "words", "chosen"), rows)


def _parts(step: StepTime) -> tuple[float, ...]:
    return step.fixed, step.forward, step.backward, step.exposed


def _step_words(step: StepTime) -> str:
    hidden = f"{in_seconds(step.hidden)} of {in_seconds(step.allreduce)}"
    return f"{in_seconds(step.seconds)}; {hidden} allreduce hidden"


@lru_cache(maxsize=4)
def step_spec() -> dict[str, Any]:
    """Stacked bars: where the time of one modelled step goes, over the number of devices."""
    bars = (
        alt.Chart()
        .mark_bar()
        .encode(
            x=alt.X("devices:O", title="devices", axis=alt.Axis(labelAngle=0, **_TEXT)),
            y=alt.Y("seconds:Q", title="modelled step (s)", axis=alt.Axis(format="~s", **_TEXT)),
            color=alt.Color(
                "part:N",
                sort=list(PARTS),
                scale=alt.Scale(domain=list(PARTS), range=list(_PART_COLORS)),
                legend=_LEGEND,
            ),
            order=alt.Order("place:Q"),
            opacity=alt.condition("datum.chosen", alt.value(1), alt.value(0.65)),
            tooltip=[
                "devices:O",
                "part:N",
                alt.Tooltip("seconds:Q", format=".3s"),
                alt.Tooltip("words:N", title="whole step"),
            ],
        )
    )
    return _layered(
        [bars], f"Modelled time of a step over devices, stacked from {', '.join(PARTS)}."
    )


# Speed-up and efficiency


def speed_columns(points: Sequence[Point], chosen: int) -> Columns:
    """Rows of the curves over devices: part, curve, devices, speed_up, efficiency and words.

    A "curve" is a point of one of `CURVES`; "sweet" is where more devices no longer help, and
    "chosen" the number on the page.
    """
    rows: list[tuple[Any, ...]] = []
    for point in points:
        p = point.step.devices
        values = (point.speed_up, float(p), point.amdahl, point.gustafson)
        rows += [
            ("curve", name, p, value, value / p, "")
            for name, value in zip(CURVES, values, strict=True)
        ]
    best = sweet_spot(points)
    rows.append(_mark("sweet", best, f"most images per second: {best.step.devices:,} devices"))
    rows += [_mark("chosen", each, "") for each in points if each.step.devices == chosen]
    return columns_of(("part", "curve", "devices", "speed_up", "efficiency", "words"), rows)


def _mark(part: str, point: Point, words: str) -> tuple[Any, ...]:
    return part, CURVES[0], point.step.devices, point.speed_up, point.efficiency, words


@lru_cache(maxsize=32)
def speed_spec(field: str, most: int, ink: str = "black") -> dict[str, Any]:
    """Speed-up or efficiency over devices, both logarithmic for the former: modelled and in theory.

    Args:
        field: "speed_up" or "efficiency".
        most: devices at the end of the axis, from 2.
        ink: colour of the words.
    """
    title = {"speed_up": "speed-up", "efficiency": "efficiency"}[field]
    scale, ticks = alt.Scale(domain=[0, 1.05], clamp=True), [0.0, 0.5, 1.0]
    if field == "speed_up":
        scale = alt.Scale(type="log", domain=[0.1, most], clamp=True)
        ticks = [tick for tick in (0.1, 1.0, 10.0, 100.0, 1000.0) if tick <= most]
    base = alt.Chart().encode(
        x=alt.X(
            "devices:Q",
            title="devices",
            scale=alt.Scale(type="log", base=2, domain=[1, most], nice=False),
            axis=alt.Axis(grid=False, **_TEXT),
        ),
        y=alt.Y(
            f"{field}:Q",
            title=title,
            scale=scale,
            axis=alt.Axis(format="~g", values=ticks, **_TEXT),
        ),
        tooltip=[
            "curve:N",
            "devices:Q",
            alt.Tooltip("speed_up:Q", format=".3~g"),
            alt.Tooltip("efficiency:Q", format=".0%"),
        ],
    )
    lines = (
        base.transform_filter("datum.part == 'curve'")
        .mark_line(strokeWidth=2.5, clip=True)
        .encode(
            color=alt.Color(
                "curve:N",
                scale=alt.Scale(domain=list(CURVES), range=list(_CURVE_COLORS)),
                legend=_LEGEND,
            ),
            strokeDash=alt.StrokeDash(
                "curve:N",
                scale=alt.Scale(domain=list(CURVES), range=[list(d) for d in _CURVE_DASHES]),
                legend=_LEGEND,
            ),
        )
    )
    sweet = base.transform_filter("datum.part == 'sweet'")
    chosen = base.transform_filter("datum.part == 'chosen'")
    layers = [
        lines,
        sweet.mark_point(shape="diamond", size=140, filled=True, color="#D55E00", opacity=1),
        sweet.mark_text(align="left", fontSize=FONT_SIZE, color=ink).encode(
            # Above the plot, where no curve passes.
            text="words:N",
            x=alt.value(10),
            y=alt.value(-12),
        ),
        chosen.mark_point(size=120, strokeWidth=2.5, color=ink, opacity=1),
    ]
    return _layered(
        layers,
        f"Modelled {title} over devices, beside the ideal, Amdahl's and Gustafson's laws; a "
        "diamond marks the most images per second.",
        CURVE_HEIGHT,
    )


# Shares


def sharing_columns(sharings: Mapping[str, Sharing], names: Sequence[str]) -> Columns:
    """Two rows per sharing and device: how long it works on how many images, and how long it waits.

    Args:
        sharings: by what the chart calls them, such as "equal" and "best".
        names: of the devices.

    Returns:
        Columns bar, sharing, device, part, place, seconds, rows and words.
    """
    rows = []
    for sharing, each in sharings.items():
        for name, own, works, waits in zip(
            names, each.rows, each.seconds, each.waiting, strict=True
        ):
            bar, words = f"{sharing}: {name}", f"{own:,} images, {in_seconds(works)}"
            rows.append((bar, sharing, name, WORK, 0, works, own, words))
            rows.append((bar, sharing, name, WAITING, 1, waits, own, words))
    columns = ("bar", "sharing", "device", "part", "place", "seconds", "rows", "words")
    return columns_of(columns, rows)


@lru_cache(maxsize=16)
def sharing_spec(number: int, slowest: float, origin: str, ink: str = "black") -> dict[str, Any]:
    """Bars of who works how long and who waits, sharing by sharing: solid only where measured.

    Args:
        number: of bars: sharings times devices.
        slowest: end of the last device, in s.
        origin: where the times are from, such as "modelled" or "measured here".
        ink: colour of the words.
    """
    base = alt.Chart().encode(y=alt.Y("bar:N", sort=None, axis=None, scale=_ROWS))
    colors = alt.Scale(domain=[WORK, WAITING], range=["#0072B2", "#E69F00"])
    filled = 1.0 if origin.startswith("measured") else 0.5
    bars = base.mark_bar(fillOpacity=filled, strokeWidth=1.5).encode(
        x=alt.X(
            "seconds:Q",
            title=f"{origin} (s)",
            scale=alt.Scale(domain=[0, slowest]),
            axis=alt.Axis(format="~s", **_TEXT),
        ),
        color=alt.Color("part:N", scale=colors, legend=_LEGEND),
        stroke=alt.Stroke("part:N", scale=colors, legend=None),
        order=alt.Order("place:Q"),
        tooltip=["sharing:N", "device:N", "part:N", alt.Tooltip("seconds:Q", format=".3s")],
    )
    said = base.transform_filter(f"datum.part == '{WORK}'")
    names = said.mark_text(align="left", fontWeight="bold", color=ink, **_SAID).encode(
        text="bar:N", x=alt.value(0)
    )
    words = said.mark_text(align="right", color=ink, **_SAID).encode(
        text="words:N", x=alt.value("width")
    )
    described = f"Bars of the devices' working and waiting time with each sharing, {origin}."
    return _layered([bars, names, words], described, ROW * number)
