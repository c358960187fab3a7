"""Optimisers: each a frozen dataclass of hyperparameters with one pure, elementwise update rule.

To add an optimiser, define its class here and add it to `OPTIMIZERS` at the bottom: menus, sliders,
URLs, the command line, the documentation table and the tests all read that registry.

A rule takes parameter, gradient and state and returns new ones; tensors may have any one shape, and
any floating dtype. `step` counts from 1. A state has one tensor per name in `state_names`, zeros at
the start. `twin` builds the optimiser of `torch.optim` that computes the same. `explain` says
in words what a step did to each state variable.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from labcore.config import Config, number

State = tuple[Tensor, ...]
Numbers = tuple[float, ...]
"""A state at one weight."""


def _lr(default: float) -> float:
    """A learning-rate field, the same range for every optimiser."""
    rate: float = number(
        "learning rate",
        default,
        1e-6,
        10.0,
        log=True,
        help="How far one step goes along its direction. Too small is slow, too large diverges.",
    )
    return rate


def _decay(label: str, default: float, help: str) -> float:
    """A field for the share that an average keeps of its past."""
    share: float = number(label, default, 0.0, 0.9999, help=help)
    return share


def _eps(default: float) -> float:
    """A field for the small number that keeps a denominator away from zero."""
    small: float = number(
        "epsilon ε",
        default,
        1e-12,
        0.1,
        log=True,
        help="Added to the denominator, so that tiny past gradients do not make a giant step.",
    )
    return small


@dataclass(frozen=True)
class Optimizer(Config, ABC):
    """What every optimiser has: a name, a formula with its source, a rule and its twin."""

    label: ClassVar[str]
    formula: ClassVar[str]
    source: ClassVar[str]
    state_names: ClassVar[tuple[str, ...]] = ()

    lr: float = _lr(0.01)

    def initial_state(self, parameter: Tensor) -> State:
        """Zeros like `parameter`, one tensor per state name."""
        return tuple(torch.zeros_like(parameter) for _ in self.state_names)

    @abstractmethod
    def update(
        self, parameter: Tensor, gradient: Tensor, state: State, step: int
    ) -> tuple[Tensor, State]:
        """The parameter and state after one step; the arguments stay as they are."""

    @abstractmethod
    def twin(self, parameters: Iterable[Tensor]) -> torch.optim.Optimizer:
        """The optimiser of `torch.optim` that follows the same rule on `parameters`."""

    def explain(
        self, gradient: float, before: Numbers, after: Numbers, count: int
    ) -> tuple[str, ...]:
        """What one step did to the state at one weight, a sentence or two per state name.

        Args:
            gradient: at that weight.
            before: the state there before the step.
            after: the state after it.
            count: of the step, from 1.
        """
        return ()

    def lr_limit(self, sharpness: float) -> float | None:
        """Learning rate above which full-batch descent on a quadratic diverges; None if unknown.

        `sharpness` is the largest eigenvalue of the objective's Hessian. Rules that rescale the
        gradient by its own history have no such limit fixed in advance.
        """
        return None


@dataclass(frozen=True)
class SGD(Optimizer):
    """Stochastic gradient descent: step against the gradient of the minibatch."""

    name = "sgd"
    label = "SGD"
    formula = r"x \leftarrow x - \eta\, g"
    source = "H. Robbins and S. Monro, A stochastic approximation method, 1951"

    def update(
        self, parameter: Tensor, gradient: Tensor, state: State, step: int
    ) -> tuple[Tensor, State]:
        return parameter - self.lr * gradient, state

    def twin(self, parameters: Iterable[Tensor]) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=self.lr)

    def lr_limit(self, sharpness: float) -> float:
        """2 / λ: a step beyond it overshoots the valley floor by more than it started away."""
        return 2 / sharpness


@dataclass(frozen=True)
class Momentum(Optimizer):
    """SGD with momentum: step along a decaying sum of past gradients."""

    name = "momentum"
    label = "Momentum"
    formula = r"v \leftarrow \beta v + g,\quad x \leftarrow x - \eta\, v"
    source = "B. Polyak, Some methods of speeding up the convergence of iteration methods, 1964"
    state_names = ("velocity",)

    lr: float = _lr(0.005)
    momentum: float = _decay(
        "momentum β", 0.9, "Share of the velocity kept from step to step; 0 is plain SGD."
    )

    def update(
        self, parameter: Tensor, gradient: Tensor, state: State, step: int
    ) -> tuple[Tensor, State]:
        velocity = self.momentum * state[0] + gradient
        return parameter - self.lr * velocity, (velocity,)

    def twin(self, parameters: Iterable[Tensor]) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=self.lr, momentum=self.momentum)

    def explain(
        self, gradient: float, before: Numbers, after: Numbers, count: int
    ) -> tuple[str, ...]:
        return (_velocity_words(self.momentum, gradient, before[0], after[0]),)

    def lr_limit(self, sharpness: float) -> float:
        """2 (1 + β) / λ, from the characteristic roots of the two-term recursion."""
        return 2 * (1 + self.momentum) / sharpness


@dataclass(frozen=True)
class Nesterov(Optimizer):
    """Nesterov momentum: step along the velocity as it will be after the next push."""

    name = "nesterov"
    label = "Nesterov"
    formula = r"v \leftarrow \beta v + g,\quad x \leftarrow x - \eta\,(g + \beta v)"
    source = "Y. Nesterov, A method of solving a convex programming problem, 1983"
    state_names = ("velocity",)

    lr: float = _lr(0.005)
    momentum: float = _decay(
        "momentum β",
        0.9,
        "Share of the velocity kept from step to step; 0 is plain SGD (torch's own Nesterov "
        "refuses 0, so its twin there is plain SGD).",
    )

    def update(
        self, parameter: Tensor, gradient: Tensor, state: State, step: int
    ) -> tuple[Tensor, State]:
        velocity = self.momentum * state[0] + gradient
        return parameter - self.lr * (gradient + self.momentum * velocity), (velocity,)

    def twin(self, parameters: Iterable[Tensor]) -> torch.optim.Optimizer:
        return torch.optim.SGD(
            parameters, lr=self.lr, momentum=self.momentum, nesterov=self.momentum > 0
        )

    def explain(
        self, gradient: float, before: Numbers, after: Numbers, count: int
    ) -> tuple[str, ...]:
        ahead = gradient + self.momentum * after[0]
        return (
            f"{_velocity_words(self.momentum, gradient, before[0], after[0])} The step looks one "
            f"push ahead: g + {self.momentum:g} v = {ahead:.4g}.",
        )

    def lr_limit(self, sharpness: float) -> float:
        """2 (1 + β) / ((1 + 2β) λ): looking ahead costs some of momentum's stability."""
        return 2 * (1 + self.momentum) / ((1 + 2 * self.momentum) * sharpness)


