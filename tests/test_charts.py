"""The race chart: rows that say what labcore computed, axes that stand still, labels that fit."""

import tomllib
from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import altair as alt
import pytest

from labcore.charts import (
    DASHES,
    HEIGHT,
    LABEL_HEIGHT,
    PALETTE,
    Axes,
    LossView,
    loss_axes,
    loss_chart,
    loss_columns,
    loss_spec,
)
from labcore.config import ruled_fields
from labcore.events import Diverged
from labcore.optimizers import OPTIMIZERS, SGD
from labcore.race import MAX_RACERS, RaceConfig, RaceHistory, Racer, race
from labcore.regression import exact_solution
from labcore.reported import AIRFOIL_LOSS_AXIS

RULES = {each.name: rule for each, rule in ruled_fields(LossView)}
VIEWS = [LossView(y=y, x=x) for y, x in product(RULES["y"].options, RULES["x"].options)]


def raced(config: RaceConfig, rounds: int | None = None) -> RaceHistory:
    history = RaceHistory(config)
    for event in race(config):
        history.add(event)
        if rounds is not None and history.taken and history.taken.step == rounds:
            break
    return history


@pytest.fixture(scope="module")
def history() -> RaceHistory:
    racers = [Racer(kind()) for kind in OPTIMIZERS.values()][: MAX_RACERS - 1]
    return raced(
        RaceConfig(
            racers=(*racers, Racer(SGD(lr=1.0), "too fast")),
            engine="from scratch",
            batch_size=100,
        )
    )


def rows(history: RaceHistory, view: LossView) -> list[dict[str, Any]]:
    columns = loss_columns(history, view, loss_axes(history, view))
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


@pytest.mark.parametrize("view", VIEWS, ids=str)
def test_the_specification_is_valid_vega_lite(history: RaceHistory, view: LossView) -> None:
    alt.LayerChart.from_dict(loss_chart(history, view).to_dict(), validate=True)


@pytest.mark.parametrize("view", VIEWS, ids=str)
def test_every_recorded_loss_is_a_row(history: RaceHistory, view: LossView) -> None:
    plotted = [
        (r["racer"], r["step"], r["loss"]) for r in rows(history, view) if r["part"] == "point"
    ]
    recorded = [
        (name, point.step, point.loss)
        for name, lane in history.lanes.items()
        for point in lane.points
    ]
    assert plotted == recorded


def test_the_gap_view_plots_the_distance_to_the_exact_minimum(history: RaceHistory) -> None:
    exact = exact_solution().floor
    for row in rows(history, LossView(y="gap")):
        if row["part"] == "point":
            assert row["y"] == pytest.approx(row["loss"] - exact, abs=1e-15)


@pytest.mark.parametrize("x", ["epochs", "steps", "seconds"])
def test_x_is_what_the_view_says(history: RaceHistory, x: str) -> None:
    source = "step" if x == "steps" else x
    for row in rows(history, LossView(x=x)):
        if row["part"] == "point":
            assert row["x"] == row[source]


@pytest.mark.parametrize("view", [v for v in VIEWS if v.x != "seconds"], ids=str)
def test_axes_are_the_same_before_and_after_a_usual_race(view: LossView) -> None:
    config = RaceConfig(racers=(Racer(SGD(lr=0.1)),), engine="from scratch", batch_size=50)
    if view.y == "auto":
        assert loss_axes(raced(config, 1), view) == loss_axes(raced(config), view)
    else:
        assert loss_axes(RaceHistory(config), view) == loss_axes(raced(config), view)


@pytest.mark.parametrize("view", [v for v in VIEWS if v.x != "seconds"], ids=str)
def test_a_diverged_run_rescales_nobody(history: RaceHistory, view: LossView) -> None:
    assert isinstance(history.lanes["too fast"].outcome, Diverged)
    others = tuple(racer for racer in history.config.racers if racer.name != "too fast")
    assert loss_axes(history, view) == loss_axes(
        raced(replace(history.config, racers=others)), view
    )


def test_a_diverged_run_is_marked_at_the_top_edge_with_its_step(history: RaceHistory) -> None:
    view = LossView(x="steps")
    (end,) = [row for row in rows(history, view) if row["part"] == "end"]
    outcome = history.lanes["too fast"].outcome
    assert isinstance(outcome, Diverged)
    assert end["y"] == pytest.approx(loss_axes(history, view).y[1])
    assert end["x"] == outcome.step
    assert f"step {outcome.step}" in end["label"]


