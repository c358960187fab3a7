"""Figures of what a mistake does to the first steps of training: loss, drift, and step length.

As in `charts`, a specification is built once and drawn with rows. A diverged run ends at the top
edge and rescales nobody.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import altair as alt

from labcore.charts import DASHES, FONT_SIZE, Columns, columns_of, specification
from labcore.step_curves import STEPS, CurvePoint, RunDiverged

HEIGHT = 290
MOST_LOSS = 3.0
"""Top of the loss axis: what guessing costs is ln 10 = 2.3."""
ZERO, MOST_DRIFT = 1e-9, 1e3
"""Extent of the drift axis; what is exactly 0 lies on its foot, which says so."""
RATIOS = (1e-4, 1e5)
"""Extent of the axis of step lengths."""
REPLICAS, ONE = "replicas", "one device, no mistake"
DRIFT, DIFFERENCE = "between replicas", "to one device"
LONGEST, SHORTEST = "longest step", "shortest step"

Row = tuple[str, int, float, str]
NAMES = ("run", "step", "value", "words")
"""What a row holds."""


def loss_columns(points: Sequence[CurvePoint], ends: Sequence[RunDiverged]) -> Columns:
    """Run, step, value and words: a row per step of each run, and one for each that diverged."""
    rows: list[Row] = [
        (run, each.step, loss, "")
        for each in points
        for run, loss in ((ONE, each.reference_loss), (REPLICAS, each.loss))
        if loss is not None
    ]
    rows += [
        (REPLICAS if end.run == "replicas" else ONE, end.event.step, MOST_LOSS, _exit(end))
        for end in ends
    ]
    return columns_of(NAMES, rows)


def _exit(end: RunDiverged) -> str:
    return f"✕ step {end.event.step}"


def drift_columns(points: Sequence[CurvePoint]) -> Columns:
    """A row per step: drift between the replicas, and difference to the one device."""
    rows: list[Row] = [
        (run, each.step, min(MOST_DRIFT, max(ZERO, value)), f"{value:.3g}")
        for each in points
        for run, value in ((DRIFT, each.drift), (DIFFERENCE, each.difference))
        if value is not None
    ]
    return columns_of(NAMES, rows)


def ratio_columns(points: Sequence[CurvePoint]) -> Columns:
    """A row per step: longest and shortest step of a replica over that of the one device."""
    low, high = RATIOS
    rows: list[Row] = [
        (run, each.step, min(high, max(low, value)), f"{value:.3g}")
        for each in points
        if each.ratios
        for run, value in ((LONGEST, max(each.ratios)), (SHORTEST, min(each.ratios)))
    ]
    return columns_of(NAMES, rows)


@lru_cache(maxsize=1)
def loss_spec() -> dict[str, Any]:
    """Loss over steps, with the mistake and without."""
    y = alt.Y(
        "value:Q",
        title="loss",
        scale=alt.Scale(domain=[0, MOST_LOSS]),
        axis=alt.Axis(tickCount=6, **_text()),
    )
    base = alt.Chart().encode(x=_steps(), y=y)
    exits = (
        base.transform_filter("datum.words != ''")
        .mark_text(align="left", baseline="top", dx=3, dy=3, fontSize=FONT_SIZE, fontWeight="bold")
        .encode(text="words:N", color=_color((ONE, REPLICAS)))
    )
    words = "Loss over steps of the replicas, and of one device that makes no mistake."
    return _layered([_lines(base, (ONE, REPLICAS)), exits], words)


@lru_cache(maxsize=1)
def drift_spec() -> dict[str, Any]:
    """Drift over steps, logarithmic; exactly 0 lies on the axis' foot."""
    base = alt.Chart().encode(x=_steps(), y=_log((ZERO, MOST_DRIFT), "parameters differ by", "0"))
    words = "Largest difference of a parameter between replicas, and to one device, over steps."
    return _layered([_lines(base, (DIFFERENCE, DRIFT))], words)


@lru_cache(maxsize=1)
def ratio_spec() -> dict[str, Any]:
    """Length of the replicas' steps over that of one device's, logarithmic, with a rule at 1."""
    base = alt.Chart().encode(x=_steps(), y=_log(RATIOS, "step length, one device = 1"))
    right = alt.Chart().mark_rule(strokeDash=[2, 3], color="#808080").encode(y=alt.datum(1))
    words = "Length of the replicas' longest and shortest step over that of one device's."
    return _layered([right, _lines(base, (LONGEST, SHORTEST))], words)


def _text() -> dict[str, Any]:
    return {"labelFontSize": FONT_SIZE, "titleFontSize": FONT_SIZE}


def _steps() -> alt.X:
    return alt.X(
        "step:Q",
        title="step",
        scale=alt.Scale(domain=[1, STEPS], nice=False),
        axis=alt.Axis(format="d", grid=False, values=[1, 10, 20, 30, 40, 50], **_text()),
    )


def _log(domain: tuple[float, float], title: str, foot: str | None = None) -> alt.Y:
    """A logarithmic axis; `foot` is written at its lowest mark."""
    power = "format(datum.value, '~e')"
    label = power if foot is None else f"datum.value <= {domain[0]} ? '{foot}' : {power}"
    marks = [10.0**n for n in range(-9, 5, 3) if domain[0] <= 10.0**n * 1.001 <= domain[1] * 1.01]
    return alt.Y(
        "value:Q",
        title=title,
        scale=alt.Scale(type="log", domain=list(domain), nice=False),
        axis=alt.Axis(labelExpr=label, values=marks, **_text()),
    )


def _color(names: tuple[str, str]) -> alt.Color:
    legend = alt.Legend(
        orient="top",
        title=None,
        labelFontSize=FONT_SIZE,
        labelLimit=300,
        symbolType="stroke",
        symbolSize=600,
    )
    return alt.Color("run:N", scale=alt.Scale(domain=list(names)), legend=legend)


def _lines(base: alt.Chart, names: tuple[str, str]) -> alt.Chart:
    """A line per run; the second one is dashed, so that it is seen where both are the same."""
    scale = alt.Scale(domain=list(names), range=[list(dash) for dash in DASHES[:2]])
    lines: alt.Chart = base.mark_line(strokeWidth=2.5, clip=True).encode(
        color=_color(names),
        strokeDash=alt.StrokeDash("run:N", scale=scale, legend=None),
        tooltip=[
            alt.Tooltip("run:N"),
            alt.Tooltip("step:Q"),
            alt.Tooltip("value:Q", format=".4~g"),
        ],
    )
    return lines


def _layered(layers: list[Any], words: str) -> dict[str, Any]:
    chart = alt.LayerChart(layer=layers, width="container", height=HEIGHT, description=words)
    return specification(chart)
