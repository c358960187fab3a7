"""Timed steps, on a clock that only moves when told; and slowed replicas that really train."""

import math

import pytest
import torch

from labcore import timed_steps
from labcore.config import ConfigError
from labcore.datasets import fashion_mnist
from labcore.events import ShardDone
from labcore.hardware import Device
from labcore.timed_steps import (
    LONGEST_NAP,
    Compared,
    SlowedConfig,
    SlowStep,
    run_slowed,
    timed_step,
)
from labcore.uneven import best_sharing, equal_sharing

DATA = fashion_mnist.load(fashion_mnist.EMBEDDED)


@pytest.fixture(autouse=True)
def _on_the_cpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


class Clock:
    """Time that passes by `sleep` alone."""

    def __init__(self):
        self.now = 0.0
        self.naps = []

    def sleep(self, seconds):
        self.naps.append(seconds)
        self.now += seconds


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(timed_steps, "perf_counter", lambda: clock.now)
    monkeypatch.setattr(timed_steps, "sleep", clock.sleep)
    return clock


def step(clock, forward, backward, rest):
    """A step whose passes take so many seconds on each rank."""
    for phase, seconds in (("forward", forward), ("backward", backward)):
        for rank, took in enumerate(seconds):
            clock.now += took
            yield ShardDone(phase, rank, len(seconds))
    clock.now += rest
    return "report"


def drive(events, clock, between=0.0):
    """Everything a generator yields, and what it returns; time passes between its events."""
    seen = []
    while True:
        try:
            seen.append(next(events))
        except StopIteration as stopped:
            return seen, stopped.value
        clock.now += between


def test_a_replicas_time_is_that_of_its_two_passes(clock):
    seen, timed = drive(timed_step(step(clock, (1, 2), (3, 5), 7), (1.0, 1.0)), clock)
    assert timed.seconds == (4, 7)
    assert (timed.last, timed.rest, timed.report) == (7, 7, "report")
    assert [(each.phase, each.rank) for each in seen] == [
        ("forward", 0),
        ("forward", 1),
        ("backward", 0),
        ("backward", 1),
    ]
    assert clock.naps == []


def test_time_between_events_does_not_count(clock):
    _, timed = drive(timed_step(step(clock, (1, 2), (3, 5), 7), (1.0, 3.0)), clock, between=100.0)
    assert timed.seconds == pytest.approx((4, 21))
    assert timed.rest == pytest.approx(7)


@pytest.mark.parametrize("factor", [1.5, 3.0, 20.0])
def test_a_slowed_replica_takes_so_many_times_as_long(clock, factor):
    _, timed = drive(timed_step(step(clock, (0.5, 0.25), (1, 0.5), 0), (1.0, factor)), clock)
    assert timed.seconds == pytest.approx((1.5, factor * 0.75))


def test_nobody_has_to_wait_long_for_a_slow_replica(clock):
    seen, _ = drive(timed_step(step(clock, (1.0,), (1.0,), 0), (2.0,)), clock)
    assert max(clock.naps) <= LONGEST_NAP
    assert len(seen) == 2 + len(clock.naps)


# Runs


def finished(**settings):
    given = {"factors": (1.0, 3.0), "batch_size": 24, "steps": 3}
    config = SlowedConfig(**(given | settings))
    events = list(run_slowed(config, Device(0.0, 1e6), DATA))
    assert isinstance(events[-1], Compared)
    return config, [e for e in events if isinstance(e, SlowStep)], events[-1]


def test_both_sharings_are_timed_in_turn_on_the_same_minibatches():
    _, steps, _ = finished()
    assert [(each.sharing, each.step) for each in steps] == [
        (sharing, step) for step in (1, 2, 3) for sharing in ("equal", "best")
    ]
    for equal, best in zip(steps[::2], steps[1::2], strict=True):
        assert equal.loss == pytest.approx(best.loss, abs=1e-4)
        assert 0 < equal.loss < 10


def test_shares_change_the_step_by_rounding_only():
    _, _, compared = finished(model="lenet", lr=0.1)
    assert 0 < compared.difference < 1e-5


def test_the_rows_are_those_of_the_prediction():
    config, _, compared = finished(factors=(1.0, 2.0, 5.0), batch_size=32)
    devices = [Device(0.0, 1e6 / factor) for factor in config.factors]
    assert compared.predicted == {
        "equal": equal_sharing(32, devices),
        "best": best_sharing(32, devices),
    }
    for name, sharing in compared.predicted.items():
        assert compared.measured[name].rows == sharing.rows
        assert compared.last[name] >= max(compared.measured[name].seconds) * (1 - 1e-12)


def test_an_error_is_measured_over_predicted():
    _, _, compared = finished()
    for name in ("equal", "best"):
        ratio = compared.last[name] / compared.predicted[name].last
        assert compared.error(name) == pytest.approx(ratio - 1)


def test_a_run_can_be_left():
    events = run_slowed(SlowedConfig(), Device(0.0, 1000), DATA)
    next(events)
    events.close()


@pytest.mark.parametrize("factors", [(), (0.5, 1.0), (1.0, math.nan), (1.0,) * 9, (21.0,), ("1",)])
def test_impossible_factors_are_refused(factors):
    with pytest.raises(ConfigError, match="slowed: factors must be 1 to 8 numbers from 1 to 20"):
        SlowedConfig(factors=factors)


def test_a_batch_smaller_than_the_replicas_is_refused():
    with pytest.raises(ConfigError, match="batch_size must be at least 3, for 3 replicas; rec"):
        SlowedConfig(batch_size=2)
    with pytest.raises(ConfigError, match="batch_size must be at least 6"):
        SlowedConfig(batch_size=5, model="resnet18_deeper")
