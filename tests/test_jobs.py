"""Jobs: fair turns, obedient controls, failures that stay where they happen, a clean end."""

import gc
import math
import os
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from labcore import jobs
from labcore.events import Event, LossRecorded, StepTaken
from labcore.jobs import Job, Pool

LONG = 10.0  # a wait that only a broken pool exhausts


class Log:
    """A history for tests: counts, and lets a test wait for its count."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.steps = 0
        self._grown = threading.Condition()

    def add(self, event: Event) -> None:
        with self._grown:
            self.events.append(event)
            self.steps += isinstance(event, StepTaken)
            self._grown.notify_all()

    def wait_for_steps(self, count: int) -> None:
        with self._grown:
            assert self._grown.wait_for(lambda: self.steps >= count, LONG)


class Run:
    """An iterator of steps whose end, closing and concurrent use can be observed."""

    def __init__(self, steps: float = math.inf, seconds: float = 0.0) -> None:
        self.closed = threading.Event()
        self.events = self._run(steps, seconds)

    def _run(self, steps: float, seconds: float) -> Iterator[Event]:
        step = 0
        try:
            while step < steps:
                if seconds:
                    time.sleep(seconds)
                step += 1
                yield LossRecorded(step, float(step), 0.0, 1.0)
                yield StepTaken(step, float(step))
        finally:
            self.closed.set()


class Stuck:
    """A run that is inside its first event until let go."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.let_go = threading.Event()
        self.closed = threading.Event()
        self.events = self._run()

    def _run(self) -> Iterator[Event]:
        try:
            self.entered.set()
            assert self.let_go.wait(LONG)
            step = 0
            while True:
                step += 1
                yield StepTaken(step, float(step))
        finally:
            self.closed.set()


def failing(error: BaseException) -> Iterator[Event]:
    yield StepTaken(1, 1.0)
    raise error


MakePool = Callable[..., Pool]


@pytest.fixture
def make_pool() -> Iterator[MakePool]:
    made: list[Pool] = []

    def make(workers: int = 1, lease_seconds: float = 20.0) -> Pool:
        made.append(Pool(workers, lease_seconds))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def one(make_pool: MakePool) -> Pool:
    return make_pool(1)


@pytest.fixture
def stuck(one: Pool) -> Iterator[Stuck]:
    """The only worker is inside this run."""
    run = Stuck()
    one.submit(run.events, Log(), owner="stuck")
    assert run.entered.wait(LONG)
    yield run
    run.let_go.set()


def submit(
    pool: Pool, run: Run | None = None, *, paused: bool = False, pace: float | None = None
) -> tuple[Job[Log], Log]:
    log = Log()
    run = run or Run()
    return pool.submit(run.events, log, owner="me", paused=paused, pace=pace), log


def eventually(condition: Callable[[], bool]) -> bool:
    """Whether the condition, which nothing signals, comes true in time."""
    until = time.monotonic() + LONG
    while not condition() and time.monotonic() < until:
        time.sleep(0.005)
    return condition()


# A run from start to end


def test_every_event_arrives_in_order(one: Pool) -> None:
    job, log = submit(one, Run(1_000))
    assert job.wait(LONG)
    assert log.events == list(Run(1_000).events)


def test_a_run_to_the_end_is_finished(one: Pool) -> None:
    job, _ = submit(one, Run(3))
    assert job.wait(LONG)
    assert (job.state, job.live, job.error) == ("finished", False, None)


def test_history_stays_readable_after_the_end(one: Pool) -> None:
    job, _ = submit(one, Run(3))
    assert job.wait(LONG)
    with job.reading() as log:
        assert log.steps == 3


def test_generator_is_dropped_at_the_end(one: Pool) -> None:
    run = Run(3)
    generator = weakref.ref(run.events)
    job, _ = submit(one, run)
    assert job.wait(LONG)
    one.close()
    del run
    gc.collect()
    assert generator() is None


def test_an_iterator_without_close_will_do(one: Pool) -> None:
    job = one.submit(iter([StepTaken(1, 1.0)]), Log(), owner="me")
    assert job.wait(LONG)
    assert job.state == "finished"


