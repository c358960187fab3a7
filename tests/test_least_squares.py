"""The closed-form truth of the linear model, against numpy and against real full-batch runs."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from labcore.datasets import airfoil
from labcore.events import Diverged, Finished, LossRecorded
from labcore.least_squares import half_mse, solve, with_bias
from labcore.optimizers import OPTIMIZERS, SGD, Momentum, Nesterov
from labcore.regression import (
    RegressionConfig,
    RegressionSettings,
    exact_solution,
    floor,
    lr_limit,
    train_regression,
)

OBJECTIVES = {"mse": 2, "half_mse": 1}
"""Each objective as a multiple of ½ MSE, whose Hessian is XᵀX / n."""

LIMITED = [each for each in OPTIMIZERS.values() if each().lr_limit(1.0) is not None]
MOMENTA = [0.0, 0.1, 0.5, 0.9, 0.99, 0.9999]

every_objective = pytest.mark.parametrize("objective", OBJECTIVES)
every_limited = pytest.mark.parametrize("optimizer", LIMITED, ids=lambda each: each.name)


@pytest.fixture(scope="module")
def design():
    """The 1,500 rows with a column of ones, and the labels, prepared without our code."""
    lines = airfoil.FILE.read_text(encoding="ascii").split("\n")
    table = np.array([[float(cell) for cell in line.split("\t")] for line in lines if line.strip()])
    table = ((table - table.mean(axis=0)) / table.std(axis=0))[:1500]
    return np.column_stack([table[:, :5], np.ones(1500)]), table[:, 5]


@pytest.fixture(scope="module")
def hessian(design):
    """Of ½ MSE, (6, 6)."""
    inputs, _ = design
    return inputs.T @ inputs / len(inputs)


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    """Several threads gain nothing on tensors this small, and stall on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def sgd_matrix(curvature, lr, momentum):
    """One full-batch step as a matrix on the distance to the minimum."""
    return np.eye(len(curvature)) - lr * curvature


def momentum_matrix(curvature, lr, momentum):
    """One full-batch step as a matrix on (distance to the minimum, velocity)."""
    one = np.eye(len(curvature))
    return np.block([[one - lr * curvature, -lr * momentum * one], [curvature, momentum * one]])


def nesterov_matrix(curvature, lr, momentum):
    """The same for Nesterov: v' = βv + g, x' = x − lr (g + βv')."""
    one = np.eye(len(curvature))
    return np.block(
        [
            [one - lr * (1 + momentum) * curvature, -lr * momentum**2 * one],
            [curvature, momentum * one],
        ]
    )


MATRICES = [
    pytest.param(SGD, sgd_matrix, 0.0, id="sgd"),
    *(pytest.param(Momentum, momentum_matrix, beta, id=f"momentum-{beta}") for beta in MOMENTA),
    *(pytest.param(Nesterov, nesterov_matrix, beta, id=f"nesterov-{beta}") for beta in MOMENTA),
]


def spectral_radius(matrix):
    return np.abs(np.linalg.eigvals(matrix)).max()


def losses_at(optimizer, share, objective, epochs):
    """Recorded losses of a full-batch run with `share` of the learning rate's limit."""
    config = RegressionConfig(
        optimizer=optimizer(), objective=objective, engine="from scratch", batch_size=1500,
        epochs=epochs,
    )  # fmt: skip
    config = replace(config, optimizer=replace(config.optimizer, lr=share * lr_limit(config)))
    events = list(train_regression(config))
    assert isinstance(events[-1], Finished | Diverged)
    return [event.loss for event in events if isinstance(event, LossRecorded)]


def test_floor_is_that_of_the_experiments():
    assert exact_solution().floor == pytest.approx(0.241688, abs=5e-7)


def test_floor_agrees_with_numpy(design):
    inputs, labels = design
    solution = np.linalg.lstsq(inputs, labels, rcond=None)[0]
    expected = np.mean((inputs @ solution - labels) ** 2) / 2
    assert exact_solution().floor == pytest.approx(expected, rel=1e-12)


def test_zero_model_has_the_half_mse_of_the_experiments():
    assert half_mse(airfoil.load().labels) == pytest.approx(0.493259, abs=5e-7)


def test_half_mse_agrees_with_numpy(design):
    _, labels = design
    assert half_mse(torch.from_numpy(labels)) == pytest.approx(np.mean(labels**2) / 2, rel=1e-12)


def test_weights_are_those_of_the_experiments():
    expected = [-0.583179, -0.365511, -0.484336, 0.223865, -0.271330, 0.001972]
    assert exact_solution().solution.tolist() == pytest.approx(expected, abs=1e-5)


def test_weights_agree_with_numpy(design):
    expected = np.linalg.lstsq(*design, rcond=None)[0]
    np.testing.assert_allclose(exact_solution().solution.numpy(), expected, rtol=1e-10)