@dataclass(frozen=True)
class Adagrad(Optimizer):
    """Adagrad: each coordinate's step shrinks with the root of its summed squared gradients."""

    name = "adagrad"
    label = "Adagrad"
    formula = r"s \leftarrow s + g^2,\quad x \leftarrow x - \frac{\eta}{\sqrt{s} + \epsilon}\, g"
    source = "J. Duchi, E. Hazan and Y. Singer, JMLR 12, 2011"
    state_names = ("sum of squares",)

    lr: float = _lr(0.1)
    eps: float = _eps(1e-10)

    def update(
        self, parameter: Tensor, gradient: Tensor, state: State, step: int
    ) -> tuple[Tensor, State]:
        squares = state[0] + gradient * gradient
        return parameter - self.lr * gradient / (squares.sqrt() + self.eps), (squares,)

    def twin(self, parameters: Iterable[Tensor]) -> torch.optim.Optimizer:
        return torch.optim.Adagrad(parameters, lr=self.lr, eps=self.eps)

    def explain(
        self, gradient: float, before: Numbers, after: Numbers, count: int
    ) -> tuple[str, ...]:
        rate = self.lr / (after[0] ** 0.5 + self.eps)
        return (
            f"g² = {gradient**2:.4g} was added to {before[0]:.4g}: now {after[0]:.4g}. This "
            f"weight's own learning rate is {self.lr:g} / √{after[0]:.4g} = {rate:.4g}; the sum "
            "only grows, so the rate only falls.",
        )


