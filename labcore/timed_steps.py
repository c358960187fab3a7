"""Steps of logical replicas timed one by one, some made slow on purpose.

Logical replicas take turns, so each one's own time is what it would take beside the others. A
replica that is slowed by a factor f waits after each pass for f − 1 times as long as that took.
"""

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter, sleep

import torch

from labcore.collectives import ring
from labcore.config import Config, choice, number, refusal
from labcore.datasets import fashion_mnist
from labcore.datasets.fashion_mnist import FashionMNIST
from labcore.events import ShardDone
from labcore.hardware import Device
from labcore.models import MODELS
from labcore.replicas import Replicas, StepReport, difference, place
from labcore.uneven import Sharing, best_sharing, equal_sharing

LONGEST_NAP = 0.02
"""Seconds of waiting after which a run can be left."""
MOST_REPLICAS = 8
SLOWEST = 20.0


@dataclass(frozen=True, slots=True)
class TimedStep:
    """How long one step took.

    Attributes:
        seconds: of each replica's forward and backward pass, with its waiting.
        rest: of what follows: norms, allreduce, update.
        report: what `Replicas.step` returned.
    """

    seconds: tuple[float, ...]
    rest: float
    report: object

    @property
    def last(self) -> float:
        """When the slowest replica would be done if they worked side by side."""
        return max(self.seconds)


def timed_step(
    step: Generator[ShardDone, None, object], factors: Sequence[float]
) -> Generator[ShardDone, None, TimedStep]:
    """Go through a step of `Replicas.step`; what happens between its yields does not count.

    Args:
        step: the step, not begun.
        factors: by which each replica is slowed, from 1.

    Yields:
        A `ShardDone` after each pass, and again while its replica waits.
    """
    seconds = [0.0] * len(factors)
    while True:
        started = perf_counter()
        try:
            done = next(step)
        except StopIteration as stopped:
            _synchronise()
            return TimedStep(tuple(seconds), perf_counter() - started, stopped.value)
        _synchronise()
        took = perf_counter() - started
        seconds[done.rank] += took
        yield done
        wait = (factors[done.rank] - 1) * took
        naps = math.ceil(wait / LONGEST_NAP)
        for _ in range(naps):
            started = perf_counter()
            sleep(wait / naps)
            seconds[done.rank] += perf_counter() - started
            yield done


