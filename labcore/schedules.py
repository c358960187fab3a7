"""A collective operation as data: who sends which chunk to whom, round by round.

`play` executes a schedule; training, pictures and prices use the same object, so that they cannot
disagree with the arithmetic. The algorithms that make schedules are in `collectives`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

from torch import Tensor

from labcore.config import refusal
from labcore.splitting import balanced

Op = Literal["reduce", "copy"]


@dataclass(frozen=True, slots=True)
class Send:
    """One chunk on its way from one rank to another.

    Attributes:
        src: the rank that sends.
        dst: the rank that receives.
        chunk: which chunk of the vector.
        op: what the receiver does with it: add it to its own ("reduce") or keep it ("copy").
    """

    src: int
    dst: int
    chunk: int
    op: Op = "reduce"


Round = tuple[Send, ...]


@dataclass(frozen=True, slots=True)
class Phase:
    """Rounds with one purpose.

    Attributes:
        name: what the field calls it, such as "reduce-scatter".
        why: a sentence for students: what these rounds achieve.
        rounds: the sends of each round.
    """

    name: str
    why: str
    rounds: tuple[Round, ...]


@dataclass(frozen=True, slots=True)
class Schedule:
    """What every rank sends, round by round; the same for vectors of any length.

    All sends of a round happen at once: each carries what its source held before the round. Where
    several reach the same chunk of a rank, that rank takes them in in the order of the round.
    Sends of one round with the same source and destination are one message of several chunks.

    Attributes:
        world_size: number of ranks, from 1.
        chunks: number of parts into which every rank's vector is cut, from 1; see `bounds`.
        phases: the rounds, grouped by what they are for; a phase without rounds is dropped.
        rounds: those of all phases.

    Raises:
        ConfigError: the world size is no whole number from 1.
        ValueError: a send that no rank can make, with its round.
    """

    world_size: int
    chunks: int
    phases: tuple[Phase, ...]
    rounds: tuple[Round, ...] = field(init=False, repr=False, compare=False)
    _overwritten: tuple[frozenset[tuple[int, int]], ...] = field(
        init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        if not isinstance(self.world_size, int) or self.world_size < 1:
            raise refusal("world_size", self.world_size, "a whole number from 1", 4)
        if self.chunks < 1:
            raise ValueError(f"A schedule has at least 1 chunk, not {self.chunks}; try 1.")
        object.__setattr__(self, "phases", tuple(phase for phase in self.phases if phase.rounds))
        rounds = tuple(sends for phase in self.phases for sends in phase.rounds)
        object.__setattr__(self, "rounds", rounds)
        for number, sends in enumerate(rounds):
            for send in sends:
                self._check_send(send, number)
        object.__setattr__(self, "_overwritten", tuple(map(_overwritten, rounds)))

    def _check_send(self, send: Send, number: int) -> None:
        ranks, chunks = range(self.world_size), range(self.chunks)
        if not (send.src in ranks and send.dst in ranks and send.src != send.dst):
            rule = f"goes from one rank to another, both from 0 to {self.world_size - 1}"
        elif send.chunk not in chunks:
            rule = f"carries a chunk from 0 to {self.chunks - 1}"
        elif send.op not in ("reduce", "copy"):
            rule = 'has the op "reduce" or "copy"'
        else:
            return
        raise ValueError(f"A send {rule}; round {number} has {send}. Correct it or leave it out.")

    def bounds(self, length: int) -> list[range]:
        """The elements of each chunk of a vector: as even as can be, some empty if it is short."""
        return balanced(length, self.chunks)


def _overwritten(sends: Round) -> frozenset[tuple[int, int]]:
    """(rank, chunk) of whatever a send of this round carries after an earlier one changed it."""
    changed: set[tuple[int, int]] = set()
    late: set[tuple[int, int]] = set()
    for send in sends:
        if (send.src, send.chunk) in changed:
            late.add((send.src, send.chunk))
        changed.add((send.dst, send.chunk))
    return frozenset(late)


def play(schedule: Schedule, buffers: Sequence[Tensor]) -> Iterator[tuple[int, Sequence[Tensor]]]:
    """Execute a schedule in place, round by round.

    Whether all ranks end with bitwise the same values is up to the schedule, for floating-point
    addition is commutative but not associative. Most algorithms compute each final chunk on one
    rank only, and all others copy it. Ranks that compute the same chunk side by side, as in
    recursive doubling, agree if they add the same two numbers, in whatever order, in every round.

    Nothing is copied that need not be: a chunk is set aside only where a send of the same round
    changes it before another one carries it. Between CUDA devices everything is queued and
    nothing waits; only a transfer from or to the CPU does, which could not use it otherwise.

    Args:
        schedule: the rounds.
        buffers: one vector per rank, all of the same length and dtype, contiguous, each with memory
            of its own, on any devices. The work is done outside autograd.

    Yields:
        After each round its number, from 0, and `buffers`. A schedule for one rank has no rounds.

    Raises:
        ValueError: the buffers do not fit the schedule or one another; at the call, before
            anything has changed.
    """
    _check_buffers(schedule, buffers)
    return _rounds(schedule, buffers)


def allreduce(schedule: Schedule, buffers: Sequence[Tensor]) -> None:
    """Execute a schedule in place, to its end; see `play`."""
    for _ in play(schedule, buffers):
        pass


def _rounds(
    schedule: Schedule, buffers: Sequence[Tensor]
) -> Iterator[tuple[int, Sequence[Tensor]]]:
    cells = [buffer.detach().tensor_split(schedule.chunks) for buffer in buffers]
    apart = len({buffer.device for buffer in buffers}) > 1
    # The CPU would read a transfer that has not arrived, or change one that has not left.
    queued = len({buffer.device.type for buffer in buffers}) == 1
    for number, sends in enumerate(schedule.rounds):
        aside = {
            (rank, chunk): cells[rank][chunk].clone()
            for rank, chunk in schedule._overwritten[number]
        }
        for send in sends:
            carried = cells[send.src][send.chunk]
            if aside:
                carried = aside.get((send.src, send.chunk), carried)
            own = cells[send.dst][send.chunk]
            if send.op == "copy":
                own.copy_(carried, non_blocking=queued)
            else:
                own.add_(carried.to(own.device, non_blocking=queued) if apart else carried)
        yield number, buffers


def _check_buffers(schedule: Schedule, buffers: Sequence[Tensor]) -> None:
    """Refuse buffers that a schedule cannot be played on."""
    if len(buffers) != schedule.world_size:
        raise ValueError(
            f"An allreduce needs one buffer per rank, here {schedule.world_size}; "
            f"received {len(buffers)}. Build the schedule for as many ranks as there are buffers."
        )
    first = buffers[0]
    for rank, buffer in enumerate(buffers):
        if buffer.dim() != 1 or not buffer.is_contiguous():
            raise ValueError(
                f"A buffer must be 1-D and contiguous; that of rank {rank} has shape "
                f"{tuple(buffer.shape)} and stride {buffer.stride()}. Pass tensor.view(-1) of a "
                "contiguous tensor."
            )
        if buffer.dtype != first.dtype or len(buffer) != len(first):
            raise ValueError(
                "All buffers must have the same length and dtype; rank 0 has "
                f"{len(first):,} × {first.dtype}, rank {rank} {len(buffer):,} × {buffer.dtype}. "
                "Give every rank a vector like rank 0's."
            )
    if len(first):
        _check_apart(buffers)


def _check_apart(buffers: Sequence[Tensor]) -> None:
    """Refuse buffers that share memory: a sum would then be added to itself."""
    size = buffers[0].nbytes
    starts = sorted((buffer.data_ptr(), rank) for rank, buffer in enumerate(buffers))
    for (start, rank), (next_start, next_rank) in pairwise(starts):
        if next_start < start + size:
            raise ValueError(
                "Every rank's buffer must have memory of its own; those of ranks "
                f"{min(rank, next_rank)} and {max(rank, next_rank)} overlap. Pass tensor.clone() "
                'for one of them: tensor.to("cpu") does not copy what is on the CPU already.'
            )
