"""Whether predicted step times are the measured ones: `python -m tests.benchmarks.bench_scaling`.

It takes about a minute on an idle machine, longer for `resnet18_quarter`, which its first argument
may name instead of LeNet. The model's fixed cost and speed are measured first; then, in this
process, steps

- of 1 to 4 logical replicas, which take turns, from split to update;
- of replicas slowed on purpose, with equal and with the best shares, until the last one is done.

Predictions are from other minibatch sizes than what they predict. Everything is timed with one
thread, and in turn: a step of what is predicted, then trial steps of what predicts it, since the
speed of a shared machine changes from minute to minute. A line that misses is measured again, up to
three times, all of it. Exits with 1 if a prediction is off by more than 20 %.
"""

import os
import sys
from collections.abc import Callable, Iterator
from functools import partial
from statistics import median
from time import perf_counter

import torch

from labcore.calibration import MeasureConfig, Measured, StepTimed, measure
from labcore.collectives import ring
from labcore.datasets import fashion_mnist
from labcore.models import gradient_bytes
from labcore.replicas import Replicas, place
from labcore.splitting import balanced
from labcore.timed_steps import Compared, SlowedConfig, SlowStep, run_slowed
from labcore.uneven import sharing

Run = Callable[[], tuple[float, float]]
"""Predicts a time, and measures it."""

ALLOWED = 0.20
"""Largest relative error of a prediction."""
TRIES = 3
BATCH = 192
STEPS = 9
FACTORS = ((1.0, 2.0), (1.0, 1.0, 3.0), (1.0, 2.0, 4.0))

DATA = fashion_mnist.load(fashion_mnist.EMBEDDED)


class Trial:
    """What a replica takes, measured step by step between the steps of something else."""

    def __init__(self, model: str) -> None:
        self._events = measure(MeasureConfig(model=model, small=24, large=160, repeats=STEPS))

    def go_on(self) -> None:
        """Time one more step."""
        next(event for event in self._events if isinstance(event, StepTimed))

    def end(self) -> Measured:
        """Time what is left, and say what came of it all."""
        *_, last = self._events
        assert isinstance(last, Measured)
        return last


def in_turn(model: str, world_size: int) -> tuple[float, float]:
    """Predicted and measured seconds of a step of logical replicas that take turns."""
    schedule = ring(world_size)
    generator = torch.Generator().manual_seed(0)
    replicas = Replicas(model, place(world_size).devices, "he", generator)
    times, trial = [], Trial(model)
    for number in range(STEPS + 1):
        chosen = torch.randint(len(DATA.train_labels), (BATCH,), generator=generator)
        images, labels = DATA.train_images[chosen], DATA.train_labels[chosen]
        started = perf_counter()
        for _ in replicas.step(
            images, labels, split=balanced, schedule=schedule, lr=0.01, momentum=0.0
        ):
            pass
        times.append(perf_counter() - started)
        if number > 0:
            trial.go_on()
            trial.go_on()
    rows = [len(shard) for shard in balanced(BATCH, world_size)]
    predicted = trial.end().step_in_turn(rows, schedule, gradient_bytes(model))
    return predicted, median(times[1:])


def slowed(model: str, factors: tuple[float, ...], shares: str) -> tuple[float, float]:
    """Predicted and measured seconds until the last of slowed replicas is done."""
    config = SlowedConfig(model=model, factors=factors, batch_size=BATCH, steps=STEPS)
    trial = Trial(model)
    for event in run_slowed(config, Trial(model).end().device, DATA):
        if isinstance(event, SlowStep):
            trial.go_on()
    assert isinstance(event, Compared)
    device = trial.end().device
    rows = event.measured[shares].rows
    return sharing(rows, [device.slowed(factor) for factor in factors]).last, event.last[shares]


def lines(model: str) -> Iterator[tuple[str, float]]:
    """A line per prediction, and its relative error."""
    for k in (1, 2, 3, 4):
        name = f"step of {k} logical replica{'s' * (k > 1)} in turn"
        yield best_of(name, partial(in_turn, model, k))
    for factors in FACTORS:
        for shares in ("equal", "best"):
            name = f"replicas slowed by {factors}, {shares} shares"
            yield best_of(name, partial(slowed, model, factors, shares))


def best_of(name: str, run: Run) -> tuple[str, float]:
    """The first try that is close enough, else the last one."""
    line, error = "", 0.0
    for attempt in range(1, TRIES + 1):
        predicted, took = run()
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
