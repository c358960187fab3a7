"""Forks: bit by bit their parent up to a step, then a run of their own."""

from dataclasses import replace

import pytest
import torch

from labcore.config import ConfigError
from labcore.events import (
    Diverged,
    Finished,
    LossRecorded,
    RacerEvent,
    StepTaken,
    WeightsRecorded,
)
from labcore.fork import continued, fork, race_anew, race_fork
from labcore.optimizers import OPTIMIZERS, SGD, Adam, Momentum
from labcore.race import MAX_RACERS, RaceConfig, RaceHistory, Racer, race
from labcore.regression import RegressionConfig, Stage, train_regression

every_engine = pytest.mark.parametrize("engine", ["torch", "from scratch"])
every_optimizer = pytest.mark.parametrize("kind", OPTIMIZERS.values(), ids=OPTIMIZERS)


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def weights(config: RegressionConfig) -> dict[int, list[float]]:
    events = train_regression(config, weights=True)
    return {e.step: e.weights.tolist() for e in events if isinstance(e, WeightsRecorded)}


def raced(*racers: Racer, **settings) -> RaceHistory:
    config = RaceConfig(
        racers=racers, **{"engine": "from scratch", "batch_size": 50, "epochs": 2} | settings
    )
    history = RaceHistory(config)
    for event in race(config):
        history.add(event)
    return history


def curve(history: RaceHistory, name: str) -> list[tuple[int, float]]:
    return [(point.step, point.loss) for point in history.lanes[name].points]


@every_engine
@every_optimizer
def test_fork_is_bitwise_its_parent_up_to_the_step_and_not_after(kind, engine):
    parent = RegressionConfig(optimizer=kind(), engine=engine, batch_size=50, epochs=1)
    changed = replace(kind(), lr=kind().lr / 3)
    forked = replace(parent, optimizer=changed, before=(Stage(kind(), 12),))
    one, other = weights(parent), weights(forked)
    assert [step for step in one if one[step] != other[step]] == [s for s in one if s > 12]


@every_engine
@every_optimizer
def test_fork_with_the_same_optimiser_is_its_parent_to_the_end(kind, engine):
    parent = RegressionConfig(optimizer=kind(), engine=engine, batch_size=50, epochs=1)
    assert weights(parent) == weights(replace(parent, before=(Stage(kind(), 12),)))


@every_optimizer
def test_both_engines_continue_alike_with_another_optimiser(kind):
    start = SGD() if kind is not SGD else Adam()
    ends = []
    for engine in ("torch", "from scratch"):
        before = (Stage(start, 7),)
        run = RegressionConfig(optimizer=kind(), before=before, engine=engine, epochs=1)
        *_, finished = train_regression(run)
        ends.append(finished.loss)
    assert ends[0] == pytest.approx(ends[1], abs=1e-6)


def test_other_optimiser_begins_as_a_new_run_from_those_weights():
    before = (Stage(SGD(), 7),)
    places = weights(
        RegressionConfig(optimizer=Adam(lr=0.02), before=before, batch_size=200, epochs=1)
    )
    # Adam's first step goes by its learning rate along every weight, whatever the gradient.
    moved = torch.tensor(places[8]) - torch.tensor(places[7])
    torch.testing.assert_close(moved.abs(), torch.full((6,), 0.02), rtol=1e-3, atol=0)


def test_race_with_a_fork_keeps_the_parents_curve():
    history = raced(Racer(SGD()), Racer(Adam()))
    config = fork(history, "SGD", 20, SGD(lr=0.1))
    grown = continued(history, config)
    before = curve(history, "SGD")
    for event in race_fork(config):
        grown.add(event)
    name = config.racers[-1].name
    assert curve(grown, "SGD") == before == curve(history, "SGD")
    assert [p for p in curve(grown, name) if p[0] <= 20] == [p for p in before if p[0] <= 20]
    assert curve(grown, name)[-1] != before[-1]


