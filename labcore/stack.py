"""Many runs of one kind of optimiser at once, stacked over two leading dimensions.

The first is the seed: runs of one seed start alike and share their minibatches. The second is the
setting of the optimiser, whose rule is elementwise and so takes a column of learning rates as it
takes a number. Arithmetic, minibatches and the step at which a run is given up are those of a
single run from scratch; only the order of summation differs.
"""

from collections.abc import Generator, Sequence
from copy import copy
from dataclasses import dataclass
from math import ceil
from typing import Protocol

import torch
from torch import Tensor

from labcore.config import ruled_fields
from labcore.datasets import airfoil
from labcore.datasets.table import Table
from labcore.events import DivergedAt, Reached
from labcore.least_squares import with_bias
from labcore.optimizers import Optimizer
from labcore.regression import (
    EXPLODING,
    ORDER,
    WEIGHTS,
    RegressionSettings,
    is_recorded,
    objective_scale,
    random_stream,
)
from labcore.regression_models import HiddenLayer, Linear

ROOM = 2**20
"""Numbers held for the steps between two reports, about: so memory and waiting stay small."""
LARGEST = torch.finfo(torch.float32).max


@dataclass(frozen=True, eq=False)
class Advanced:
    """Where all runs stand; S seeds, R settings.

    Attributes:
        step: steps done by every run.
        steps: in the whole run.
        recorded: step and epochs of the losses recorded since the last report.
        losses: (recorded, S, R) float64, over all rows; meaningless where a run has diverged.
        diverged: (S, R) int64, the step at which a run was given up, 0 where none was.
    """

    step: int
    steps: int
    recorded: tuple[tuple[int, float], ...]
    losses: Tensor
    diverged: Tensor

    def outcomes(self) -> list[list[Reached | DivergedAt]]:
        """How the runs have ended, by seed and setting; of the last report only."""
        return [
            [
                DivergedAt(step) if step else Reached(float(self.losses[-1, seed, setting]))
                for setting, step in enumerate(steps)
            ]
            for seed, steps in enumerate(self.diverged.tolist())
        ]


