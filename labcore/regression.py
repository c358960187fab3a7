"""Regression on airfoil self-noise: a run is a generator of events.

Training is in float32, as the notes and torch do it; the reported loss is computed in float64, so
that even tiny distances to the exact minimum are true.
"""

import math
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import pairwise
from time import perf_counter
from typing import Protocol

import torch
from torch import Tensor, nn

from labcore.config import Config, choice, number, refusal
from labcore.datasets import airfoil
from labcore.datasets.table import Table
from labcore.events import (
    Diverged,
    Finished,
    LossRecorded,
    RegressionEvent,
    Started,
    StepTaken,
    WeightsRecorded,
    WeightsUpdated,
)
from labcore.least_squares import LeastSquares, half_mse, with_bias
from labcore.optimizers import OPTIMIZERS, SGD, Optimizer
from labcore.regression_models import HiddenLayer, Linear, Model

EXAMPLES_PER_RECORD = 200
"""The loss is recorded at the first step at or past every so many examples of an epoch."""
RECORDS_PER_EPOCH = 8
"""At most so often, or measuring many rows would take most of the time."""
EXPLODING = 1e30
"""Beyond this loss of a minibatch it is recorded at every step: the run is on its way out."""


@dataclass(frozen=True, kw_only=True)
class RegressionSettings(Config):
    """Everything about a regression run but its optimiser."""

    name = "regression"

    engine: str = choice(
        "engine",
        "torch",
        {"torch": "torch", "from scratch": "from scratch"},
        help="Who computes: torch's autograd and torch.optim, or this lab's own gradients and "
        "update rules. Both give the same curve.",
    )
    objective: str = choice(
        "objective",
        "mse",
        {"mse": "MSE", "half_mse": "½ MSE"},
        help="What the optimiser descends. MSE has twice the gradient of ½ MSE, so the same "
        "learning rate acts twice as strongly. The reported loss is ½ MSE either way.",
    )
    model: str = choice(
        "model",
        "linear",
        {"linear": "linear", "hidden": "one hidden layer"},
        help="A linear model, whose best loss is known exactly, or a small network, for which "
        "nobody knows it.",
    )
    hidden_units: int = number(
        "hidden units",
        16,
        1,
        256,
        help="Rectified linear units in the hidden layer; the linear model has none.",
    )
    batch_size: int = number(
        "batch size",
        10,
        1,
        airfoil.ROWS,
        log=True,
        help="Rows per minibatch, so per step. 1,500 is the whole data set: no noise at all.",
    )
    epochs: int = number(
        "epochs", 4, 1, 10_000, log=True, help="How many times a run sees every row."
    )
    seed: int = number(
        "seed",
        0,
        0,
        2**31 - 1,
        help="Decides the initial weights and the order of the rows: same seed, same run.",
    )


@dataclass(frozen=True)
class Stage:
    """An earlier part of a run: the optimiser that it had, and the step at which it changed."""

    optimizer: Optimizer
    until: int


@dataclass(frozen=True, kw_only=True)
class RegressionConfig(RegressionSettings):
    """One regression run: the settings and the optimiser.

    Attributes:
        optimizer: with which the run ends, and of most runs the only one.
        before: what a run did before that, if it was forked, each stage longer than the last.
    """

    optimizer: Optimizer = field(default_factory=SGD)
    before: tuple[Stage, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.optimizer, Optimizer):
            allowed = "an optimiser object: " + ", ".join(c.__name__ for c in OPTIMIZERS.values())
            raise refusal(f"{self.name}: optimizer", self.optimizer, allowed, "SGD(lr=0.01)")
        steps = [-1, *(stage.until for stage in self.before)]
        if any(later <= earlier for earlier, later in pairwise(steps)):
            allowed = "stages that end at steps from 0 on, each later than the last"
            raise refusal(f"{self.name}: before", self.before, allowed, "() for no earlier stage")


@cache
def exact_solution() -> LeastSquares:
    """The closed-form truth about the linear model on the airfoil data."""
    return airfoil.load().exact


def floor(settings: RegressionSettings, data: Table | None = None) -> float | None:
    """The smallest loss that the model can reach; None for a network, where nobody knows it."""
    return _exact(data).floor if settings.model == "linear" else None


def lr_limit(config: RegressionConfig, data: Table | None = None) -> float | None:
    """Learning rate above which full-batch descent diverges on the objective; None if unknown."""
    if config.model != "linear":
        return None
    return config.optimizer.lr_limit(objective_scale(config) * _exact(data).sharpness)


