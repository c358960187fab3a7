"""The surface chart: bands, paths and the star where the numbers are; equal scales."""

import json

import altair as alt
import numpy as np
import pytest
import torch

from labcore.datasets import airfoil
from labcore.events import Diverged
from labcore.optimizers import SGD, Adam
from labcore.pictures import svg
from labcore.race import RaceConfig, RaceHistory, Racer, race
from labcore.surface import SurfaceView, surface
from labcore.surface_charts import racer_names, surface_columns, surface_extent, surface_spec

VIEWS = [SurfaceView(up=5), SurfaceView(axes="weights", across=0, up=4)]
every_view = pytest.mark.parametrize("view", VIEWS, ids=str)


@pytest.fixture(scope="module")
def history() -> RaceHistory:
    racers = (Racer(SGD()), Racer(Adam()), Racer(SGD(lr=1.0), "fast"))
    config = RaceConfig(racers=racers, engine="from scratch", batch_size=20)
    history = RaceHistory(config)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    for event in race(config, weights=True):
        history.add(event)
    torch.set_num_threads(threads)
    return history


def picture(history, view):
    shown = surface(view, history.config, airfoil.load())
    extent = surface_extent(shown, history)
    columns = surface_columns(shown, history, extent)
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    return shown, extent, columns, rows


@every_view
def test_the_specification_is_valid_vega_lite_without_data(history, view):
    _, extent, _, rows = picture(history, view)
    spec = surface_spec(racer_names(history), extent)
    assert "datasets" not in spec
    assert not any("data" in layer for layer in spec["layer"])
    alt.LayerChart.from_dict(spec | {"data": {"values": rows}}, validate=True)


@every_view
def test_chart_renders(history, view):
    _, extent, columns, _ = picture(history, view)
    assert svg(surface_spec(racer_names(history), extent), columns).startswith("<svg")


@every_view
def test_every_recorded_place_is_on_the_path(history, view):
    shown, _, _, rows = picture(history, view)
    for name in ("SGD", "Adam"):
        path = [(row["x"], row["y"]) for row in rows if row["part"] == "path"
                and row["racer"] == name]  # fmt: skip
        weights = torch.stack([each.weights for each in history.lanes[name].path]).double()
        expected = (weights - shown.base) @ torch.stack([shown.u, shown.v], dim=1)
        torch.testing.assert_close(torch.tensor(path, dtype=torch.float64), expected)


@every_view
def test_corners_of_a_band_have_its_loss(history, view):
    shown, _, _, rows = picture(history, view)
    for row in rows:
        if row["part"] == "band" and row["order"] % 15 == 0:
            loss = float(shown.losses([row["x"]], [row["y"]]))
            assert loss - shown.lowest == pytest.approx(row["gap"], rel=1e-9)


@every_view
def test_star_is_at_the_lowest_point(history, view):
    shown, _, _, rows = picture(history, view)
    [star] = [row for row in rows if row["part"] == "star"]
    assert (star["x"], star["y"]) == shown.minimum
    assert star["loss"] == pytest.approx(0.241688, abs=5e-7)


@every_view
def test_diverged_path_is_faded_and_labelled_with_its_step(history, view):
    outcome = history.lanes["fast"].outcome
    assert isinstance(outcome, Diverged)
    _, _, _, rows = picture(history, view)
    parts = {row["part"] for row in rows if row["racer"] == "fast"}
    assert parts == {"faded", "start", "end"}
    [end] = [row for row in rows if row["part"] == "end"]
    assert end["label"] == f"✕ step {outcome.step} fast"


@every_view
def test_diverged_run_does_not_rescale_the_picture(history, view):
    others = RaceHistory(RaceConfig(racers=history.config.racers[:2]))
    others.lanes = {name: history.lanes[name] for name in ("SGD", "Adam")}
    shown = surface(view, history.config, airfoil.load())
    assert surface_extent(shown, history) == surface_extent(shown, others)


@every_view
def test_the_picture_stands_still_from_the_start_of_the_race(history, view):
    early = RaceHistory(history.config)
    for event in race(history.config, weights=True):
        early.add(event)
        if early.taken:
            break
    shown = surface(view, history.config, airfoil.load())
    assert surface_extent(shown, early) == surface_extent(shown, history)


@every_view
def test_both_axes_have_the_same_scale(history, view):
    _, extent, _, _ = picture(history, view)
    text = json.dumps(surface_spec(racer_names(history), extent), ensure_ascii=False)
    assert f"+ {extent.half!r} * max(1, width / height)" in text
    assert f"+ {extent.half!r} * max(1, height / width)" in text


@every_view
def test_steepest_direction_leads_through_the_minimum(history, view):
    shown, _, _, rows = picture(history, view)
    first, second = [(row["x"], row["y"]) for row in rows if row["part"] == "steep"]
    assert np.add(first, second) / 2 == pytest.approx(shown.minimum)
    _, vectors = np.linalg.eigh(airfoil.load().exact.hessian.numpy())
    seen = vectors[:, -1] @ torch.stack([shown.u, shown.v], dim=1).numpy()
    along = np.subtract(second, first)
    assert abs(along @ seen) == pytest.approx(np.linalg.norm(along) * np.linalg.norm(seen))
    assert [row["label"] for row in rows if row["part"] == "name"] == ["steepest"]


def test_steepest_direction_seen_from_its_end_is_not_drawn(history):
    _, _, _, rows = picture(history, SurfaceView(across=2, up=4))
    assert "steep" not in {row["part"] for row in rows}


@every_view
def test_run_on_its_way_out_is_marked_where_it_left_and_rescales_nobody(history, view):
    config = RaceConfig(racers=(Racer(SGD()), Racer(SGD(lr=1.0), "fast")), engine="from scratch")
    early = RaceHistory(config)
    for event in race(config, weights=True):
        early.add(event)
        if early.taken and early.taken.step == 40:
            break
    assert early.lanes["fast"].outcome is None
    shown = surface(view, config, airfoil.load())
    alone = RaceHistory(RaceConfig(racers=config.racers[:1]))
    alone.lanes = {"SGD": early.lanes["SGD"]}
    assert surface_extent(shown, early) == surface_extent(shown, alone)
    columns = surface_columns(shown, early, surface_extent(shown, early))
    ends = [i for i, part in enumerate(columns["part"]) if part == "end"]
    assert [columns["racer"][i] for i in ends] == ["fast"]
    assert columns["label"][ends[0]] == f"left after step {columns['step'][ends[0]]} fast"