def test_several_diverged_runs_have_a_mark_each() -> None:
    racers = tuple(Racer(SGD(lr=lr), f"lr {lr}") for lr in (1.0, 2.0, 3.0))
    view = LossView()
    history = raced(RaceConfig(racers=racers, engine="from scratch"))
    axes = loss_axes(history, view)
    places = [axes.pixel(row["y"]) for row in rows(history, view) if row["part"] == "end"]
    assert len(places) == 3
    assert all(b - a >= LABEL_HEIGHT - 1e-6 for a, b in pairwise(places))


@pytest.mark.parametrize("view", VIEWS, ids=str)
def test_no_label_covers_another_or_leaves_the_plot(history: RaceHistory, view: LossView) -> None:
    axes = loss_axes(history, view)
    heads = [row for row in rows(history, view) if row["part"] == "head"]
    places = sorted(axes.pixel(head["label_y"]) for head in heads)
    assert len(places) == MAX_RACERS - 1
    assert all(b - a >= LABEL_HEIGHT - 1e-6 for a, b in pairwise(places))
    assert places[0] >= 0
    assert places[-1] <= HEIGHT


@pytest.mark.parametrize("log", [False, True])
def test_pixels_and_values_are_inverse(log: bool) -> None:
    axes = Axes((0, 1), (0.01, 10.0), log, "")
    assert axes.pixel(10.0) == pytest.approx(0)
    assert axes.pixel(0.01) == pytest.approx(HEIGHT)
    assert axes.value(axes.pixel(0.37)) == pytest.approx(0.37)


def test_the_notes_view_has_the_axis_of_the_notes(history: RaceHistory) -> None:
    assert loss_axes(history, LossView(y="notes")).y == AIRFOIL_LOSS_AXIS


def test_a_gap_below_the_axis_extends_it_downwards() -> None:
    config = RaceConfig(
        racers=(Racer(SGD(lr=0.4)),), engine="from scratch", batch_size=1500, epochs=60
    )
    axes = loss_axes(raced(config), LossView())
    assert axes.y[0] < 1e-4
    assert axes.y[1] == 1.0


def test_a_network_has_no_minimum_drawn_or_named() -> None:
    config = RaceConfig(racers=(Racer(SGD()),), model="hidden", engine="from scratch")
    for y in RULES["y"].options:
        history = raced(config, 30)
        view = LossView(y=y)
        assert not [row for row in rows(history, view) if row["part"] == "floor"]
    assert "unknown" in loss_axes(history, LossView(y="gap")).y_title


@pytest.mark.parametrize("y", ["notes", "auto"])
def test_the_floor_is_a_row_where_the_axis_shows_the_loss(history: RaceHistory, y: str) -> None:
    (mark,) = [row for row in rows(history, LossView(y=y)) if row["part"] == "floor"]
    assert mark["y"] == exact_solution().floor
    assert mark["label"] == f"exact minimum {exact_solution().floor:.4f} (closed form)"


def test_above_the_minimum_the_floor_has_no_place(history: RaceHistory) -> None:
    assert not [row for row in rows(history, LossView(y="gap")) if row["part"] == "floor"]


@pytest.mark.parametrize("view", VIEWS, ids=str)
def test_a_specification_has_no_data_of_its_own(history: RaceHistory, view: LossView) -> None:
    spec = loss_spec(history.config, view, loss_axes(history, view))
    assert not {"data", "datasets"} & set(spec)
    assert not [layer for layer in spec["layer"] if "data" in layer]


@pytest.mark.parametrize("view", VIEWS, ids=str)
def test_the_description_is_one_sentence_that_names_every_racer(
    history: RaceHistory, view: LossView
) -> None:
    text = loss_spec(history.config, view, loss_axes(history, view))["description"]
    assert text.endswith(".")
    assert all(racer.name in text for racer in history.config.racers)


def test_every_racer_has_its_colour_and_dash_pattern() -> None:
    assert len(PALETTE) == len(DASHES) == MAX_RACERS
    assert len(set(PALETTE)) == MAX_RACERS


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_palette_keeps_its_contrast_to_the_ground(theme: str) -> None:
    ground = {"light": "#FFFFFF", "dark": "#0E1117"}[theme]
    for color in configured(theme):
        assert contrast(color, ground) >= 2.2, color


def test_the_theme_has_the_palette_of_the_charts() -> None:
    assert tuple(configured("light")) == PALETTE


def test_notebooks_get_the_palette_too(history: RaceHistory) -> None:
    assert loss_chart(history).to_dict()["config"]["range"]["category"] == list(PALETTE)


def configured(theme: str) -> list[str]:
    file = Path(__file__).parent.parent / ".streamlit" / "config.toml"
    colors: list[str] = tomllib.loads(file.read_text())["theme"][theme]["chartCategoricalColors"]
    return colors


def contrast(color: str, ground: str) -> float:
    """Contrast ratio of WCAG 2."""
    light, dark = sorted((luminance(color), luminance(ground)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def luminance(color: str) -> float:
    channels = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