def _exact(data: Table | None) -> LeastSquares:
    return exact_solution() if data is None else data.exact


def train_regression(
    config: RegressionConfig,
    data: Table | None = None,
    *,
    weights: bool = False,
    updates: bool = False,
) -> Generator[RegressionEvent, None, None]:
    """Train as `config` says, and report every step.

    Args:
        config: the run.
        data: what to train on; the airfoil data if left out.
        weights: whether to report the weights, too, after every recorded loss.
        updates: whether to report what every step did inside; only the engine from scratch can.

    Yields:
        `Started`, the loss at step 0, then per minibatch a `LossRecorded` where one is due and a
        `StepTaken`; at last `Finished`, or `Diverged` once a loss is no finite number.

    Raises:
        ConfigError: updates are asked of torch's engine.
        DataError: the embedded data file is damaged or missing.
    """
    table = airfoil.load() if data is None else data
    rows = len(table.labels)
    running, changes = _stages(config)
    engine = ENGINES[config.engine](running, table)
    if updates and not isinstance(engine, FromScratch):
        allowed = "from scratch, to report what its steps do"
        raise refusal("regression: engine", config.engine, allowed, "from scratch")
    evaluation = _Evaluation(model_of(config, table), table)
    steps_per_epoch = math.ceil(rows / config.batch_size)
    limit = lr_limit(config, data)
    yield Started(config.epochs * steps_per_epoch, steps_per_epoch, floor(config, data), limit)
    loss = evaluation.loss(engine.weights())
    yield LossRecorded(0, 0.0, 0.0, loss)
    if weights:
        yield WeightsRecorded(0, loss, engine.weights().clone())

    shuffles = random_stream(config.seed, ORDER)
    step, seconds = 0, 0.0
    for epoch in range(config.epochs):
        seen, started = 0, perf_counter()
        for inputs, labels in _minibatches(engine.inputs, engine.labels, config, shuffles):
            if step in changes:
                running = changes[step]
                engine.change(running.optimizer)
            minibatch_loss = engine.step(inputs, labels)
            seconds += perf_counter() - started
            step, before, seen = step + 1, seen, seen + labels.numel()
            if updates and isinstance(engine, FromScratch):
                yield engine.updated(step)
            epochs = epoch + seen / rows
            due = is_recorded(before, seen, rows) or minibatch_loss > EXPLODING
            if due:
                loss = evaluation.loss(engine.weights())
            if not (math.isfinite(minibatch_loss) and math.isfinite(loss)):
                yield Diverged(step, epochs, running.optimizer.lr, lr_limit(running, data))
                return
            if due:
                yield LossRecorded(step, epochs, seconds, loss)
                if weights:
                    yield WeightsRecorded(step, loss, engine.weights().clone())
            yield StepTaken(step, epochs)
            started = perf_counter()
    yield Finished(step, float(config.epochs), loss, seconds / config.epochs, evaluation.seconds)


def _stages(config: RegressionConfig) -> tuple[RegressionConfig, dict[int, RegressionConfig]]:
    """The run as it starts, and as it is from a step on where its optimiser changes."""
    optimizers = [*(stage.optimizer for stage in config.before), config.optimizer]
    first, *others = (replace(config, optimizer=each, before=()) for each in optimizers)
    return first, dict(zip((stage.until for stage in config.before), others, strict=True))


