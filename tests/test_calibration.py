"""The estimate before Start: its formula by hand, and that a trial gives figures to put into it."""

import threading

import pytest
import torch

from labcore.calibration import EVALUATION, SHARDS, Speed, calibrate, estimate
from labcore.classification import ClassificationConfig
from labcore.models import MODELS

QUICK = ("lenet", "resnet18_quarter")
"""Those whose trial is short enough for a test."""


@pytest.fixture(autouse=True)
def threads_as_before():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


# --- the formula ----------------------------------------------------------------------------------


def config(**settings: object) -> ClassificationConfig:
    """600 images, 100 of them tested, in 10 minibatches: easy to reckon with."""
    settings = {"images": 600, "batch_size": 60, "replicas": 1, "epochs": 1} | settings
    return ClassificationConfig(**settings)  # type: ignore[arg-type]


def test_an_image_is_a_pass_and_a_test_image_a_third_of_one() -> None:
    assert estimate(config(), Speed(0.0, 0.003)) == pytest.approx(600 * 0.003 + 100 * 0.001)


def test_every_step_pays_the_fixed_cost() -> None:
    assert estimate(config(), Speed(0.5, 0.0)) == pytest.approx(10 * 0.5)


def test_every_replica_pays_the_fixed_cost() -> None:
    assert estimate(config(replicas=4), Speed(0.5, 0.0)) == pytest.approx(10 * 4 * 0.5)


def test_images_cost_the_same_on_more_replicas() -> None:
    speed = Speed(0.0, 0.003)
    assert estimate(config(replicas=4), speed) == estimate(config(), speed)


def test_a_last_smaller_minibatch_is_a_step_too() -> None:
    assert estimate(config(batch_size=59), Speed(0.5, 0.0)) == pytest.approx(11 * 0.5)


def test_a_scaled_batch_needs_fewer_steps() -> None:
    scaled = config(batch_size=30, replicas=2, scaling="scaled")
    assert estimate(scaled, Speed(0.5, 0.0)) == pytest.approx(10 * 2 * 0.5)


def test_epochs_multiply_it() -> None:
    speed = Speed(0.5, 0.003)
    assert estimate(config(epochs=7), speed) == pytest.approx(7 * estimate(config(), speed))


def test_the_check_against_one_device_takes_twice_the_time_on_one_device() -> None:
    speed = Speed(0.5, 0.003)
    training = 10 * 0.5 + 600 * 0.003
    assert estimate(config(equivalence="on"), speed) == pytest.approx(
        estimate(config(), speed) + training, rel=0.05
    )


def test_a_test_image_costs_less_than_a_training_image() -> None:
    assert 0 < EVALUATION < 1


# --- the trial ------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", QUICK)
def test_an_image_takes_time(model: str) -> None:
    assert calibrate(model, 1).per_image > 0


@pytest.mark.parametrize("model", QUICK)
def test_the_fixed_cost_is_not_negative(model: str) -> None:
    assert calibrate(model, 1).fixed >= 0


@pytest.mark.parametrize("model", QUICK)
def test_a_run_takes_time(model: str) -> None:
    assert estimate(ClassificationConfig(model=model), calibrate(model, 1)) > 0


def test_the_trial_is_made_once() -> None:
    assert calibrate("lenet", 1) is calibrate("lenet", 1)


def test_the_trial_leaves_the_random_generator_of_others_alone() -> None:
    before = torch.get_rng_state()
    calibrate.__wrapped__("lenet", 1)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("model", MODELS)
def test_every_model_takes_both_trial_shards(model: str) -> None:
    assert min(SHARDS) >= MODELS[model].smallest_shard


def test_two_pages_may_ask_at_once() -> None:
    found: list[Speed] = []
    threads = [
        threading.Thread(target=lambda: found.append(calibrate("resnet18_quarter", 1)))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [each.per_image > 0 for each in found] == [True, True]
