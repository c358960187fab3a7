"""Charts of what a mistake does: against the points that they draw."""

import math

import pytest

from labcore.events import Diverged
from labcore.pictures import svg
from labcore.step_charts import (
    DIFFERENCE,
    DRIFT,
    LONGEST,
    MOST_DRIFT,
    ONE,
    RATIOS,
    REPLICAS,
    SHORTEST,
    ZERO,
    drift_columns,
    drift_spec,
    loss_columns,
    loss_spec,
    ratio_columns,
    ratio_spec,
)
from labcore.step_curves import CurvePoint, RunDiverged

POINTS = [
    CurvePoint(1, 2.3, 2.3, 0.0, 1e-8, (1.0, 0.5)),
    CurvePoint(2, 40.0, 2.2, 1e6, 2.0, (1e9, 1e-9)),
    CurvePoint(3, None, 2.1, None, None, None),
]
ENDS = [RunDiverged("replicas", Diverged(3, 0.03, 0.1, None, 1e5))]


def values(columns, run):
    rows = zip(columns["run"], columns["step"], columns["value"], strict=True)
    return {step: value for name, step, value in rows if name == run}


def test_losses_are_the_points():
    columns = loss_columns(POINTS, [])
    assert values(columns, ONE) == {1: 2.3, 2: 2.2, 3: 2.1}
    assert values(columns, REPLICAS) == {1: 2.3, 2: 40.0}


def test_a_diverged_run_says_at_which_step():
    assert "✕ step 3" in svg(loss_spec(), loss_columns(POINTS, ENDS))
    assert "✕" not in svg(loss_spec(), loss_columns(POINTS, []))


def test_no_drift_lies_on_the_foot_of_the_axis_and_too_much_at_its_top():
    assert values(drift_columns(POINTS), DRIFT) == {1: ZERO, 2: MOST_DRIFT}
    assert values(drift_columns(POINTS), DIFFERENCE) == {1: 1e-8, 2: 2.0}


def test_the_foot_of_the_drift_axis_is_called_0():
    drawn = svg(drift_spec(), drift_columns(POINTS))
    assert ">0</text>" in drawn
    assert ">1e-9</text>" not in drawn


def test_step_lengths_are_the_longest_and_the_shortest_within_the_axis():
    assert values(ratio_columns(POINTS), LONGEST) == {1: 1.0, 2: RATIOS[1]}
    assert values(ratio_columns(POINTS), SHORTEST) == {1: 0.5, 2: RATIOS[0]}


@pytest.mark.parametrize(
    ("spec", "columns"),
    [
        (loss_spec(), loss_columns(POINTS, ENDS)),
        (drift_spec(), drift_columns(POINTS)),
        (ratio_spec(), ratio_columns(POINTS)),
    ],
)
def test_every_curve_is_drawn_and_described(spec, columns):
    drawn = svg(spec, columns)
    assert drawn.count("mark-line") >= 1
    assert all(name in drawn for name in set(columns["run"]))
    assert spec["description"]


def test_axes_do_not_follow_the_rows():
    assert math.isfinite(loss_spec()["layer"][0]["encoding"]["y"]["scale"]["domain"][1])
    for spec in (loss_spec(), drift_spec(), ratio_spec()):
        assert spec["layer"][-1]["encoding"]["y"]["scale"]["domain"]