def is_recorded(before: int, seen: int, rows: int) -> bool:
    """Whether a step records the loss that brings an epoch of `rows` from `before` to `seen`."""
    every = max(EXAMPLES_PER_RECORD, rows // RECORDS_PER_EPOCH)
    return seen == rows or seen // every > before // every


@cache
def load_torch_optim() -> None:
    """Have torch load what it loads when its first optimiser is built, which takes a second."""
    torch.optim.SGD([torch.zeros(1)])


def model_of(settings: RegressionSettings, data: Table) -> Model:
    """The model that the settings name, for the features of the data."""
    features = data.features.shape[1]
    if settings.model == "linear":
        return Linear(features)
    return HiddenLayer(features, settings.hidden_units)


def objective_scale(settings: RegressionSettings) -> float:
    """The objective as a multiple of ½ MSE."""
    return {"mse": 2.0, "half_mse": 1.0}[settings.objective]


WEIGHTS, ORDER = 0, 1
"""A run's random streams: one for the initial weights, one for the order of the rows.

Two streams, so that a model with more weights sees the same minibatches.
"""


def random_stream(seed: int, stream: int) -> torch.Generator:
    """The stream `WEIGHTS` or `ORDER` of a run with this seed, from its beginning."""
    return torch.Generator().manual_seed(2 * seed + stream)


def _minibatches(
    inputs: Tensor, labels: Tensor, settings: RegressionSettings, shuffles: torch.Generator
) -> Iterator[tuple[Tensor, Tensor]]:
    """All rows in a new random order, cut into minibatches; the last one may be smaller."""
    order = torch.randperm(len(labels), generator=shuffles)
    size = settings.batch_size
    return zip(torch.split(inputs[order], size), torch.split(labels[order], size), strict=True)


class _Evaluation:
    """Measures the reported loss, ½ MSE over all rows in float64, and the time that it takes."""

    def __init__(self, model: Model, data: Table) -> None:
        self.seconds = 0.0
        self._model = model
        self._inputs = with_bias(data.features)
        self._labels = data.labels

    def loss(self, weights: Tensor) -> float:
        started = perf_counter()
        loss = half_mse(self._model.predict(weights.double(), self._inputs) - self._labels)
        self.seconds += perf_counter() - started
        return loss


class Engine(Protocol):
    """Who computes the steps. `inputs` and `labels` hold all rows in the form that `step` takes."""

    inputs: Tensor
    labels: Tensor

    def step(self, inputs: Tensor, labels: Tensor) -> float:
        """One update from a minibatch; returns a loss of it before the update, to be checked."""

    def change(self, optimizer: Optimizer) -> None:
        """Go on with another optimiser; one of the same kind takes over the state."""

    def weights(self) -> Tensor:
        """The flat weights now, float32."""


class FromScratch:
    """This lab's own gradients and update rules on one flat vector of weights."""

    def __init__(self, config: RegressionConfig, data: Table) -> None:
        self.inputs = with_bias(data.features).float()
        self.labels = data.labels.float()
        self._model = model_of(config, data)
        self._optimizer = config.optimizer
        self._scale = objective_scale(config)
        self._weights = self._model.initial_weights(random_stream(config.seed, WEIGHTS))
        self._state = config.optimizer.initial_state(self._weights)
        self._step = 0
        self._given = self._weights, torch.zeros_like(self._weights), self._state

    def step(self, inputs: Tensor, labels: Tensor) -> float:
        squares, gradient = self._model.gradient(self._weights, inputs, labels)
        self._step += 1
        given = self._weights, gradient * (self._scale / labels.numel()), self._state
        self._weights, self._state = self._optimizer.update(*given, self._step)
        self._given = given
        return squares.item()

    def updated(self, step: int) -> WeightsUpdated:
        """What the last step did, the run's `step`; updates do not touch what they are given."""
        return WeightsUpdated(step, self._step, *self._given, self._state, self._weights)

    def change(self, optimizer: Optimizer) -> None:
        if type(optimizer) is not type(self._optimizer):
            self._state, self._step = optimizer.initial_state(self._weights), 0
        self._optimizer = optimizer

    def weights(self) -> Tensor:
        return self._weights


class Torch:
    """The same by torch's autograd and the optimiser's twin in torch.optim."""

    def __init__(self, config: RegressionConfig, data: Table) -> None:
        self.inputs = data.features.float()
        self.labels = data.labels.float()
        self._model = model_of(config, data)
        self._scale = objective_scale(config) / 2
        weights = self._model.initial_weights(random_stream(config.seed, WEIGHTS))
        self._module = self._model.module(weights)
        self._parameters = list(self._module.parameters())
        self._optimizer = config.optimizer
        self._twin = config.optimizer.twin(self._parameters)

    def step(self, inputs: Tensor, labels: Tensor) -> float:
        for parameter in self._parameters:
            parameter.grad = None  # what zero_grad does, at a tenth of its cost
        loss = nn.functional.mse_loss(self._module(inputs).squeeze(1), labels)
        if self._scale != 1:
            loss = self._scale * loss
        loss.backward()  # type: ignore[no-untyped-call]
        self._twin.step()
        return loss.item()

    def change(self, optimizer: Optimizer) -> None:
        twin = optimizer.twin(self._parameters)
        if type(optimizer) is type(self._optimizer):
            twin.state = self._twin.state
        self._optimizer, self._twin = optimizer, twin

    def weights(self) -> Tensor:
        return self._model.weights_of(self._module)


ENGINES: dict[str, type[Torch] | type[FromScratch]] = {
    "torch": Torch,
    "from scratch": FromScratch,
}
