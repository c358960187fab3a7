"""Figures of scaling: their rows against what they show, and that they can be drawn."""

import pytest

from labcore.hardware import Device
from labcore.pictures import svg
from labcore.reported import FASHION_MNIST_RUNS
from labcore.scaling import curve, sweet_spot
from labcore.scaling_charts import (
    CURVES,
    PARTS,
    REPORTED,
    reported_columns,
    reported_spec,
    sharing_columns,
    sharing_spec,
    speed_columns,
    speed_spec,
    step_columns,
    step_spec,
)
from labcore.scaling_config import ScalingConfig
from labcore.uneven import best_sharing, equal_sharing

CONFIG = ScalingConfig(devices=12, per_machine=16)
POINTS = curve(CONFIG)
DEVICES = [Device(0.001, 1000), Device(0.0, 100)]
SHARINGS = {"equal": equal_sharing(100, DEVICES), "best": best_sharing(100, DEVICES)}


def rows(columns):
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def test_every_reported_run_has_its_row():
    drawn = rows(reported_columns(FASHION_MNIST_RUNS))
    assert [(row["accuracy"], row["seconds"]) for row in drawn] == [
        (run.accuracy, run.seconds_per_epoch) for run in FASHION_MNIST_RUNS
    ]
    assert len({row["run"] for row in drawn}) == len(FASHION_MNIST_RUNS)


@pytest.mark.parametrize("field", REPORTED)
def test_the_reported_table_is_labelled_as_reported(field):
    drawn = svg(reported_spec(field, 10), reported_columns(FASHION_MNIST_RUNS))
    assert REPORTED[field].endswith("reported")
    assert REPORTED[field] in drawn
    assert "batch 3,072" in drawn


def test_the_parts_of_a_step_add_up():
    totals = {}
    for row in rows(step_columns(POINTS, 12)):
        totals.setdefault((row["devices"], row["total"]), []).append(row["seconds"])
    assert [devices for devices, _ in totals] == [1, 2, 4, 8, 12, 16, 32, 64, 128, 256]
    assert all(sum(parts) == pytest.approx(total) for (_, total), parts in totals.items())


def test_only_the_chosen_number_is_marked():
    chosen = {row["devices"] for row in rows(step_columns(POINTS, 12)) if row["chosen"]}
    assert chosen == {12}


def test_a_step_can_be_drawn():
    drawn = svg(step_spec(), step_columns(POINTS, 12))
    assert all(part in drawn for part in PARTS)
    assert "modelled step" in drawn


def test_curves_hold_the_points():
    drawn = rows(speed_columns(POINTS, 12))
    modelled = [r for r in drawn if r["part"] == "curve" and r["curve"] == "modelled"]
    assert [r["speed_up"] for r in modelled] == [point.speed_up for point in POINTS]
    ideal = [r for r in drawn if r["curve"] == "ideal"]
    assert all(r["speed_up"] == r["devices"] and r["efficiency"] == 1 for r in ideal)
    assert {r["curve"] for r in drawn} == set(CURVES)


def test_the_sweet_spot_is_where_the_curve_is_highest():
    [sweet] = [row for row in rows(speed_columns(POINTS, 12)) if row["part"] == "sweet"]
    assert sweet["devices"] == sweet_spot(POINTS).step.devices
    assert sweet["speed_up"] == max(point.speed_up for point in POINTS)


@pytest.mark.parametrize("field", ["speed_up", "efficiency"])
def test_the_curves_can_be_drawn(field):
    drawn = svg(speed_spec(field, 256), speed_columns(POINTS, 12))
    assert all(curve in drawn for curve in CURVES)
    assert "most images per second: " in drawn


def test_working_and_waiting_end_with_the_last_device():
    ends = {}
    for row in rows(sharing_columns(SHARINGS, ("GPU", "CPU"))):
        key = row["sharing"], row["device"]
        ends[key] = ends.get(key, 0.0) + row["seconds"]
    for (sharing, _), end in ends.items():
        assert end == pytest.approx(SHARINGS[sharing].last)
    assert len(ends) == 4


def test_shares_can_be_drawn():
    drawn = svg(sharing_spec(4, 0.5, "modelled"), sharing_columns(SHARINGS, ("GPU", "CPU")))
    assert "50 images, 500 ms" in drawn
    assert "best: CPU" in drawn
    assert "modelled (s)" in drawn


def filled(spec):
    """How solid the bars of a chart are."""
    [bars] = [layer for layer in spec["layer"] if layer["mark"]["type"] == "bar"]
    return bars["mark"].get("fillOpacity", 1.0), "strokeDash" in bars["mark"]


def test_reported_modelled_and_measured_bars_look_different():
    marks = [
        filled(reported_spec("accuracy", 10)),
        filled(sharing_spec(4, 0.5, "modelled")),
        filled(sharing_spec(4, 0.5, "measured here")),
    ]
    assert len(set(marks)) == 3
    assert marks[-1] == (1.0, False)
