"""Figures of sweeps and fair races: final loss over learning rate, as lines or as a grid; bands.

As in `charts`, a specification is built once and drawn again and again with new rows.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import altair as alt

from labcore.charts import DASHES, FONT_SIZE, HEIGHT, Columns, Domain, specification
from labcore.config import ConfigError, format_value
from labcore.events import DivergedAt, Reached
from labcore.fair_race import FairRaceHistory
from labcore.sweep import SweepConfig, SweepHistory

HIGHEST = 10.0
"""The top of the loss axis; what lies above it is of no use to anybody."""
PICK = "pick"
"""The name of the selection that a click on a run makes, where a page listens to it."""
CELL_FOR_STEP = 44
"""Pixels that a cell of a grid needs to say at which step its run diverged."""

LEGEND_COLUMNS = "width < 300 ? 2 : width < 600 ? 3 : 0"
"""Of a legend over a plot of some pixels; 0 is one row."""
SWEEP_HEIGHT, GRID_HEIGHT = HEIGHT + 40, HEIGHT + 60
"""In pixels, with legend and axes."""

_TEXT: dict[str, Any] = {
    "labelFontSize": FONT_SIZE,
    "titleFontSize": FONT_SIZE,
    "labelFlush": False,
}
SWEEP_COLUMNS = ("part", "racer", "piece", "lr", "y", "loss", "label")
LABEL_SHARE, LABEL_RATIO = 0.075, 6.0
"""What a label at the foot needs: of the axis up, and as a ratio of learning rates across."""
GRID_COLUMNS = ("part", "racer", "lr", "value", "y", "loss", "label")
BAND_COLUMNS = ("racer", "epochs", "step", "low", "y", "high", "loss", "label")


@dataclass(frozen=True)
class LossAxis:
    """A logarithmic loss axis: its ends, and whether the exact minimum is subtracted."""

    low: float
    high: float
    gap: bool

    @property
    def title(self) -> str:
        """What the axis shows."""
        return "final loss − exact minimum" if self.gap else "final loss (½ MSE)"

    def place(self, loss: float, floor: float | None) -> float:
        """Where a loss is drawn: within the axis."""
        value = loss - floor if self.gap and floor is not None else loss
        return min(max(value, self.low), self.high)


def loss_axis(losses: Iterable[float], floor: float | None) -> LossAxis:
    """From the smallest loss, rounded down to a decade, to `HIGHEST`."""
    values = [loss - (floor or 0.0) for loss in losses]
    smallest = min((value for value in values if value > 0), default=1e-4)
    return LossAxis(
        10.0 ** max(-12, math.floor(math.log10(smallest / 3))), HIGHEST, floor is not None
    )


def sweep_axis(history: SweepHistory) -> LossAxis:
    """The loss axis of a sweep."""
    outcomes = [cell.outcome for cell in history.cells.values()]
    return loss_axis((o.loss for o in outcomes if isinstance(o, Reached)), history.floor)


@dataclass(frozen=True)
class Mark:
    """A learning rate to be marked on a sweep.

    Attributes:
        racer: of the sweep, on whose line it is.
        lr: the rate.
        label: what it is.
    """

    racer: str
    lr: float
    label: str


def sweep_columns(history: SweepHistory, axis: LossAxis, marks: Sequence[Mark] = ()) -> Columns:
    """The rows of a sweep's lines, column by column: those of `SWEEP_COLUMNS`.

    `part` is "point" for a rate that reached a loss, "best" again for the best of each racer, which
    has its "label" at the foot of the chart, "diverged" for a mark at the top edge, and "limit" for
    the largest stable rate of full-batch descent. `piece` changes where a line is interrupted.
    "mark" is one of `marks`, on the line between two rates or, where there is none, at the top.
    """
    rows: list[dict[str, Any]] = []
    for place, racer in enumerate(history.config.racers):
        piece = 0
        cells = [cell for cell in history.cells.values() if cell.racer == racer.name]
        best = history.best(racer.name)
        for cell in sorted(cells, key=lambda each: each.lr):
            row: dict[str, Any] = {"racer": racer.name, "lr": cell.lr, "label": f"lr {cell.lr:g}"}
            if isinstance(cell.outcome, DivergedAt):
                piece += 1
                # Marks of several racers one under the other, as they share their rates.
                y = axis.high * (axis.low / axis.high) ** (0.05 * place)
                label = f"✕ step {cell.outcome.step:,}"
                rows.append(row | {"part": "diverged", "y": y, "label": label})
                continue
            y = axis.place(cell.outcome.loss, history.floor)
            row |= {"piece": f"{racer.name} {piece}", "loss": cell.outcome.loss, "y": y}
            rows += [row | {"part": part} for part in ("point", "best")[: 1 + (cell == best)]]
        limit = history.limit(racer.name)
        if limit is not None and history.config.lowest <= limit <= history.config.highest:
            label = f"full-batch limit {limit:.4g}"
            rows.append({"part": "limit", "racer": racer.name, "lr": limit, "label": label})
    for mark in marks:
        if history.config.lowest <= mark.lr <= history.config.highest:
            line = [row for row in rows if row["racer"] == mark.racer and row["part"] == "point"]
            y = _on_line(line, mark.lr, axis)
            row = {"part": "mark", "racer": mark.racer, "lr": mark.lr, "y": y, "label": mark.label}
            rows.append(row)
    rows += _labels([row for row in rows if row["part"] == "best"], axis)
    return _columns(SWEEP_COLUMNS, rows)


def _on_line(line: list[dict[str, Any]], lr: float, axis: LossAxis) -> float:
    """Where a line of ascending rates, drawn straight from point to point, is at a rate."""
    after = next((i for i, row in enumerate(line) if row["lr"] >= lr), None)
    if after is None or (after == 0 and line[0]["lr"] > lr):
        return axis.high
    right, left = line[after], line[max(after - 1, 0)]
    if right["lr"] == lr:
        return float(right["y"])
    if right["piece"] != left["piece"]:
        return axis.high
    share = math.log(lr / left["lr"]) / math.log(right["lr"] / left["lr"])
    return float(left["y"] * (right["y"] / left["y"]) ** share)


def _labels(best: list[dict[str, Any]], axis: LossAxis) -> list[dict[str, Any]]:
    """A label for each best point, at the foot, on the lowest line where it has room."""
    ends: list[float] = []
    labels = []
    for row in sorted(best, key=lambda each: each["lr"]):
        line = next((i for i, end in enumerate(ends) if row["lr"] > LABEL_RATIO * end), len(ends))
        ends[line : line + 1] = [row["lr"]]
        y = axis.low * (axis.high / axis.low) ** (LABEL_SHARE * (line + 0.2))
        labels.append(row | {"part": "label", "y": y})
    return labels


def grid_columns(history: SweepHistory, racer: str, axis: LossAxis) -> Columns:
    """The rows of one racer's grid, column by column: those of `GRID_COLUMNS`.

    `part` is "cell", "best" for the best one again, or "diverged"; `lr` and `value` are texts.
    """
    best = history.best(racer)
    rows = []
    for cell in history.cells.values():
        if cell.racer != racer or cell.value is None:
            continue
        row: dict[str, Any] = {"racer": racer, "lr": format_value(cell.lr)}
        row["value"] = format_value(cell.value)
        if isinstance(cell.outcome, DivergedAt):
            rows.append(row | {"part": "diverged", "label": f"✕ {cell.outcome.step:,}"})
            continue
        y = axis.place(cell.outcome.loss, history.floor)
        row |= {"loss": cell.outcome.loss, "y": y, "label": f"{y:.2g}"}
        rows += [row | {"part": part} for part in ("cell", "best")[: 1 + (cell == best)]]
    return _columns(GRID_COLUMNS, rows)


def band_axis(history: FairRaceHistory) -> LossAxis:
    """The loss axis of a fair race."""
    lows = (point.low for band in history.bands.values() for point in band)
    return loss_axis(lows, history.floor)


def band_columns(history: FairRaceHistory, axis: LossAxis) -> Columns:
    """The rows of a fair race, a row per kept point: those of `BAND_COLUMNS`."""
    rows = []
    for name, band in history.bands.items():
        choice = history.chosen.get(name)
        label = f"{name} lr {choice.lr:g}" if choice and choice.lr is not None else name
        for point in band:
            ends = {"low": point.low, "y": point.loss, "high": point.high}
            rows.append(
                {name: axis.place(loss, history.floor) for name, loss in ends.items()}
                | {"racer": name, "label": label, "loss": point.loss}
                | {"step": point.step, "epochs": point.epochs}
            )
    return _columns(BAND_COLUMNS, rows)


def _columns(names: tuple[str, ...], rows: list[dict[str, Any]]) -> Columns:
    return {name: [row.get(name) for row in rows] for name in names}


@lru_cache(maxsize=64)
def sweep_spec(names: tuple[str, ...], lrs: Domain, axis: LossAxis) -> dict[str, Any]:
    """Final loss over learning rate, both logarithmic, one line per racer.

    Args:
        names: of the racers.
        lrs: the lowest and the highest rate.
        axis: of the loss.
    """
    x = alt.X(
        "lr:Q",
        title="learning rate",
        scale=alt.Scale(type="log", domain=list(lrs), nice=False),
        axis=alt.Axis(format="~g", tickCount=6, grid=False, **_TEXT),
    )
    base = alt.Chart().encode(x=x, y=_y("y:Q", axis, axis.title), color=_color(names))
    tooltip = [
        alt.Tooltip("racer:N", title="run"),
        alt.Tooltip("lr:Q", title="learning rate", format="~g"),
        alt.Tooltip("loss:Q", title="final loss (½ MSE)", format=".6~g"),
        alt.Tooltip("y:Q", title="plotted", format=".4~g"),
    ]
    points = base.transform_filter("datum.part == 'point'").encode(tooltip=tooltip)
    best = base.transform_filter("datum.part == 'best'").encode(tooltip=tooltip)
    labels = base.transform_filter("datum.part == 'label'")
    diverged = base.transform_filter("datum.part == 'diverged'").encode(
        tooltip=["racer:N", alt.Tooltip("lr:Q", format="~g"), alt.Tooltip("label:N", title="end")]
    )
    limits = base.transform_filter("datum.part == 'limit'").encode(
        y=alt.datum(axis.low), y2=alt.datum(axis.high), tooltip=["racer:N", "label:N"]
    )
    marks = base.transform_filter("datum.part == 'mark'").encode(
        tooltip=[alt.Tooltip("label:N", title="racer"), alt.Tooltip("lr:Q", format="~g")]
    )
    layers = [
        limits.mark_rule(strokeDash=[2, 3], opacity=0.6),
        points.mark_line(strokeWidth=2, clip=True).encode(
            detail="piece:N", strokeDash=_dash(names)
        ),
        points.mark_point(filled=True, size=30, opacity=1, clip=True),
        # Unseen and larger: easy to hit.
        points.mark_point(filled=True, size=300, opacity=0, clip=True).add_params(
            alt.selection_point(name=PICK, fields=["racer", "lr"])
        ),
        best.mark_point(filled=True, size=130, opacity=1, stroke="white", clip=True),
        labels.mark_text(baseline="bottom", fontSize=FONT_SIZE).encode(text="label:N"),
        marks.mark_point(shape="diamond", filled=False, size=220, strokeWidth=2.5, opacity=1),
        diverged.mark_point(shape="cross", angle=45, filled=True, size=70, opacity=1),
    ]
    text = f"{axis.title} over the learning rate for {', '.join(names)}; ✕: the run diverged."
    return _layered(layers, text, SWEEP_HEIGHT)


@lru_cache(maxsize=64)
def grid_spec(
    lrs: tuple[str, ...], values: tuple[str, ...], title: str, axis: LossAxis
) -> dict[str, Any]:
    """A grid of final losses as shades, logarithmic, diverged cells crossed with their step.

    Args:
        lrs: the learning rates as `grid_columns` spells them, ascending.
        values: the values of the second setting in the same way.
        title: what the second setting is called.
        axis: of the loss; shades span it.
    """
    base = alt.Chart().encode(
        x=alt.X(
            "lr:N",
            sort=list(lrs),
            scale=alt.Scale(domain=list(lrs)),
            title="learning rate",
            axis=alt.Axis(labelAngle=-40, labelOverlap=True, **_TEXT),
        ),
        y=alt.Y(
            "value:N",
            sort=list(reversed(values)),
            scale=alt.Scale(domain=list(reversed(values))),
            title=title,
            axis=alt.Axis(labelOverlap=False, **_TEXT),
        ),
        tooltip=[
            alt.Tooltip("lr:N", title="learning rate"),
            alt.Tooltip("value:N", title=title),
            alt.Tooltip("loss:Q", title="final loss (½ MSE)", format=".6~g"),
            alt.Tooltip("label:N", title=axis.title),
        ],
    )
    shade = alt.Color(
        "y:Q",
        scale=alt.Scale(type="log", domain=[axis.low, axis.high], scheme="viridis", reverse=True),
        legend=alt.Legend(
            title=axis.title,
            orient="top",
            gradientLength=260,
            format="~g",
            titleLimit=260,
            labelFontSize=FONT_SIZE,
            titleFontSize=FONT_SIZE,
        ),
    )
    diverged = base.transform_filter("datum.part == 'diverged'")
    room = f"width > {CELL_FOR_STEP * len(lrs)} ? datum.label : '✕'"
    layers = [
        base.transform_filter("datum.part == 'cell'")
        .mark_rect()
        .encode(color=shade)
        .add_params(alt.selection_point(name=PICK, fields=["lr", "value"])),
        diverged.mark_rect(color="#808080", opacity=0.15),
        diverged.mark_text(fontSize=FONT_SIZE, color="#D55E00", text=alt.ExprRef(room)),
        base.transform_filter("datum.part == 'best'").mark_rect(
            filled=False, stroke="#D55E00", strokeWidth=3
        ),
    ]
    text = f"{axis.title} over learning rate and {title} as a grid; ✕: the run diverged."
    return _layered(layers, text, GRID_HEIGHT)


@lru_cache(maxsize=64)
def band_spec(names: tuple[str, ...], epochs: int, axis: LossAxis) -> dict[str, Any]:
    """A fair race: the median over seeds as a line, from the smallest to the largest as a band."""
    x = alt.X(
        "epochs:Q",
        title="epochs",
        scale=alt.Scale(domain=[0, epochs], nice=False),
        axis=alt.Axis(tickMinStep=1, grid=False, **_TEXT),
    )
    title = axis.title.removeprefix("final ")
    base = alt.Chart().encode(x=x, y=_y("y:Q", axis, title), color=_color(names))
    tooltip = [
        alt.Tooltip("label:N", title="run"),
        alt.Tooltip("step:Q", format=","),
        alt.Tooltip("loss:Q", title="median loss (½ MSE)", format=".6f"),
        alt.Tooltip("low:Q", title="lowest, plotted", format=".4~g"),
        alt.Tooltip("high:Q", title="highest, plotted", format=".4~g"),
    ]
    layers = [
        base.mark_area(opacity=0.2, clip=True).encode(y=_y("low:Q", axis, title), y2="high:Q"),
        base.mark_line(strokeWidth=2.5, clip=True).encode(strokeDash=_dash(names)),
        base.mark_point(filled=True, size=60, opacity=0, clip=True).encode(tooltip=tooltip),
    ]
    text = f"{title} over epochs, median and range over seeds, for {', '.join(names)}."
    return _layered(layers, text, HEIGHT)


def _y(field: str, axis: LossAxis, title: str) -> alt.Y:
    first, last = round(math.log10(axis.low)), round(math.log10(axis.high))
    ticks = [float(f"1e{n}") for n in range(first, last + 1, max(1, (last - first) // 6))]
    scale = alt.Scale(type="log", domain=[axis.low, axis.high], nice=False)
    return alt.Y(field, title=title, scale=scale, axis=alt.Axis(format="~g", values=ticks, **_TEXT))


def _color(names: tuple[str, ...]) -> alt.Color:
    legend = alt.Legend(
        orient="top",
        title=None,
        labelFontSize=FONT_SIZE,
        labelLimit=200,
        symbolType="stroke",
        symbolSize=900,
        symbolOpacity=1,
        columns=alt.ExprRef(LEGEND_COLUMNS),
    )
    return alt.Color("racer:N", scale=alt.Scale(domain=list(names)), legend=legend)


def _dash(names: tuple[str, ...]) -> alt.StrokeDash:
    scale = alt.Scale(domain=list(names), range=list(DASHES[: len(names)]))
    return alt.StrokeDash("racer:N", scale=scale, legend=None)


def _layered(layers: list[Any], description: str, height: int) -> dict[str, Any]:
    chart = alt.LayerChart(layer=layers, width="container", height=height, description=description)
    return specification(chart)


def check_drawable(config: SweepConfig) -> None:
    """Raise `ConfigError` where a sweep has more grids than one chart shows."""
    if config.values and len(config.racers) > 1:
        names = ", ".join(racer.name for racer in config.racers)
        raise ConfigError(
            f"A chart shows the grid of one optimiser; received {len(config.racers)}: {names}. "
            "Name one."
        )


def drawn(history: SweepHistory, marks: Sequence[Mark] = ()) -> tuple[dict[str, Any], Columns]:
    """A sweep's chart, or the grid of its first racer: specification and rows.

    `marks` are drawn on a chart; a grid has none.
    """
    config, axis = history.config, sweep_axis(history)
    lrs = tuple(format_value(lr) for lr in config.lrs)
    names = tuple(racer.name for racer in config.racers)
    if config.values:
        values = tuple(format_value(value) for value in config.values)
        spec = grid_spec(lrs, values, config.against.replace("_", " "), axis)
        return spec, grid_columns(history, names[0], axis)
    spec = sweep_spec(names, (config.lowest, config.highest), axis)
    return spec, sweep_columns(history, axis, marks)


def drawn_race(history: FairRaceHistory) -> tuple[dict[str, Any], Columns]:
    """A fair race's chart: specification and rows."""
    names, axis = tuple(history.bands), band_axis(history)
    return band_spec(names, history.config.epochs, axis), band_columns(history, axis)