@dataclass(frozen=True)
class RMSprop(Optimizer):
    """RMSprop: Adagrad with a leaky sum, so that the steps do not fade away."""

    name = "rmsprop"
    label = "RMSprop"
    formula = (
        r"s \leftarrow \alpha s + (1 - \alpha)\, g^2,\quad "
        r"x \leftarrow x - \frac{\eta}{\sqrt{s} + \epsilon}\, g"
    )
    source = "T. Tieleman and G. Hinton, Neural Networks for Machine Learning, lecture 6.5, 2012"
    state_names = ("mean square",)

    alpha: float = _decay("memory α", 0.9, "Share of the mean square kept from step to step.")
    eps: float = _eps(1e-8)

    def update(
        self, parameter: Tensor, gradient: Tensor, state: State, step: int
    ) -> tuple[Tensor, State]:
        square = self.alpha * state[0] + (1 - self.alpha) * gradient * gradient
        return parameter - self.lr * gradient / (square.sqrt() + self.eps), (square,)

    def twin(self, parameters: Iterable[Tensor]) -> torch.optim.Optimizer:
        return torch.optim.RMSprop(parameters, lr=self.lr, alpha=self.alpha, eps=self.eps)

    def explain(
        self, gradient: float, before: Numbers, after: Numbers, count: int
    ) -> tuple[str, ...]:
        rate = self.lr / (after[0] ** 0.5 + self.eps)
        return (
            f"{_average_words('g²', self.alpha, gradient**2, before[0], after[0])} This weight's "
            f"own learning rate is {self.lr:g} / √{after[0]:.4g} = {rate:.4g}.",
        )


@dataclass(frozen=True)
class Adadelta(Optimizer):
    """Adadelta: the step's scale is the recent size of the steps over that of the gradients."""

    name = "adadelta"
    label = "Adadelta"
    formula = (
        r"s \leftarrow \rho s + (1 - \rho)\, g^2,\quad "
        r"d = \frac{\sqrt{u + \epsilon}}{\sqrt{s + \epsilon}}\, g,\quad "
        r"x \leftarrow x - \eta\, d,\quad u \leftarrow \rho u + (1 - \rho)\, d^2"
    )
    source = "M. Zeiler, ADADELTA: an adaptive learning rate method, arXiv:1212.5701, 2012"
    state_names = ("mean square gradient", "mean square step")

    lr: float = _lr(1.0)
    rho: float = _decay("memory ρ", 0.9, "Share of both mean squares kept from step to step.")
    eps: float = _eps(1e-6)

    def update(
        self, parameter: Tensor, gradient: Tensor, state: State, step: int
    ) -> tuple[Tensor, State]:
        square = self.rho * state[0] + (1 - self.rho) * gradient * gradient
        delta = ((state[1] + self.eps) / (square + self.eps)).sqrt() * gradient
        moved = self.rho * state[1] + (1 - self.rho) * delta * delta
        return parameter - self.lr * delta, (square, moved)

    def twin(self, parameters: Iterable[Tensor]) -> torch.optim.Optimizer:
        return torch.optim.Adadelta(parameters, lr=self.lr, rho=self.rho, eps=self.eps)

    def explain(
        self, gradient: float, before: Numbers, after: Numbers, count: int
    ) -> tuple[str, ...]:
        scale = ((before[1] + self.eps) / (after[0] + self.eps)) ** 0.5
        delta = scale * gradient
        return (
            f"{_average_words('g²', self.rho, gradient**2, before[0], after[0])} It divides the "
            f"step: √({before[1]:.4g} + ε) / √({after[0]:.4g} + ε) = {scale:.4g} per unit of g.",
            f"{_average_words('d²', self.rho, delta**2, before[1], after[1])} It scales the next "
            f"step; this one was d = {delta:.4g}.",
        )


