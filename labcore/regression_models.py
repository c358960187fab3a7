"""The regression models, forward and backward side by side, and as torch modules.

A model's weights are one flat vector. Inputs carry a last column of ones (`with_bias`), so biases
are weights like the others.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn


class Model(Protocol):
    """What a run needs of a model; `inputs` is (rows, d + 1), `weights` (P,), `labels` (rows,)."""

    def initial_weights(self, generator: torch.Generator) -> Tensor:
        """Random start, float32, (P,)."""

    def predict(self, weights: Tensor, inputs: Tensor) -> Tensor:
        """Predictions, (rows,), in the dtype of the arguments."""

    def gradient(self, weights: Tensor, inputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Sum of squared residuals, and the gradient (P,) of half of it."""

    def module(self, weights: Tensor) -> nn.Module:
        """The same model for autograd, (rows, d) → (rows, 1), starting at `weights`."""

    def weights_of(self, module: nn.Module) -> Tensor:
        """The inverse of `module`: the flat weights, detached."""


@dataclass(frozen=True)
class Linear:
    """ŷ = Xw, the bias being the last weight. Start: N(0, 0.01²), bias 0."""

    features: int

    def initial_weights(self, generator: torch.Generator) -> Tensor:
        weights = 0.01 * torch.randn(self.features + 1, generator=generator, dtype=torch.float32)
        weights[-1] = 0
        return weights

    def predict(self, weights: Tensor, inputs: Tensor) -> Tensor:
        return inputs @ weights

    def gradient(self, weights: Tensor, inputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        residual = inputs @ weights - labels
        return residual @ residual, inputs.T @ residual

    def module(self, weights: Tensor) -> nn.Module:
        return _layer(weights[:-1].reshape(1, -1), weights[-1:])

    def weights_of(self, module: nn.Module) -> Tensor:
        return nn.utils.parameters_to_vector(module.parameters()).detach()


@dataclass(frozen=True)
class HiddenLayer:
    """ŷ = relu(XW)v + c, one hidden layer of `units` rectified linear units.

    Start: W as He et al. 2015, N(0, 2 / features); v ~ N(0, 1 / units); biases 0. A start as small
    as the linear model's would sit near a saddle point for most of a short run.
    """

    features: int
    units: int

    def _split(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Views of the flat weights: W (features + 1, units) and v with c (units + 1,)."""
        size = (self.features + 1) * self.units
        return weights[:size].view(self.features + 1, self.units), weights[size:]

    def initial_weights(self, generator: torch.Generator) -> Tensor:
        size = (self.features + 1) * self.units + self.units + 1
        weights = torch.randn(size, generator=generator, dtype=torch.float32)
        inner, outer = self._split(weights)
        inner *= (2 / self.features) ** 0.5
        outer /= self.units**0.5
        inner[-1] = 0
        outer[-1] = 0
        return weights

    def predict(self, weights: Tensor, inputs: Tensor) -> Tensor:
        inner, outer = self._split(weights)
        return (inputs @ inner).relu() @ outer[:-1] + outer[-1]

    def gradient(self, weights: Tensor, inputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        inner, outer = self._split(weights)
        hidden = (inputs @ inner).relu()
        residual = hidden @ outer[:-1] + outer[-1] - labels
        hidden_gradient = torch.outer(residual, outer[:-1]) * (hidden > 0)
        inner_gradient = inputs.T @ hidden_gradient
        outer_gradient = residual @ hidden
        gradient = torch.cat([inner_gradient.flatten(), outer_gradient, residual.sum().view(1)])
        return residual @ residual, gradient

    def gradients(self, weights: Tensor, inputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """`gradient` of many runs at once.

        Args:
            weights: (S, R, P), of R runs on each of S minibatches.
            inputs: (S, rows, features + 1).
            labels: (S, rows).

        Returns:
            Sums of squared residuals, (S, R), and the gradients of half of them, (S, R, P).
        """
        size = (self.features + 1) * self.units
        shape = *weights.shape[:2], self.features + 1, self.units
        inner, outer = weights[..., :size].view(shape), weights[..., size:]
        inputs, labels = inputs.unsqueeze(1), labels.unsqueeze(1)
        hidden = (inputs @ inner).relu()
        residual = (hidden @ outer[..., :-1, None]).squeeze(-1) + outer[..., -1:] - labels
        hidden_gradient = residual[..., None] * outer[..., None, :-1] * (hidden > 0)
        inner_gradient = (inputs.mT @ hidden_gradient).flatten(2)
        outer_gradient = (residual[..., None, :] @ hidden).squeeze(-2)
        bias_gradient = residual.sum(-1, keepdim=True)
        gradient = torch.cat([inner_gradient, outer_gradient, bias_gradient], dim=-1)
        return residual.square().sum(-1), gradient

    def module(self, weights: Tensor) -> nn.Module:
        inner, outer = self._split(weights)
        first = _layer(inner[:-1].T, inner[-1])
        return nn.Sequential(first, nn.ReLU(), _layer(outer[:-1].reshape(1, -1), outer[-1:]))

    def weights_of(self, module: nn.Module) -> Tensor:
        first, first_bias, second, second_bias = (p.detach() for p in module.parameters())
        inner = torch.cat([first.T, first_bias.view(1, -1)])
        return torch.cat([inner.flatten(), second.flatten(), second_bias])


def _layer(weight: Tensor, bias: Tensor) -> nn.Linear:
    """A linear layer with these weights; torch's shared random generator is not touched."""
    layer = nn.Linear(weight.shape[1], weight.shape[0], device="meta")
    layer.weight = nn.Parameter(weight.clone(memory_format=torch.contiguous_format))
    layer.bias = nn.Parameter(bias.clone())
    return layer
