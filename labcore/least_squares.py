"""The exact truth about linear regression: minimum, curvature and stability, in closed form."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

RANK_TOLERANCE = 1e-13
"""Share of the largest eigenvalue below which another is zero but for rounding."""


@dataclass(frozen=True)
class LeastSquares:
    """What is known exactly of the loss ½ · mean((Xw + b − y)²), in float64.

    Attributes:
        solution: (d + 1,) the minimising weights, the bias last.
        floor: the loss there, the smallest possible.
        hessian: (d + 1, d + 1), XᵀX / n (X with a column of ones).
        eigenvalues: (d + 1,) of the Hessian, ascending.
        eigenvectors: (d + 1, d + 1), a unit column per eigenvalue, its largest entry positive.
    """

    solution: Tensor
    floor: float
    hessian: Tensor
    eigenvalues: Tensor
    eigenvectors: Tensor

    @property
    def sharpness(self) -> float:
        """The Hessian's largest eigenvalue: the curvature along the steepest direction."""
        return float(self.eigenvalues[-1])

    @property
    def condition_number(self) -> float:
        """Largest over smallest eigenvalue; gradient descent needs steps in proportion to it.

        Infinite where columns depend on one another: then many weights reach the minimum.
        """
        smallest, largest = float(self.eigenvalues[0]), float(self.eigenvalues[-1])
        return largest / smallest if smallest > RANK_TOLERANCE * largest else math.inf

    def loss(self, weights: Tensor) -> Tensor:
        """½ MSE at `weights` (…, d + 1), float64 (…): floor + ½ (w − w*)ᵀ H (w − w*)."""
        distance = weights.double() - self.solution
        return self.floor + ((distance @ self.hessian) * distance).sum(-1) / 2


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
    eigenvalues, vectors = torch.linalg.eigh(hessian)
    largest = vectors.gather(0, vectors.abs().argmax(dim=0, keepdim=True))
    floor = half_mse(design @ solution - labels)
    return LeastSquares(solution, floor, hessian, eigenvalues, vectors * largest.sign())
