"""Regression on airfoil self-noise: a run is a generator of events.

Training is in float32, as the notes and torch do it; the reported loss is computed in float64, so
that even tiny distances to the exact minimum are true.
"""

import math
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from functools import cache
from time import perf_counter
from typing import Protocol

import torch
from torch import Tensor, nn

from labcore.config import Config, choice, number, refusal
from labcore.datasets import airfoil
from labcore.events import Diverged, Finished, LossRecorded, RegressionEvent, Started, StepTaken
from labcore.least_squares import LeastSquares, half_mse, solve, with_bias
from labcore.optimizers import OPTIMIZERS, SGD, Optimizer
from labcore.regression_models import HiddenLayer, Linear, Model

EXAMPLES_PER_RECORD = 200
"""The loss is recorded at the first step at or past every so many examples of an epoch."""
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


@dataclass(frozen=True, kw_only=True)
class RegressionConfig(RegressionSettings):
    """One regression run: the settings and the optimiser."""

    optimizer: Optimizer = field(default_factory=SGD)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.optimizer, Optimizer):
            allowed = "an optimiser object: " + ", ".join(c.__name__ for c in OPTIMIZERS.values())
            raise refusal(f"{self.name}: optimizer", self.optimizer, allowed, "SGD(lr=0.01)")


@cache
def exact_solution() -> LeastSquares:
    """The closed-form truth about the linear model on these data."""
    data = airfoil.load()
    return solve(data.features, data.labels)


def floor(settings: RegressionSettings) -> float | None:
    """The smallest loss that the model can reach; None for a network, where nobody knows it."""
    return exact_solution().floor if settings.model == "linear" else None


def lr_limit(config: RegressionConfig) -> float | None:
    """Learning rate above which full-batch descent diverges on the objective; None if unknown."""
    if config.model != "linear":
        return None
    return config.optimizer.lr_limit(_objective_scale(config) * exact_solution().sharpness)


def train_regression(config: RegressionConfig) -> Generator[RegressionEvent, None, None]:
    """Train as `config` says, and report every step.

    Yields:
        `Started`, the loss at step 0, then per minibatch a `LossRecorded` where one is due and a
        `StepTaken`; at last `Finished`, or `Diverged` once a loss is no finite number.

    Raises:
        DataError: the embedded data file is damaged or missing.
    """
    data = airfoil.load()
    rows = len(data.labels)
    engine = ENGINES[config.engine](config)
    evaluation = _Evaluation(_model(config))
    steps_per_epoch = math.ceil(rows / config.batch_size)
    limit = lr_limit(config)
    yield Started(config.epochs * steps_per_epoch, steps_per_epoch, floor(config), limit)
    loss = evaluation.loss(engine.weights())
    yield LossRecorded(0, 0.0, 0.0, loss)

    shuffles = _generator(config, stream=1)
    step, seconds = 0, 0.0
    for epoch in range(config.epochs):
        seen, started = 0, perf_counter()
        for inputs, labels in _minibatches(engine.inputs, engine.labels, config, shuffles):
            minibatch_loss = engine.step(inputs, labels)
            seconds += perf_counter() - started
            step, before, seen = step + 1, seen, seen + labels.numel()
            epochs = epoch + seen / rows
            due = seen == rows or seen // EXAMPLES_PER_RECORD > before // EXAMPLES_PER_RECORD
            due = due or minibatch_loss > EXPLODING
            if due:
                loss = evaluation.loss(engine.weights())
            if not (math.isfinite(minibatch_loss) and math.isfinite(loss)):
                yield Diverged(step, epochs, config.optimizer.lr, limit)
                return
            if due:
                yield LossRecorded(step, epochs, seconds, loss)
            yield StepTaken(step, epochs)
            started = perf_counter()
    yield Finished(step, float(config.epochs), loss, seconds / config.epochs, evaluation.seconds)


@cache
def load_torch_optim() -> None:
    """Have torch load what it loads when its first optimiser is built, which takes a second."""
    torch.optim.SGD([torch.zeros(1)])


def _model(settings: RegressionSettings) -> Model:
    features = len(airfoil.FEATURES)
    if settings.model == "linear":
        return Linear(features)
    return HiddenLayer(features, settings.hidden_units)


def _objective_scale(settings: RegressionSettings) -> float:
    """The objective as a multiple of ½ MSE."""
    return {"mse": 2.0, "half_mse": 1.0}[settings.objective]


def _generator(settings: RegressionSettings, stream: int) -> torch.Generator:
    """A run's own random stream: 0 for the initial weights, 1 for the order of the rows.

    Two streams, so that a model with more weights sees the same minibatches.
    """
    return torch.Generator().manual_seed(2 * settings.seed + stream)


def _minibatches(
    inputs: Tensor, labels: Tensor, settings: RegressionSettings, shuffles: torch.Generator
) -> Iterator[tuple[Tensor, Tensor]]:
    """All rows in a new random order, cut into minibatches; the last one may be smaller."""
    order = torch.randperm(len(labels), generator=shuffles)
    size = settings.batch_size
    return zip(torch.split(inputs[order], size), torch.split(labels[order], size), strict=True)


class _Evaluation:
    """Measures the reported loss, ½ MSE over all rows in float64, and the time that it takes."""

    def __init__(self, model: Model) -> None:
        self.seconds = 0.0
        self._model = model
        self._inputs = with_bias(airfoil.load().features)
        self._labels = airfoil.load().labels

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

    def weights(self) -> Tensor:
        """The flat weights now, float32."""


class FromScratch:
    """This lab's own gradients and update rules on one flat vector of weights."""

    def __init__(self, config: RegressionConfig) -> None:
        data = airfoil.load()
        self.inputs = with_bias(data.features).float()
        self.labels = data.labels.float()
        self._model = _model(config)
        self._optimizer = config.optimizer
        self._scale = _objective_scale(config)
        self._weights = self._model.initial_weights(_generator(config, stream=0))
        self._state = config.optimizer.initial_state(self._weights)
        self._step = 0

    def step(self, inputs: Tensor, labels: Tensor) -> float:
        squares, gradient = self._model.gradient(self._weights, inputs, labels)
        self._step += 1
        self._weights, self._state = self._optimizer.update(
            self._weights, gradient * (self._scale / labels.numel()), self._state, self._step
        )
        return squares.item()

    def weights(self) -> Tensor:
        return self._weights


class Torch:
    """The same by torch's autograd and the optimiser's twin in torch.optim."""

    def __init__(self, config: RegressionConfig) -> None:
        data = airfoil.load()
        self.inputs = data.features.float()
        self.labels = data.labels.float()
        self._model = _model(config)
        self._scale = _objective_scale(config) / 2
        weights = self._model.initial_weights(_generator(config, stream=0))
        self._module = self._model.module(weights)
        self._parameters = list(self._module.parameters())
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

    def weights(self) -> Tensor:
        return self._model.weights_of(self._module)


ENGINES: dict[str, type[Torch] | type[FromScratch]] = {
    "torch": Torch,
    "from scratch": FromScratch,
}
