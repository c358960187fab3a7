"""Figures of classification runs: rows from histories, and specifications that draw them.

As in `charts`, a specification is built once and drawn again and again with new rows.
"""

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import altair as alt

from labcore.charts import DASHES, FONT_SIZE, Columns, columns_of, specification
from labcore.classification_history import ClassificationHistory
from labcore.datasets.fashion_mnist import CLASSES
from labcore.replicas import PHASES
from labcore.reported import ReportedRun
from labcore.seeds import SeedsHistory, named, notes_pair

HEIGHT = 260
HERE, NOTES, CHANCE = "measured here", "reported in the notes", "chance"
"""Where a value in a chart comes from."""

Runs = Mapping[str, ClassificationHistory]
"""Runs to compare, by the name that the chart gives them; the first one is the live one."""

_TEXT: dict[str, Any] = {
    "labelFontSize": FONT_SIZE,
    "titleFontSize": FONT_SIZE,
    "labelFlush": False,
}


def loss_columns(runs: Runs) -> Columns:
    """Origin, run, step, epochs and loss: a row per kept minibatch of every run, one for chance."""
    rows: list[tuple[Any, ...]] = [
        (HERE, name, each.step, each.epochs, each.loss)
        for name, history in runs.items()
        for each in history.minibatches
    ]
    rows.append((CHANCE, "chance: ln 10 = 2.30", None, 0, math.log(len(CLASSES))))
    return columns_of(("origin", "run", "step", "epochs", "loss"), rows)


def accuracy_columns(runs: Runs, reported: ReportedRun | None) -> Columns:
    """A row per evaluated epoch of every run, per reported one, and one for chance.

    Columns are origin, run, epochs and accuracy. A reported run without a curve has its final value
    at every epoch: a line to compare with.
    """
    rows = [
        (HERE, name, each.epoch, each.accuracy)
        for name, history in runs.items()
        for each in history.epochs
    ]
    if reported:
        curve = reported.curve or (reported.accuracy,) * 10
        rows += [(NOTES, "notes", epoch, value) for epoch, value in enumerate(curve, start=1)]
    rows.append((CHANCE, "chance: 0.10", 0, 1 / len(CLASSES)))
    return columns_of(("origin", "run", "epochs", "accuracy"), rows)


def seeds_columns(history: SeedsHistory) -> Columns:
    """A row per number of devices and epoch, one per run of the notes, one for chance.

    Columns are origin, run, epochs, runs, accuracy, low and high; the notes' runs and chance have
    no range.
    """
    rows: list[tuple[Any, ...]] = [
        (HERE, named(each.devices), each.epoch, each.runs, each.middle, each.low, each.high)
        for each in history.spreads()
    ]
    rows += [
        (NOTES, named(each.devices), 10, 1, each.accuracy, None, None) for each in notes_pair()
    ]
    rows.append((CHANCE, "chance: 0.10", 0, None, 1 / len(CLASSES), None, None))
    return columns_of(("origin", "run", "epochs", "runs", "accuracy", "low", "high"), rows)


def phase_columns(runs: Runs) -> Columns:
    """A row per run and phase: milliseconds of a mean step."""
    rows = [
        (name, phase, place, 1e3 * total / steps)
        for name, history in runs.items()
        if history.latest and (steps := history.latest.step)
        for place, (phase, total) in enumerate(history.phases.items())
    ]
    return columns_of(("run", "phase", "place", "milliseconds"), rows)


def confusion_columns(confusion: Sequence[Sequence[int]]) -> Columns:
    """A row per pair of true and predicted class: count, and its share of the true class."""
    rows = [
        (CLASSES[true], CLASSES[predicted], count, count / max(1, sum(row)))
        for true, row in enumerate(confusion)
        for predicted, count in enumerate(row)
    ]
    return columns_of(("true", "predicted", "images", "share"), rows)


