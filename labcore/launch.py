"""A run on processes of this machine, as the process sees it that starts them and reads its events.

What runs in them is `labcore.rank_process`, which stands below this module and is called by its
name.
"""

import threading
import time
from collections.abc import Generator
from contextlib import closing, suppress
from dataclasses import fields
from pathlib import Path

import numpy as np
import torch

from labcore import checkpoints
from labcore.datasets.fashion_mnist import FashionMNIST
from labcore.events import (
    ClassificationEvent,
    ClassifierTrained,
    Diverged,
    MinibatchTrained,
    ProcessesAwaited,
    ShardDone,
)
from labcore.processes import (
    PlacesAwaited,
    WorkerError,
    WorkerEvent,
    WorkerReported,
    WorkersAwaited,
    WorkerStarted,
    run_workers,
)
from labcore.wire import unpack

RANK = "labcore.rank_process"
STOP_SECONDS = 3.0
"""How long a run may take to come to its next step and write itself down, when it is stopped."""


def run_on_processes(
    config: object,
    world_size: int,
    data: FashionMNIST,
    *,
    checkpoint: Path | None,
    timeout: float,
) -> Generator[ClassificationEvent, None, None]:
    """Start one process per rank, and yield what they report.

    Closed before its end, the run is asked to stop after the step in hand, and to write that down
    where it has a checkpoint; after `STOP_SECONDS` its processes are ended.

    Args:
        config: what `train_rank` gets as such.
        world_size: number of processes.
        data: the images, which all processes share in memory.
        checkpoint: see `train_rank`.
        timeout: seconds without a sign of life from any process, after which all are given up.

    Yields:
        The events of `train_rank`, at least every 0.05 s: a `ProcessesAwaited` if there are none.

    Raises:
        WorkerError: a process could not start, ended early or hung.
    """
    stop = threading.Event()
    payloads = [(config, checkpoint)] * world_size
    with closing(
        run_workers(RANK, payloads, timeout, prepare=lambda folder: _share(data, folder), stop=stop)
    ) as events:
        course = _Course(world_size)
        try:
            for event in events:
                if (made := course.follow(event)) is not None:
                    yield made
                if course.finished:
                    return  # no need to wait until torch is unloaded
        except GeneratorExit:
            if course.minibatches:
                stop.set()
                _await_end(events)
            raise
        finally:
            if checkpoint is not None and course.writer is not None:
                checkpoints.partial_of(checkpoint, course.writer).unlink(missing_ok=True)
    raise WorkerError(0, world_size, "ended before the run was finished")


def _await_end(events: Generator[WorkerEvent, None, None]) -> None:
    until = time.monotonic() + STOP_SECONDS
    with suppress(WorkerError):
        for event in events:
            # Rank 0, which writes the run down.
            ended = isinstance(event, WorkerReported) and event.rank == 0 and "ended" in event.facts
            if ended or time.monotonic() > until:
                return


class _Course:
    """How far the processes of a run have come.

    Attributes:
        ready: how many have met.
        minibatches: that they have been through.
        finished: whether the run has come to its end.
        writer: rank 0's process, which writes the checkpoint; None before its start.
    """

    def __init__(self, world_size: int) -> None:
        self.ready = 0
        self.minibatches = 0
        self.finished = False
        self.writer: int | None = None
        self._passes = [0] * world_size
        self._begun = 0.0

    def follow(self, event: WorkerEvent) -> ClassificationEvent | None:
        """Take in what a worker did, and say what the run did, if anything."""
        world_size = len(self._passes)
        match event:
            case PlacesAwaited(missing):
                return ProcessesAwaited(0, world_size, 0.0, missing)
            case WorkerStarted(rank=0, pid=pid):
                self._begun, self.writer = time.monotonic(), pid
            case WorkersAwaited():
                return self._awaited()
            case WorkerReported(_, {"ready": True}):
                self.ready += 1
                return self._awaited()
            case WorkerReported(rank, {"event": _} as facts):
                return self._reported(rank, unpack(facts))
        return None

    def _awaited(self) -> ProcessesAwaited:
        seconds = time.monotonic() - self._begun
        return ProcessesAwaited(self.ready, len(self._passes), seconds)

    def _reported(self, rank: int, event: ClassificationEvent) -> ClassificationEvent | None:
        if isinstance(event, ShardDone):
            self._passes[rank] += event.phase == "forward"
            # What comes late, or early, since each rank has a pipe of its own, is of no interest.
            return event if self._passes[rank] == self.minibatches + 1 else None
        if rank != 0:
            return None
        self.minibatches += isinstance(event, MinibatchTrained)
        self.finished = isinstance(event, ClassifierTrained | Diverged)
        return event


def _share(data: FashionMNIST, folder: Path) -> None:
    for each in _images():
        np.save(folder / f"{each}.npy", getattr(data, each).numpy())


def shared_images(folder: Path) -> FashionMNIST:
    """The images that the parent has put into the workers' folder; memory is theirs in common."""
    # "c" is for "copy on write": torch dislikes memory that cannot be written to.
    arrays = {each: np.load(folder / f"{each}.npy", mmap_mode="c") for each in _images()}
    tensors = {name: torch.from_numpy(each) for name, each in arrays.items()}
    return FashionMNIST(**tensors, source="the parent process")


def _images() -> list[str]:
    return [each.name for each in fields(FashionMNIST) if each.name != "source"]
