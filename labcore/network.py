"""What an allreduce takes on many devices, several to a machine, without building its schedule.

A schedule for 1,024 ranks has millions of sends. What `costs` makes of it depends on three numbers
only, and for most algorithms a formula gives them; tests hold each against its schedule.

Devices of one machine use the link inside it. More devices go in three stages: the algorithm's
first half sums inside every machine; the whole algorithm runs between machines, each of which has
one link that its devices share, so that the whole vector passes it; the second half copies inside.
The fullest machine decides, and a stage begins when the one before has ended.

Source: as of `collectives`; the stages as in P. Goyal et al., Accurate, large minibatch SGD, 2017,
section 4.1.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from labcore.collectives import ALLREDUCE
from labcore.config import refusal
from labcore.costs import Link, cost

MOST_DEVICES = 1024


@dataclass(frozen=True, slots=True)
class Volume:
    """What the slowest path through a schedule amounts to, whatever the link.

    Attributes:
        messages: one after another.
        moved: vectors that pass the busiest link of each round, one after another.
        added: vectors added on the way.
    """

    messages: float
    moved: float
    added: float

    def line(self, link: Link, gamma: float = 0.0) -> tuple[float, float]:
        """Seconds for a vector of no bytes, and seconds per byte; see `costs.line`."""
        return link.alpha * self.messages, link.beta * self.moved + gamma * self.added


def _central(p: int) -> Volume:
    return Volume(2 * (p - 1), 2 * (p - 1), p - 1)


def _tree(p: int) -> Volume:
    levels = (p - 1).bit_length()
    return Volume(2 * levels, 2 * levels, levels)


def _ring(p: int) -> Volume:
    share = (p - 1) / p
    return Volume(2 * (p - 1), 2 * share, share)


def _recursive_doubling(p: int) -> Volume:
    levels, folded = p.bit_length() - 1, not _power_of_two(p)
    return Volume(levels + 2 * folded, levels + 2 * folded, levels + folded)


def _halving_doubling(p: int) -> Volume:
    levels, folded = p.bit_length() - 1, not _power_of_two(p)
    share = 1 - 0.5**levels
    return Volume(2 * levels + 2 * folded, 2 * share + 2 * folded, share + folded)


def _ring_2d(p: int) -> Volume:
    height = max(each for each in range(1, math.isqrt(p) + 1) if p % each == 0)
    width = p // height
    share = (width - 1) / width + (height - 1) / p
    return Volume(2 * (width - 1 + height - 1), 2 * share, share)


def _power_of_two(p: int) -> bool:
    return p & (p - 1) == 0


FORMULAS: dict[str, Callable[[int], Volume]] = {
    "central": _central,
    "tree": _tree,
    "ring": _ring,
    "recursive_doubling": _recursive_doubling,
    "halving_doubling": _halving_doubling,
    "ring_2d": _ring_2d,
}
"""By names of `ALLREDUCE`; what is not here is read off its schedule."""
HALVED = {"recursive_doubling": "tree"}
"""What sums and copies inside machines in place of an algorithm that does both at once."""


@lru_cache(maxsize=4096)
def volume(algorithm: str, world_size: int) -> Volume:
    """What an algorithm's schedule amounts to: by its formula, else from the schedule itself.

    Args:
        algorithm: a name in `ALLREDUCE`.
        world_size: number of ranks, from 1 to `MOST_DEVICES`.

    Raises:
        ConfigError: an argument is not allowed.
    """
    if algorithm not in ALLREDUCE:
        raise refusal("algorithm", algorithm, "one of " + ", ".join(ALLREDUCE), "ring")
    _check_devices(world_size)
    if algorithm in FORMULAS:
        return FORMULAS[algorithm](world_size)
    schedule = ALLREDUCE[algorithm](world_size)
    of_messages, of_bytes = cost(schedule, 1, 1, 0), cost(schedule, 1, 0, 1, 1)
    return Volume(of_messages.seconds, of_bytes.transfer_seconds, of_bytes.adding_seconds)


@dataclass(frozen=True)
class Network:
    """How devices are connected, and by which algorithm they sum their gradients.

    Attributes:
        algorithm: a name in `ALLREDUCE`.
        inside: link of each device inside its machine.
        between: link of each machine to the others, shared by its devices.
        per_machine: devices in a machine, from 1; the last one may have fewer.

    Raises:
        ConfigError: an attribute is not allowed.
    """

    algorithm: str
    inside: Link
    between: Link
    per_machine: int

    def __post_init__(self) -> None:
        volume(self.algorithm, 1)
        _check_link("inside", self.inside)
        _check_link("between", self.between)
        if not isinstance(self.per_machine, int) or self.per_machine < 1:
            raise refusal("per_machine", self.per_machine, "a whole number from 1", 8)

    def line(self, devices: int) -> tuple[float, float]:
        """Seconds that an allreduce takes for a vector of no bytes, and for each byte more."""
        _check_devices(devices)
        if devices <= self.per_machine:
            return volume(self.algorithm, devices).line(self.inside)
        machines = -(-devices // self.per_machine)
        own = volume(HALVED.get(self.algorithm, self.algorithm), self.per_machine).line(self.inside)
        others = volume(self.algorithm, machines).line(self.between)
        return own[0] + others[0], own[1] + others[1]

    def seconds(self, devices: int, n_bytes: float) -> float:
        """Seconds that an allreduce of a vector of so many bytes takes; 0 for one device.

        Raises:
            ConfigError: the number of devices is not from 1 to `MOST_DEVICES`, or the size negative
                or not finite.
        """
        if not 0 <= n_bytes < math.inf:
            raise refusal("n_bytes", n_bytes, "a finite number from 0", "1e6")
        fixed, per_byte = self.line(devices)
        return fixed + per_byte * n_bytes


def _check_devices(devices: int) -> None:
    if not isinstance(devices, int) or not 1 <= devices <= MOST_DEVICES:
        raise refusal("devices", devices, f"a whole number from 1 to {MOST_DEVICES}", 16)


def _check_link(name: str, link: Link) -> None:
    if not 0 <= link.alpha < math.inf:
        raise refusal(f"latency of the link {name}", link.alpha, "a finite time from 0 s", 5e-6)
    if not link.bandwidth > 0:
        raise refusal(f"bandwidth of the link {name}", link.bandwidth, "above 0 bytes/s", "1.2e10")