@lru_cache(maxsize=64)
def loss_spec(names: tuple[str, ...], epochs: int) -> dict[str, Any]:
    """Training loss over epochs: fixed axes, a rule for chance."""
    y = alt.Y(
        "loss:Q",
        title="training loss",
        scale=alt.Scale(domain=[0, 2.8], clamp=True),
        axis=alt.Axis(**_TEXT),
    )
    tooltip = [
        alt.Tooltip("run:N"),
        alt.Tooltip("step:Q", format=","),
        alt.Tooltip("epochs:Q", format=".3f"),
        alt.Tooltip("loss:Q", format=".4f"),
    ]
    base = alt.Chart().encode(x=_epochs(epochs), y=y, tooltip=tooltip)
    here = base.transform_filter(f"datum.origin == '{HERE}'").encode(
        color=_color(names), strokeDash=_dash(names)
    )
    lines = here.mark_line(strokeWidth=1.5, clip=True)
    return _layered([*_chance(base, epochs), lines], f"Training loss of {', '.join(names)}.")


@lru_cache(maxsize=64)
def accuracy_spec(names: tuple[str, ...], epochs: int, reported: bool) -> dict[str, Any]:
    """Test accuracy over epochs: fixed axes, a rule for chance, reported values dotted."""
    tooltip = [
        alt.Tooltip("run:N"),
        alt.Tooltip("origin:N"),
        alt.Tooltip("epochs:Q"),
        alt.Tooltip("accuracy:Q", format=".4f"),
    ]
    base = alt.Chart().encode(x=_epochs(epochs), y=_accuracy("accuracy:Q"), tooltip=tooltip)
    here = base.transform_filter(f"datum.origin == '{HERE}'").encode(
        color=_color(names), strokeDash=_dash(names)
    )
    notes = base.transform_filter(f"datum.origin == '{NOTES}'")
    layers = [
        *_chance(base, epochs),
        notes.mark_line(strokeDash=[2, 4], strokeWidth=2, color="currentColor", clip=True),
        here.mark_line(strokeWidth=2.5, clip=True),
        here.mark_point(filled=True, size=60, opacity=1).encode(strokeDash=alt.value([1, 0])),
    ]
    text = f"Test accuracy after each epoch of {', '.join(names)}"
    return _layered(layers, text + (", with the notes' reported values dotted." * reported or "."))


@lru_cache(maxsize=16)
def seeds_spec(names: tuple[str, ...], epochs: int) -> dict[str, Any]:
    """Test accuracy over epochs, median and range over seeds; what the notes report as diamonds."""
    tooltip = [
        alt.Tooltip("run:N", title="on"),
        alt.Tooltip("origin:N"),
        alt.Tooltip("epochs:Q"),
        alt.Tooltip("runs:Q"),
        alt.Tooltip("accuracy:Q", title="median accuracy", format=".4f"),
        alt.Tooltip("low:Q", title="smallest", format=".4f"),
        alt.Tooltip("high:Q", title="largest", format=".4f"),
    ]
    base = alt.Chart().encode(x=_epochs(epochs), y=_accuracy("accuracy:Q"), tooltip=tooltip)
    here = base.transform_filter(f"datum.origin == '{HERE}'").encode(color=_color(names))
    told = f"datum.origin == '{NOTES}' && datum.epochs <= {epochs}"
    notes = base.transform_filter(told).encode(color=_color(names))
    layers = [
        *_chance(base, epochs),
        here.mark_area(opacity=0.2, clip=True).encode(y=_accuracy("low:Q"), y2="high:Q"),
        here.mark_line(strokeWidth=2.5, clip=True).encode(strokeDash=_dash(names)),
        here.mark_point(filled=True, size=60, opacity=1),
        notes.mark_point(shape="diamond", size=140, strokeWidth=2.5, strokeDash=[3, 2]),
    ]
    text = (
        f"Test accuracy after each epoch on {' and '.join(names)}: median and range over seeds, "
        "measured here, and as diamonds what the notes report."
    )
    return _layered(layers, text)


