"""Fair races: the rate with the best mean, raced on seeds that did not choose it."""

from statistics import fmean, median

import pytest
import torch

from labcore.events import BandRecorded, DivergedAt, Finished, RateChosen, Reached, SweepAdvanced
from labcore.fair_race import FairRaceConfig, FairRaceHistory, fair_race
from labcore.optimizers import SGD, Adam, Momentum
from labcore.race import Racer
from labcore.regression import train_regression

RACERS = (Racer(SGD()), Racer(Adam()))
SHORT = {"epochs": 1, "batch_size": 30, "rates": 5, "seeds": 3}


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def raced(**settings) -> FairRaceHistory:
    config = FairRaceConfig(**{"racers": RACERS, **SHORT, **settings})
    history = FairRaceHistory(config)
    for event in fair_race(config):
        history.add(event)
    return history


@pytest.fixture(scope="module")
def history():
    return raced()


def end(run):
    *_, event = train_regression(run)
    return event


def test_everything_tried_is_kept(history):
    for tried in history.tried.values():
        assert list(tried) == list(history.config.lrs)
        assert all([cell.seed for cell in cells] == [0, 1, 2] for cells in tried.values())


def test_chosen_rate_has_the_best_mean_of_those_without_divergence(history):
    for name, choice in history.chosen.items():
        means = {
            lr: fmean(cell.outcome.loss for cell in cells)
            for lr, cells in history.tried[name].items()
            if all(isinstance(cell.outcome, Reached) for cell in cells)
        }
        assert choice.lr == min(means, key=means.get)
        assert choice.loss == means[choice.lr]


def test_seeds_of_the_race_chose_nothing(history):
    config = history.config
    assert not set(config.tuning_seeds) & set(config.race_seeds)
    assert len(config.race_seeds) == len(config.tuning_seeds) == 3


def test_band_is_that_of_single_runs_with_the_chosen_rate(history):
    config = history.config.race(history.chosen)
    for racer in config.racers:
        runs = [
            FairRaceConfig(**SHORT, racers=(racer,), seed=seed).run_of(racer)
            for seed in history.config.race_seeds
        ]
        losses = [end(run).loss for run in runs]
        last = history.latest[racer.name]
        assert (last.low, last.loss, last.high) == pytest.approx(
            (min(losses), median(losses), max(losses)), abs=1e-6
        )


def test_race_of_the_chosen_has_their_rates(history):
    config = history.config.race(history.chosen)
    assert [racer.name for racer in config.racers] == ["SGD", "Adam"]
    rates = [racer.optimizer.lr for racer in config.racers]
    assert rates == [choice.lr for choice in history.chosen.values()]
    assert isinstance(end(config.run_of(config.racers[0])), Finished)


def test_budget_is_stated(history):
    assert "5 learning rates from 0.0001 to 1 with seeds 0–2, 50 steps each: 750" in history.budget
    assert "seeds 3–5" in history.budget


def test_best_rate_at_the_edge_is_told():
    history = raced(highest=0.001)
    assert all(choice.at_edge for choice in history.chosen.values())
    assert "at the edge of those tried, from 0.0001 to 0.001" in history.notes[0]


def test_racer_without_a_rate_does_not_race_and_others_do():
    racers = (Racer(Momentum(momentum=0.99)), Racer(Adam()))
    history = raced(racers=racers, lowest=1.0, highest=10.0, batch_size=5)
    assert history.chosen["Momentum"] == RateChosen("Momentum", None, None, at_edge=False)
    assert set(history.latest) == {"Adam"}
    assert "Momentum does not race" in history.notes[0]


def test_race_in_which_nobody_has_a_rate_ends_without_a_race():
    history = raced(racers=(Racer(SGD()),), lowest=2.0, highest=10.0, batch_size=5)
    assert history.latest == {}
    assert history.config.race(history.chosen) is None
    assert history.advanced.done == history.advanced.steps
    cells = [cell for cells in history.tried["SGD"].values() for cell in cells]
    assert all(isinstance(cell.outcome, DivergedAt) for cell in cells)


def test_progress_never_goes_back():
    events = list(fair_race(FairRaceConfig(racers=RACERS, **SHORT)))
    done = [event.done for event in events if isinstance(event, SweepAdvanced)]
    assert done == sorted(done)
    assert sum(isinstance(event, BandRecorded) for event in events) == 2 * 9
