"""Exercises: every answer is one of the choices, and those worked by hand come out."""

import pytest

from labcore.classification import train_classifier
from labcore.events import Diverged
from labcore.exercises import EXERCISES, LARGE_BATCHES, nearest

RIGHT = {
    "lenet": "about as fast as one",
    "resnet": "about 6 times",
    "large batch": "about 16 times",
    "central": "about 16 times",  # 112 ms against 7.2 ms
    "learning rate": "1.6",  # 16 × 0.1
    "epochs": "a quarter",  # 2,350 steps and 590
    "speeds": "30",  # 90 / 300 = 30 / 100
    "gpu and cpu": "no, it costs more than it saves",
    "accuracy": "no: it may as well be the seed",
}


@pytest.mark.parametrize("name", EXERCISES)
def test_the_answer_is_the_one_worked_out(name):
    exercise = EXERCISES[name]
    assert exercise.choices[exercise.solve().right] == RIGHT[name]


@pytest.mark.parametrize("name", EXERCISES)
def test_the_words_hold_figures_and_end(name):
    words = EXERCISES[name].solve().words
    assert any(character.isdigit() for character in words)
    assert words.endswith(".")
    assert EXERCISES[name].question.endswith("?")


def test_the_figures_of_the_central_allreduce_are_in_its_answer():
    assert "112 ms against 7.16 ms for 44.7 MB" in EXERCISES["central"].solve().words


def test_steps_are_counted():
    assert "2,350 steps became 590" in EXERCISES["epochs"].solve().words


def test_nearest_goes_by_ratio():
    assert nearest(3.0, (1.0, 4.0, 16.0)) == 1
    assert nearest(1.9, (1.0, 4.0, 16.0)) == 0


@pytest.mark.parametrize("name", LARGE_BATCHES)
def test_a_run_with_a_large_batch_is_what_its_name_says(name):
    config = LARGE_BATCHES[name].config
    warm = ", warm-up" * (config.warmup_epochs > 0)
    words = f"{config.replicas} devices, batch {config.global_batch:,}, lr {config.global_lr:g}"
    assert name == words + warm


def test_a_large_batch_diverges_as_it_is_said_to():
    run = LARGE_BATCHES["16 devices, batch 4,096, lr 1.6"]
    assert run.found == "diverges within ten steps"
    *_, last = train_classifier(run.config)
    assert isinstance(last, Diverged)
    assert last.step <= 10
