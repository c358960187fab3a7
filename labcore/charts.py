"""Figures: a history becomes rows, and a view becomes an altair chart of such rows.

The two are apart because a live page draws one specification again and again with new rows. Colours
come from the category palette of whoever renders: the lab's theme, or `PALETTE` in `loss_chart`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import altair as alt

from labcore.config import Config, choice
from labcore.events import Diverged, LossRecorded
from labcore.race import Lane, RaceConfig, RaceHistory
from labcore.reported import AIRFOIL_LOSS_AXIS

PALETTE = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
    "#000000",
    "#8A7A00",
)
"""Okabe–Ito for light ground; its yellow, invisible on white, is darkened to olive."""

DASHES = ([1, 0], [8, 3], [3, 3], [8, 3, 2, 3], [1, 0], [8, 3], [3, 3], [8, 3, 2, 3])
"""A dash pattern per colour, so that no curve is told by its colour alone."""

HEIGHT = 340
FONT_SIZE = 14
LABEL_HEIGHT = 18
"""All in pixels."""

Columns = dict[str, list[Any]]
COLUMNS = ("part", "racer", "label", "x", "y", "label_y", "step", "epochs", "seconds", "loss")
Domain = tuple[float, float]


def columns_of(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> Columns:
    """Rows, each with a value for every name, as the columns that a chart takes."""
    return {name: [row[place] for row in rows] for place, name in enumerate(names)}


@dataclass(frozen=True)
class LossView(Config):
    """Which loss over what a race chart shows."""

    name = "view"

    y: str = choice(
        "loss axis",
        "gap",
        {"gap": "Above minimum", "notes": "0.22–0.35", "auto": "Automatic"},
        help="The distance to the exact minimum on a logarithmic axis; the axis of the course "
        "notes; or from the best loss to the start.",
    )
    x: str = choice(
        "over",
        "epochs",
        {"epochs": "Epochs", "steps": "Steps", "seconds": "Seconds"},
        help="Epochs are passes through the data, steps are gradient evaluations, seconds are "
        "measured training time, evaluation excluded.",
    )


@dataclass(frozen=True)
class Axes:
    """The extent of a loss chart and what its axes mean; equal axes need no new specification."""

    x: Domain
    y: Domain
    log: bool
    y_title: str

    def pixel(self, y: float) -> float:
        """Distance of `y` from the chart's top."""
        low, high, y = map(math.log10, (*self.y, y)) if self.log else (*self.y, y)
        return (high - y) / (high - low) * HEIGHT

    def value(self, pixel: float) -> float:
        """The inverse of `pixel`."""
        low, high = map(math.log10, self.y) if self.log else self.y
        y = high - pixel / HEIGHT * (high - low)
        return float(10**y) if self.log else y


def loss_axes(history: RaceHistory, view: LossView) -> Axes:
    """Axes that stand still: fixed by the race where that is possible, else growing in big steps.

    A diverged run has no say in them, nor has what a run does above its start.
    """
    points = [point for lane in history.lanes.values() for point in lane.points]
    return Axes(_x_domain(history, view, points), *_y_axis(history, view))


def _x_domain(history: RaceHistory, view: LossView, points: Sequence[LossRecorded]) -> Domain:
    config = history.config
    if view.x == "epochs":
        return 0.0, float(config.epochs)
    if view.x == "steps":
        return 0.0, float(config.epochs * math.ceil(history.rows / config.batch_size))
    return 0.0, _round_up(max((point.seconds for point in points), default=0.0))


def _round_up(value: float) -> float:
    """The next of 1, 2, 5 times a power of ten, at least 0.1."""
    power = 10 ** math.floor(math.log10(max(value, 0.1)))
    return min((m * power for m in (1.0, 2.0, 5.0, 10.0) if m * power >= value), default=value)


def _y_axis(history: RaceHistory, view: LossView) -> tuple[Domain, bool, str]:
    exact = history.floor
    lanes = [lane for lane in history.lanes.values() if not isinstance(lane.outcome, Diverged)]
    losses = [point.loss for lane in lanes for point in lane.points]
    if view.y == "notes":
        return AIRFOIL_LOSS_AXIS, False, "loss (½ MSE)"
    if view.y == "gap" and exact is not None:
        smallest = min((loss - exact for loss in losses), default=1.0)
        bottom = next((b for b in (1e-4, 1e-8) if smallest >= b), 1e-12)
        return (bottom, 1.0), True, "loss − exact minimum"
    if view.y == "gap":
        bottom = 0.01 if min(losses, default=1.0) >= 0.01 else 1e-4
        return (bottom, 10.0), True, "loss (½ MSE); its minimum is unknown"
    starts = [next(iter(lane.points)).loss for lane in lanes if lane.points]
    low = min([*losses, *([exact] if exact is not None else [])], default=0.0)
    high = max(starts, default=0.5)
    # A little below the best, so that its mark is whole.
    bottom = math.floor((low - 0.005) * 20) / 20
    return (bottom, math.ceil(high * 20) / 20), False, "loss (½ MSE)"


