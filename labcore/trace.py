"""An allreduce told round by round: who holds what, which messages travel, and why.

A trace is made by playing the schedule twice with the function that training uses: on the vectors
themselves, and on one bit per rank, whose sums say which ranks' parts a cell contains.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from labcore.schedules import Round, Schedule, Send, play

VALUES_SHOWN = 8
"""Most values of a cell that a trace keeps; of longer chunks it keeps the first."""
MAX_TRACED = 64
"""Most ranks: one bit of a whole number for each."""


@dataclass(frozen=True, slots=True)
class Message:
    """What one rank sends another in one round: all of its sends between the two."""

    src: int
    dst: int
    chunks: tuple[int, ...]
    op: str


@dataclass(frozen=True, slots=True)
class Cell:
    """What one rank holds of one chunk.

    Attributes:
        rank: who holds it.
        chunk: which chunk.
        parts: bit r is set where rank r's part is in the sum.
        values: the first `VALUES_SHOWN` values of the chunk.
    """

    rank: int
    chunk: int
    parts: int
    values: tuple[float, ...]

    @property
    def count(self) -> int:
        """Number of ranks whose parts are in the sum."""
        return self.parts.bit_count()


@dataclass(frozen=True, slots=True)
class Frame:
    """One round.

    Attributes:
        phase: name of the phase that it belongs to.
        why: what that phase achieves.
        messages: what travels; all at once.
        cells: what has changed by the end of the round.
        sentence: what the first message does, in words and numbers.
        code: the call that the first send of that message is.
    """

    phase: str
    why: str
    messages: tuple[Message, ...]
    cells: tuple[Cell, ...]
    sentence: str
    code: str


@dataclass(frozen=True, slots=True)
class Trace:
    """A whole schedule, played on given vectors.

    Attributes:
        schedule: what was played.
        start: every cell before the first round, rank by rank.
        frames: what each round did.
        final: every rank's vector after the last, (p, n).
    """

    schedule: Schedule
    start: tuple[Cell, ...]
    frames: tuple[Frame, ...]
    final: Tensor


def trace(schedule: Schedule, vectors: Tensor) -> Trace:
    """Play a schedule and keep what every round changes.

    Args:
        schedule: for p ranks, at most `MAX_TRACED`.
        vectors: one per rank, (p, n), any real dtype; they stay as they are.

    Raises:
        ValueError: the vectors do not fit the schedule, or there are too many ranks.
    """
    ranks, chunks = schedule.world_size, schedule.chunks
    if ranks > MAX_TRACED:
        raise ValueError(
            f"A trace has one bit per rank, at most {MAX_TRACED}; received {ranks} ranks. "
            "Play the schedule instead."
        )
    buffers = list(vectors.clone())
    bits = [_signed(1 << rank) for rank in range(ranks)]
    parts = list(torch.tensor(bits).unsqueeze(1).repeat(1, chunks))
    table = _Table(schedule, buffers, parts)
    start = tuple(table.cell(rank, chunk) for rank in range(ranks) for chunk in range(chunks))
    phases = [phase for phase in schedule.phases for _ in phase.rounds]
    played = play(schedule, buffers), play(schedule, parts)
    frames = []
    before = {(cell.rank, cell.chunk): cell for cell in start}
    for phase, sends, *_ in zip(phases, schedule.rounds, *played, strict=True):
        touched = dict.fromkeys((send.dst, send.chunk) for send in sends)
        after = {place: table.cell(*place) for place in touched}
        messages = _messages(sends)
        frames.append(
            Frame(
                phase.name,
                phase.why,
                messages,
                tuple(after.values()),
                _sentence(messages, before, before | after, ranks),
                _code(sends[0]),
            )
        )
        before |= after
    return Trace(schedule, start, tuple(frames), torch.stack(buffers))


def _signed(bits: int) -> int:
    """The same 64 bits as the number that int64 holds them as."""
    return bits - (1 << 64) if bits >> 63 else bits


class _Table:
    """What every rank holds at the moment."""

    def __init__(self, schedule: Schedule, buffers: list[Tensor], parts: list[Tensor]) -> None:
        self.buffers, self.parts = buffers, parts
        self.bounds = schedule.bounds(len(buffers[0]))

    def cell(self, rank: int, chunk: int) -> Cell:
        bounds = self.bounds[chunk]
        first = self.buffers[rank][bounds.start : bounds.stop][:VALUES_SHOWN]
        bits = int(self.parts[rank][chunk]) % (1 << 64)
        return Cell(rank, chunk, bits, tuple(first.tolist()))


def _messages(sends: Round) -> tuple[Message, ...]:
    chunks: dict[tuple[int, int, str], list[int]] = {}
    for send in sends:
        chunks.setdefault((send.src, send.dst, send.op), []).append(send.chunk)
    return tuple(Message(src, dst, tuple(c), op) for (src, dst, op), c in chunks.items())


Held = dict[tuple[int, int], Cell]


def _sentence(messages: Sequence[Message], before: Held, after: Held, ranks: int) -> str:
    """What the first message of a round does, and how many others travel with it."""
    first, others = messages[0], len(messages) - 1
    chunk = first.chunks[0]
    sent, result = before[first.src, chunk], after[first.dst, chunk]
    what = "its whole vector"
    if len({place[1] for place in before}) > 1:
        what = f"chunk {chunk}" if len(first.chunks) == 1 else f"{len(first.chunks)} chunks"
    sentence = f"Rank {first.src} sends {what} to rank {first.dst}, which "
    if first.op == "copy":
        sentence += f"keeps a copy: {_held(result, ranks)}."
    else:
        own = before[first.dst, chunk]
        sentence += f"adds: {own.count} + {sent.count} = {result.count} of {ranks} ranks’ parts"
        sentence += f"{_in_numbers(own, sent, result)}."
    if others:
        sentence += f" {others} other message{'s' * (others > 1)} at the same time."
    return sentence


def _in_numbers(own: Cell, sent: Cell, result: Cell) -> str:
    """The sum of the first values, where all are whole: rounded ones would not add up on screen."""
    first = [cell.values[0] for cell in (own, sent, result) if cell.values]
    if len(first) < 3 or not all(float(value).is_integer() for value in first):
        return ""
    return f", in numbers {first[0]:g} + {first[1]:g} = {first[2]:g}"


def _held(cell: Cell, ranks: int) -> str:
    if cell.count == ranks:
        return f"the sum over all {ranks} ranks"
    return f"the parts of {cell.count} of {ranks} ranks"


def _code(send: Send) -> str:
    """The call on the two ranks' chunks that `play` makes for a send."""
    method = "copy_" if send.op == "copy" else "add_"
    return f"cells[{send.dst}][{send.chunk}].{method}(cells[{send.src}][{send.chunk}])"
