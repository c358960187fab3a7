"""Races: every racer runs as it would alone, all in lockstep; and what a race's history knows."""

import re
from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from labcore.config import ConfigError
from labcore.events import Diverged, Finished, LossRecorded, RacerEvent, Started, StepTaken
from labcore.optimizers import OPTIMIZERS, SGD, Adam, Momentum
from labcore.race import (
    CLOSE,
    MAX_NAME_LENGTH,
    MAX_RACERS,
    RaceConfig,
    RaceHistory,
    Racer,
    race,
)
from labcore.regression import RegressionConfig, train_regression

ALL = tuple(Racer(each()) for each in OPTIMIZERS.values())
WITH_A_CRASH = (Racer(SGD(), "slow"), Racer(SGD(lr=1.0), "crash"), Racer(Adam(), "adam"))

every_engine = pytest.mark.parametrize("engine", ["torch", "from scratch"])


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    """Several threads gain nothing on tensors this small, and stall on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def config_of(*racers, **settings):
    return RaceConfig(racers=racers, **{"engine": "from scratch", "epochs": 2, **settings})


def timeless(events):
    """Events without the times, which differ from run to run."""
    return [
        (type(each), each.step, each.epochs, getattr(each, "loss", None))
        for each in events
        if not isinstance(each, Started | StepTaken)
    ]


def by_racer(events):
    """What each racer reported, in order."""
    reports = {}
    for event in events:
        if isinstance(event, RacerEvent):
            reports.setdefault(event.racer, []).append(event.event)
    return reports


def rounds(events):
    """The events between two `StepTaken`, round by round; the last without one to close it."""
    found = [[]]
    for event in events:
        if isinstance(event, StepTaken):
            found.append([])
        else:
            found[-1].append(event)
    return found


def arrival(points, floor):
    """Step of the first point from which on all lie within 1 % of the floor, from all points."""
    close = [point.loss - floor <= 0.01 * floor for point in points]
    since = [all(close[start:]) for start in range(len(points))]
    return points[since.index(True)].step if True in since else None


# --- the race -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"engine": "torch", "epochs": 1},
        {"model": "hidden", "epochs": 1},
        {"batch_size": 64, "objective": "half_mse", "seed": 3},
    ],
    ids=str,
)
def test_every_racer_reports_what_its_own_run_reports(settings):
    config = config_of(*ALL, **settings)
    reports = by_racer(race(config))
    for racer in config.racers:
        alone = timeless(train_regression(config.run_of(racer)))
        assert timeless(reports[racer.name]) == alone


def test_racer_that_diverges_reports_what_its_own_run_reports():
    config = config_of(*WITH_A_CRASH)
    crash = config.racers[1]
    alone = timeless(train_regression(config.run_of(crash)))
    assert timeless(by_racer(race(config))["crash"]) == alone


def test_run_of_a_racer_has_all_settings_of_the_race():
    settings = {
        "engine": "from scratch", "objective": "half_mse", "model": "hidden", "hidden_units": 3,
        "batch_size": 7, "epochs": 9, "seed": 5,
    }  # fmt: skip
    config = RaceConfig(racers=(Racer(Adam(lr=0.3)),), **settings)
    expected = RegressionConfig(optimizer=Adam(lr=0.3), **settings)
    assert config.run_of(config.racers[0]) == expected


@every_engine
@pytest.mark.parametrize("batch_size", [10, 199, 1500])
def test_losses_between_two_steps_belong_to_the_same_step(batch_size, engine):
    config = config_of(*ALL, batch_size=batch_size, engine=engine, epochs=1)
    for number, events in enumerate(rounds(race(config)), start=1):
        steps = {each.event.step for each in events if isinstance(each.event, LossRecorded)}
        assert steps <= ({0, 1} if number == 1 else {number})


def test_race_takes_one_step_per_round():
    config = config_of(*ALL, batch_size=64)
    steps = [event.step for event in race(config) if isinstance(event, StepTaken)]
    assert steps == list(range(1, 2 * 24 + 1))


def test_steps_of_the_race_carry_the_true_fraction_of_epochs():
    config = config_of(*WITH_A_CRASH, batch_size=10, epochs=1)
    for event in race(config):
        if isinstance(event, StepTaken):
            assert event.epochs == pytest.approx(event.step * 10 / 1500)


def test_racers_of_one_round_report_in_the_order_of_the_config():
    names = [racer.name for racer in config_of(*ALL).racers]
    for events in rounds(race(config_of(*ALL, epochs=1))):
        places = [names.index(each.racer) for each in events]
        assert all(before <= after for before, after in pairwise(places))


def test_all_racers_start_from_the_same_loss():
    reports = by_racer(race(config_of(*ALL, epochs=1)))
    starts = {points[1].loss for points in reports.values()}
    assert len(reports) == len(OPTIMIZERS)
    assert len(starts) == 1


def test_diverged_racer_drops_out():
    events = list(race(config_of(*WITH_A_CRASH)))
    reports = by_racer(events)["crash"]
    assert isinstance(reports[-1], Diverged)
    assert [type(each) for each in reports].count(Diverged) == 1


def test_divergence_is_reported_in_its_own_round():
    events = list(race(config_of(*WITH_A_CRASH)))
    for number, between in enumerate(rounds(events), start=1):
        for each in between:
            if isinstance(each.event, Diverged):
                assert each.event.step == number


def test_others_finish_after_a_divergence():
    reports = by_racer(race(config_of(*WITH_A_CRASH)))
    assert isinstance(reports["slow"][-1], Finished)
    assert isinstance(reports["adam"][-1], Finished)


def test_race_goes_on_to_its_last_step_after_a_divergence():
    *_, last = (each for each in race(config_of(*WITH_A_CRASH)) if isinstance(each, StepTaken))
    assert last.step == 300


def test_race_ends_when_everybody_has_diverged():
    events = list(race(config_of(Racer(SGD(lr=1.0)), Racer(SGD(lr=2.0)))))
    assert {type(reports[-1]) for reports in by_racer(events).values()} == {Diverged}


def test_round_in_which_the_last_racer_diverges_is_closed_as_well():
    *_, diverged, last = race(config_of(Racer(SGD(lr=1.0))))
    assert isinstance(diverged.event, Diverged)
    assert last == StepTaken(diverged.event.step, diverged.event.epochs)


@pytest.mark.parametrize("name", ["👩\u200d🔬", "می\u200cخواهم"])
def test_name_may_have_joiners(name):
    assert Racer(SGD(), name).name == name


def test_race_of_one_is_its_run():
    config = config_of(Racer(Momentum(), "alone"))
    alone = timeless(train_regression(config.run_of(config.racers[0])))
    assert timeless(by_racer(race(config))["alone"]) == alone


def test_race_is_repeatable():
    config = config_of(*ALL, epochs=1)
    first, second = ({k: timeless(v) for k, v in by_racer(race(config)).items()} for _ in range(2))
    assert first == second


def test_race_can_be_left_in_the_middle():
    events = race(config_of(*ALL))
    for _ in range(50):
        next(events)
    events.close()
    assert next(events, None) is None


# --- its config -----------------------------------------------------------------------------


def refused_message(action):
    """What the ConfigError says that `action` must raise."""
    with pytest.raises(ConfigError) as caught:
        action()
    return str(caught.value)


@pytest.mark.parametrize("number", [0, MAX_RACERS + 1])
def test_too_few_or_too_many_racers_are_refused(number):
    racers = tuple(Racer(SGD(), f"racer {i}") for i in range(number))
    message = refused_message(lambda: config_of(*racers))
    assert f"from 1 to {MAX_RACERS} racers; received {number}" in message


@pytest.mark.parametrize("number", [1, MAX_RACERS])
def test_smallest_and_largest_race_are_accepted(number):
    assert len(config_of(*(Racer(SGD(), f"racer {i}") for i in range(number))).racers) == number


def test_largest_race_has_eight_racers():
    assert MAX_RACERS == 8


def test_two_racers_with_one_name_are_refused():
    message = refused_message(lambda: config_of(Racer(SGD(), "x"), Racer(Adam(), "x")))
    assert "must have a name of its own; received 2 called 'x'" in message


@pytest.mark.parametrize(
    "names",
    [["x", "x"], ["x", "x", "x 2"], ["x" * MAX_NAME_LENGTH] * 2],
    ids=["plain", "with the number taken", "with no room for a number"],
)
def test_name_suggested_for_a_duplicate_works(names):
    racers = [Racer(SGD(), name) for name in names]
    message = refused_message(lambda: config_of(*racers))
    works = re.search(r"for example '(.+)'\.$", message).group(1)
    racers[1] = Racer(SGD(), works)
    assert works in [racer.name for racer in config_of(*racers).racers]


def test_racers_without_a_name_get_their_label():
    assert [racer.name for racer in config_of(*ALL).racers] == [
        each.label for each in OPTIMIZERS.values()
    ]


def test_racers_without_a_name_are_numbered_where_the_label_is_taken():
    racers = config_of(Racer(SGD()), Racer(SGD(lr=0.1), "SGD 2"), Racer(SGD(lr=0.2))).racers
    assert [racer.name for racer in racers] == ["SGD", "SGD 2", "SGD 3"]


def test_eight_racers_with_one_optimizer_are_accepted_without_names():
    names = [racer.name for racer in config_of(*[Racer(SGD())] * 8).racers]
    assert len(set(names)) == 8


@pytest.mark.parametrize("name", ["x" * (MAX_NAME_LENGTH + 1), "two\nlines", "bell\a"])
def test_bad_name_is_refused(name):
    message = refused_message(lambda: Racer(SGD(), name))
    assert message.startswith("racer: name must be at most 24 printable characters; received ")
    assert repr(name) in message


@pytest.mark.parametrize("optimizer", ["foo", None, SGD, 0.01])
def test_racer_without_an_optimizer_is_refused(optimizer):
    message = refused_message(lambda: Racer(optimizer))
    assert message.startswith("racer: optimizer must be an optimiser object: ")
    assert f"received {optimizer!r}" in message


@pytest.mark.parametrize("racers", [(SGD(),), ("foo",), (None,), 5, None], ids=repr)
def test_what_is_no_racer_is_refused(racers):
    # Decision 2 of the design: a config that exists cannot be wrong.
    with pytest.raises(ConfigError):
        RaceConfig(racers=racers)


@pytest.mark.parametrize("name", [None, 5], ids=repr)
def test_name_that_is_no_text_is_refused(name):
    with pytest.raises(ConfigError):
        Racer(SGD(), name)


def test_bad_setting_of_a_race_is_refused():
    message = refused_message(lambda: config_of(*ALL, batch_size=0))
    assert message.startswith("race: batch_size must be a whole number from 1 to 1500; received 0")


def test_race_config_is_hashable_and_equal_by_its_fields():
    assert hash(config_of(*ALL)) == hash(config_of(*ALL))
    assert config_of(*ALL) == config_of(*ALL) != config_of(*ALL, seed=1)


def test_replace_keeps_the_names():
    config = config_of(Racer(SGD()), Racer(SGD(lr=0.1)))
    assert replace(config, seed=1).racers == config.racers


# --- its history ----------------------------------------------------------------------------


def history_of(config):
    """The history of the whole race, and all that was recorded, per racer."""
    history, events = RaceHistory(config), list(race(config))
    for event in events:
        history.add(event)
    return history, by_racer(events)


def synthetic(losses, floor=1.0):
    """The lane of a lone racer that recorded these losses at steps 0, 10, 20, …"""
    config = config_of(Racer(SGD(), "it"))
    history = RaceHistory(config)
    history.add(RacerEvent("it", Started(10 * len(losses), 100, floor, None)))
    for number, loss in enumerate(losses):
        history.add(RacerEvent("it", LossRecorded(10 * number, number / 10, 0.0, loss)))
    return history.lanes["it"]


def test_history_has_a_lane_per_racer_before_the_race():
    config = config_of(*ALL)
    assert list(RaceHistory(config).lanes) == [racer.name for racer in config.racers]


def test_history_knows_nothing_before_the_race():
    history = RaceHistory(config_of(*ALL))
    assert (history.steps, history.taken) == (0, None)
    for lane in history.lanes.values():
        known = (lane.started, lane.latest, lane.gap, lane.arrived, lane.outcome)
        assert known == (None, None, None, None, None)
        assert list(lane.points) == []


def test_lane_belongs_to_its_racer():
    config = config_of(*ALL)
    for racer in config.racers:
        assert RaceHistory(config).lanes[racer.name].racer == racer


def test_steps_are_those_of_the_whole_race():
    config = config_of(*ALL, batch_size=64)
    history = RaceHistory(config)
    for event in race(config):
        history.add(event)
        if isinstance(event, StepTaken):
            break
    assert history.steps == 2 * 24


def test_taken_is_the_last_step():
    history, _ = history_of(config_of(*ALL, batch_size=64))
    assert (history.taken.step, history.taken.epochs) == (48, 2.0)


def test_short_curve_is_kept_whole():
    history, reports = history_of(config_of(*ALL))
    for name, lane in history.lanes.items():
        recorded = [each for each in reports[name] if isinstance(each, LossRecorded)]
        assert list(lane.points) == recorded


def test_gap_is_the_distance_of_the_last_loss_to_the_floor():
    history, reports = history_of(config_of(*ALL))
    for name, lane in history.lanes.items():
        last = [each for each in reports[name] if isinstance(each, LossRecorded)][-1]
        assert lane.gap == pytest.approx(last.loss - 0.241687955, abs=1e-8)


def test_gap_is_never_negative():
    config = config_of(*ALL, epochs=4)
    history = RaceHistory(config)
    for event in race(config):
        history.add(event)
        assert all(lane.gap is None or lane.gap >= 0 for lane in history.lanes.values())


@pytest.mark.parametrize("seed", range(3))
def test_arrival_agrees_with_one_computed_from_all_points(seed):
    history, reports = history_of(config_of(*ALL, epochs=6, seed=seed))
    for name, lane in history.lanes.items():
        recorded = [each for each in reports[name] if isinstance(each, LossRecorded)]
        assert lane.arrived == arrival(recorded, lane.started.floor)


def test_some_racers_arrive_and_some_do_not():
    # Otherwise the comparison above would compare nothing.
    history, _ = history_of(config_of(*ALL, epochs=6))
    arrived = {lane.arrived is None for lane in history.lanes.values()}
    assert arrived == {True, False}


@pytest.mark.parametrize(
    ("losses", "arrived"),
    [
        ([2.0, 1.5, 1.2], None),
        ([2.0, 1.005, 1.004], 10),
        ([2.0, 1.005, 1.5, 1.004, 1.003], 30),
        ([2.0, 1.005, 1.004, 1.5], None),
        ([1.0, 1.0, 1.0], 0),
        ([2.0, 1.0, 2.0, 1.0, 2.0, 1.0], 50),
    ],
)
def test_racer_has_arrived_once_it_stays_close(losses, arrived):
    assert synthetic(losses).arrived == arrived


def test_close_is_one_percent():
    assert CLOSE == 0.01
    assert synthetic([2.0, 1.0099]).arrived == 10
    assert synthetic([2.0, 1.0101]).arrived is None


def test_arrival_does_not_suffer_from_down_sampling():
    lane = synthetic([2.0] * 1001 + [1.001] * 4000)
    assert lane.arrived == 10_010
    assert len(list(lane.points)) < 500


def test_visit_to_the_floor_between_kept_points_is_no_arrival():
    lane = synthetic([1.001] * 3000 + [1.5] + [1.001] * 3000)
    assert lane.arrived == 30_010


def test_network_has_neither_gap_nor_arrival():
    history, _ = history_of(config_of(Racer(SGD()), model="hidden"))
    lane = history.lanes["SGD"]
    assert (lane.gap, lane.arrived) == (None, None)
    assert lane.latest is not None


def test_outcome_is_how_the_racer_ended():
    history, reports = history_of(config_of(*WITH_A_CRASH))
    for name, lane in history.lanes.items():
        assert lane.outcome is reports[name][-1]
    assert isinstance(history.lanes["crash"].outcome, Diverged)


def test_curve_of_a_diverged_racer_stays():
    history, reports = history_of(config_of(*WITH_A_CRASH))
    recorded = [each for each in reports["crash"] if isinstance(each, LossRecorded)]
    assert list(history.lanes["crash"].points) == recorded
    assert len(recorded) >= 2
