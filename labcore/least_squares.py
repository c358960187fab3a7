"""The exact truth about linear regression: minimum, curvature and stability, in closed form."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class LeastSquares:
    """What is known exactly of the loss ½ · mean((Xw + b − y)²), in float64.

    Attributes:
        solution: (d + 1,) the minimising weights, the bias last.
        floor: the loss there, the smallest possible.
        eigenvalues: (d + 1,) of the Hessian XᵀX / n (X with a column of ones), ascending.
    """

    solution: Tensor
    floor: float
    eigenvalues: Tensor

    @property
    def sharpness(self) -> float:
        """The Hessian's largest eigenvalue: the curvature along the steepest direction."""
        return float(self.eigenvalues[-1])

    @property
    def condition_number(self) -> float:
        """Largest over smallest eigenvalue; gradient descent needs steps in proportion to it."""
        return float(self.eigenvalues[-1] / self.eigenvalues[0])


def with_bias(features: Tensor) -> Tensor:
    """`features` (n, d) with a last column of ones, (n, d + 1): the bias becomes a weight."""
    return torch.cat([features, features.new_ones(len(features), 1)], dim=1)


def half_mse(residual: Tensor) -> float:
    """½ · mean(residual²), the loss that every run reports."""
    return float(residual.square().mean()) / 2


def solve(features: Tensor, labels: Tensor) -> LeastSquares:
    """Solve least squares with a bias exactly: `features` (n, d), `labels` (n,), float64."""
    design = with_bias(features)
    solution = torch.linalg.lstsq(design, labels).solution
    hessian = design.T @ design / len(design)
    return LeastSquares(
        solution, half_mse(design @ solution - labels), torch.linalg.eigvalsh(hessian)
    )