@dataclass(frozen=True)
class Adam(Optimizer):
    """Adam: momentum over RMSprop, both corrected for their start at zero."""

    name = "adam"
    label = "Adam"
    formula = (
        r"m \leftarrow \beta_1 m + (1 - \beta_1)\, g,\quad "
        r"v \leftarrow \beta_2 v + (1 - \beta_2)\, g^2,\quad "
        r"x \leftarrow x - \eta\, \frac{m / (1 - \beta_1^t)}"
        r"{\sqrt{v / (1 - \beta_2^t)} + \epsilon}"
    )
    source = "D. Kingma and J. Ba, Adam: a method for stochastic optimization, ICLR 2015"
    state_names = ("mean gradient", "mean square")

    beta1: float = _decay("memory β₁", 0.9, "Share of the mean gradient kept from step to step.")
    beta2: float = _decay("memory β₂", 0.999, "Share of the mean square kept from step to step.")
    eps: float = _eps(1e-8)

    def update(
        self, parameter: Tensor, gradient: Tensor, state: State, step: int
    ) -> tuple[Tensor, State]:
        mean = self.beta1 * state[0] + (1 - self.beta1) * gradient
        square = self.beta2 * state[1] + (1 - self.beta2) * gradient * gradient
        scale = (square / (1 - self.beta2**step)).sqrt() + self.eps
        return parameter - self.lr / (1 - self.beta1**step) * mean / scale, (mean, square)

    def twin(self, parameters: Iterable[Tensor]) -> torch.optim.Optimizer:
        return torch.optim.Adam(
            parameters, lr=self.lr, betas=(self.beta1, self.beta2), eps=self.eps, fused=True
        )

    def explain(
        self, gradient: float, before: Numbers, after: Numbers, count: int
    ) -> tuple[str, ...]:
        mean, square = after[0] / (1 - self.beta1**count), after[1] / (1 - self.beta2**count)
        return (
            f"{_average_words('g', self.beta1, gradient, before[0], after[0])} Without its start "
            f"at zero, ÷ (1 − {self.beta1:g}^{count}): {mean:.4g}, the step's direction.",
            f"{_average_words('g²', self.beta2, gradient**2, before[1], after[1])} Without its "
            f"start at zero, ÷ (1 − {self.beta2:g}^{count}): {square:.4g}; its root "
            f"{square**0.5:.4g} divides the step.",
        )


@dataclass(frozen=True)
class AdamW(Adam):
    """AdamW: Adam with weights that shrink a little each step, apart from the gradient."""

    name = "adamw"
    label = "AdamW"
    formula = (
        r"x \leftarrow (1 - \eta \lambda)\, x,\quad \text{then Adam's step: } "
        r"x \leftarrow x - \eta\, \frac{m / (1 - \beta_1^t)}{\sqrt{v / (1 - \beta_2^t)} + \epsilon}"
    )
    source = "I. Loshchilov and F. Hutter, Decoupled weight decay regularization, ICLR 2019"

    weight_decay: float = number(
        "weight decay λ",
        0.01,
        0.0,
        1.0,
        help="Pull towards zero, in shares of the learning rate. It moves the end point a little "
        "off the exact minimum.",
    )

    def update(
        self, parameter: Tensor, gradient: Tensor, state: State, step: int
    ) -> tuple[Tensor, State]:
        decayed = (1 - self.lr * self.weight_decay) * parameter
        return super().update(decayed, gradient, state, step)

    def twin(self, parameters: Iterable[Tensor]) -> torch.optim.Optimizer:
        return torch.optim.AdamW(
            parameters,
            lr=self.lr,
            betas=(self.beta1, self.beta2),
            eps=self.eps,
            weight_decay=self.weight_decay,
            fused=True,
        )


def _velocity_words(momentum: float, gradient: float, before: float, after: float) -> str:
    """What a velocity did, and whether it was sped up or braked."""
    told = f"{momentum:g} of {before:.4g} was kept and g = {gradient:.4g} added: now {after:.4g}."
    if before * gradient == 0:
        return told
    if before * gradient > 0:
        return f"{told} Both point the same way, so it gathers speed."
    return f"{told} They point opposite ways, so it brakes."


def _average_words(what: str, share: float, new: float, before: float, after: float) -> str:
    """What a running average did that keeps a share of its past."""
    return (
        f"{share:g} of {before:.4g} was kept and {1 - share:.4g} of {what} = {new:.4g} added: now "
        f"{after:.4g}."
    )


OPTIMIZERS: dict[str, type[Optimizer]] = {
    each.name: each for each in (SGD, Momentum, Nesterov, Adagrad, RMSprop, Adadelta, Adam, AdamW)
}
