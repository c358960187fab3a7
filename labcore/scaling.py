"""What p devices would do: the time of a step from its parts, and how it falls or does not.

A step is a fixed cost, a forward and a backward pass over the rows of the fullest device, and what
of the allreduce is left when the backward pass has ended. That holds for strong scaling, where all
devices share a minibatch, as for weak scaling, where each has one of its own. Updates, loading of
images and traffic of others are left out. All times are modelled.

Sources: S. Li et al., PyTorch distributed: experiences on accelerating data parallel training,
2020, section 3.2.3; G. Amdahl, AFIPS 1967; J. Gustafson, Reevaluating Amdahl's law, 1988.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from labcore.models import MODELS, tensor_bytes
from labcore.scaling_config import ScalingConfig
from labcore.units import in_seconds

BACKWARD = 2 / 3
"""Share of the backward pass in computing: it has two products for each one of the forward pass."""
MIB = 2**20
COUNTS = (*range(1, 65), *(n * 2**power for power in range(4, 8) for n in (5, 6, 7, 8)))
"""Numbers of devices at which curves are drawn."""


@dataclass(frozen=True, slots=True)
class StepTime:
    """One modelled step, all times in seconds.

    Attributes:
        devices: how many.
        rows: images of the fullest device.
        fixed: what the step costs however few they are.
        forward: forward pass.
        backward: backward pass.
        allreduce: time in which gradients are on their way.
        exposed: what of that is left when the backward pass has ended.
    """

    devices: int
    rows: int
    fixed: float
    forward: float
    backward: float
    allreduce: float
    exposed: float

    @property
    def hidden(self) -> float:
        """What of the allreduce the backward pass covers."""
        return self.allreduce - self.exposed

    @property
    def seconds(self) -> float:
        """The whole step."""
        return self.fixed + self.forward + self.backward + self.exposed


@dataclass(frozen=True, slots=True)
class Point:
    """A number of devices on the curves.

    Attributes:
        step: its modelled step.
        images_per_second: over all devices.
        seconds_per_epoch: of whole steps, of which the last may be smaller.
        speed_up: images per second over those of one device.
        efficiency: speed-up per device.
        amdahl: speed-up by Amdahl's law, the serial share being one device's fixed cost.
        gustafson: the same by Gustafson's law.
    """

    step: StepTime
    images_per_second: float
    seconds_per_epoch: float
    speed_up: float
    efficiency: float
    amdahl: float
    gustafson: float


def step_time(config: ScalingConfig) -> StepTime:
    """The modelled step of a config's devices."""
    device, p = config.computing, config.devices
    rows = -(-config.global_batch // p)
    computing = rows / device.speed
    backward = BACKWARD * computing
    tensors = tensor_bytes(config.model)
    sizes: Sequence[float] = [sum(tensors)]
    if config.overlap == "on":
        sizes = buckets(tensors, config.first_bucket * MIB, config.bucket * MIB)
    line = config.network.line(p)
    allreduce = len(sizes) * line[0] + sum(sizes) * line[1]
    left = allreduce
    if config.overlap == "on":
        left = min(allreduce, exposed(sizes, line, backward))
    return StepTime(p, rows, device.fixed, computing - backward, backward, allreduce, left)


def buckets(tensors: Sequence[float], first: float, rest: float) -> list[float]:
    """Sizes of the buckets in which gradients are sent, the last layer's first.

    A bucket is full once it has reached its limit, so it may exceed it by a part of a tensor.

    Args:
        tensors: bytes of each gradient, in the order of the layers.
        first: limit of the first bucket, in bytes.
        rest: of all others.

    Returns:
        Bytes of each, in the order in which they are ready.

    Source: torch.nn.parallel.DistributedDataParallel, 1 MiB and 25 MiB by default
    """
    sizes, filling, limit = [], 0.0, first
    for tensor in reversed(tensors):
        filling += tensor
        if filling >= limit:
            sizes.append(filling)
            filling, limit = 0.0, rest
    return [*sizes, filling] if filling else sizes


def exposed(sizes: Sequence[float], line: tuple[float, float], backward: float) -> float:
    """Seconds for which the allreduce of buckets goes on after the backward pass.

    A bucket is ready when the backward pass has come as far as its last byte, bytes being made at a
    steady pace; it goes when the one before has arrived. Where the last layers are the largest, as
    in residual networks, gradients are ready earlier than that: the model is cautious.

    Args:
        sizes: bytes of each bucket, in the order in which they are ready.
        line: seconds per allreduce and per byte.
        backward: seconds of the backward pass.
    """
    total, sent, free = sum(sizes), 0.0, 0.0
    for size in sizes:
        sent += size
        free = max(free, backward * sent / total) + line[0] + line[1] * size
    return max(0.0, free - backward)


def amdahl(serial: float, devices: int) -> float:
    """Speed-up where a share of the work of one device cannot be divided: 1 / (f + (1 − f) / p)."""
    return 1 / (serial + (1 - serial) / devices)


def gustafson(serial: float, devices: int) -> float:
    """Speed-up where the rest of the work grows with the devices: f + (1 − f) p."""
    return serial + (1 - serial) * devices


def counts(config: ScalingConfig) -> list[int]:
    """Those of `COUNTS`, and the config's own, that can share its minibatches and images."""
    most = config.batch_size
    if config.growth == "weak":
        most = config.images // config.batch_size
    return sorted({p for p in COUNTS if p <= most} | {config.devices})


def curve(config: ScalingConfig) -> list[Point]:
    """The config at all numbers of devices that it allows, from one on."""
    steps = [step_time(replace(config, devices=p)) for p in counts(config)]
    one = steps[0]
    serial = one.fixed / (one.fixed + one.forward + one.backward)
    points = []
    for step in steps:
        batch = replace(config, devices=step.devices).global_batch
        rate = batch / step.seconds
        speed_up = rate / (config.batch_size / one.seconds)
        points.append(
            Point(
                step,
                rate,
                math.ceil(config.images / batch) * step.seconds,
                speed_up,
                speed_up / step.devices,
                amdahl(serial, step.devices),
                gustafson(serial, step.devices),
            )
        )
    return points


def sweet_spot(points: Sequence[Point]) -> Point:
    """Where images per second are most: beyond it more devices no longer help."""
    return max(points, key=lambda point: point.images_per_second)


def half_used(points: Sequence[Point]) -> Point:
    """The most devices of which each still does at least half of what one alone does."""
    return [point for point in points if point.efficiency >= 0.5][-1]


def summary(config: ScalingConfig, points: Sequence[Point]) -> str:
    """What comes of it, in a sentence.

    Args:
        config: what was asked.
        points: its `curve`.
    """
    here = next(point for point in points if point.step.devices == config.devices)
    step, best = here.step, sweet_spot(points).step.devices
    waiting = f"{step.exposed / step.seconds:.0%} of it waiting for the allreduce"
    beyond = f"beyond {best:,}, more devices no longer help"
    if best == points[-1].step.devices:
        beyond = f"more devices help up to {best:,}, the most that there can be"
    return (
        f"Modelled: {config.devices:,} × {config.device_words} train {MODELS[config.model].label} "
        f"{here.speed_up:.3g} times as fast as one ({here.efficiency:.0%} efficiency), "
        f"{in_seconds(step.seconds)} per step of {step.rows:,} image{'s' * (step.rows > 1)} per "
        f"device, {waiting}; "
        f"{beyond}."
    )
