"""An allreduce for real: one process per rank, joined by `torch.distributed` over gloo.

What a schedule plays in one process is held against this. The same module is the parent, which is
a generator of events, and the worker, which `labcore.processes` starts once per rank. Every worker
loads torch, which takes it a second or two of a core and 300 MB of memory.
"""

import os
import time
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch import distributed as dist

from labcore import costs, worker
from labcore.config import refusal
from labcore.processes import (
    PlacesAwaited,
    WorkerReported,
    WorkersAwaited,
    WorkerStarted,
    run_workers,
)

LARGEST_WORLD_SIZE = 8
LONGEST_VECTOR = 1_000_000
DTYPES = (torch.float32, torch.float64, torch.int64)
REPETITIONS = 5
"""Timed allreduces, after one that is not."""

Stage = Literal["loaded", "joined", "reduced", "timed"]
"""How far a rank is: torch is loaded, all ranks have met, it has the sum, it has timed the rest."""


@dataclass(frozen=True, slots=True)
class StageReached:
    """One rank's process is one stage further.

    Attributes:
        rank: of the process.
        stage: that it has reached.
    """

    rank: int
    stage: Stage


@dataclass(frozen=True, slots=True, eq=False)
class ProcessReduce:
    """What p processes got from their allreduce of n elements, and how long it took.

    Attributes:
        sums: (p, n), what each rank received; of the dtype that went in.
        seconds: of one allreduce: the slowest rank's time, median over `REPETITIONS`. Every one
            starts at a barrier, which ranks leave at slightly different times.
        startup_seconds: until the last rank has met the others, loading torch included.
        n_bytes: of one rank's vector.
    """

    sums: Tensor
    seconds: float
    startup_seconds: float
    n_bytes: int

    @property
    def algbw(self) -> float:
        """Algorithm bandwidth in bytes per second, of no meaning for p = 1; see `costs.algbw`."""
        return costs.algbw(self.n_bytes, self.seconds)

    @property
    def busbw(self) -> float:
        """Bus bandwidth in bytes per second; see `costs.busbw`."""
        return costs.busbw(self.n_bytes, self.seconds, len(self.sums))


ReduceEvent = PlacesAwaited | WorkerStarted | StageReached | WorkersAwaited | ProcessReduce


def reduce_for_real(vectors: Tensor, timeout: float = 60.0) -> ProcessReduce:
    """Run an allreduce on processes to its end; see `reduce_steps`."""
    with closing(reduce_steps(vectors, timeout)) as events:
        *_, result = events
    assert isinstance(result, ProcessReduce)  # the last event is
    return result


def reduce_steps(vectors: Tensor, timeout: float = 60.0) -> Generator[ReduceEvent, None, None]:
    """Sum vectors over as many processes, each of which holds one and receives the sum.

    Args:
        vectors: (p, n), rank by row: p from 1 to `LARGEST_WORLD_SIZE`, n up to `LONGEST_VECTOR`, of
            one of `DTYPES`. It is copied at the call.
        timeout: seconds without news from any process after which all are given up.

    Yields:
        What happens, at least every 0.05 s; at the end the `ProcessReduce`. Left earlier, by
        `close`, it ends all processes first.

    Raises:
        ConfigError: vectors that are refused; at the call.
        WorkerError: a process could not start, ended early or hung.
    """
    _check_vectors(vectors)
    return _steps(vectors.detach().to("cpu", copy=True), timeout)


def difference(result: ProcessReduce, expected: Sequence[Tensor] | Tensor) -> float:
    """Largest absolute difference of an element to what each rank should have received.

    Args:
        result: of the processes.
        expected: one vector per rank, such as the buffers on which a schedule was played.

    Raises:
        ValueError: not as many vectors, or of another length.
    """
    shapes = [tuple(each.shape) for each in expected]
    if shapes != [tuple(each.shape) for each in result.sums]:
        raise ValueError(
            f"The expected vectors must be like the processes' {tuple(result.sums.shape)}, one row "
            f"per rank; received {shapes}. Play the schedule on copies of the same vectors."
        )
    pairs = zip(result.sums, expected, strict=True)
    apart = [(own - other.detach().cpu()).abs().max() for own, other in pairs if len(own)]
    # Not Python's max, which passes over what is no number.
    return float(torch.stack(apart).max()) if apart else 0.0


def _check_vectors(vectors: Tensor) -> None:
    if vectors.dim() != 2:
        raise refusal("vectors", tuple(vectors.shape), "one row per rank", "shape (4, 1000)")
    world_size, length = vectors.shape
    if not 1 <= world_size <= LARGEST_WORLD_SIZE:
        allowed = (
            f"from 1 to {LARGEST_WORLD_SIZE}, since every rank is a process of this machine "
            "that loads torch, with its time and memory"
        )
        raise refusal("world_size", world_size, allowed, 4)
    if length > LONGEST_VECTOR:
        raise refusal("vectors' length", length, f"at most {LONGEST_VECTOR:,}", LONGEST_VECTOR)
    if vectors.dtype not in DTYPES:
        allowed = "one of " + ", ".join(map(str, DTYPES))
        raise refusal("vectors' dtype", vectors.dtype, allowed, str(DTYPES[0]))


def _steps(vectors: Tensor, timeout: float) -> Generator[ReduceEvent, None, None]:
    started = time.time()
    joined: list[float] = []
    times: list[list[float]] = []
    sums = torch.empty_like(vectors)
    # As arrays, which are pickled alone: a tensor brings all the memory that it is a view of.
    with closing(run_workers(__name__, list(vectors.numpy()), timeout)) as events:
        for event in events:
            match event:
                case WorkerReported(rank, {"stage": stage, **more}):
                    if stage == "joined":
                        joined.append(more["at"])
                    elif stage == "reduced":
                        sums[rank] = torch.from_numpy(np.load(more["path"]))
                    elif stage == "timed":
                        times.append(more["seconds"])
                    yield StageReached(rank, stage)
                    if len(times) == len(vectors):
                        break  # nothing more to hear: no need to wait until torch is unloaded
                case PlacesAwaited() | WorkerStarted() | WorkersAwaited():
                    if isinstance(event, PlacesAwaited):
                        started = time.time()
                    yield event
    slowest = torch.tensor(times, dtype=torch.float64).amax(0)
    yield ProcessReduce(sums, float(slowest.median()), max(joined) - started, vectors[0].nbytes)


# What follows runs in the worker processes.


def _report(stage: Stage, **more: Any) -> None:
    worker.report({"stage": stage, **more})


def _join() -> int:
    """Meet the other ranks; returns the own rank."""
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    path = str(worker.folder() / "rendezvous")
    store = dist.FileStore(path, world_size)  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
    return rank


def _work() -> None:
    _report("loaded")
    rank = _join()
    _report("joined", at=time.time())
    own = torch.from_numpy(worker.payload())
    # Also the warm-up: the first allreduce sets up what later ones use.
    total = own.clone()
    dist.all_reduce(total)
    path = worker.folder() / f"sum-{rank}.npy"
    np.save(path, total.numpy())
    _report("reduced", path=str(path))
    _report("timed", seconds=[_timed(own) for _ in range(REPETITIONS)])
    dist.destroy_process_group()


def _timed(own: Tensor) -> float:
    """Seconds of one allreduce of a copy."""
    total = own.clone()
    dist.barrier()
    started = time.perf_counter()
    dist.all_reduce(total)
    return time.perf_counter() - started


if __name__ == "__main__":
    _work()
