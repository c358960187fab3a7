"""What a schedule costs on links of a given speed: rounds, bytes and modelled seconds.

The α-β-γ model: a message of n bytes takes α + β n seconds, and adding n bytes to others γ n. All
sends of a round are under way at once; every rank has one link, which sends and receives at the
same time (full duplex). So a round takes as long as its busiest rank, and the next one begins when
it has ended. What links share, switches and traffic of others is left out.

Sources: R. Hockney, The communication challenge for MPP, Parallel Comput. 20, 1994; R. Thakur,
R. Rabenseifner and W. Gropp, Optimization of collective communication operations in MPICH, Int. J.
High Perform. Comput. Appl. 19, 2005
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from labcore.config import refusal
from labcore.schedules import Round, Schedule


@dataclass(frozen=True)
class Link:
    """What connects a rank to the others.

    Attributes:
        label: what it is called.
        alpha: seconds that each message takes, however short.
        bandwidth: bytes per second in each direction.
        source: where the two numbers are from, and which of them is an assumption.
    """

    label: str
    alpha: float
    bandwidth: float
    source: str

    @property
    def beta(self) -> float:
        """Seconds per byte."""
        return 1 / self.bandwidth


@dataclass(frozen=True, slots=True)
class Cost:
    """What rounds of a schedule cost.

    Attributes:
        rounds: how many they are.
        busiest_bytes: bytes that the rank sends which sends most.
        total_bytes: bytes that all ranks send.
        startup_seconds: time until messages are on their way: the α part.
        transfer_seconds: time for their bytes: the β part.
        adding_seconds: time for adding what was received: the γ part.
    """

    rounds: int
    busiest_bytes: float
    total_bytes: float
    startup_seconds: float
    transfer_seconds: float
    adding_seconds: float

    @property
    def seconds(self) -> float:
        """The modelled time: start-up, transfer and adding do not overlap."""
        return self.startup_seconds + self.transfer_seconds + self.adding_seconds


def cost(schedule: Schedule, n_bytes: float, alpha: float, beta: float, gamma: float = 0.0) -> Cost:
    """What the whole schedule costs; see `running_costs`. A lone rank has nothing to pay."""
    costs = running_costs(schedule, n_bytes, alpha, beta, gamma)
    return costs[-1] if costs else Cost(0, 0.0, 0.0, 0.0, 0.0, 0.0)


def running_costs(
    schedule: Schedule, n_bytes: float, alpha: float, beta: float, gamma: float = 0.0
) -> list[Cost]:
    """What a schedule has cost after each of its rounds.

    A round takes α × the most messages + β × the most bytes + γ × the most added bytes of any rank.
    Sends with the same source and destination are one message. A rank that has several to send or
    to receive deals with them one after another; sending and receiving do not disturb each other.

    Args:
        schedule: the rounds.
        n_bytes: of each rank's vector; every chunk counts as the same share of it.
        alpha: seconds per message.
        beta: seconds per byte on its way.
        gamma: seconds per byte added.

    Raises:
        ConfigError: a number is negative or not finite.
    """
    _check(n_bytes=n_bytes, alpha=alpha, beta=beta, gamma=gamma)
    sent: Counter[int] = Counter()
    total = messages = moved = added = 0
    costs = []
    for number, sends in enumerate(schedule.rounds, start=1):
        sent.update(send.src for send in sends)
        total += len(sends)
        messages += _most_messages(sends)
        moved += max(_most(send.src for send in sends), _most(send.dst for send in sends))
        added += _most(send.dst for send in sends if send.op == "reduce")
        busiest, all_of_them, moved_bytes, added_bytes = (
            count * n_bytes / schedule.chunks
            for count in (max(sent.values(), default=0), total, moved, added)
        )
        costs.append(
            Cost(
                rounds=number,
                busiest_bytes=busiest,
                total_bytes=all_of_them,
                startup_seconds=alpha * messages,
                transfer_seconds=beta * moved_bytes,
                adding_seconds=gamma * added_bytes,
            )
        )
    return costs


def line(schedule: Schedule, alpha: float, beta: float, gamma: float = 0.0) -> tuple[float, float]:
    """A schedule's modelled time as a straight line over the size of the vector.

    Returns:
        Seconds for a vector of no bytes, and seconds per byte: the time of n bytes is
        fixed + n × per byte, as of `cost`, but the schedule is gone through only once.

    Raises:
        ConfigError: a number is negative or not finite.
    """
    one = cost(schedule, 1, alpha, beta, gamma)
    return one.startup_seconds, one.transfer_seconds + one.adding_seconds


def crossover(
    one: Schedule, other: Schedule, alpha: float, beta: float, gamma: float = 0.0
) -> float | None:
    """The size at which the faster of two schedules becomes the slower.

    Two lines meet at n = (difference of the fixed times) / (difference of the times per byte). For
    recursive doubling and ring, p a power of two, that is
    (α / β) (2 (p − 1) − log₂ p) / (log₂ p − 2 (p − 1) / p).

    Returns:
        Bytes, above 0; None where the same schedule is the faster for every size, or neither is.

    Raises:
        ConfigError: a number is negative or not finite.
    """
    fixed, per_byte = line(one, alpha, beta, gamma)
    other_fixed, other_per_byte = line(other, alpha, beta, gamma)
    if (fixed - other_fixed) * (other_per_byte - per_byte) <= 0:
        return None
    return (fixed - other_fixed) / (other_per_byte - per_byte)


def algbw(n_bytes: float, seconds: float) -> float:
    """Algorithm bandwidth: bytes of one rank's whole vector over the time, in bytes per second.

    Raises:
        ConfigError: the size is negative or not finite, or the time not above 0.

    Source: NCCL Tests, doc/PERFORMANCE.md
    """
    _check(n_bytes=n_bytes, seconds=seconds)
    if seconds == 0:
        raise refusal("seconds", seconds, "above 0", 0.001)
    return n_bytes / seconds


def busbw(n_bytes: float, seconds: float, world_size: int, collective: str = "allreduce") -> float:
    """Bus bandwidth: what the link of each rank would carry if the algorithm were optimal.

    Unlike `algbw`, it does not fall with the number of ranks by itself, so it compares with the
    bandwidth of a link: busbw = algbw × `BUS_FACTORS` of the collective operation.

    Args:
        n_bytes: of one rank's whole vector, also where it begins or ends with a part of it.
        seconds: that the operation took.
        world_size: number of ranks p, from 1.
        collective: one of `BUS_FACTORS`.

    Returns:
        Bytes per second.

    Raises:
        ConfigError: an argument is not allowed.

    Source: NCCL Tests, doc/PERFORMANCE.md
    """
    if not isinstance(world_size, int) or world_size < 1:
        raise refusal("world_size", world_size, "a whole number from 1", 4)
    if collective not in BUS_FACTORS:
        raise refusal("collective", collective, "one of " + ", ".join(BUS_FACTORS), "allreduce")
    return algbw(n_bytes, seconds) * BUS_FACTORS[collective](world_size)


def _most(ranks: Iterable[int]) -> int:
    """How often the most frequent one occurs."""
    return max(Counter(ranks).values(), default=0)


def _most_messages(sends: Round) -> int:
    """The most messages that one rank sends, or that one receives."""
    links = {(send.src, send.dst) for send in sends}
    return max(_most(src for src, _ in links), _most(dst for _, dst in links))


def _check(**values: float) -> None:
    for name, value in values.items():
        if not 0 <= value < math.inf:
            raise refusal(name, value, "a finite number from 0", 0.001)


BUS_FACTORS: dict[str, Callable[[int], float]] = {
    "allreduce": lambda world_size: 2 * (world_size - 1) / world_size,
    "reduce_scatter": lambda world_size: (world_size - 1) / world_size,
    "allgather": lambda world_size: (world_size - 1) / world_size,
    "broadcast": lambda _: 1.0,
}
"""The least bytes that must pass the busiest link, over the bytes of the vector, by collective."""

_NCCL = "latency: NCCL's tuning table (src/graph/tuning.cc), protocol Simple, a step of a ring over"
_TCP = "as between programs over TCP at 10 Gb/s, J. Hurwitz and W. Feng, Hot Interconnects 11, 2003"

LINKS: dict[str, Link] = {
    "pcie3": Link(
        "PCIe 3.0 ×16",
        5.7e-6,
        16 * 8e9 / 8 * 128 / 130,
        f"bandwidth: PCI Express 3.0, 16 lanes of 8 GT/s, 128b/130b; {_NCCL} PCI",
    ),
    "pcie4": Link(
        "PCIe 4.0 ×16",
        5.7e-6,
        16 * 16e9 / 8 * 128 / 130,
        f"bandwidth: PCI Express 4.0, 16 lanes of 16 GT/s, 128b/130b; {_NCCL} PCI",
    ),
    "nvlink2": Link(
        "NVLink 2 (V100)",
        3.4e-6,
        6 * 25e9,
        f"bandwidth: Nvidia, Tesla V100 whitepaper, 6 links of 25 GB/s; {_NCCL} NVLink",
    ),
    "nvlink3": Link(
        "NVLink 3 (A100)",
        3.4e-6,
        12 * 25e9,
        f"bandwidth: Nvidia, A100 whitepaper, 12 links of 25 GB/s; {_NCCL} NVLink",
    ),
    "nvlink4": Link(
        "NVLink 4 (H100)",
        3.4e-6,
        18 * 25e9,
        f"bandwidth: Nvidia, H100 whitepaper, 18 links of 25 GB/s; {_NCCL} NVLink",
    ),
    "ethernet10": Link(
        "10 Gb/s Ethernet", 20e-6, 10e9 / 8, f"bandwidth: IEEE 802.3ae; latency: {_TCP}"
    ),
    "ethernet25": Link(
        "25 Gb/s Ethernet", 20e-6, 25e9 / 8, f"bandwidth: IEEE 802.3by; latency assumed {_TCP}"
    ),
    "ethernet100": Link(
        "100 Gb/s Ethernet", 20e-6, 100e9 / 8, f"bandwidth: IEEE 802.3ba; latency assumed {_TCP}"
    ),
    "ethernet400": Link(
        "400 Gb/s Ethernet", 20e-6, 400e9 / 8, f"bandwidth: IEEE 802.3bs; latency assumed {_TCP}"
    ),
    "infiniband_hdr": Link(
        "InfiniBand HDR (200 Gb/s)",
        14e-6,
        200e9 / 8,
        f"bandwidth: InfiniBand Trade Association, HDR, 4 lanes of 50 Gb/s; {_NCCL} a network",
    ),
    "infiniband_ndr": Link(
        "InfiniBand NDR (400 Gb/s)",
        14e-6,
        400e9 / 8,
        f"bandwidth: InfiniBand Trade Association, NDR, 4 lanes of 100 Gb/s; {_NCCL} a network",
    ),
}
"""Each with all the lanes or links of a rank at their nominal rate; what programs reach is less."""
