"""How long a classification run will take here, from a short trial of its model.

`calibrate` is quick and rough, for an estimate before a run. `measure` takes its time, and shows by
how much it may be wrong.
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import median
from time import perf_counter

import torch

from labcore.classification import ClassificationConfig
from labcore.collectives import central
from labcore.config import Config, ConfigError, choice, number, refusal
from labcore.costs import cost
from labcore.events import ShardDone
from labcore.hardware import Device
from labcore.models import MODELS, gradient_bytes, initialise
from labcore.replicas import Replica, Replicas, place
from labcore.schedules import Schedule, allreduce
from labcore.splitting import chunk
from labcore.timed_steps import TimedStep, timed_step

SHARDS = (8, 32)
"""Images in the two trial shards; two, to tell the fixed cost from the cost per image."""
EVALUATION = 1 / 3
"""An evaluation's share of the work: a forward pass, while a backward pass costs about two."""


@dataclass(frozen=True)
class Speed:
    """Seconds of one forward and backward pass: `fixed` + `per_image` × images."""

    fixed: float
    per_image: float


@cache
def calibrate(model: str, cores: int) -> Speed:
    """Time a model on this machine as busy as it is now; once per process.

    Args:
        model: a name in `MODELS`.
        cores: for its operations.
    """
    torch.set_num_threads(cores)
    replica = Replica(model, place(1).devices[0], torch.float32)
    initialise(replica.module, "he", torch.Generator().manual_seed(0))
    small, large = (_seconds(replica, images) for images in SHARDS)
    per_image = max(0.0, large - small) / (SHARDS[1] - SHARDS[0])
    return Speed(max(0.0, small - SHARDS[0] * per_image), per_image)


def _seconds(replica: Replica, images: int) -> float:
    """The shorter of two passes, after one to warm up."""
    pixels = torch.zeros(images, 28, 28, dtype=torch.uint8)
    labels = torch.zeros(images, dtype=torch.int64)
    times = []
    for _ in range(3):
        started = perf_counter()
        replica.backward(replica.forward(pixels, labels))
        if replica.device.type == "cuda":
            torch.cuda.synchronize(replica.device)
        times.append(perf_counter() - started)
    return min(times[1:])


def estimate(config: ClassificationConfig, speed: Speed) -> float:
    """Seconds that a run will take, evaluation included.

    Replicas on one device take turns, so their fixed costs add up; what they share is the images.
    """
    passes = config.steps_per_epoch * config.replicas * speed.fixed
    work = config.images + EVALUATION * config.test_images
    twice = 2 if config.equivalence == "on" else 1
    return config.epochs * twice * (passes + work * speed.per_image)


