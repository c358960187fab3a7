"""Stacked runs end as single runs do: the same minibatches, updates and steps of divergence."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from labcore.events import Diverged, DivergedAt, Finished, LossRecorded, Reached
from labcore.optimizers import OPTIMIZERS, SGD, Momentum, Optimizer
from labcore.regression import RegressionConfig, train_regression
from labcore.stack import descend, stacked

GENTLE = {
    name: np.geomspace(1e-4, highest, 32).round(6).tolist()
    for name, highest in {
        "sgd": 0.1, "momentum": 0.02, "nesterov": 0.02, "adagrad": 1.0, "rmsprop": 0.1,
        "adadelta": 3.0, "adam": 0.1, "adamw": 0.1,
    }.items()
}  # fmt: skip
"""Rates at which rounding is not amplified: beyond, float32 itself decides the digits."""

every_optimizer = pytest.mark.parametrize("kind", OPTIMIZERS.values(), ids=OPTIMIZERS)


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def single(config: RegressionConfig) -> Reached | DivergedAt:
    for event in train_regression(config):
        if isinstance(event, Finished):
            return Reached(event.loss)
        if isinstance(event, Diverged):
            return DivergedAt(event.step)
    raise AssertionError("the run has no end")


def outcomes(config: RegressionConfig, optimizers: list[Optimizer], seeds: list[int]):
    *_, last = descend(config, optimizers, seeds)
    return last.outcomes()


def run_config(**settings) -> RegressionConfig:
    return RegressionConfig(**{"engine": "from scratch", "epochs": 1, **settings})


@every_optimizer
def test_thirty_two_rates_end_as_thirty_two_single_runs(kind):
    optimizers = [kind(lr=lr) for lr in GENTLE[kind.name]]
    [together] = outcomes(run_config(), optimizers, [0])
    alone = [single(run_config(optimizer=each)) for each in optimizers]
    np.testing.assert_allclose(
        [each.loss for each in together], [each.loss for each in alone], rtol=0, atol=1e-6
    )


@pytest.mark.parametrize("batch_size", [1, 64, 999, 1500])
@pytest.mark.parametrize("objective", ["mse", "half_mse"])
def test_batch_size_and_objective_are_those_of_the_single_run(batch_size, objective):
    config = run_config(batch_size=batch_size, objective=objective, epochs=2)
    optimizers = [SGD(lr=lr) for lr in (0.001, 0.01)]
    [together] = outcomes(config, optimizers, [0])
    for outcome, optimizer in zip(together, optimizers, strict=True):
        alone = single(replace(config, optimizer=optimizer))
        assert outcome.loss == pytest.approx(alone.loss, abs=1e-6)


@pytest.mark.parametrize("kind", [SGD, Momentum])
def test_a_run_diverges_at_the_step_at_which_it_does_alone(kind):
    optimizers = [kind(lr=lr) for lr in (0.01, 0.6, 1.0, 10.0)]
    [together] = outcomes(run_config(epochs=4), optimizers, [0])
    assert together[1:] == [single(run_config(epochs=4, optimizer=o)) for o in optimizers[1:]]
    assert isinstance(together[0], Reached)
    assert all(isinstance(each, DivergedAt) for each in together[1:])


def test_every_seed_has_its_own_start_and_minibatches():
    config = run_config()
    seeds = [0, 5, 2**31 - 1]
    for seed, [outcome] in zip(seeds, outcomes(config, [SGD()], seeds), strict=True):
        assert outcome.loss == pytest.approx(single(replace(config, seed=seed)).loss, abs=1e-6)


def test_network_ends_as_single_runs_do():
    config = run_config(model="hidden", hidden_units=7)
    optimizers = [SGD(lr=lr) for lr in (0.001, 0.01, 0.05)]
    for seed, row in zip((0, 3), outcomes(config, optimizers, [0, 3]), strict=True):
        for outcome, optimizer in zip(row, optimizers, strict=True):
            alone = single(replace(config, seed=seed, optimizer=optimizer))
            assert outcome.loss == pytest.approx(alone.loss, abs=1e-6)


def test_losses_are_recorded_where_a_single_run_records_them():
    config = run_config(batch_size=64, epochs=2)
    points = [e for e in train_regression(config) if isinstance(e, LossRecorded)]
    reports = list(descend(config, [config.optimizer], [0]))
    recorded = [place for each in reports for place in each.recorded]
    losses = torch.cat([each.losses[:, 0, 0] for each in reports])
    assert recorded == [(point.step, point.epochs) for point in points]
    np.testing.assert_allclose(losses, [point.loss for point in points], rtol=0, atol=1e-6)


def test_other_settings_than_the_rate_may_differ():
    optimizers = [Momentum(lr=0.01, momentum=beta) for beta in (0.0, 0.5, 0.9)]
    [together] = outcomes(run_config(), optimizers, [0])
    alone = [single(run_config(optimizer=each)).loss for each in optimizers]
    assert [each.loss for each in together] == pytest.approx(alone, abs=1e-6)


def test_one_optimiser_stays_itself():
    assert stacked([SGD(lr=0.3)]) == SGD(lr=0.3)


def test_runs_end_when_all_have_diverged():
    *_, last = descend(run_config(epochs=100), [SGD(lr=1.0)], [0])
    assert last.step < last.steps