def loss_columns(history: RaceHistory, view: LossView, axes: Axes) -> Columns:
    """The rows of a loss chart, column by column.

    The columns are those of `COLUMNS`. `part` says what a row is: a "point" of a curve, the "head"
    of one with its label, the "exit" of a diverged one through the top edge and the "end" that
    says so, or the "floor" that none can pass. `y` is the plotted value, `label_y` where the label
    has room.
    """
    exact = history.floor
    below = exact if view.y == "gap" and exact is not None else 0.0
    lanes = [(lane, lane.latest) for lane in history.lanes.values() if lane.latest is not None]
    parts = [_curve(lane, list(lane.points), below, view, axes) for lane, _ in lanes]
    heads: list[dict[str, Any]] = []
    exits: list[dict[str, Any]] = []
    ends: list[dict[str, Any]] = []
    for lane, latest in lanes:
        last = _curve(lane, [latest], below, view, axes)
        mark = {name: values[0] for name, values in last.items()}
        if isinstance(lane.outcome, Diverged):
            end = mark | _end(lane, lane.outcome, view)
            exits.append(end | {"part": "exit", "y": axes.y[1] * 10})
            ends.append(end | {"y": axes.value(len(ends) * LABEL_HEIGHT)})
        else:
            heads.append(mark | {"part": "head"})
    _dodge(heads, axes)
    floors = [] if exact is None or view.y == "gap" else [_floor_mark(exact, axes)]
    parts += [
        {name: [value] for name, value in mark.items()} for mark in heads + exits + ends + floors
    ]
    return {name: [value for part in parts for value in part[name]] for name in COLUMNS}


def _curve(
    lane: Lane, points: Sequence[LossRecorded], exact: float, view: LossView, axes: Axes
) -> Columns:
    lowest = axes.y[0] / 10 if axes.log else -math.inf
    label = f"{lane.racer.name} lr {lane.racer.optimizer.lr:g}"
    y = [max(point.loss - exact, lowest) for point in points]
    columns: Columns = {
        "part": ["point"] * len(points),
        "racer": [lane.racer.name] * len(points),
        "label": [label] * len(points),
        "y": y,
        "label_y": y,
        "step": [point.step for point in points],
        "epochs": [point.epochs for point in points],
        "seconds": [point.seconds for point in points],
        "loss": [point.loss for point in points],
    }
    return columns | {"x": columns["step" if view.x == "steps" else view.x]}


def _floor_mark(exact: float, axes: Axes) -> dict[str, Any]:
    label = f"exact minimum {exact:.4f} (closed form)"
    mark = {"part": "floor", "label": label, "x": axes.x[0], "y": exact}
    return dict.fromkeys(COLUMNS) | mark


def _end(lane: Lane, outcome: Diverged, view: LossView) -> dict[str, Any]:
    """What marks a diverged run: it left through the top edge at this step."""
    changes: dict[str, Any] = {"part": "end", "label": f"✕ step {outcome.step:,} {lane.racer.name}"}
    if view.x != "seconds":
        changes["x"] = {"epochs": outcome.epochs, "steps": outcome.step}[view.x]
    return changes


def _dodge(heads: list[dict[str, Any]], axes: Axes) -> None:
    """Move the labels apart, keeping their order, so that none covers another."""
    heads.sort(key=lambda head: axes.pixel(head["y"]))
    top = LABEL_HEIGHT / 2
    places: list[float] = []
    for head in heads:
        wanted = min(max(axes.pixel(head["y"]), top), HEIGHT - top)
        places.append(max(wanted, places[-1] + LABEL_HEIGHT if places else wanted))
    bottom = HEIGHT - top
    for i in reversed(range(len(places))):
        places[i] = min(places[i], bottom)
        bottom = places[i] - LABEL_HEIGHT
    for head, place in zip(heads, places, strict=True):
        head["label_y"] = axes.value(place)


@lru_cache(maxsize=256)
def loss_spec(config: RaceConfig, view: LossView, axes: Axes) -> dict[str, Any]:
    """The Vega-Lite specification of a loss chart without its rows; shared, so read-only."""
    return specification(_loss_layers(config, view, axes))


def specification(chart: alt.LayerChart) -> dict[str, Any]:
    """A chart as Vega-Lite without data: its layers take those of whoever draws it."""
    spec: dict[str, Any] = chart.to_dict()
    # Altair's word for no data is a data set called empty. No layer may have data of its own: where
    # a specification changes, Streamlit would put the rows into those.
    del spec["datasets"]
    for layer in spec["layer"]:
        del layer["data"]
    return spec


def loss_chart(history: RaceHistory, view: LossView | None = None) -> alt.LayerChart:
    """A stand-alone chart of a race, for notebooks and files."""
    view = view or LossView()
    axes = loss_axes(history, view)
    columns = loss_columns(history, view, axes)
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    chart: alt.LayerChart = _loss_layers(history.config, view, axes).properties(
        data=alt.InlineData(values=rows), width=800
    )
    colored: alt.LayerChart = chart.configure_range(category=list(PALETTE))
    return colored