@lru_cache(maxsize=64)
def phase_spec() -> dict[str, Any]:
    """Where a mean step's time goes, stacked, one bar per run."""
    bars = (
        alt.Chart()
        .mark_bar()
        .encode(
            x=alt.X(
                "sum(milliseconds):Q",
                title="milliseconds per step",
                axis=alt.Axis(tickCount=6, **_TEXT),
            ),
            y=alt.Y("run:N", title=None, sort=None, axis=alt.Axis(labelLimit=260, **_TEXT)),
            color=alt.Color(
                "phase:N",
                scale=alt.Scale(domain=list(PHASES)),
                legend=alt.Legend(orient="top", title=None, labelFontSize=FONT_SIZE, columns=3),
            ),
            order=alt.Order("place:Q"),
            tooltip=["run:N", "phase:N", alt.Tooltip("milliseconds:Q", format=".2f")],
        )
    )
    return _layered([bars], "Time per step by phase, one bar per run.", height=alt.Undefined)


@lru_cache(maxsize=4)
def confusion_spec() -> dict[str, Any]:
    """True against predicted class: shade by share of the true class, counts as numbers."""
    axis = alt.Axis(labelAngle=-40, labelOverlap=False, **_TEXT)
    base = alt.Chart().encode(
        x=alt.X("predicted:N", sort=list(CLASSES), title="predicted", axis=axis),
        y=alt.Y("true:N", sort=list(CLASSES), title="true class", axis=alt.Axis(**_TEXT)),
        tooltip=["true:N", "predicted:N", "images:Q", alt.Tooltip("share:Q", format=".1%")],
    )
    cells = base.mark_rect().encode(
        color=alt.Color("share:Q", scale=alt.Scale(scheme="viridis", domain=[0, 1]), legend=None)
    )
    numbers = (
        base.transform_filter("datum.images > 0")
        .mark_text(fontSize=FONT_SIZE)
        .encode(
            text="images:Q",
            color=alt.condition("datum.share > 0.6", alt.value("black"), alt.value("white")),
        )
    )
    return _layered([cells, numbers], "Confusion matrix: true against predicted class.", 380)


def _color(names: Sequence[str]) -> alt.Color:
    legend = alt.Legend(
        orient="top",
        title=None,
        labelFontSize=FONT_SIZE,
        labelLimit=300,
        symbolType="stroke",
        symbolSize=900,
        symbolOpacity=1,
    )
    return alt.Color(
        "run:N", scale=alt.Scale(domain=list(names)), legend=legend if len(names) > 1 else None
    )


def _dash(names: Sequence[str]) -> alt.StrokeDash:
    scale = alt.Scale(domain=list(names), range=list(DASHES[: len(names)]))
    return alt.StrokeDash("run:N", scale=scale, legend=None)


def _accuracy(field: str) -> alt.Y:
    scale, axis = alt.Scale(domain=[0, 1]), alt.Axis(format=".1f", **_TEXT)
    return alt.Y(field, title="test accuracy", scale=scale, axis=axis)


def _epochs(epochs: int) -> alt.X:
    return alt.X(
        "epochs:Q",
        title="epochs",
        scale=alt.Scale(domain=[0, epochs], nice=False),
        axis=alt.Axis(tickMinStep=1, format="d", grid=False, **_TEXT),
    )


def _chance(base: alt.Chart, epochs: int) -> list[alt.Chart]:
    """What guessing would reach, as a rule with its words."""
    chance = base.transform_filter(f"datum.origin == '{CHANCE}'")
    return [
        chance.mark_rule(strokeDash=[2, 3], color="#808080").encode(x2=alt.datum(epochs)),
        chance.mark_text(
            align="right", baseline="bottom", dy=-3, fontSize=FONT_SIZE, color="#808080"
        ).encode(text="run:N", x=alt.datum(epochs)),
    ]


def _layered(layers: list[Any], description: str, height: Any = HEIGHT) -> dict[str, Any]:
    chart = alt.LayerChart(layer=layers, width="container", height=height, description=description)
    return specification(chart)
