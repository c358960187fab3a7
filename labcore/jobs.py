"""Background jobs: a few worker threads take turns on everybody's runs.

A run is a generator of events, so it can be left after any event and taken up again later, by
whichever worker is free. The waiting line holds the jobs that want a turn; a worker takes the
first, advances it for about 50 ms, and puts it back at the end.

Two kinds of lock, always taken in this order, never the other way round:

1. a job's lock guards its history, its state and `_held`: whether some thread has its generator;
2. the pool's lock guards the line, the set of live jobs and the leases.

Neither is held while a generator runs, so a page never waits for a slow event. Why no generator is
ever run by two threads at once: `_held` goes from False to True under the job's lock only, and
whoever has set it is the only one to touch the generator. Why no job is forgotten: whoever makes a
job runnable puts it into the line, and a worker that took it from there either holds it, and puts
it back after its turn, or found it held by another worker, who will.
"""

import atexit
import logging
import math
import os
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Generic, Literal, Protocol, TypeVar

import torch

from labcore.events import Event, ProcessesAwaited, StepTaken

State = Literal["queued", "running", "paused", "finished", "stopped", "failed"]

TURN_SECONDS = 0.050
SHORTEST_TURN_SECONDS = 0.005
# Everybody's next turn should come within this time, if the shortest turns allow it. It is also
# how far a paced job may fall behind and still catch up.
ROUND_SECONDS = 0.5
# How often a run that waits for the processes of others to end asks again.
ASK_SECONDS = 0.5

_log = logging.getLogger(__name__)


class History(Protocol):
    """What keeps a run's events."""

    def add(self, event: Event, /) -> None:
        """Take in one event; called under the job's lock, so it should be quick."""


H = TypeVar("H", bound=History)


class Job(Generic[H]):
    """One run in the pool: its controls and its history. Made by `Pool.submit`.

    Every method may be called from any thread at any time, and does nothing where there is nothing
    to do. None of them waits for the run.

    - queued: wants its first turn.
    - running: takes turns.
    - paused: rests until `resume` or `step`.
    - finished, stopped, failed: ended for good; the history stays readable.
    """

    def __init__(
        self,
        pool: "Pool",
        events: Iterator[Event],
        history: H,
        owner: str,
        paused: bool,
        pace: float | None,
        cores: int,
    ) -> None:
        self.owner = owner
        self._cores = cores
        self._pool = pool
        self._events: Iterator[Event] | None = events
        self._history = history
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._state: State = "paused" if paused else "queued"
        self._error: str | None = None
        self._begun = False  # whether it has had a turn
        self._held = False
        self._stepping = False  # whether the next StepTaken pauses; set by whoever sets going
        self._pace = _checked_pace(pace)
        self._due = time.monotonic()  # no event is taken before

    @property
    def state(self) -> State:
        """Where the job stands."""
        return self._state

    @property
    def live(self) -> bool:
        """Whether the job has not ended."""
        return self._state in ("queued", "running", "paused")

    @property
    def error(self) -> str | None:
        """Why the job failed, in one sentence for the user; None unless it did."""
        return self._error

    @property
    def position(self) -> int | None:
        """Place in the waiting line, from 1, while queued with all workers busy; else None."""
        return self._pool._position(self) if self._state == "queued" else None

    @property
    def pace(self) -> float | None:
        """Most steps per second, None for as fast as possible; may be set at any time."""
        return self._pace

    @pace.setter
    def pace(self, value: float | None) -> None:
        with self._lock:
            # A page sets the same pace again at every rerun: that must not restart the interval.
            if _checked_pace(value) != self._pace:
                self._pace = value
                self._due = time.monotonic() + (0.0 if value is None else 1 / value)
                with self._pool._changed:
                    self._pool._changed.notify()

    @contextmanager
    def reading(self) -> Iterator[H]:
        """The history, which stands still inside the `with` block. Be quick: the run may wait."""
        with self._lock:
            yield self._history

    def pause(self) -> None:
        """Rest after the event in hand."""
        with self._lock:
            if self._state in ("queued", "running"):
                self._state = "paused"
                self._pool._leave_line(self)
                self._changed.notify_all()

    def resume(self) -> None:
        """Take turns (again)."""
        self._go(stepping=False)

    def step(self) -> None:
        """Go on until one more `StepTaken` is in the history, then pause."""
        self._go(stepping=True)

    def _go(self, *, stepping: bool) -> None:
        with self._lock:
            if not self.live:
                return
            self._stepping = stepping
            if self._state == "paused":
                self._state = "running" if self._begun else "queued"
                self._due = time.monotonic()
                self._pool._join_line(self)

    def stop(self) -> None:
        """End the job; nothing enters the history any more. Its generator is closed soon."""
        self._end("stopped")

    def wait(self, timeout: float | None = None) -> bool:
        """Block until the job rests: ended and its generator closed, or paused and let go of.

        Args:
            timeout: seconds, None for no limit.

        Returns:
            Whether the job rests; False if the time ran out before.
        """
        with self._changed:
            return self._changed.wait_for(
                lambda: self._events is None or (self._state == "paused" and not self._held),
                timeout,
            )

    def _take_turn(self, seconds: float) -> None:
        with self._lock:
            if self._held or self._state not in ("queued", "running"):
                return
            assert self._events is not None  # only ended jobs have none
            events = self._events
            self._held = True
            self._begun = True
            self._state = "running"
        torch.set_num_threads(self._cores)
        self._advance(events, time.monotonic() + seconds)
        with self._lock:
            if self.live:
                self._held = False
                if self._state == "running":
                    self._pool._join_line(self)
                self._changed.notify_all()
                return
        self._close()

    def _advance(self, events: Iterator[Event], until: float) -> None:
        # Take events, at least one, until the turn is over or the job is not to go on.
        try:
            for event in events:
                with self._lock:
                    if not self.live:
                        return
                    self._history.add(event)
                    if isinstance(event, StepTaken):
                        self._count_step()
                    if isinstance(event, ProcessesAwaited) and event.missing:
                        self._due = time.monotonic() + ASK_SECONDS
                    if self._state != "running" or not self._due <= time.monotonic() < until:
                        return
            self._end("finished")
        # Whatever a run raises, even GeneratorExit, ends this run and not the worker.
        except BaseException as error:
            _log.exception("A run of %s failed", self.owner)
            self._end("failed", _sentence(error))

    def _count_step(self) -> None:
        if self._stepping:
            self._state = "paused"
        if self._pace is not None:
            self._due = max(self._due + 1 / self._pace, time.monotonic() - ROUND_SECONDS)

    def _end(self, state: State, error: str | None = None) -> None:
        with self._lock:
            if not self.live:
                return
            self._error = error
            self._state = state
            self._pool._forget(self)
            # If a worker holds the generator, it closes it at the end of its turn.
            free = not self._held
            self._held = True
        if free:
            self._close()

    def _close(self) -> None:
        # Only for whoever holds the generator of an ended job: then nobody else touches it.
        try:
            close = getattr(self._events, "close", None)
            if close is not None:
                close()
        except BaseException:
            _log.exception("A run of %s did not close", self.owner)
        with self._lock:
            self._events = None
            self._changed.notify_all()


