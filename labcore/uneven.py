"""How to share a minibatch between devices of different speed, and when not to.

Device i takes a_i + b_i / s_i for b_i rows, and the step lasts until the last one is done. Time T
suffices for s_i (T − a_i) rows on device i, so all devices that work end together at

    T* = (B + Σ a_i s_i) / Σ s_i,    b_i = s_i (T* − a_i),

where the sums leave out those that would not even have begun by then: T* ≤ a_i. Whole rows follow
by giving each to the device that ends first with it.

Source: water-filling, S. Boyd and L. Vandenberghe, Convex optimization, 2004, example 5.2; whole
rows: R. Graham, Bounds on multiprocessing timing anomalies, 1969
"""

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from labcore.config import Config, number, refusal
from labcore.hardware import Device
from labcore.network import Network
from labcore.splitting import balanced
from labcore.units import in_seconds

MOST_ROWS = 1_000_000
MOST_WORKERS = 16


@dataclass(frozen=True, kw_only=True)
class Worker(Config):
    """One device as the user sets it."""

    name = "device"

    speed: float = number(
        "speed (images/s)",
        1000.0,
        1e-3,
        1e9,
        log=True,
        help="Images per second, forward and backward, beyond the fixed cost.",
    )
    fixed_ms: float = number(
        "fixed cost (ms)", 1.0, 0.0, 1e5, help="What a step costs it however few its images."
    )

    @property
    def device(self) -> Device:
        """The same in seconds."""
        return Device(self.fixed_ms / 1e3, self.speed)


@dataclass(frozen=True, kw_only=True)
class UnevenConfig(Config):
    """A minibatch and the devices that share it.

    Attributes:
        workers: the devices, from 1 to `MOST_WORKERS`.
    """

    name = "uneven"

    batch_size: int = number(
        "batch size", 256, 1, MOST_ROWS, log=True, help="Images per step, over all devices."
    )
    workers: tuple[Worker, ...] = (Worker(), Worker(speed=300.0), Worker(speed=100.0))

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= len(self.workers) <= MOST_WORKERS:
            allowed = f"from 1 to {MOST_WORKERS} devices"
            raise refusal(f"{self.name}: workers", len(self.workers), allowed, "2 devices")

    @property
    def devices(self) -> list[Device]:
        """The devices in seconds and images per second."""
        return [worker.device for worker in self.workers]


@dataclass(frozen=True)
class Sharing:
    """A minibatch shared out, and how long each device takes for it.

    Attributes:
        rows: of each device.
        seconds: that each takes.
    """

    rows: tuple[int, ...]
    seconds: tuple[float, ...]

    @property
    def last(self) -> float:
        """When the last device is done."""
        return max(self.seconds)

    @property
    def waiting(self) -> tuple[float, ...]:
        """How long each device waits for the last one."""
        return tuple(self.last - each for each in self.seconds)

    @property
    def idle(self) -> float:
        """Share of all devices' time that is spent waiting."""
        return sum(self.waiting) / (len(self.rows) * self.last)


def ideal(rows: int, devices: Sequence[Device]) -> tuple[float, list[float]]:
    """The best time, and the fractions of rows that reach it; see above.

    Args:
        rows: in the minibatch, B from 1.
        devices: at least one.

    Returns:
        T* in seconds, and b_i for each device, 0 where it is left out.

    Raises:
        ConfigError: no rows or too many, or no devices.
    """
    _check(rows, devices)
    working = list(devices)
    while True:
        speed = sum(each.speed for each in working)
        best = (rows + sum(each.fixed * each.speed for each in working)) / speed
        kept = [each for each in working if best > each.fixed]
        # Whoever cannot begin in time is left out, which shortens the time; so again.
        if len(kept) == len(working):
            return best, [max(0.0, each.speed * (best - each.fixed)) for each in devices]
        working = kept


def best_sharing(rows: int, devices: Sequence[Device]) -> Sharing:
    """The whole rows that let the last device finish earliest.

    Args:
        rows: in the minibatch, from 1 to `MOST_ROWS`.
        devices: at least one.

    Raises:
        ConfigError: no rows or too many, or no devices.
    """
    _, shares = ideal(rows, devices)
    # Whole rows below the ideal are done by T*, and no sharing ends before that.
    given = [max(0, math.floor(share) - 1) for share in shares]
    ends = [(each.seconds(own + 1), n) for n, (each, own) in enumerate(_pairs(devices, given))]
    heapq.heapify(ends)
    for _ in range(rows - sum(given)):
        _, number = ends[0]
        given[number] += 1
        heapq.heapreplace(ends, (devices[number].seconds(given[number] + 1), number))
    return sharing(given, devices)


