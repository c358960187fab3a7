"""Charts of sweeps and fair races: rows that say what was measured, valid specifications."""

from dataclasses import replace

import altair as alt
import pytest
import torch

from labcore import sweep_charts as charts
from labcore.config import ConfigError
from labcore.events import DivergedAt, Reached
from labcore.fair_race import FairRaceConfig, FairRaceHistory, fair_race
from labcore.optimizers import SGD, Adam, Momentum
from labcore.pictures import FORMATS, check_chart_file, save
from labcore.race import Racer
from labcore.sweep import SweepConfig, SweepHistory, sweep

RACERS = (Racer(SGD()), Racer(Momentum(momentum=0.8)), Racer(Adam()))


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def followed(events, history):
    for event in events:
        history.add(event)
    return history


def swept(**settings) -> SweepHistory:
    config = SweepConfig(**{"racers": RACERS, "rates": 9, "highest": 2.0} | settings)
    return followed(sweep(config), SweepHistory(config))


@pytest.fixture(scope="module")
def lines() -> SweepHistory:
    return swept()


@pytest.fixture(scope="module")
def grid() -> SweepHistory:
    return swept(racers=RACERS[1:2], against="momentum", values=(0.0, 0.5, 0.9))


@pytest.fixture(scope="module")
def fair() -> FairRaceHistory:
    config = FairRaceConfig(racers=RACERS, rates=5, seeds=3, epochs=1)
    return followed(fair_race(config), FairRaceHistory(config))


def rows(columns):
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def drawn(history):
    make = charts.drawn if isinstance(history, SweepHistory) else charts.drawn_race
    spec, columns = make(history)
    return spec, rows(columns)


@pytest.mark.parametrize("name", ["lines", "grid", "fair"])
def test_the_specification_is_valid_vega_lite_without_data(name, request):
    spec, table = drawn(request.getfixturevalue(name))
    assert "datasets" not in spec
    assert not any("data" in layer for layer in spec["layer"])
    alt.LayerChart.from_dict(spec | {"data": {"values": table}}, validate=True)


def test_every_reached_cell_is_a_point_at_its_gap(lines):
    _, table = drawn(lines)
    reached = {k: c.outcome.loss for k, c in lines.cells.items() if isinstance(c.outcome, Reached)}
    points = {(row["racer"], None, row["lr"]): row for row in table if row["part"] == "point"}
    assert {key: row["loss"] for key, row in points.items()} == reached
    for row in points.values():
        assert row["y"] == pytest.approx(min(row["loss"] - lines.floor, charts.HIGHEST))


def test_every_diverged_cell_is_marked_near_the_top_with_its_step(lines):
    _, table = drawn(lines)
    axis = charts.sweep_axis(lines)
    crosses = {(row["racer"], None, row["lr"]): row for row in table if row["part"] == "diverged"}
    diverged = {k: c.outcome for k, c in lines.cells.items() if isinstance(c.outcome, DivergedAt)}
    assert crosses.keys() == diverged.keys() != set()
    for key, row in crosses.items():
        assert row["label"] == f"✕ step {diverged[key].step:,}"
        assert axis.high / 100 < row["y"] <= axis.high


def test_line_is_interrupted_where_a_rate_diverged(lines):
    changed = SweepHistory(lines.config)
    for number, cell in enumerate(c for c in lines.cells.values() if c.racer == "Adam"):
        changed.add(replace(cell, outcome=DivergedAt(9)) if number == 4 else cell)
    pieces = [r["piece"] for r in drawn(changed)[1] if r["part"] == "point"]
    assert pieces == ["Adam 0"] * 4 + ["Adam 1"] * 4


def test_best_of_each_racer_is_marked_and_labelled(lines):
    _, table = drawn(lines)
    best = {row["racer"]: row["lr"] for row in table if row["part"] == "best"}
    assert best == {racer.name: lines.best(racer.name).lr for racer in lines.config.racers}
    labels = {row["racer"]: row["label"] for row in table if row["part"] == "label"}
    assert labels == {name: f"lr {lr:g}" for name, lr in best.items()}