class Pool:
    """A few worker threads which take turns on everybody's jobs.

    Args:
        workers: number of threads, started with the first job.
        lease_seconds: how long an owner's jobs outlive `release`, unless `renew` comes first.

    Attributes:
        cores: for the operations of one wide job.
    """

    def __init__(self, workers: int, lease_seconds: float = 20.0) -> None:
        if workers < 1:
            raise ValueError(f"A pool needs at least 1 worker, not {workers}; try 1.")
        self.cores = max(1, _available_cores() // workers)
        self._workers = workers
        self._lease_seconds = lease_seconds
        self._changed = threading.Condition()
        self._threads: list[threading.Thread] = []
        self._busy: set[int] = set()
        self._line: deque[Job[Any]] = deque()
        self._live: set[Job[Any]] = set()
        self._leases: dict[str, float] = {}
        self._closed = False

    def submit(
        self,
        events: Iterator[Event],
        history: H,
        *,
        owner: str,
        paused: bool = False,
        pace: float | None = None,
        wide: bool = False,
    ) -> Job[H]:
        """Put a run into the line, or aside if `paused`.

        Args:
            events: the run; from now on only the pool touches it.
            history: takes in every event, under the job's lock.
            owner: whose jobs `release` ends together, e.g. the browser session's id.
            paused: wait for `Job.resume` or `Job.step`.
            pace: most steps per second, None for as fast as possible.
            wide: let single operations use all cores, shared by the workers. Small ones gain
                nothing from a second core, and where that is busy, with drawing the page for
                example, they would wait for it a thousand times their own time.

        Raises:
            RuntimeError: the pool is closed.
        """
        job = Job(self, events, history, owner, paused, pace, self.cores if wide else 1)
        self._stop_expired()
        with self._changed:
            if self._closed:
                raise RuntimeError("The pool is closed and takes no more runs; restart the lab.")
            self._live.add(job)
            if not paused:
                self._join_line(job)
            if not self._threads:
                self._start_workers()
        return job

    def release(self, owner: str) -> None:
        """The owner is gone: stop all its live jobs unless it comes back within its lease."""
        with self._changed:
            self._leases.setdefault(owner, time.monotonic() + self._lease_seconds)
            self._changed.notify()

    def renew(self, owner: str) -> None:
        """The owner is back: its jobs live on."""
        with self._changed:
            self._leases.pop(owner, None)

    def owners(self) -> set[str]:
        """Everybody who has live jobs."""
        with self._changed:
            return {job.owner for job in self._live}

    def close(self, timeout: float = 5.0) -> None:
        """Stop all jobs and join the workers, for at most `timeout` seconds; no job comes after."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            jobs = list(self._live)
        for job in jobs:
            job.stop()
        until = time.monotonic() + timeout
        for thread in self._threads:
            if thread is not threading.current_thread() and thread.is_alive():
                thread.join(max(0.0, until - time.monotonic()))

    def _start_workers(self) -> None:
        # Daemons, lest a run stuck in an endless event keep the process alive for ever.
        for number in range(self._workers):
            thread = threading.Thread(target=self._work, name=f"lab-worker-{number}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def _work(self) -> None:
        while not self._closed:
            self._stop_expired()
            taken = self._take()
            if taken is not None:
                job, seconds = taken
                job._take_turn(seconds)

    def _take(self) -> tuple[Job[Any], float] | None:
        # The first job that is due, and the length of its turn; None after a wait for news.
        with self._changed:
            now = time.monotonic()
            job = next((job for job in self._line if job._due <= now), None)
            if job is None or self._closed:
                self._busy.discard(threading.get_ident())
                if not self._closed:
                    self._changed.wait(self._seconds_to_next(now))
                return None
            self._line.remove(job)
            self._busy.add(threading.get_ident())
            fair = ROUND_SECONDS * self._workers / (len(self._line) + self._workers)
            return job, min(TURN_SECONDS, max(SHORTEST_TURN_SECONDS, fair))

    def _seconds_to_next(self, now: float) -> float | None:
        times = [*(job._due for job in self._line), *self._leases.values()]
        # A wait of years would overflow.
        return min(max(0.0, min(times) - now), 60.0) if times else None

    def _stop_expired(self) -> None:
        with self._changed:
            now = time.monotonic()
            gone = {owner for owner, until in self._leases.items() if until <= now}
            for owner in gone:
                del self._leases[owner]
            jobs = [job for job in self._live if job.owner in gone] if gone else []
        for job in jobs:
            job.stop()

    def _join_line(self, job: Job[Any]) -> None:
        with self._changed:
            if job not in self._line:
                self._line.append(job)
                self._changed.notify()

    def _leave_line(self, job: Job[Any]) -> None:
        with self._changed:
            if job in self._line:
                self._line.remove(job)

    def _forget(self, job: Job[Any]) -> None:
        with self._changed:
            self._leave_line(job)
            self._live.discard(job)

    def _position(self, job: Job[Any]) -> int | None:
        with self._changed:
            if job not in self._line or len(self._busy) < self._workers:
                return None
            return self._line.index(job) + 1


def _checked_pace(pace: float | None) -> float | None:
    if pace is not None and not (math.isfinite(pace) and pace > 0):
        raise ValueError(
            f"A pace is a positive number of steps per second, not {pace}; "
            "try 10, or None for as fast as possible."
        )
    return pace


def _sentence(error: BaseException) -> str:
    if getattr(error, "for_user", False):
        return str(error)
    first_line = str(error).partition("\n")[0]
    cause = f"{type(error).__name__}: {first_line}" if first_line else type(error).__name__
    return (
        f"The run stopped because of an internal error ({cause}). The server log has the details."
    )


def _available_cores() -> int:
    """Cores that this process may use, or fewer if OMP_NUM_THREADS says so."""
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    wanted = os.environ.get("OMP_NUM_THREADS", "")
    return min(cores, int(wanted)) if wanted.isdigit() and int(wanted) else cores


def _workers_wanted() -> int:
    text = os.environ.get("LAB_WORKERS", "1")
    try:
        workers = int(text)
    except ValueError:
        workers = 0
    if workers < 1:
        raise ValueError(
            f"LAB_WORKERS is the number of worker threads, a whole number from 1, not {text!r}; "
            "set LAB_WORKERS=1 or leave it out."
        )
    return workers


_pool: Pool | None = None
_pool_lock = threading.Lock()


def pool() -> Pool:
    """The one pool of this process, made at first use.

    It has one worker, or as many as the environment variable `LAB_WORKERS` says.

    Raises:
        ValueError: the environment variable `LAB_WORKERS` is no positive whole number.
    """
    global _pool
    with _pool_lock:
        if _pool is None:
            _pool = Pool(_workers_wanted())
            # A daemon thread inside torch when the interpreter goes down aborts the process.
            atexit.register(_pool.close)
        return _pool
