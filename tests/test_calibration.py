"""The estimate before Start: its formula by hand, and that a trial gives figures to put into it."""

import threading
from typing import Any

import pytest
import torch

from labcore import calibration
from labcore.calibration import (
    EVALUATION,
    SHARDS,
    MeasureConfig,
    Measured,
    Speed,
    StepTimed,
    calibrate,
    estimate,
    measure,
)
from labcore.classification import ClassificationConfig
from labcore.collectives import central
from labcore.config import ConfigError
from labcore.hardware import Device
from labcore.models import MODELS
from labcore.timed_steps import TimedStep

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


# --- measuring with care --------------------------------------------------------------------------


def steps_of(*seconds: float) -> list[TimedStep]:
    return [TimedStep((each,), 0.001, None) for each in seconds]


def of_times(small: list[float], large: list[float]) -> Measured:
    """Steps of 10 and of 30 images took so many seconds."""
    steps = {10: steps_of(*small), 30: steps_of(*large)}
    return calibration._measured(MeasureConfig(small=10, large=30), steps, 1e-10)


def test_two_sizes_tell_the_fixed_cost_from_the_speed() -> None:
    measured = of_times([0.3, 0.3, 0.3], [0.5, 0.5, 0.5])
    assert measured.device.fixed == pytest.approx(0.2)
    assert measured.device.speed == pytest.approx(100)
    assert measured.rest == 0.001


def test_a_slow_step_among_many_does_not_count() -> None:
    assert of_times([0.3, 9.0, 0.3], [0.5, 0.5, 9.0]).device == of_times([0.3], [0.5]).device


def test_the_spread_is_that_of_pairs_of_trials() -> None:
    measured = of_times([0.3, 0.25, 0.3], [0.5, 0.5, 0.7])
    assert measured.speed_range == pytest.approx((20 / 0.4, 20 / 0.2))
    assert measured.fixed_range == pytest.approx((0.1, 0.2))


def test_larger_batches_that_take_no_longer_tell_no_speed() -> None:
    with pytest.raises(ConfigError, match=r"30 images took no longer than 10.* Try 120 as"):
        of_times([0.3], [0.3])


def test_replicas_in_turn_add_up() -> None:
    measured = Measured(Device(0.2, 100), (0.2, 0.2), (100, 100), 0.01, 1e-9)
    # Two passes of 0.3 s, one of none; three times norm and update; 4 sends of 1 MB.
    seconds = measured.step_in_turn((10, 10, 0), central(3), 1_000_000)
    assert seconds == pytest.approx(2 * 0.3 + 3 * 0.01 + 4 * 1e-3)


@pytest.mark.parametrize("model", QUICK)
def test_measuring_reports_every_trial_and_ends_with_a_device(model: str) -> None:
    config = MeasureConfig(model=model, small=4, large=64, repeats=3)
    *before, measured = measure(config)
    trials = [event for event in before if isinstance(event, StepTimed)]
    assert [(each.done, each.of) for each in trials] == [(n, 6) for n in range(1, 7)]
    assert [each.images for each in trials] == [4, 64] * 3
    assert isinstance(measured, Measured)
    low, high = measured.speed_range
    assert 0 < low <= measured.device.speed <= high
    assert measured.fixed_range[0] <= measured.device.fixed <= measured.fixed_range[1]
    assert measured.rest > 0
    assert measured.per_byte > 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"small": 64, "large": 64}, "measure: large must be above the smaller batch, 64"),
        ({"small": 1, "model": "resnet18_deeper"}, "small must be at least 2 for ResNet-18 with"),
        ({"small": 0}, "small must be a whole number from 1"),
        ({"repeats": 2}, "repeats must be a whole number from 3"),
    ],
)
def test_impossible_trials_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        MeasureConfig(**settings)