def test_workers_start_with_the_first_submit(one: Pool) -> None:
    assert one._threads == []
    submit(one, Run(1))
    assert len(one._threads) == 1


def test_a_pool_without_workers_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1 worker, not 0; try 1"):
        Pool(0)


# Pause, resume, step


def test_pause_keeps_the_history_still(one: Pool) -> None:
    job, log = submit(one)
    log.wait_for_steps(5)
    job.pause()
    assert job.wait(LONG)
    before = log.steps
    other, _ = submit(one, Run(1_000))
    assert other.wait(LONG)
    assert (job.state, log.steps) == ("paused", before)


def test_resume_goes_on_where_pause_left(one: Pool) -> None:
    job, log = submit(one, Run(20_000))
    log.wait_for_steps(5)
    job.pause()
    assert job.wait(LONG)
    job.resume()
    assert job.wait(LONG)
    assert (job.state, log.events) == ("finished", list(Run(20_000).events))


def test_submitted_paused_takes_nothing(one: Pool) -> None:
    job, log = submit(one, paused=True)
    other, _ = submit(one, Run(10))
    assert other.wait(LONG)
    assert (job.state, job.position, log.events) == ("paused", None, [])


def test_submitted_paused_can_be_resumed(one: Pool) -> None:
    job, log = submit(one, Run(10), paused=True)
    job.resume()
    assert job.wait(LONG)
    assert log.steps == 10


def test_step_takes_exactly_one_step(one: Pool) -> None:
    job, log = submit(one, paused=True)
    for count in range(1, 20):
        job.step()
        assert job.wait(LONG)
        assert (job.state, log.steps) == ("paused", count)


def test_step_ends_with_the_events_of_its_step(one: Pool) -> None:
    job, log = submit(one, paused=True)
    job.step()
    assert job.wait(LONG)
    assert log.events == [LossRecorded(1, 1.0, 0.0, 1.0), StepTaken(1, 1.0)]


def test_step_on_a_running_job_pauses_after_the_next_step(one: Pool, stuck: Stuck) -> None:
    job, log = submit(one)
    job.step()
    stuck.let_go.set()
    assert job.wait(LONG)
    assert (job.state, log.steps) == ("paused", 1)


def test_step_twice_in_one_step_is_one_step(one: Pool, stuck: Stuck) -> None:
    job, log = submit(one, paused=True)
    job.step()
    job.step()
    stuck.let_go.set()
    assert job.wait(LONG)
    assert log.steps == 1


def test_resume_during_a_step_runs_on(one: Pool, stuck: Stuck) -> None:
    job, log = submit(one, Run(10), paused=True)
    job.step()
    job.resume()
    stuck.let_go.set()
    assert job.wait(LONG)
    assert (job.state, log.steps) == ("finished", 10)


def test_step_after_the_last_step_finishes(one: Pool) -> None:
    job, _ = submit(one, Run(1), paused=True)
    job.step()
    assert job.wait(LONG)
    job.step()
    assert job.wait(LONG)
    assert job.state == "finished"


def test_start_twice_is_start_once(one: Pool) -> None:
    job, log = submit(one, Run(10), paused=True)
    job.resume()
    job.resume()
    assert job.wait(LONG)
    assert log.events == list(Run(10).events)


def test_pause_twice_then_resume_once_runs(one: Pool) -> None:
    job, _ = submit(one, Run(100))
    job.pause()
    job.pause()
    job.resume()
    assert job.wait(LONG)
    assert job.state == "finished"


@pytest.mark.parametrize("control", ["pause", "resume", "step", "stop"])
def test_no_control_changes_a_finished_job(one: Pool, control: str) -> None:
    job, _ = submit(one, Run(3))
    assert job.wait(LONG)
    getattr(job, control)()
    assert job.state == "finished"


# Stop


def queued(pool: Pool, run: Run) -> Job[Log]:
    blocker = Stuck()
    pool.submit(blocker.events, Log(), owner="blocker")
    assert blocker.entered.wait(LONG)
    job, _ = submit(pool, run)
    assert job.state == "queued"
    threading.Timer(0.1, blocker.let_go.set).start()
    return job


