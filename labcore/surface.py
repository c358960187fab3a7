"""The exact loss over a plane of weights: a quadratic, so its bands are ellipses in closed form."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from labcore.config import Config, ConfigError, choice, number, refusal
from labcore.datasets.table import Table
from labcore.least_squares import RANK_TOLERANCE
from labcore.regression import RegressionSettings

MAX_FEATURES = 50
MARGIN = 1.15
"""Half the side of a picture over the farthest place that it must show."""
BANDS_PER_DECADE = 2
CORNERS = 90
"""Of the polygon that stands for an ellipse."""


@dataclass(frozen=True, kw_only=True)
class SurfaceView(Config):
    """Which plane through the space of weights is shown.

    `across` and `up` count the names of `axis_names` from 0.
    """

    name = "surface"

    axes: str = choice(
        "axes",
        "eigenvectors",
        {"eigenvectors": "eigenvectors", "weights": "weights"},
        help="Two eigenvectors of the Hessian, along which the curvature is largest, smallest or "
        "between; or two single weights.",
    )
    across: int = number("across", 0, 0, MAX_FEATURES, help="Which of them goes to the right.")
    up: int = number("up", 1, 0, MAX_FEATURES, help="Which of them goes up.")
    others: str = choice(
        "other weights",
        "optimum",
        {"optimum": "at their optimum", "current": "as in the run"},
        help="Where the weights are that the plane leaves out.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.across == self.up:
            raise ConfigError(
                f"A surface must have two different axes; received {self.across} for both. Choose "
                "another for one of them."
            )


def axis_names(data: Table, axes: str) -> tuple[str, ...]:
    """What `SurfaceView.across` and `up` count, for people.

    Eigenvectors come from the steepest to the flattest, with their eigenvalues.
    """
    if axes == "weights":
        return data.weight_names
    values = data.exact.eigenvalues.flip(0).tolist()
    ends = {0: " (steepest)", len(values) - 1: " (flattest)"}
    return tuple(f"λ = {value:.4g}{ends.get(i, '')}" for i, value in enumerate(values))


@dataclass(frozen=True, eq=False)
class Surface:
    """½ MSE over a plane: w = base + a·u + b·v, u and v orthonormal; all float64.

    Attributes:
        u: (P,), the direction across.
        v: (P,), the direction up.
        base: (P,), the point of the plane with coordinates (0, 0).
        names: of the axes.
        minimum: coordinates of the plane's lowest point.
        lowest: the loss there, the exact minimum itself where the other weights are at theirs.
        curvature: (2, 2), the Hessian within the plane.
    """

    u: Tensor
    v: Tensor
    base: Tensor
    names: tuple[str, str]
    minimum: tuple[float, float]
    lowest: float
    curvature: Tensor
    data: Table

    def losses(self, a: Sequence[float] | Tensor, b: Sequence[float] | Tensor) -> Tensor:
        """½ MSE on the grid of coordinates a (n,) and b (m,): float64 (m, n), a row per b."""
        across, up = (torch.as_tensor(each, dtype=torch.float64) for each in (a, b))
        weights = self.base + across[None, :, None] * self.u + up[:, None, None] * self.v
        return self.data.exact.loss(weights)

    def project(self, weights: Tensor) -> Tensor:
        """Coordinates in the plane, float64 (n, 2), of weights (n, P): the nearest places in it."""
        return (weights.double() - self.base) @ torch.stack([self.u, self.v], dim=1)

    def ellipse(self, gap: float) -> Tensor:
        """Where the loss is `gap` above the plane's lowest: (CORNERS + 1, 2), closed.

        ½ zᵀCz = gap for z = Q diag(√(2·gap / λ)) (cos t, sin t) with C = Q diag(λ) Qᵀ.
        """
        values, vectors = torch.linalg.eigh(self.curvature)
        # A direction without curvature makes the band a strip: an ellipse that never ends.
        values = values.clamp(min=RANK_TOLERANCE * float(values[-1]))
        turn = torch.linspace(0, 2 * math.pi, CORNERS + 1, dtype=torch.float64)
        circle = torch.stack([turn.cos(), turn.sin()], dim=1)
        ring: Tensor = circle * (2 * gap / values).sqrt() @ vectors.T + torch.tensor(
            self.minimum, dtype=torch.float64
        )
        return ring

    def gaps(self, half: float, center: tuple[float, float]) -> list[float]:
        """Gaps of the bands for a picture, half decades, descending from beyond its corners."""
        corners = [(center[0] + i * half, center[1] + j * half) for i in (-1, 1) for j in (-1, 1)]
        highest = max(float(self.losses([a], [b])) for a, b in corners) - self.lowest
        steepest = float(torch.linalg.eigvalsh(self.curvature)[-1])
        smallest = steepest * (half / 60) ** 2
        top = math.ceil(BANDS_PER_DECADE * math.log10(max(highest, smallest)))
        bottom = math.floor(BANDS_PER_DECADE * math.log10(smallest))
        return [10 ** (n / BANDS_PER_DECADE) for n in range(top, bottom, -1)]


def surface(
    view: SurfaceView, settings: RegressionSettings, data: Table, weights: Tensor | None = None
) -> Surface:
    """The plane that `view` names.

    Args:
        view: which axes, and where the other weights are.
        settings: of the run or race, whose model must be linear.
        data: on which it is trained.
        weights: (P,), where a run is now; needed where the other weights are as in the run.

    Raises:
        ConfigError: a network, an axis that the data do not have, or no finite weights of a run.
    """
    if settings.model != "linear":
        raise refusal("surface: model", settings.model, "linear, of which all is known", "linear")
    names = axis_names(data, view.axes)
    for axis in (view.across, view.up):
        if axis >= len(names):
            allowed = f"from 0 to {len(names) - 1} on these data"
            raise refusal("surface: axis", axis, allowed, 0)
    exact = data.exact
    held = exact.solution
    if view.others == "current":
        if weights is None or not bool(weights.isfinite().all()):
            raise ConfigError(
                "A surface with the other weights as in the run needs a run whose weights are "
                "finite; received none. Try the others at their optimum."
            )
        held = weights.double()
    identity = torch.eye(len(names), dtype=torch.float64)
    columns = identity if view.axes == "weights" else exact.eigenvectors.flip(1)
    # Weights are shown as they are, eigenvectors from the minimum.
    origin = torch.zeros_like(held) if view.axes == "weights" else exact.solution
    plane = columns[:, [view.across, view.up]]
    base = held - plane @ (plane.T @ (held - origin))
    curvature = plane.T @ exact.hessian @ plane
    slope = plane.T @ exact.hessian @ (exact.solution - base)
    minimum = torch.linalg.lstsq(curvature, slope.unsqueeze(1), driver="gelsd").solution.flatten()
    a, b = minimum.tolist()
    lowest = float(exact.loss(base + plane @ minimum))
    shown = names[view.across], names[view.up]
    return Surface(plane[:, 0], plane[:, 1], base, shown, (a, b), lowest, curvature, data)


def frame(surface: Surface, paths: Iterable[Tensor]) -> tuple[tuple[float, float], float]:
    """Centre and half side of the square around the minimum that shows all paths, (n, 2) each.

    The half side is a round number, so that the picture stands still while runs move: mostly the
    start is the farthest.
    """
    star = torch.tensor(surface.minimum, dtype=torch.float64)
    away = [float((path - star).abs().max()) for path in paths if len(path)]
    wanted = MARGIN * max((far for far in away if math.isfinite(far)), default=0.0) or 1.0
    power = 10.0 ** math.floor(math.log10(wanted))
    half = next(m * power for m in (1, 1.5, 2, 3, 5, 7.5, 10) if m * power >= wanted)
    return surface.minimum, half