def test_limit_of_full_batch_descent_is_drawn_where_it_is_known(lines):
    limits = {row["racer"]: row["lr"] for row in drawn(lines)[1] if row["part"] == "limit"}
    assert limits == {
        "SGD": pytest.approx(0.4765, abs=1e-4), "Momentum": pytest.approx(1.8 * 0.4765, abs=1e-3)
    }  # fmt: skip


def test_sweep_in_which_all_diverged_is_drawn_as_crosses():
    history = swept(racers=RACERS[:1], lowest=1.5)
    spec, columns = charts.drawn(history)
    assert set(columns["part"]) == {"diverged"}
    assert FORMATS[".svg"](spec, columns)


def test_grid_has_every_cell_once(grid):
    _, table = drawn(grid)
    cells = [(row["value"], row["lr"]) for row in table if row["part"] != "best"]
    assert len(cells) == len(set(cells)) == len(grid.cells) == 27
    crossed = [row for row in table if row["part"] == "diverged"]
    assert crossed
    assert all(row["label"].startswith("✕ ") for row in crossed)


def test_chart_of_several_grids_is_refused():
    with pytest.raises(ConfigError, match="the grid of one optimiser; received 2"):
        charts.check_drawable(SweepConfig(against="momentum", racers=RACERS[:1] and (
            Racer(Momentum()), Racer(Momentum(momentum=0.5)))))  # fmt: skip


def test_band_is_around_its_median(fair):
    _, table = drawn(fair)
    assert len(table) == sum(len(list(band)) for band in fair.bands.values())
    assert all(row["low"] <= row["y"] <= row["high"] for row in table)
    assert {row["label"] for row in table} == {
        f"{name} lr {choice.lr:g}" for name, choice in fair.chosen.items()
    }


@pytest.mark.parametrize(
    ("ending", "beginning"), [(".svg", b"<svg"), (".png", b"\x89PNG"), (".html", b"<!DOCTYPE html")]
)
def test_chart_is_saved_in_the_format_of_its_name(ending, beginning, lines, tmp_path):
    file = tmp_path / f"chart{ending}"
    check_chart_file(str(file))
    save(str(file), *charts.drawn(lines))
    assert file.read_bytes().startswith(beginning)


@pytest.mark.parametrize("file", ["chart", "chart.pdf", "/nowhere/at/all/chart.svg"])
def test_chart_that_cannot_be_saved_is_refused_at_once(file):
    with pytest.raises(ConfigError, match="chart must be"):
        check_chart_file(file)


def test_a_racers_own_rate_is_marked_on_its_line(lines):
    found = {cell.lr: cell for cell in lines.cells.values() if cell.racer == "SGD"}
    first, second = sorted(found)[2:4]
    between = (first * second) ** 0.5
    axis = charts.sweep_axis(lines)
    marks = [charts.Mark("SGD", lr, f"at {lr}") for lr in (first, between)]
    [at, halfway] = [
        row for row in rows(charts.sweep_columns(lines, axis, marks)) if row["part"] == "mark"
    ]
    ends = [axis.place(found[lr].outcome.loss, lines.floor) for lr in (first, second)]
    assert at["y"] == pytest.approx(ends[0])
    # Halfway on logarithmic axes is the geometric mean.
    assert halfway["y"] == pytest.approx((ends[0] * ends[1]) ** 0.5)


def test_a_rate_beyond_the_last_that_did_not_diverge_is_marked_at_the_top(lines):
    assert isinstance(lines.cells["SGD", None, 2.0].outcome, DivergedAt)
    axis = charts.sweep_axis(lines)
    columns = charts.sweep_columns(lines, axis, [charts.Mark("SGD", 1.9, "wild")])
    assert [row["y"] for row in rows(columns) if row["part"] == "mark"] == [axis.high]


def test_a_rate_outside_the_sweep_is_not_marked(lines):
    columns = charts.sweep_columns(lines, charts.sweep_axis(lines), [charts.Mark("SGD", 9.0, "")])
    assert "mark" not in columns["part"]


@pytest.mark.parametrize("name", ["lines", "grid"])
def test_a_click_on_a_run_is_a_selection(name, request):
    spec, _ = charts.drawn(request.getfixturevalue(name))
    params = [each["name"] for each in spec.get("params", [])]
    params += [each["name"] for layer in spec["layer"] for each in layer.get("params", [])]
    assert params == [charts.PICK]
