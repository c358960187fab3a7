"""What is to be seen of one training step: its six moves, and the numbers of each rank."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from labcore.events import Diverged
from labcore.schedules import Schedule

MOVES = ("replicate", "split", "forward", "backward", "allreduce", "update")
ROWS, COLUMNS = 16, 25
"""Most values of a tensor that are kept."""


@dataclass(frozen=True, slots=True)
class Window:
    """Which part of a tensor is shown, as a matrix: one row for a vector, else one per output.

    Attributes:
        rows: rows of the whole matrix.
        columns: columns of the whole matrix.
    """

    rows: int
    columns: int

    def __str__(self) -> str:
        if self.rows <= ROWS and self.columns <= COLUMNS:
            return f"all {self.rows} × {self.columns} values"
        last_row, last_column = min(self.rows, ROWS) - 1, min(self.columns, COLUMNS) - 1
        rows = f"rows 0–{last_row} of {self.rows}, " if self.rows > 1 else ""
        return f"{rows}columns 0–{last_column} of {self.columns}"


@dataclass(frozen=True, slots=True)
class View:
    """A tensor of one rank at one moment; None stands for what is no finite number.

    Attributes:
        values: its first `ROWS` × `COLUMNS` values as a matrix, as `finite` gives them.
        minimum: the smallest value of the whole tensor.
        maximum: the largest.
        norm: the root of the sum of all squares.
    """

    values: tuple[tuple[float | None, ...], ...]
    minimum: float | None
    maximum: float | None
    norm: float | None


def as_matrix(tensor: Tensor) -> Tensor:
    """A tensor as `Window` sees it."""
    return tensor.detach().reshape(1 if tensor.dim() == 1 else len(tensor), -1)


def view(tensor: Tensor) -> View:
    """What is kept of a tensor."""
    matrix = as_matrix(tensor)
    values = matrix[:ROWS, :COLUMNS].tolist()
    low, high = torch.aminmax(matrix)
    return View(
        tuple(tuple(map(finite, row)) for row in values),
        finite(low.item()),
        finite(high.item()),
        finite(matrix.norm().item()),
    )


def finite(value: float) -> float | None:
    """A float32 with the nine digits that tell it from all others; None if it is not finite."""
    return float(f"{value:.9g}") if math.isfinite(value) else None


@dataclass(frozen=True, slots=True)
class State:
    """The chosen parameter on all ranks at one moment.

    Attributes:
        parameters: per rank; None before there are replicas.
        gradients: its gradient per rank; None before the first backward pass.
    """

    parameters: tuple[View | None, ...]
    gradients: tuple[View | None, ...]


@dataclass(frozen=True, eq=False)
class Move:
    """One of the six moves of a step.

    Attributes:
        name: in `MOVES`.
        sentence: what happened, with its numbers.
        code: the functions that did it, without their docstrings.
        seconds: how long it took, on all ranks together.
        before: the state that it found.
        after: the state that it left, which is the next move's `before`.
    """

    name: str
    sentence: str
    code: str
    seconds: float
    before: State
    after: State


@dataclass(frozen=True, eq=False)
class AllreduceMove(Move):
    """The move whose rounds can be opened.

    Attributes:
        schedule: who sends what to whom.
        vectors: the chosen parameter's gradient on each rank before it, (k, n).
        memory: per rank the first rank in whose memory its gradient is: its own, if all is well.
        play: what executes a schedule, with the bug if there is one.
    """

    schedule: Schedule
    vectors: Tensor
    memory: tuple[int, ...]
    play: Callable[[Schedule, Sequence[Tensor]], Iterator[tuple[int, Sequence[Tensor]]]]

    def rounds(self) -> Iterator[Tensor]:
        """The vectors after each round, (k, n), of the same algorithm on this parameter alone.

        The step cuts all parameters together into chunks, so sums may differ in the last digit.
        """
        own = list(self.vectors.clone())
        for _, vectors in self.play(self.schedule, [own[rank] for rank in self.memory]):
            yield torch.stack(list(vectors))


@dataclass
class StepFacts:
    """The numbers of one step, filled in as it goes on; lists have an entry per rank.

    Attributes:
        step: which step, from 1.
        apart: largest difference of a parameter between two replicas before the step.
        rows: rows in each shard.
        passed: the loss that goes into each backward pass.
        losses: mean loss over each shard, None where it is empty.
        loss: mean loss over the minibatch.
        norms: norm of the gradient, over all parameters, after the backward pass.
        sums: the same after the allreduce.
        lengths: length of the step, ‖Δθ‖, over all parameters.
        seconds: time of each move.
        drift: largest difference of a parameter between a replica and replica 0 after the step.
        reference_loss: mean loss of one device that trains beside them.
        reference_length: length of that device's step.
        differences: largest difference of a parameter to that device after the step.
        diverged: says so if the replicas' loss has grown beyond use; after that step there is none.
        reference_diverged: the same of the one device.
    """

    step: int
    apart: float = 0.0
    rows: list[int] = field(default_factory=list)
    passed: list[float] = field(default_factory=list)
    losses: list[float | None] = field(default_factory=list)
    loss: float = math.nan
    norms: list[float] = field(default_factory=list)
    sums: list[float] = field(default_factory=list)
    lengths: list[float] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(MOVES, 0.0))
    drift: float = math.nan
    reference_loss: float = math.nan
    reference_length: float = math.nan
    differences: list[float] = field(default_factory=list)
    diverged: Diverged | None = None
    reference_diverged: Diverged | None = None

    @property
    def ratios(self) -> list[float]:
        """Each rank's step length over that of one device: 1 if all is well, empty if unknown."""
        if not self.reference_length > 0:
            return []
        return [length / self.reference_length for length in self.lengths]


@dataclass(frozen=True, eq=False)
class StepRecord:
    """One step, move by move.

    Attributes:
        parameter: the name of the parameter that is shown.
        shape: its shape.
        window: which part of it is shown.
        moves: in the order of `MOVES`.
        facts: the numbers.
    """

    parameter: str
    shape: tuple[int, ...]
    window: Window
    moves: tuple[Move, ...]
    facts: StepFacts

    @property
    def states(self) -> tuple[State, ...]:
        """What the first move found, then what each move left."""
        return (self.moves[0].before, *(move.after for move in self.moves))