def running(pool: Pool, run: Run) -> Job[Log]:
    job, log = submit(pool, run)
    log.wait_for_steps(1)
    assert job.state == "running"
    return job


def paused(pool: Pool, run: Run) -> Job[Log]:
    job = running(pool, run)
    job.pause()
    assert job.state == "paused"
    return job


def stepped(pool: Pool, run: Run) -> Job[Log]:
    job, _ = submit(pool, run, paused=True)
    job.step()
    assert job.wait(LONG)
    return job


LIVE_STATES = [queued, running, paused, stepped]


@pytest.mark.parametrize("reach", LIVE_STATES)
def test_stop_from_any_live_state(one: Pool, reach: Callable[[Pool, Run], Job[Log]]) -> None:
    job = reach(one, Run())
    job.stop()
    job.stop()
    assert job.wait(LONG)
    assert (job.state, job.live, job.error) == ("stopped", False, None)


@pytest.mark.parametrize("reach", [running, paused, stepped])
def test_stop_closes_the_generator(one: Pool, reach: Callable[[Pool, Run], Job[Log]]) -> None:
    run = Run()
    job = reach(one, run)
    job.stop()
    assert run.closed.wait(LONG)


def test_stop_does_not_wait_for_an_event(one: Pool) -> None:
    run, log = Stuck(), Log()
    job = one.submit(run.events, log, owner="me")
    assert run.entered.wait(LONG)
    job.stop()
    assert job.state == "stopped"
    assert not run.closed.is_set()
    run.let_go.set()
    assert run.closed.wait(LONG)


def test_an_event_after_stop_is_dropped(one: Pool) -> None:
    run, log = Stuck(), Log()
    job = one.submit(run.events, log, owner="me")
    assert run.entered.wait(LONG)
    job.stop()
    run.let_go.set()
    assert job.wait(LONG)
    assert log.events == []


def test_a_run_may_stop_its_own_job(one: Pool) -> None:
    own: list[Job[Log]] = []

    def run() -> Iterator[Event]:
        own[0].stop()
        yield StepTaken(1, 1.0)

    own.append(one.submit(run(), Log(), owner="me", paused=True))
    own[0].resume()
    assert own[0].wait(LONG)
    assert own[0].state == "stopped"


def test_a_run_that_does_not_close_harms_nobody(
    one: Pool, caplog: pytest.LogCaptureFixture
) -> None:
    def run() -> Iterator[Event]:
        try:
            yield StepTaken(1, 1.0)
            yield StepTaken(2, 2.0)
        finally:
            raise KeyboardInterrupt

    job = one.submit(run(), Log(), owner="me", paused=True)
    job.step()
    assert job.wait(LONG)
    job.stop()
    assert job.wait(LONG)
    assert (job.state, "did not close" in caplog.text) == ("stopped", True)


# Reading


def test_reading_does_not_wait_for_a_slow_event(one: Pool) -> None:
    run, log = Stuck(), Log()
    job = one.submit(run.events, log, owner="me")
    assert run.entered.wait(LONG)
    with job.reading() as history:  # would never come back if it waited
        assert history is log
    run.let_go.set()


def test_history_stands_still_while_read(one: Pool) -> None:
    job, log = submit(one, pace=200)
    log.wait_for_steps(1)
    with job.reading() as history:
        before = history.steps
        other, _ = submit(one, paused=True)
        other.step()
        other.wait(0.1)
        assert history.steps == before


def test_controls_may_be_used_while_reading(one: Pool) -> None:
    job, log = submit(one)
    log.wait_for_steps(1)
    with job.reading():
        job.pause()
        job.step()
        job.stop()
    assert job.wait(LONG)


# The line


def test_position_counts_from_one(one: Pool, stuck: Stuck) -> None:
    submitted = [submit(one)[0] for _ in range(3)]
    assert [job.position for job in submitted] == [1, 2, 3]
    assert [job.state for job in submitted] == ["queued"] * 3


