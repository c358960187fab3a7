"""The loss surface: the exact loss, against numpy and the rows themselves."""

import numpy as np
import pytest
import torch

from labcore.config import ConfigError
from labcore.datasets import airfoil
from labcore.events import LossRecorded, WeightsRecorded
from labcore.regression import RegressionConfig, RegressionSettings, train_regression
from labcore.surface import Surface, SurfaceView, axis_names, frame, surface

SETTINGS = RegressionSettings()
PLANES = [(axes, x, y) for axes in ("weights", "eigenvectors") for x, y in ((0, 1), (5, 2), (4, 5))]
WEIGHTS = torch.tensor([0.3, -0.2, 0.1, 0.5, -0.4, 0.05])

every_plane = pytest.mark.parametrize(("axes", "x", "y"), PLANES)
every_hold = pytest.mark.parametrize("others", ["optimum", "current"])


@pytest.fixture(scope="module")
def design():
    data = airfoil.load()
    inputs = np.column_stack([data.features.numpy(), np.ones(1500)])
    return inputs, data.labels.numpy()


def plane(axes: str = "eigenvectors", x: int = 0, y: int = 5, others: str = "optimum") -> Surface:
    view = SurfaceView(axes=axes, across=x, up=y, others=others)
    return surface(view, SETTINGS, airfoil.load(), WEIGHTS)


def optimum(design):
    return np.linalg.lstsq(*design, rcond=None)[0]


@every_hold
@every_plane
def test_grid_is_the_loss_of_the_rows(axes, x, y, others, design):
    inputs, labels = design
    shown = plane(axes, x, y, others)
    across, up = [-1.5, 0.0, 0.7], [-0.3, 2.0]
    expected = np.empty((2, 3))
    for i, b in enumerate(up):
        for j, a in enumerate(across):
            weights = (shown.base + a * shown.u + b * shown.v).numpy()
            expected[i, j] = np.mean((inputs @ weights - labels) ** 2) / 2
    np.testing.assert_allclose(shown.losses(across, up), expected, rtol=1e-10)


def test_weights_as_axes_are_the_weights_themselves(design):
    shown = plane("weights", 1, 3, "current")
    weights = shown.base + 0.25 * shown.u - 0.5 * shown.v
    expected = WEIGHTS.double().numpy()
    expected[[1, 3]] = 0.25, -0.5
    np.testing.assert_allclose(weights, expected, atol=1e-12)


def test_eigenvectors_come_from_the_steepest_to_the_flattest(design):
    inputs, _ = design
    hessian = inputs.T @ inputs / 1500
    values = np.sort(np.linalg.eigvalsh(hessian))[::-1]
    shown = plane("eigenvectors", 0, 5)
    for vector, value in ((shown.u, values[0]), (shown.v, values[-1])):
        np.testing.assert_allclose(hessian @ vector.numpy(), value * vector.numpy(), atol=1e-10)
    names = axis_names(airfoil.load(), "eigenvectors")
    assert (names[0], names[-1]) == ("λ = 2.098 (steepest)", "λ = 0.1737 (flattest)")


@every_plane
def test_with_the_others_at_their_optimum_the_minimum_is_the_exact_one(axes, x, y, design):
    shown = plane(axes, x, y)
    a, b = shown.minimum
    np.testing.assert_allclose(shown.base + a * shown.u + b * shown.v, optimum(design), atol=1e-9)
    assert shown.lowest == pytest.approx(airfoil.load().exact.floor, abs=1e-14)


@every_hold
@every_plane
def test_nothing_in_the_plane_is_below_its_minimum(axes, x, y, others):
    shown = plane(axes, x, y, others)
    a, b = shown.minimum
    turn = np.linspace(0, 2 * np.pi, 40)
    for radius in (1e-3, 0.1):
        around = [float(shown.losses([a + radius * np.cos(t)], [b + radius * np.sin(t)]))
                  for t in turn]  # fmt: skip
        assert min(around) > shown.lowest


@every_hold
@every_plane
def test_loss_is_the_same_all_along_an_ellipse(axes, x, y, others):
    shown = plane(axes, x, y, others)
    for a, b in shown.ellipse(0.03).tolist():
        assert float(shown.losses([a], [b])) == pytest.approx(shown.lowest + 0.03, abs=1e-10)


@pytest.mark.parametrize("axes", ["weights", "eigenvectors"])
def test_path_of_a_run_lies_on_the_surface_where_the_others_are_the_runs(axes):
    run = RegressionConfig(epochs=1, engine="from scratch")
    for event in train_regression(run, weights=True):
        if isinstance(event, LossRecorded):
            loss = event.loss
        if isinstance(event, WeightsRecorded):
            view = SurfaceView(axes=axes, others="current")
            shown = surface(view, run, airfoil.load(), event.weights)
            [[a, b]] = shown.project(event.weights.unsqueeze(0)).tolist()
            assert float(shown.losses([a], [b])) == pytest.approx(loss, abs=1e-9)


def test_bands_are_half_decades_that_reach_beyond_the_corners():
    shown = plane()
    gaps = shown.gaps(0.5, shown.minimum)
    ratios = np.array(gaps[:-1]) / gaps[1:]
    np.testing.assert_allclose(ratios, 10**0.5)
    corner = float(shown.losses([shown.minimum[0] + 0.5], [shown.minimum[1] + 0.5]))
    assert gaps[0] >= corner - shown.lowest


def test_frame_shows_all_paths_around_the_minimum():
    shown = plane()
    path = torch.tensor([[0.4, 0.1], [-0.2, -0.62]], dtype=torch.float64)
    center, half = frame(shown, [path])
    assert center == shown.minimum
    assert half >= 0.62


def test_frame_without_paths_still_has_a_size():
    assert frame(plane(), [])[1] > 0


def test_surface_over_the_same_weight_twice_is_refused():
    with pytest.raises(ConfigError, match="two different axes; received 3 for both"):
        SurfaceView(axes="weights", across=3, up=3)


@pytest.mark.parametrize(
    ("view", "settings", "weights", "words"),
    [
        (SurfaceView(up=6), SETTINGS, None, "from 0 to 5"),
        (SurfaceView(), RegressionSettings(model="hidden"), None, "model must be linear"),
        (SurfaceView(others="current"), SETTINGS, None, "needs a run"),
        (SurfaceView(others="current"), SETTINGS, WEIGHTS * torch.inf, "needs a run"),
    ],
    ids=str,
)
def test_bad_surface_is_refused(view, settings, weights, words):
    with pytest.raises(ConfigError, match=words):
        surface(view, settings, airfoil.load(), weights)
