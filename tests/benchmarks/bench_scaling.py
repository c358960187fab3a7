"""Whether predicted step times are the measured ones: `python -m tests.benchmarks.bench_scaling`.

It takes about a minute on an idle machine, longer for `resnet18_quarter`, which its first argument
may name instead of LeNet. The model's fixed cost and speed are measured first; then, in this
process, steps

- of 1 to 4 logical replicas, which take turns, from split to update;
- of replicas slowed on purpose, with equal and with the best shares, until the last one is done.

Predictions come before what they predict, from other minibatch sizes. Everything is timed with one
thread. On a machine whose load changes, so do the times: a line that misses is measured again, up
to three times, with figures of its own. Exits with 1 if a prediction is off by more than 20 %.
"""

import os
import sys
from collections.abc import Callable, Iterator
from functools import partial
from statistics import median
from time import perf_counter

import torch

from labcore.calibration import MeasureConfig, Measured, measure
from labcore.collectives import ring
from labcore.datasets import fashion_mnist
from labcore.models import gradient_bytes
from labcore.replicas import Replicas, place
from labcore.splitting import balanced
from labcore.timed_steps import Compared, SlowedConfig, run_slowed

Run = Callable[[Measured], tuple[float, float]]
"""Predicts a time from what a replica takes now, and measures it."""

ALLOWED = 0.20
"""Largest relative error of a prediction."""
TRIES = 3
BATCH = 192
STEPS = 9
FACTORS = ((1.0, 2.0), (1.0, 1.0, 3.0), (1.0, 2.0, 4.0))

DATA = fashion_mnist.load(fashion_mnist.EMBEDDED)


def measured(model: str) -> Measured:
    """What a replica takes now."""
    *_, last = measure(MeasureConfig(model=model, small=24, large=160, repeats=9))
    assert isinstance(last, Measured)
    return last


def in_turn(model: str, world_size: int, now: Measured) -> tuple[float, float]:
    """Predicted and measured seconds of a step of logical replicas that take turns."""
    schedule = ring(world_size)
    rows = [len(shard) for shard in balanced(BATCH, world_size)]
    predicted = now.step_in_turn(rows, schedule, gradient_bytes(model))
    generator = torch.Generator().manual_seed(0)
    replicas = Replicas(model, place(world_size).devices, "he", generator)
    times = []
    for _ in range(STEPS + 1):
        chosen = torch.randint(len(DATA.train_labels), (BATCH,), generator=generator)
        images, labels = DATA.train_images[chosen], DATA.train_labels[chosen]
        started = perf_counter()
        for _ in replicas.step(
            images, labels, split=balanced, schedule=schedule, lr=0.01, momentum=0.0
        ):
            pass
        times.append(perf_counter() - started)
    return predicted, median(times[1:])


def slowed(
    model: str, factors: tuple[float, ...], sharing: str, now: Measured
) -> tuple[float, float]:
    """Predicted and measured seconds until the last of slowed replicas is done."""
    config = SlowedConfig(model=model, factors=factors, batch_size=BATCH, steps=STEPS)
    *_, compared = run_slowed(config, now.device, DATA)
    assert isinstance(compared, Compared)
    return compared.predicted[sharing].last, compared.last[sharing]


def lines(model: str) -> Iterator[tuple[str, float]]:
    """A line per prediction, and its relative error."""
    for k in (1, 2, 3, 4):
        name = f"step of {k} logical replica{'s' * (k > 1)} in turn"
        yield best_of(name, partial(in_turn, model, k), model)
    for factors in FACTORS:
        for sharing in ("equal", "best"):
            name = f"replicas slowed by {factors}, {sharing} shares"
            yield best_of(name, partial(slowed, model, factors, sharing), model)


def best_of(name: str, run: Run, model: str) -> tuple[str, float]:
    """The first try that is close enough, else the last one."""
    line, error = "", 0.0
    for attempt in range(1, TRIES + 1):
        predicted, took = run(measured(model))
        error = took / predicted - 1
        words = f"{predicted * 1e3:.1f} ms predicted, {took * 1e3:.1f} ms measured"
        line = f"{name}: {words}, {error:+.0%}, try {attempt}"
        if abs(error) <= ALLOWED:
            break
    return line, error


def main() -> int:
    """Print a line per prediction; 1 if one is off by too much."""
    model = sys.argv[1] if sys.argv[1:] else "lenet"
    torch.set_num_threads(1)
    load = ", ".join(f"{each:.1f}" for each in os.getloadavg())
    print(f"{model}, batch {BATCH}, 1 torch thread; load {load}", flush=True)
    missed = 0
    for line, error in lines(model):
        off = abs(error) > ALLOWED
        missed += off
        print(f"{line}  MISSED" if off else line, flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