@pytest.mark.parametrize("leave", ["pause", "stop"])
def test_those_behind_move_up(one: Pool, stuck: Stuck, leave: str) -> None:
    first, second = submit(one)[0], submit(one)[0]
    getattr(first, leave)()
    assert (first.position, second.position) == (None, 1)


def test_no_position_while_a_worker_is_free(one: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(one, "_start_workers", lambda: None)  # free for as long as we look
    job, _ = submit(one)
    assert (job.state, job.position) == ("queued", None)


def test_a_running_job_has_no_position(one: Pool) -> None:
    job, log = submit(one)
    log.wait_for_steps(1)
    assert job.position is None


def test_a_resumed_job_that_never_ran_queues_again(one: Pool, stuck: Stuck) -> None:
    first, _ = submit(one, paused=True)
    second, _ = submit(one)
    first.resume()
    assert [(job.state, job.position) for job in (first, second)] == [("queued", 2), ("queued", 1)]


def test_a_resumed_job_that_ran_is_running_at_once(one: Pool) -> None:
    job, _ = submit(one, paused=True)
    job.step()
    assert job.wait(LONG)
    run = Stuck()
    one.submit(run.events, Log(), owner="me")
    assert run.entered.wait(LONG)
    job.resume()
    assert (job.state, job.position) == ("running", None)
    run.let_go.set()


@pytest.mark.parametrize("workers", [1, 2])
def test_thirty_jobs_share_the_time(make_pool: MakePool, workers: int) -> None:
    pool = make_pool(workers)
    started = [submit(pool, Run(seconds=0.001), paused=True) for _ in range(30)]
    for job, _ in started:
        job.resume()
    for _, log in started:
        log.wait_for_steps(15)
    for job, _ in started:
        job.pause()
    steps = [log.steps for _, log in started]
    # Each turn is about 15 steps here, and nobody is more than a turn or so ahead of another.
    assert max(steps) - min(steps) <= 60


def test_a_short_job_overtakes_a_long_one(one: Pool) -> None:
    long, log = submit(one)
    log.wait_for_steps(1)
    short, _ = submit(one, Run(5))
    assert short.wait(LONG)
    assert long.state == "running"


@pytest.mark.parametrize("workers", [1, 3])
def test_two_threads_never_share_a_generator(make_pool: MakePool, workers: int) -> None:
    # Python itself raises "generator already executing", which would fail the job.
    pool = make_pool(workers)
    started = [submit(pool, Run(2_000)) for _ in range(4)]
    while any(job.live for job, _ in started):
        for job, _ in started:
            job.pause()
            job.resume()
    assert [job.state for job, _ in started] == ["finished"] * 4


# Pace


def test_pace_bounds_the_steps(one: Pool) -> None:
    started = time.monotonic()
    job, log = submit(one, pace=50)
    assert not job.wait(0.5)
    job.stop()
    assert 8 <= log.steps <= 50 * (time.monotonic() - started) + 2


def test_a_paced_job_catches_up_little_after_a_slow_event(
    one: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "ROUND_SECONDS", 0.05)
    run, log = Stuck(), Log()
    job = one.submit(run.events, log, owner="me", pace=200)
    assert not job.wait(0.3)  # 60 steps behind
    started = time.monotonic()
    run.let_go.set()
    job.wait(0.05)
    job.stop()
    assert log.steps <= 200 * (0.05 + time.monotonic() - started) + 2


def test_a_paced_job_leaves_the_worker_to_others(one: Pool) -> None:
    submit(one, pace=0.01)[1].wait_for_steps(1)
    other, _ = submit(one, Run(1_000))
    assert other.wait(LONG)
    assert other.state == "finished"


def test_no_burst_after_a_pause(one: Pool) -> None:
    job, log = submit(one, pace=20)
    log.wait_for_steps(2)
    job.pause()
    assert job.wait(LONG)
    assert not threading.Event().wait(0.6)
    before, started = log.steps, time.monotonic()
    job.resume()
    job.wait(0.2)
    job.stop()
    assert log.steps - before <= 20 * (time.monotonic() - started) + 2


def test_pace_can_be_lifted_while_running(one: Pool) -> None:
    job, log = submit(one, Run(500), pace=0.01)
    log.wait_for_steps(1)
    job.pace = None
    assert job.wait(LONG)
    assert log.steps == 500


def test_pace_can_be_set_while_running(one: Pool) -> None:
    job, log = submit(one)
    log.wait_for_steps(100)
    job.pace = 0.01
    job.wait(0.1)
    before = log.steps
    job.wait(0.2)
    assert log.steps <= before + 1


def test_setting_the_same_pace_again_changes_nothing(one: Pool) -> None:
    started = time.monotonic()
    job, log = submit(one, pace=40)
    while time.monotonic() < started + 0.4:
        job.pace = 40
    job.stop()
    assert 3 <= log.steps <= 40 * (time.monotonic() - started) + 2


def test_a_slow_pace_can_be_stopped_at_once(one: Pool) -> None:
    job, log = submit(one, pace=1e-12)
    log.wait_for_steps(1)
    job.stop()
    assert job.wait(LONG)


@pytest.mark.parametrize("pace", [0.0, -1.0, math.nan, math.inf])
def test_a_bad_pace_is_refused(one: Pool, pace: float) -> None:
    with pytest.raises(ValueError, match=r"positive number of steps per second, not .*try 10"):
        submit(one, pace=pace)


# Leases


def owned(pool: Pool, owner: str) -> list[Job[Log]]:
    """A running, a paused and a hardly moving job."""
    moving = pool.submit(Run().events, Log(), owner=owner)
    resting = pool.submit(Run().events, Log(), owner=owner, paused=True)
    paced = pool.submit(Run().events, Log(), owner=owner, pace=0.01)
    return [moving, resting, paced]


def test_an_expired_lease_stops_all_jobs_of_the_owner(make_pool: MakePool) -> None:
    pool = make_pool(1, lease_seconds=0.1)
    mine = owned(pool, "me")
    pool.release("me")
    assert eventually(lambda: not any(job.live for job in mine))
    assert [job.state for job in mine] == ["stopped"] * 3


def test_an_expired_lease_stops_a_queued_job(make_pool: MakePool) -> None:
    pool = make_pool(1, lease_seconds=0.1)
    run = Stuck()
    pool.submit(run.events, Log(), owner="other")
    assert run.entered.wait(LONG)
    job, log = submit(pool)
    pool.release("me")
    assert not job.wait(0.2)
    run.let_go.set()
    assert job.wait(LONG)
    assert (job.state, log.events) == ("stopped", [])


def test_a_lease_runs_out_while_all_workers_sleep(make_pool: MakePool) -> None:
    pool = make_pool(2, lease_seconds=0.1)
    run = Run()
    job, _ = submit(pool, run, paused=True)
    job.step()
    assert job.wait(LONG)
    pool.release("me")
    assert run.closed.wait(LONG)
    assert job.state == "stopped"


def test_others_live_on_when_a_lease_expires(make_pool: MakePool) -> None:
    pool = make_pool(1, lease_seconds=0.05)
    mine, theirs = owned(pool, "me"), owned(pool, "they")
    pool.release("me")
    assert mine[0].wait(LONG)
    assert all(job.live for job in theirs)


def test_a_renewed_lease_never_expires(make_pool: MakePool) -> None:
    pool = make_pool(1, lease_seconds=0.1)
    mine = owned(pool, "me")
    pool.release("me")
    pool.renew("me")
    assert not mine[0].wait(0.3)
    assert all(job.live for job in mine)


def test_releasing_again_does_not_prolong_the_lease(make_pool: MakePool) -> None:
    pool = make_pool(1, lease_seconds=0.2)
    job, _ = submit(pool)

    def release_again() -> bool:
        pool.release("me")
        return not job.live

    assert eventually(release_again)


def test_an_owner_who_returns_after_the_lease_starts_afresh(make_pool: MakePool) -> None:
    pool = make_pool(1, lease_seconds=0.0)
    pool.release("me")  # before there is a worker to notice
    job, _ = submit(pool, Run(10))
    assert job.wait(LONG)
    assert job.state == "finished"


def test_renewing_and_releasing_strangers_is_harmless(one: Pool) -> None:
    one.renew("nobody")
    one.release("nobody")
    job, _ = submit(one, Run(3))
    assert job.wait(LONG)
    assert job.state == "finished"


# Failures


class WrongConfigError(ValueError):
    for_user = True


def test_an_error_for_the_user_is_shown_as_it_is(one: Pool) -> None:
    job = one.submit(failing(WrongConfigError("lr must be positive.")), Log(), owner="me")
    assert job.wait(LONG)
    assert (job.state, job.error) == ("failed", "lr must be positive.")


def test_any_other_error_points_to_the_log(one: Pool) -> None:
    job = one.submit(failing(ValueError("shapes differ\nsecond line")), Log(), owner="me")
    assert job.wait(LONG)
    assert job.error == (
        "The run stopped because of an internal error (ValueError: shapes differ). "
        "The server log has the details."
    )


def test_the_traceback_is_logged(one: Pool, caplog: pytest.LogCaptureFixture) -> None:
    job = one.submit(failing(ValueError("shapes differ")), Log(), owner="me")
    assert job.wait(LONG)
    [record] = caplog.records
    assert (record.name, record.exc_info is not None) == ("labcore.jobs", True)


@pytest.mark.parametrize(
    "error",
    [
        ValueError(),
        KeyboardInterrupt(),
        GeneratorExit(),
        SystemExit(1),
        StopIteration(),
        MemoryError(),
    ],
)
def test_no_error_ends_the_worker(one: Pool, error: BaseException) -> None:
    bad = one.submit(failing(error), Log(), owner="me")
    good, _ = submit(one, Run(1_000))
    assert bad.wait(LONG)
    assert good.wait(LONG)
    assert (bad.state, good.state) == ("failed", "finished")


@pytest.mark.parametrize("error", [ValueError("full"), StopIteration(), KeyboardInterrupt()])
def test_a_failing_history_fails_the_run(one: Pool, error: BaseException) -> None:
    class Full:
        def add(self, event: Event) -> None:
            raise error

    run = Run()
    job = one.submit(run.events, Full(), owner="me")
    assert job.wait(LONG)
    assert (job.state, run.closed.is_set()) == ("failed", True)


def test_events_before_a_failure_are_kept(one: Pool) -> None:
    log = Log()
    assert one.submit(failing(ValueError()), log, owner="me").wait(LONG)
    assert log.steps == 1


# The end of the pool


def test_close_stops_every_job(make_pool: MakePool) -> None:
    pool = make_pool(2)
    mine = owned(pool, "me")
    pool.close()
    assert [job.state for job in mine] == ["stopped"] * 3


def test_close_joins_the_workers(make_pool: MakePool) -> None:
    pool = make_pool(2)
    owned(pool, "me")
    pool.close()
    assert not any(thread.is_alive() for thread in pool._threads)


def test_close_is_bounded_in_time(one: Pool, stuck: Stuck) -> None:
    started = time.monotonic()
    one.close(timeout=0.1)
    assert time.monotonic() - started < LONG / 2


def test_close_twice(make_pool: MakePool) -> None:
    pool = make_pool(1)
    pool.close()
    pool.close()


def test_a_closed_pool_takes_no_jobs(one: Pool) -> None:
    one.close()
    with pytest.raises(RuntimeError, match="closed and takes no more runs; restart the lab"):
        submit(one)


# The pool of the process


@pytest.fixture
def no_pool_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "_pool", None)
    monkeypatch.setattr(jobs, "_available_cores", lambda: 8)


