"""Sweeps: every cell is a run of its own, diverged cells say so, bad grids are refused."""

import pytest
import torch

from labcore.config import ConfigError
from labcore.events import CellMeasured, Diverged, DivergedAt, Finished, Reached, SweepAdvanced
from labcore.optimizers import SGD, Adam, Momentum
from labcore.race import Racer
from labcore.regression import Stage, exact_solution, train_regression
from labcore.sweep import USUAL, SweepConfig, SweepHistory, sweep

SHORT = {"batch_size": 100, "epochs": 1, "rates": 3}


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def swept(**settings) -> SweepHistory:
    config = SweepConfig(**SHORT | settings)
    history = SweepHistory(config)
    for event in sweep(config):
        history.add(event)
    return history


def test_rates_are_spaced_evenly_in_ratio_from_lowest_to_highest():
    assert SweepConfig(lowest=1e-3, highest=10.0, rates=5).lrs == (0.001, 0.01, 0.1, 1.0, 10.0)


def test_without_racers_the_five_of_the_notes_are_swept():
    assert [type(racer.optimizer) for racer in SweepConfig().racers] == list(USUAL)


@pytest.mark.parametrize("against", ["nothing", "batch_size", "momentum"])
def test_every_cell_is_the_end_of_its_own_run(against):
    history = swept(racers=(Racer(Momentum()),), against=against, highest=5.0)
    config = history.config
    assert len(history.cells) == 3 * max(1, len(config.values))
    for cell in history.cells.values():
        *_, end = train_regression(config.run(config.racers[0], cell.lr, cell.value))
        if isinstance(end, Diverged):
            assert cell.outcome == DivergedAt(end.step)
        else:
            assert isinstance(end, Finished)
            # Where a run explodes, each step enlarges the rounding of the last.
            tolerance = 1e-6 if end.loss < 1 else 1e-4 * end.loss
            assert cell.outcome.loss == pytest.approx(end.loss, rel=0, abs=tolerance)


def test_diverged_cell_is_a_value_of_its_own_kind():
    history = swept(racers=(Racer(SGD()),), batch_size=10, lowest=0.01, highest=1.0)
    kinds = [type(history.cells["SGD", None, lr].outcome) for lr in history.config.lrs]
    assert kinds == [Reached, Reached, DivergedAt]
    assert history.problem is None


def test_best_is_the_smallest_final_loss():
    history = swept(racers=(Racer(SGD()), Racer(Adam())), rates=9)
    for racer in ("SGD", "Adam"):
        losses = [c.outcome.loss for c in history.cells.values() if c.racer == racer]
        assert history.best(racer).outcome.loss == min(losses)


def test_sweep_in_which_every_cell_diverged_says_so_and_keeps_all():
    history = swept(racers=(Racer(SGD()),), batch_size=10, lowest=2.0, highest=10.0)
    assert history.best("SGD") is None
    assert len(history.cells) == 3
    lowest = history.cells["SGD", None, 2.0].outcome
    assert f"at the lowest learning rate, 2, at step {lowest.step}" in history.problem
    assert "0.4765" in history.problem


def test_floor_is_the_exact_minimum():
    assert SweepHistory(SweepConfig()).floor == exact_solution().floor


def test_progress_reaches_the_end():
    events = list(sweep(SweepConfig(**SHORT)))
    advanced = [event for event in events if isinstance(event, SweepAdvanced)]
    assert [each.done for each in advanced] == sorted(each.done for each in advanced)
    assert advanced[-1].done == advanced[-1].steps == 5 * 15
    assert sum(isinstance(event, CellMeasured) for event in events) == 15


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"lowest": 1.0, "highest": 0.1}, "far enough above the lowest, 1"),
        ({"lowest": 1.0, "highest": 1.0001, "rates": 64}, "for 64 rates"),
        ({"against": "momentum", "racers": (Racer(Adam()),)}, "received 'adam'"),
        ({"against": "batch_size", "values": (10, 10)}, "ascending"),
        ({"against": "batch_size", "values": (0, 10)}, "batch_size must be"),
        ({"against": "momentum", "values": (0.5, 2.0)}, "momentum must be"),
        ({"values": (1, 2)}, "left out"),
        ({"racers": (Racer(SGD(), "late", (Stage(Adam(), 3),)),)}, "'late' is a fork"),
        ({"engine": "torch"}, "from scratch"),
    ],
    ids=str,
)
def test_bad_sweep_is_refused(settings, words):
    with pytest.raises(ConfigError, match=words):
        SweepConfig(**settings)
