"""Places for worker processes: never more than there are, first come first served, none lost."""

import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress

import pytest

from labcore import places, processes
from labcore.config import ConfigError
from labcore.events import ProcessesAwaited, StepTaken
from labcore.jobs import ASK_SECONDS, Pool
from labcore.places import MOST_PROCESSES, PLACES, Places
from labcore.processes import PlacesAwaited, WorkerStarted, run_workers


def test_places_are_granted_while_there_are_some() -> None:
    own = Places(4)
    with own.request(3) as first, own.request(1) as second:
        assert (first.missing(), second.missing(), own.taken) == (0, 0, 4)


def test_granted_places_stay_granted() -> None:
    own = Places(2)
    with own.request(2) as request:
        assert (request.missing(), request.missing(), own.taken) == (0, 0, 2)


def test_who_comes_too_late_is_told_how_many_must_end() -> None:
    own = Places(4)
    with own.request(3) as first, own.request(4) as second, own.request(1) as third:
        assert (first.missing(), second.missing(), third.missing()) == (0, 3, 4)


def test_a_small_run_does_not_pass_a_large_one_that_waits() -> None:
    own = Places(4)
    with own.request(3) as first, own.request(4) as large, own.request(1) as small:
        assert (first.missing(), large.missing()) == (0, 3)
        assert small.missing() > 0


def test_who_no_longer_asks_lets_others_pass_and_keeps_its_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own = Places(4)
    with own.request(3) as first, own.request(4) as paused, own.request(1) as small:
        assert (first.missing(), paused.missing()) == (0, 3)
        later = time.monotonic() + places.PASSED_AFTER + 1
        monkeypatch.setattr(time, "monotonic", lambda: later)
        assert small.missing() == 0
        with own.request(1) as last:
            assert (paused.missing(), last.missing()) == (4, 5)


@pytest.mark.parametrize("granted", [True, False])
def test_an_exception_gives_places_back(granted: bool) -> None:
    own = Places(1)
    with ExitStack() as others:
        if not granted:
            others.enter_context(own.request(1)).missing()
        with suppress(KeyError), own.request(1) as request:
            assert (request.missing() == 0) == granted
            raise KeyError
    with own.request(1) as next_one:
        assert (next_one.missing(), own.taken) == (0, 1)


def test_more_than_there_will_ever_be_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"at most 4 at once.*received 5"), Places(4).request(5):
        pass


@pytest.fixture
def full() -> Iterator[ExitStack]:
    """All places of this machine are taken, until the stack is closed."""
    with ExitStack() as stack:
        assert stack.enter_context(PLACES.request(MOST_PROCESSES)).missing() == 0
        yield stack
    assert PLACES.taken == 0


def test_workers_wait_until_there_is_room(full: ExitStack) -> None:
    with closing(run_workers("json", [None] * 2, 20.0)) as events:
        assert [next(events) for _ in range(3)] == [PlacesAwaited(2)] * 3
        full.close()
        assert isinstance(next(events), WorkerStarted)
        assert PLACES.taken == 2


def test_workers_that_wait_can_be_given_up(full: ExitStack) -> None:
    events = run_workers("json", [None] * 2, 20.0)
    next(events)
    events.close()
    full.close()
    assert PLACES.taken == 0


def test_workers_that_cannot_start_leave_no_place_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object) -> None:
        raise OSError("no more processes")

    monkeypatch.setattr(processes, "_start", refuse)
    with pytest.raises(OSError, match="no more processes"):
        list(run_workers("json", [None], 20.0))
    assert PLACES.taken == 0


def test_a_job_that_waits_leaves_its_worker_to_others() -> None:
    asked = []

    def waiting() -> Iterator[ProcessesAwaited]:
        while True:
            asked.append(time.monotonic())
            yield ProcessesAwaited(0, 2, 0.0, missing=1)

    class Kept:
        def __init__(self) -> None:
            self.steps = 0

        def add(self, event: object) -> None:
            self.steps += isinstance(event, StepTaken)

    pool = Pool(1)
    try:
        started = time.monotonic()
        job = pool.submit(waiting(), Kept(), owner="waits")
        other = pool.submit((StepTaken(n, 0.0) for n in range(1, 500)), Kept(), owner="works")
        assert other.wait(10)
        time.sleep(2.2 * ASK_SECONDS)
        job.stop()
        assert job.wait(10)
        assert 2 <= len(asked) <= 2 + (time.monotonic() - started) / ASK_SECONDS
    finally:
        pool.close()