@dataclass(frozen=True, kw_only=True)
class MeasureConfig(Config):
    """Which model to time, at which two batch sizes, how often."""

    name = "measure"

    model: str = choice(
        "model",
        "lenet",
        {name: model.label for name, model in MODELS.items()},
        help="Whose steps are timed on this machine.",
    )
    small: int = number(
        "smaller batch", 16, 1, 4096, log=True, help="Few images show the fixed cost."
    )
    large: int = number(
        "larger batch", 64, 2, 4096, log=True, help="Many images show the cost per image."
    )
    repeats: int = number(
        "repeats", 7, 3, 100, log=True, help="Timed steps of each size, after one to warm up."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.large <= self.small:
            allowed = f"above the smaller batch, {self.small}"
            raise refusal(f"{self.name}: large", self.large, allowed, 4 * self.small)
        smallest = MODELS[self.model].smallest_shard
        if self.small < smallest:
            allowed = f"at least {smallest} for {MODELS[self.model].label}"
            raise refusal(f"{self.name}: small", self.small, allowed, 16)


@dataclass(frozen=True, slots=True)
class StepTimed:
    """One more trial step is timed.

    Attributes:
        done: how many are.
        of: how many there will be.
        images: of its minibatch.
        seconds: of its forward and backward pass.
    """

    done: int
    of: int
    images: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Measured:
    """What one replica takes here, as busy as the machine was: medians, and how far they vary.

    Attributes:
        device: a pass over b images took fixed + b / speed.
        fixed_range: smallest and largest fixed cost of any pair of trials, in s.
        speed_range: the same of the speed, in images per second.
        rest: seconds of norm and update, which a step adds for every replica.
        per_byte: seconds to add or copy a byte of gradient in this machine's memory.
    """

    device: Device
    fixed_range: tuple[float, float]
    speed_range: tuple[float, float]
    rest: float
    per_byte: float

    def step_in_turn(self, rows: Sequence[int], schedule: Schedule, n_bytes: int) -> float:
        """Seconds of a step of logical replicas, which take turns: all their times add up.

        Args:
            rows: of each replica.
            schedule: by which they sum their gradients.
            n_bytes: of the gradient.
        """
        passes = sum(self.device.seconds(own) for own in rows)
        moved = cost(schedule, n_bytes, 0, 0).total_bytes
        return passes + len(rows) * self.rest + moved * self.per_byte


def measure(config: MeasureConfig) -> Generator[ShardDone | StepTimed | Measured, None, None]:
    """Time a model's steps on one replica, small and large minibatches in turn.

    Yields:
        Per step two `ShardDone` and, after the first of each size, a `StepTimed`; then `Measured`.

    Raises:
        ConfigError: the larger minibatches took no longer, at the end: no speed can be told.
    """
    replicas = Replicas(config.model, place(1).devices, "he", torch.Generator().manual_seed(0))
    sizes = (config.small, config.large)
    steps: dict[int, list[TimedStep]] = {size: [] for size in sizes}
    for turn in range(config.repeats + 1):
        for images in sizes:
            step = yield from timed_step(_trial(replicas, images), [1.0])
            if turn > 0:
                steps[images].append(step)
                done = sum(map(len, steps.values()))
                yield StepTimed(done, 2 * config.repeats, images, step.seconds[0])
    yield _measured(config, steps, _memory(gradient_bytes(config.model)))


def _trial(replicas: Replicas, images: int) -> Generator[ShardDone, None, object]:
    pixels = torch.zeros(images, 28, 28, dtype=torch.uint8)
    labels = torch.zeros(images, dtype=torch.int64)
    schedule = central(1)
    return replicas.step(pixels, labels, split=chunk, schedule=schedule, lr=0.0, momentum=0.0)


def _measured(
    config: MeasureConfig, steps: dict[int, list[TimedStep]], per_byte: float
) -> Measured:
    small, large = ([step.seconds[0] for step in steps[n]] for n in (config.small, config.large))
    device = _line(config, median(small), median(large))
    if device is None:
        raise ConfigError(
            f"{config.name}: {config.large} images took no longer than {config.small}, so no speed "
            f"can be told. Try {min(4096, 4 * config.large)} as the larger batch."
        )
    pairs = [_line(config, *times) for times in zip(small, large, strict=True)]
    lines = [device, *(line for line in pairs if line is not None)]
    fixed, speeds = [line.fixed for line in lines], [line.speed for line in lines]
    return Measured(
        device,
        (min(fixed), max(fixed)),
        (min(speeds), max(speeds)),
        median(step.rest for each in steps.values() for step in each),
        per_byte,
    )


def _line(config: MeasureConfig, small: float, large: float) -> Device | None:
    """The device that takes these seconds for these sizes; None where the larger took no longer."""
    if large <= small:
        return None
    speed = (config.large - config.small) / (large - small)
    return Device(max(0.0, small - config.small / speed), speed)


def _memory(n_bytes: int) -> float:
    """Seconds per byte of a send in an allreduce between two vectors, median of five."""
    vectors = [torch.zeros(n_bytes // 4) for _ in range(2)]
    schedule, times = central(2), []
    for _ in range(6):
        started = perf_counter()
        allreduce(schedule, vectors)
        times.append(perf_counter() - started)
    return median(times[1:]) / (2 * n_bytes)