def test_only_the_fork_runs():
    history = raced(Racer(SGD()), Racer(Adam()))
    config = fork(history, "SGD", 20, Adam())
    names = {event.racer for event in race_fork(config) if isinstance(event, RacerEvent)}
    assert names == {config.racers[-1].name} == {"Adam from 20"}


def test_fork_alone_is_the_fork_in_a_whole_new_race():
    history = raced(Racer(SGD()))
    config = fork(history, "SGD", 20, Adam())
    whole = RaceHistory(config)
    for event in race(config):
        whole.add(event)
    alone = continued(history, config)
    for event in race_fork(config):
        alone.add(event)
    assert all(curve(whole, name) == curve(alone, name) for name in whole.lanes)


def test_fork_can_be_forked():
    history = raced(Racer(SGD()))
    config = fork(history, "SGD", 10, Adam())
    grown = continued(history, config)
    for event in race_fork(config):
        grown.add(event)
    again = fork(grown, config.racers[-1].name, 30, SGD(lr=0.001)).racers[-1]
    assert again.before == (Stage(SGD(), 10), Stage(Adam(), 30))


def test_diverged_run_can_be_rewound_to_a_step_before():
    history = raced(Racer(SGD(lr=1.0)), batch_size=10)
    config = fork(history, "SGD", 20, SGD(lr=0.01))
    *_, end = race_fork(config)
    assert isinstance(end.event, Finished)


def test_diverged_run_cannot_be_continued_from_its_end():
    history = raced(Racer(SGD(lr=1.0)), batch_size=10)
    step = history.lanes["SGD"].outcome.step
    before = curve(history, "SGD")
    with pytest.raises(ConfigError, match=f"diverged at step {step}: there is nothing to continue"):
        fork(history, "SGD", step, SGD(lr=0.01))
    assert curve(history, "SGD") == before


@pytest.mark.parametrize(
    ("parent", "step", "words"),
    [
        ("Adam", 3, "fork: racer must be one of SGD"),
        ("SGD", 60, "ends at step 60"),
        ("SGD", -1, "a step of 'SGD' from 0 to 60"),
    ],
)
def test_bad_fork_is_refused(parent, step, words):
    with pytest.raises(ConfigError, match=words):
        fork(raced(Racer(SGD())), parent, step, Adam())


def test_full_race_takes_no_fork():
    history = raced(*(Racer(SGD()) for _ in range(MAX_RACERS)), epochs=1, batch_size=1500)
    with pytest.raises(ConfigError, match=f"at most {MAX_RACERS} racers"):
        fork(history, "SGD", 0, Adam())


def test_stages_must_end_one_after_the_other():
    with pytest.raises(ConfigError, match="each later than the last"):
        RegressionConfig(before=(Stage(SGD(), 5), Stage(Adam(), 5)))


def test_diverged_fork_names_its_own_learning_rate():
    run = RegressionConfig(optimizer=SGD(lr=5.0), before=(Stage(Momentum(), 3),))
    *_, end = train_regression(run)
    assert isinstance(end, Diverged)
    assert end.lr == 5.0


def test_weights_are_reported_on_request_only():
    kinds = {type(event) for event in train_regression(RegressionConfig(epochs=1))}
    assert WeightsRecorded not in kinds
    assert LossRecorded in kinds


def test_race_anew_tells_of_no_step_before_the_one_where_the_race_was():
    config = RaceConfig(racers=(Racer(SGD()), Racer(Adam())), engine="from scratch", epochs=1)
    steps = [event.step for event in race_anew(config, 40) if isinstance(event, StepTaken)]
    assert steps == list(range(40, 151))


def test_race_anew_has_the_same_curves():
    config = RaceConfig(racers=(Racer(SGD()), Racer(Adam())), engine="from scratch", epochs=1)
    first, again = RaceHistory(config), RaceHistory(config)
    for event in race(config):
        first.add(event)
    for event in race_anew(config, 40):
        again.add(event)
    for name in ("SGD", "Adam"):
        assert curve(again, name) == curve(first, name)
