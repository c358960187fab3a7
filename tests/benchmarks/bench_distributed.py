"""What real processes gain and cost: `python -m tests.benchmarks.bench_distributed`.

It takes about five minutes on two idle cores. LeNet, batch 256, on the embedded sample:

- one process per rank with 1 thread each, against one process with as many threads and against as
  many logical replicas on as many threads, for 1 and 2 ranks, as images/s and ratios;
- apart from that, the time from the start of two processes to their first step.

All sides take turns, so that a busy machine slows down all; what counts is the median over rounds
of their ratio. The clock of a run starts after its first step and stops after its last; evaluation
is left out. Exits with 1 if 2 processes reach less than 0.85 times one process with 2 threads. The
first argument is the number of rounds, the second the steps of a run.
"""

import sys
from collections.abc import Callable, Iterator
from functools import partial
from statistics import median
from time import perf_counter

import torch

from labcore.classification import ClassificationConfig, train_classifier
from labcore.datasets import fashion_mnist
from labcore.events import StepTaken

DATA = fashion_mnist.load(fashion_mnist.EMBEDDED)
BATCH = 256
REQUIRED = 0.85
"""Speed of 2 processes over that of one process with 2 threads."""
ROUNDS, STEPS = 7, 120

Side = Callable[[], tuple[float, float]]
"""Runs, and returns images/s and the seconds to the first step."""


def run(engine: str, replicas: int, threads: int, steps: int) -> tuple[float, float]:
    """Images per second of so many steps after the first, and the seconds until that was done."""
    images = min(len(DATA.train_labels), BATCH * (steps + 1))
    epochs = -(-(steps + 1) * BATCH // images)
    config = ClassificationConfig(
        engine=engine, replicas=replicas, images=images, batch_size=BATCH, epochs=epochs
    )
    torch.set_num_threads(threads)
    started = perf_counter()
    ends = list(_ends(config, steps + 1))
    # An epoch's evaluation is between two steps, so each epoch is timed by itself.
    seconds = sum(epoch[-1] - epoch[0] for epoch in ends)
    return BATCH * sum(len(epoch) - 1 for epoch in ends) / seconds, ends[0][0] - started


def _ends(config: ClassificationConfig, steps: int) -> Iterator[list[float]]:
    """When the steps of each epoch ended, so many in all, without minibatches that are smaller."""
    events = train_classifier(config, DATA)
    epoch: list[float] = []
    for event in events:
        if not isinstance(event, StepTaken):
            continue
        if event.step % config.steps_per_epoch or config.images % BATCH == 0:
            epoch.append(perf_counter())
        if event.step == steps or event.step % config.steps_per_epoch == 0:
            yield epoch
            epoch = []
        if event.step == steps:
            break
    events.close()


def compare(ranks: int, rounds: int, steps: int) -> float:
    """Print how k processes fare; returns their speed over one process with k threads."""
    sides: dict[str, Side] = {
        f"processes with 1 thread: {ranks}": partial(run, "processes", ranks, 1, steps),
        f"one process with threads: {ranks}": partial(run, "logical", 1, ranks, steps),
        f"logical replicas, and threads: {ranks}": partial(run, "logical", ranks, ranks, steps),
    }
    speeds: dict[str, list[float]] = {name: [] for name in sides}
    starts: list[float] = []
    for turn in range(rounds):
        for name in list(sides)[:: 1 if turn % 2 else -1]:
            speed, start = sides[name]()
            speeds[name].append(speed)
            if name.startswith("processes"):
                starts.append(start)
    ours, *others = speeds
    print(f"{ours}: {median(speeds[ours]):,.0f} images/s, first step after {median(starts):.1f} s")
    ratios = []
    for other in others:
        pairs = zip(speeds[ours], speeds[other], strict=True)
        ratios.append(median(a / b for a, b in pairs))
        speed = median(speeds[other])
        print(f"  {ratios[-1]:.2f} × the speed of {other} ({speed:,.0f} images/s)", flush=True)
    return ratios[0]


def main() -> int:
    """Print both comparisons; returns the exit status."""
    given = [int(each) for each in sys.argv[1:]]
    rounds, steps = [*given, *(ROUNDS, STEPS)[len(given) :]]
    compare(1, rounds, steps)
    reached = compare(2, rounds, steps)
    print(f"required: at least {REQUIRED:g} × one process with 2 threads; reached {reached:.2f}")
    return int(reached < REQUIRED)


if __name__ == "__main__":
    sys.exit(main())