def descend(
    settings: RegressionSettings,
    optimizers: Sequence[Optimizer],
    seeds: Sequence[int],
    data: Table | None = None,
    *,
    every: bool = True,
) -> Generator[Advanced, None, None]:
    """Train every optimiser from every seed, all at once.

    Args:
        settings: of all runs; engine and seed are not used.
        optimizers: R of one class, with settings that may differ.
        seeds: S of them.
        data: what to train on; the airfoil data if left out.
        every: whether to record as often as a single run does, and not only the last loss.

    Yields:
        `Advanced` at step 0 and after every few steps, until the last step or until all diverged.
    """
    data = airfoil.load() if data is None else data
    rows = len(data.labels)
    size = min(settings.batch_size, rows)
    kernel: Kernel = KERNELS[settings.model](settings, data)
    starts = [kernel.model.initial_weights(random_stream(seed, WEIGHTS)) for seed in seeds]
    weights = torch.stack(starts).unsqueeze(1).repeat(1, len(optimizers), 1)
    optimizer = stacked(optimizers)
    state = optimizer.initial_state(weights)
    diverged = torch.zeros(weights.shape[:2], dtype=torch.int64)
    steps = settings.epochs * ceil(rows / size)
    per_step = weights.numel() + len(seeds) * kernel.width * (kernel.width + size)
    chunk = size * max(1, ROOM // per_step)
    shuffles = [random_stream(seed, ORDER) for seed in seeds]
    yield Advanced(0, steps, ((0, 0.0),), kernel.losses(weights.unsqueeze(0)), diverged)

    step = 0
    for epoch in range(settings.epochs):
        order = torch.stack([torch.randperm(rows, generator=each) for each in shuffles])
        for first in range(0, rows, chunk):
            kernel.load(order[:, first : first + chunk])
            ends = [min(end + size, rows) for end in range(first, min(first + chunk, rows), size)]
            places = [weights]
            for number in range(len(ends)):
                gradient = kernel.gradient(number, weights)
                weights, state = optimizer.update(weights, gradient, state, step + number + 1)
                places.append(weights)
            marks = [is_recorded(end - min(size, end - first), end, rows) for end in ends]
            trail = torch.stack(places)
            given_up = _first_failure(kernel.squares(trail[:-1]), trail[1:], marks)
            diverged = torch.where((diverged == 0) & (given_up > 0), step + given_up, diverged)
            kept = [n for n, mark in enumerate(marks) if mark and (every or step + n + 1 == steps)]
            recorded = tuple((step + n + 1, epoch + ends[n] / rows) for n in kept)
            step += len(ends)
            losses = kernel.losses(trail[[n + 1 for n in kept]])
            yield Advanced(step, steps, recorded, losses, diverged)
            if bool((diverged > 0).all()):
                return


def stacked(optimizers: Sequence[Optimizer]) -> Optimizer:
    """One optimiser for all: a hyperparameter that differs is a float32 column, (R, 1)."""
    stack = copy(optimizers[0])
    for each, _ in ruled_fields(type(stack)):
        values = [getattr(optimizer, each.name) for optimizer in optimizers]
        if len(set(values)) > 1:
            # Every one of them is within its rule; the column of them is for the update alone.
            object.__setattr__(stack, each.name, torch.tensor(values).unsqueeze(1))
    return stack


def _first_failure(squares: Tensor, after: Tensor, marks: Sequence[bool]) -> Tensor:
    """The step of a chunk, from 1, at which a single run would be given up; 0 if none, (S, R).

    Args:
        squares: (K, S, R), of the minibatch before the step.
        after: (K, S, R, P), weights after the step.
        marks: of K steps, whether the loss is recorded.
    """
    looked = torch.tensor(marks).view(-1, 1, 1) | (squares > EXPLODING)
    failed = ~(squares <= LARGEST) | (looked & ~after.isfinite().all(-1))
    return torch.where(failed.any(0), failed.int().argmax(0) + 1, 0)


class Kernel(Protocol):
    """A model, and its gradients of all runs on their minibatches of `width` columns."""

    width: int

    @property
    def model(self) -> Linear | HiddenLayer: ...

    def load(self, order: Tensor) -> None:
        """Take the minibatches of the next steps from rows in this order, (S, rows)."""

    def gradient(self, number: int, weights: Tensor) -> Tensor:
        """Of the objective on minibatch `number`, (S, R, P)."""

    def squares(self, trail: Tensor) -> Tensor:
        """Sums of squared residuals of weights (K, S, R, P) on minibatches 0…K−1, (K, S, R)."""

    def losses(self, trail: Tensor) -> Tensor:
        """½ MSE over all rows at weights (n, S, R, P), float64 (n, S, R)."""


class Gram:
    """The linear model: with G = XᵀX and c = Xᵀy of a minibatch the gradient is Gw − c.

    Runs of one seed share G and c, which are summed in float64.
    """

    def __init__(self, settings: RegressionSettings, data: Table) -> None:
        self._model = Linear(data.features.shape[1])
        # Of the values as a run has them, float32.
        self._inputs = with_bias(data.features).float().double()
        self._labels = data.labels.float().double()
        self._exact = data.exact
        self._scale = objective_scale(settings)
        self._size = min(settings.batch_size, len(self._labels))
        self.width = self._inputs.shape[1]
        self._grams: list[Tensor] = []

    @property
    def model(self) -> Linear:
        return self._model

    def load(self, order: Tensor) -> None:
        seeds, rows = order.shape
        if self._grams and rows <= self._size == len(self._labels):
            return  # every minibatch is all rows, in whatever order
        steps = ceil(rows / self._size)
        missing = steps * self._size - rows
        # Rows of zeros, which add nothing to the sums, make the last minibatch as long as others.
        pad = torch.nn.functional.pad
        inputs = pad(self._inputs[order], (0, 0, 0, missing))
        labels = pad(self._labels[order], (0, missing))
        design = inputs.view(seeds, steps, self._size, self.width).transpose(0, 1)
        targets = labels.view(seeds, steps, self._size, 1).transpose(0, 1)
        self._gram = design.mT @ design
        self._moment = (design.mT @ targets).mT
        self._power = targets.square().sum(dim=(2, 3)).unsqueeze(2)
        counts = torch.full((steps, 1, 1, 1), float(self._size), dtype=torch.float64)
        counts[-1] -= missing
        scale = self._scale / counts
        self._grams = list((self._gram * scale).float())
        self._moments = list((self._moment * scale).float())

    def gradient(self, number: int, weights: Tensor) -> Tensor:
        return torch.baddbmm(self._moments[number], weights, self._grams[number], beta=-1)

    def squares(self, trail: Tensor) -> Tensor:
        trail = trail.double()
        return (trail * (trail @ self._gram - 2 * self._moment)).sum(-1) + self._power

    def losses(self, trail: Tensor) -> Tensor:
        return self._exact.loss(trail)


class Batched:
    """The network, whose gradient the model itself computes of many runs at once."""

    def __init__(self, settings: RegressionSettings, data: Table) -> None:
        self._model = HiddenLayer(data.features.shape[1], settings.hidden_units)
        self._inputs = with_bias(data.features)
        self._labels = data.labels
        self._single = self._inputs.float(), self._labels.float()
        self._scale = objective_scale(settings)
        self._size = settings.batch_size
        self.width = self._inputs.shape[1]

    @property
    def model(self) -> HiddenLayer:
        return self._model

    def load(self, order: Tensor) -> None:
        inputs, labels = (each[order] for each in self._single)
        parts = torch.split(inputs, self._size, dim=1), torch.split(labels, self._size, dim=1)
        self._minibatches = list(zip(*parts, strict=True))
        self._squares: list[Tensor] = []

    def gradient(self, number: int, weights: Tensor) -> Tensor:
        inputs, labels = self._minibatches[number]
        squares, gradient = self._model.gradients(weights, inputs, labels)
        self._squares.append(squares)
        return gradient * (self._scale / labels.shape[1])

    def squares(self, trail: Tensor) -> Tensor:
        return torch.stack(self._squares).double()

    def losses(self, trail: Tensor) -> Tensor:
        places = trail.double().flatten(0, 2)
        residuals = (self._model.predict(each, self._inputs) - self._labels for each in places)
        means = [residual.square().mean() / 2 for residual in residuals]
        return torch.stack(means).view(trail.shape[:3]) if means else torch.empty(trail.shape[:3])


KERNELS: dict[str, type[Gram] | type[Batched]] = {"linear": Gram, "hidden": Batched}