@pytest.mark.parametrize(("workers", "cores"), [(None, 8), ("1", 8), ("3", 2), ("20", 1)])
@pytest.mark.usefixtures("no_pool_yet")
def test_workers_share_the_cores(
    monkeypatch: pytest.MonkeyPatch, workers: str | None, cores: int
) -> None:
    monkeypatch.delenv("LAB_WORKERS", raising=False)
    if workers is not None:
        monkeypatch.setenv("LAB_WORKERS", workers)
    assert jobs.pool()._workers == int(workers or 1)
    assert jobs.pool().cores == cores


@pytest.mark.parametrize("wide", [False, True])
def test_only_a_wide_job_uses_more_than_one_core(one: Pool, wide: bool) -> None:
    one.cores = 2
    seen: list[int] = []

    def run() -> Iterator[Event]:
        seen.append(torch.get_num_threads())
        yield StepTaken(1, 1.0)

    one.submit(run(), Log(), owner="me", wide=wide).wait(5)
    assert seen == [2 if wide else 1]


@pytest.mark.usefixtures("no_pool_yet")
def test_there_is_one_pool() -> None:
    found: list[Pool] = []
    threads = [threading.Thread(target=lambda: found.append(jobs.pool())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 1


@pytest.mark.parametrize("value", ["0", "-1", "two", "1.5", ""])
@pytest.mark.usefixtures("no_pool_yet")
def test_a_bad_number_of_workers_is_refused(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("LAB_WORKERS", value)
    with pytest.raises(ValueError, match=f"whole number from 1, not '{value}'; set LAB_WORKERS=1"):
        jobs.pool()


# All at once


def test_hammering_harms_nobody(make_pool: MakePool) -> None:
    pool = make_pool(3)
    started = [submit(pool, Run()) for _ in range(6)]
    errors: list[BaseException] = []
    until = time.monotonic() + 1.0

    def hammer(seed: int) -> None:
        dice = random.Random(seed)
        try:
            while time.monotonic() < until:
                job, _ = dice.choice(started)
                with job.reading() as log:
                    steps = [e.step for e in log.events[-20:] if isinstance(e, StepTaken)]
                assert steps == sorted(set(steps))
                dice.choice([job.pause, job.resume, job.step, job.resume])()
                job.pace = dice.choice([None, None, 1_000.0])
                assert job.position is None or job.position >= 1
                if dice.random() < 0.001:
                    job.stop()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=hammer, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for job, _ in started:
        job.stop()
    assert errors == []
    assert all(job.wait(LONG) for job, _ in started)
    assert {job.state for job, _ in started} == {"stopped"}


def test_after_hammering_every_job_still_finishes(make_pool: MakePool) -> None:
    pool = make_pool(3)
    started = [submit(pool, Run(3_000)) for _ in range(6)]
    until = time.monotonic() + 0.5

    def hammer(seed: int) -> None:
        dice = random.Random(seed)
        while time.monotonic() < until:
            job, _ = dice.choice(started)
            dice.choice([job.pause, job.resume, job.step])()

    threads = [threading.Thread(target=hammer, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for job, _ in started:
        job.resume()
    assert all(job.wait(LONG) for job, _ in started)
    assert [(job.state, log.steps) for job, log in started] == [("finished", 3_000)] * 6


# Signals

PROGRAM = """
    import signal, sys, threading
    import torch
    from labcore.events import StepTaken
    from labcore.jobs import pool

    # As Streamlit does: SIGTERM ends the main loop, and the interpreter goes down in order.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    moving = threading.Semaphore(0)

    class Log:
        def add(self, event):
            moving.release()

    def run():
        a = torch.randn(700, 700)
        step = 0
        while True:
            step += 1
            for _ in range(5):
                (a @ a).sum().item()
            yield StepTaken(step, float(step))

    jobs = [pool().submit(run(), Log(), owner="me") for _ in range(3)]
    pool().submit(run(), Log(), owner="me", paused=True)
    for _ in range(20):
        moving.acquire()
    print("moving", flush=True)
    try:
        jobs[0].wait()
    except KeyboardInterrupt:
        sys.exit(130)
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_signal_ends_the_process_in_order(number: signal.Signals, code: int) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(PROGRAM)],
        cwd=Path(__file__).parents[1],
        env={**os.environ, "LAB_WORKERS": "2"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "moving\n"
        process.send_signal(number)
        _, complaints = process.communicate(timeout=8)
    finally:
        process.kill()
        process.communicate()
    assert (process.returncode, complaints) == (code, "")