def _loss_layers(config: RaceConfig, view: LossView, axes: Axes) -> alt.LayerChart:
    names = [racer.name for racer in config.racers]
    color = alt.Color("racer:N", scale=alt.Scale(domain=names), legend=None)
    dash = alt.StrokeDash(
        "racer:N", scale=alt.Scale(domain=names, range=list(DASHES[: len(names)])), legend=None
    )
    x, y, label_y = _encodings(view, axes)
    base = alt.Chart().encode(x=x, y=y, color=color)
    lines = base.transform_filter("datum.part == 'point' || datum.part == 'exit'").mark_line(
        strokeWidth=2.5, clip=True
    )
    heads = base.transform_filter("datum.part == 'head'")
    ends = base.transform_filter("datum.part == 'end'")
    labels = heads.mark_text(
        align="left",
        dx=9,
        fontSize=FONT_SIZE,
        limit=alt.ExprRef(_LABEL_WIDTH),
        text=alt.ExprRef("width < 400 ? datum.racer : datum.label"),
    ).encode(x=alt.datum(axes.x[1]), y=label_y)
    layers = [
        *_floor_layers(base, axes),
        lines.encode(strokeDash=dash),
        _hover_layer(base),
        heads.mark_point(filled=True, size=70, opacity=1, clip=True),
        labels,
        ends.mark_text(
            align="left", baseline="top", dx=4, dy=4, fontSize=FONT_SIZE, limit=210
        ).encode(text="label:N"),
    ]
    return alt.LayerChart(
        layer=layers,
        height=HEIGHT,
        width="container",
        description=_description(names, view, axes),
        # The height is the plot's alone, so that `Axes.pixel` is right.
        autosize=alt.AutoSizeParams(type="fit-x", contains="padding"),
    )


_LABEL_WIDTH = "width < 400 ? 76 : 140"


def _encodings(view: LossView, axes: Axes) -> tuple[alt.X, alt.Y, alt.Y]:
    text: dict[str, Any] = {
        "labelFontSize": FONT_SIZE,
        "titleFontSize": FONT_SIZE,
        "labelFlush": False,
    }
    x_title = "seconds of training" if view.x == "seconds" else view.x
    # The right margin of the plot belongs to the labels at the ends of the lines.
    room: Any = [0, alt.ExprRef(f"width - ({_LABEL_WIDTH}) - 12")]
    x = alt.X(
        "x:Q",
        scale=alt.Scale(domain=list(axes.x), range=room, nice=False),
        axis=alt.Axis(title=x_title, tickCount=8, grid=False, **text),
    )
    ticks: dict[str, Any] = {"format": "~g", "values": _decades(axes.y)} if axes.log else {}
    kind: dict[str, Any] = {"type": "log"} if axes.log else {"type": "linear", "zero": False}
    scale = alt.Scale(domain=list(axes.y), nice=False, **kind)
    axis = alt.Axis(title=axes.y_title, minExtent=58, **text, **ticks)
    y, label_y = (alt.Y(name, scale=scale, axis=axis) for name in ("y:Q", "label_y:Q"))
    return x, y, label_y


def _decades(domain: Domain) -> list[float]:
    low, high = (round(math.log10(end)) for end in domain)
    return [float(f"1e{n}") for n in range(low, high + 1, max(1, (high - low) // 6))]


def _hover_layer(base: alt.Chart) -> alt.Chart:
    """Points that appear under the pointer, with the exact values."""
    hover = alt.selection_point(
        name="hover", nearest=True, on="pointerover", clear="pointerout", empty=False
    )
    layer: alt.Chart = (
        base.transform_filter("datum.part == 'point'")
        .mark_point(filled=True, size=90, clip=True)
        .encode(
            opacity=alt.condition(hover, alt.value(1), alt.value(0)),
            tooltip=[
                alt.Tooltip("label:N", title="run"),
                alt.Tooltip("step:Q", title="step", format=","),
                alt.Tooltip("epochs:Q", title="epochs", format=".3f"),
                alt.Tooltip("loss:Q", title="loss (½ MSE)", format=".6f"),
                alt.Tooltip("y:Q", title="plotted", format=".4~g"),
                alt.Tooltip("seconds:Q", title="training seconds", format=".3f"),
            ],
        )
        .add_params(hover)
    )
    return layer


def _floor_layers(base: alt.Chart, axes: Axes) -> list[alt.Chart]:
    """The exact minimum as a rule, where its row is among the data."""
    floors = base.transform_filter("datum.part == 'floor'")
    return [
        floors.mark_rule(strokeDash=[2, 3], strokeWidth=1.5).encode(
            x=alt.datum(axes.x[0]), x2=alt.datum(axes.x[1]), color=alt.value("#808080")
        ),
        floors.mark_text(align="left", baseline="top", dx=6, dy=4, fontSize=FONT_SIZE).encode(
            text="label:N", color=alt.value("#808080")
        ),
    ]


def _description(names: Sequence[str], view: LossView, axes: Axes) -> str:
    scale = "logarithmic" if axes.log else "linear"
    return (
        f"Line chart: {axes.y_title} over {view.x} on a {scale} axis for "
        f"{len(names)} optimiser{'s' if len(names) > 1 else ''}: {', '.join(names)}."
    )