def _synchronise() -> None:
    """Wait until what a GPU was given is done, where there is one."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


@dataclass(frozen=True, kw_only=True)
class SlowedConfig(Config):
    """Replicas of which some are slow, trained with equal and with best shares.

    Attributes:
        factors: by which each replica is slowed, from 1; as many as there are replicas.
    """

    name = "slowed"

    model: str = choice(
        "model",
        "lenet",
        {name: model.label for name, model in MODELS.items()},
        help="What the replicas train.",
    )
    batch_size: int = number(
        "batch size", 128, 1, 4096, log=True, help="Images per step, over all replicas together."
    )
    steps: int = number("steps", 10, 1, 1000, log=True, help="Timed steps with either sharing.")
    lr: float = number("learning rate", 0.05, 1e-6, 10.0, log=True, help="Of every step.")
    seed: int = number("seed", 0, 0, 2**31 - 1, help="Decides the weights and the images.")
    factors: tuple[float, ...] = (1.0, 1.0, 3.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        allowed = f"1 to {MOST_REPLICAS} numbers from 1 to {SLOWEST:g}, one per replica"
        numbers = all(
            isinstance(each, int | float) and 1 <= each <= SLOWEST for each in self.factors
        )
        if not numbers or not 1 <= len(self.factors) <= MOST_REPLICAS:
            raise refusal(f"{self.name}: factors", self.factors, allowed, "(1.0, 1.0, 3.0)")
        smallest = len(self.factors) * MODELS[self.model].smallest_shard
        if self.batch_size < smallest:
            rule = f"at least {smallest}, for {len(self.factors)} replicas"
            raise refusal(f"{self.name}: batch_size", self.batch_size, rule, smallest)


@dataclass(frozen=True, slots=True)
class SlowStep:
    """One timed step with one of the two sharings.

    Attributes:
        sharing: "equal" or "best".
        step: from 1.
        seconds: of each replica.
        loss: mean over the minibatch, before the update.
    """

    sharing: str
    step: int
    seconds: tuple[float, ...]
    loss: float


@dataclass(frozen=True, slots=True)
class Compared:
    """Predicted and measured times of both sharings, by "equal" and "best".

    Attributes:
        predicted: rows and seconds of each replica.
        measured: the same rows, and each replica's median seconds.
        last: median over the steps of when the slowest replica was done.
        difference: largest difference of a parameter between the two runs at the end: rounding.
    """

    predicted: dict[str, Sharing]
    measured: dict[str, Sharing]
    last: dict[str, float]
    difference: float

    def error(self, sharing: str) -> float:
        """Measured time of a step over the predicted one, less 1."""
        return self.last[sharing] / self.predicted[sharing].last - 1


def run_slowed(
    config: SlowedConfig, device: Device, data: FashionMNIST | None = None
) -> Generator[ShardDone | SlowStep | Compared, None, None]:
    """Train the same replicas twice, step by step in turn: with equal shares and with the best.

    Args:
        config: the run.
        device: what a replica that is not slowed takes here, as of `calibration.measure`.
        data: the images; by default what `fashion_mnist.load` finds.

    Yields:
        `ShardDone` after each pass; a `SlowStep` for each timed step, two per minibatch, the first
        minibatch being there to warm up; at last `Compared`.
    """
    data = data or fashion_mnist.load()
    devices = [device.slowed(factor) for factor in config.factors]
    sharings = {
        "equal": equal_sharing(config.batch_size, devices),
        "best": best_sharing(config.batch_size, devices),
    }
    runs = {name: _replicas(config) for name in sharings}
    timed: dict[str, list[TimedStep]] = {name: [] for name in sharings}
    order = torch.Generator().manual_seed(2 * config.seed + 1)
    for number_ in range(config.steps + 1):
        rows = torch.randint(len(data.train_labels), (config.batch_size,), generator=order)
        for name, sharing in sharings.items():
            step = yield from timed_step(
                _step(config, runs[name], sharing, data, rows), config.factors
            )
            if number_ > 0:
                timed[name].append(step)
                yield SlowStep(name, number_, step.seconds, _loss(step, config.batch_size))
    yield _compared(sharings, timed, difference(runs["equal"].ranks[0], runs["best"].ranks[0]))


def _replicas(config: SlowedConfig) -> Replicas:
    devices = place(len(config.factors)).devices
    return Replicas(config.model, devices, "he", torch.Generator().manual_seed(2 * config.seed))


def _step(
    config: SlowedConfig,
    replicas: Replicas,
    sharing: Sharing,
    data: FashionMNIST,
    rows: torch.Tensor,
) -> Generator[ShardDone, None, StepReport]:
    ends = [sum(sharing.rows[: rank + 1]) for rank in range(len(sharing.rows))]
    shards = [range(end - own, end) for end, own in zip(ends, sharing.rows, strict=True)]
    return replicas.step(
        data.train_images[rows],
        data.train_labels[rows],
        split=lambda _rows, _world_size: shards,
        schedule=ring(len(replicas.ranks)),
        lr=config.lr,
        momentum=0.0,
    )


def _loss(step: TimedStep, batch_size: int) -> float:
    assert isinstance(step.report, StepReport)
    return math.fsum(step.report.losses) / batch_size


def _compared(
    sharings: dict[str, Sharing], timed: dict[str, list[TimedStep]], apart: float
) -> Compared:
    measured = {
        name: Sharing(
            sharings[name].rows,
            tuple(map(median, zip(*(step.seconds for step in steps), strict=True))),
        )
        for name, steps in timed.items()
    }
    last = {name: median(step.last for step in steps) for name, steps in timed.items()}
    return Compared(sharings, measured, last, apart)