def test_eigenvalues_are_those_of_the_experiments():
    expected = [0.17369, 0.66649, 0.91806, 1.00004, 1.12616, 2.09848]
    assert exact_solution().eigenvalues.tolist() == pytest.approx(expected, abs=1e-5)


def test_eigenvalues_agree_with_numpy(hessian):
    expected = np.linalg.eigvalsh(hessian)
    np.testing.assert_allclose(exact_solution().eigenvalues.numpy(), expected, rtol=1e-10)


def test_condition_number_is_that_of_the_experiments():
    assert exact_solution().condition_number == pytest.approx(12.08, abs=5e-3)


def test_condition_number_agrees_with_numpy(hessian):
    expected = np.linalg.cond(hessian)
    assert exact_solution().condition_number == pytest.approx(expected, rel=1e-9)


def test_sharpness_agrees_with_numpy(hessian):
    assert exact_solution().sharpness == pytest.approx(np.linalg.norm(hessian, 2), rel=1e-12)


def test_r_squared_is_that_of_the_experiments(design):
    _, labels = design
    assert 1 - 2 * exact_solution().floor / labels.var() == pytest.approx(0.510, abs=5e-4)


def test_solution_is_float64():
    exact = exact_solution()
    assert exact.solution.dtype == exact.eigenvalues.dtype == torch.float64


def test_exact_solution_is_computed_once():
    assert exact_solution() is exact_solution()


def test_with_bias_appends_a_column_of_ones():
    features = torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.float64)
    expected = torch.tensor([[1.0, 2.0, 1.0], [3.0, 4.0, 1.0]], dtype=torch.float64)
    assert torch.equal(with_bias(features), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_with_bias_keeps_the_dtype(dtype):
    assert with_bias(torch.zeros(2, 3, dtype=dtype)).dtype == dtype


@pytest.mark.parametrize("seed", range(3))
def test_any_problem_is_solved_as_numpy_solves_it(seed):
    draws = np.random.default_rng(seed)
    features, labels = draws.normal(size=(40, 3)), draws.normal(size=40)
    inputs = np.column_stack([features, np.ones(40)])
    expected, squares, *_ = np.linalg.lstsq(inputs, labels, rcond=None)
    solved = solve(torch.from_numpy(features), torch.from_numpy(labels))
    np.testing.assert_allclose(solved.solution.numpy(), expected, rtol=1e-10)
    assert solved.floor == pytest.approx(squares[0] / 80, rel=1e-10)


@pytest.mark.parametrize(("objective", "limit"), [("mse", 0.4765), ("half_mse", 0.9531)])
def test_limit_of_gradient_descent_is_that_of_the_experiments(objective, limit):
    config = RegressionConfig(objective=objective)
    assert lr_limit(config) == pytest.approx(limit, abs=5e-5)


@every_objective
@pytest.mark.parametrize(("optimizer", "matrix", "momentum"), MATRICES)
def test_iteration_contracts_just_below_the_limit(optimizer, matrix, momentum, objective, hessian):
    values = {} if optimizer is SGD else {"momentum": momentum}
    limit = lr_limit(RegressionConfig(optimizer=optimizer(**values), objective=objective))
    curvature = OBJECTIVES[objective] * hessian
    assert spectral_radius(matrix(curvature, 0.999 * limit, momentum)) < 1


@every_objective
@pytest.mark.parametrize(("optimizer", "matrix", "momentum"), MATRICES)
def test_iteration_grows_just_above_the_limit(optimizer, matrix, momentum, objective, hessian):
    values = {} if optimizer is SGD else {"momentum": momentum}
    limit = lr_limit(RegressionConfig(optimizer=optimizer(**values), objective=objective))
    curvature = OBJECTIVES[objective] * hessian
    assert spectral_radius(matrix(curvature, 1.001 * limit, momentum)) > 1


@every_objective
@every_limited
def test_full_batch_run_just_below_the_limit_converges(optimizer, objective):
    losses = losses_at(optimizer, 0.99, objective, epochs=1000)
    assert losses[-1] == pytest.approx(exact_solution().floor, abs=1e-5)


@every_objective
@every_limited
def test_full_batch_run_just_above_the_limit_grows(optimizer, objective):
    losses = losses_at(optimizer, 1.01, objective, epochs=1000)
    assert losses[-1] > 1e3 * losses[0]


@every_limited
def test_limit_shrinks_with_the_curvature(optimizer):
    assert optimizer().lr_limit(4.0) == pytest.approx(optimizer().lr_limit(1.0) / 4)


def test_momentum_without_momentum_has_the_limit_of_sgd():
    for each in (Momentum, Nesterov):
        assert each(momentum=0.0).lr_limit(3.0) == pytest.approx(SGD().lr_limit(3.0))


def test_network_has_no_known_floor():
    assert floor(RegressionSettings(model="hidden")) is None


def test_network_has_no_known_limit():
    assert lr_limit(RegressionConfig(model="hidden")) is None


def test_linear_model_has_the_exact_floor():
    assert floor(RegressionSettings()) == exact_solution().floor