def equal_sharing(rows: int, devices: Sequence[Device]) -> Sharing:
    """As many rows for each, as the split `balanced`.

    Raises:
        ConfigError: no rows or too many, or no devices.
    """
    _check(rows, devices)
    return sharing([len(shard) for shard in balanced(rows, len(devices))], devices)


def sharing(given: Sequence[int], devices: Sequence[Device]) -> Sharing:
    """These rows on these devices, in order."""
    seconds = tuple(each.seconds(own) for each, own in _pairs(devices, given))
    return Sharing(tuple(given), seconds)


def best_split(devices: Sequence[Device]) -> Callable[[int, int], list[range]]:
    """A split, as of `splitting`, for replicas on these devices; for any number of rows from 1.

    Where no device has a fixed cost it is `weighted` by their speeds, up to a row.
    """

    def split(rows: int, world_size: int) -> list[range]:
        if world_size != len(devices):
            raise refusal("world_size", world_size, f"{len(devices)}, one per device", len(devices))
        edges = accumulate(best_sharing(rows, devices).rows, initial=0)
        return [range(start, stop) for start, stop in pairwise(edges)]

    return split


@dataclass(frozen=True)
class Verdict:
    """Whether one more device shortens the step.

    Attributes:
        computing: seconds until the last device is done, without it and with it.
        allreduce: seconds after that, without it and with it.
        rows: that it would get.
    """

    computing: tuple[float, float]
    allreduce: tuple[float, float]
    rows: int

    @property
    def saved(self) -> float:
        """Seconds of computing that it saves."""
        return self.computing[0] - self.computing[1]

    @property
    def added(self) -> float:
        """Seconds of allreduce that it adds."""
        return self.allreduce[1] - self.allreduce[0]

    @property
    def pays(self) -> bool:
        """Whether it saves more than it adds."""
        return self.saved > self.added

    def __str__(self) -> str:
        if self.rows == 0:
            return "It does not pay: the others are done before it could begin."
        sums = (
            f"it saves {in_seconds(self.saved)} of computing and adds {in_seconds(self.added)} "
            "of allreduce"
        )
        return f"It pays: {sums}." if self.pays else f"It does not pay: {sums}."


def one_more(
    rows: int, devices: Sequence[Device], extra: Device, network: Network, n_bytes: float
) -> Verdict:
    """What another device would change, all sharing the rows as well as they can.

    Devices without rows have no part in the allreduce, which begins when the last one is done.

    Args:
        rows: in the minibatch, from 1.
        devices: those that are there, at least one.
        extra: the one that might come.
        network: that connects them.
        n_bytes: of the gradient.

    Raises:
        ConfigError: an argument is not allowed.
    """
    without = best_sharing(rows, devices)
    together = best_sharing(rows, [*devices, extra])
    sums = [
        network.seconds(sum(own > 0 for own in each.rows), n_bytes) for each in (without, together)
    ]
    return Verdict((without.last, together.last), (sums[0], sums[1]), together.rows[-1])


def slowest_helps(config: UnevenConfig, network: Network, n_bytes: float) -> Verdict | None:
    """Whether the device of the least speed, of equals the last, pays; None if it is the only one.

    Raises:
        ConfigError: the size of the gradient is not allowed.
    """
    *others, slowest = sorted(config.devices, key=lambda device: -device.speed)
    return one_more(config.batch_size, others, slowest, network, n_bytes) if others else None


def sum_up(config: UnevenConfig) -> str:
    """What the best shares gain, in a sentence."""
    equal = equal_sharing(config.batch_size, config.devices)
    best = best_sharing(config.batch_size, config.devices)
    rows = ", ".join(f"{own:,}" for own in best.rows)
    return (
        f"Modelled: with equal shares the last device is done after {in_seconds(equal.last)}, and "
        f"{equal.idle:.0%} of all devices' time is waiting; with shares of {rows} images it is "
        f"done after {in_seconds(best.last)}, {equal.last / best.last:.3g} times as fast."
    )


def _pairs(devices: Sequence[Device], given: Sequence[int]) -> list[tuple[Device, int]]:
    return list(zip(devices, given, strict=True))


def _check(rows: int, devices: Sequence[Device]) -> None:
    if not isinstance(rows, int) or not 1 <= rows <= MOST_ROWS:
        raise refusal("rows", rows, f"a whole number from 1 to {MOST_ROWS}", 256)
    if not devices:
        raise refusal("devices", 0, "at least one; all were left out", "1 device")
    if any(math.isinf(each.speed) for each in devices):
        raise refusal("speed of a device", math.inf, "finite, to share rows by", 1000)
