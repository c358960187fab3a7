"""Two races: the page says in which settings they differ."""

from dataclasses import replace

import pytest
import torch

from labcore.config import Number, ruled_fields
from labcore.datasets.table import Table
from labcore.differences import difference_in_words, differences
from labcore.optimizers import OPTIMIZERS, SGD, Adam, Momentum
from labcore.race import RaceConfig, RaceHistory, Racer
from labcore.regression import RegressionSettings, Stage

CONFIG = RaceConfig(racers=(Racer(SGD()), Racer(Adam())), model="hidden")


def other(value, rule):
    """An allowed value of a field that is not this one."""
    if isinstance(rule, Number):
        return rule.low if value != rule.low else rule.high
    return next(option for option in rule.options if option != value)


def between(first, second, data=None):
    return differences(RaceHistory(first), RaceHistory(second, data))


def test_equal_races_differ_in_nothing():
    assert between(CONFIG, replace(CONFIG)) == []


@pytest.mark.parametrize("name", [each.name for each, _ in ruled_fields(RegressionSettings)])
def test_every_setting_is_told_with_both_values(name):
    [rule] = [rule for each, rule in ruled_fields(RegressionSettings) if each.name == name]
    value = getattr(CONFIG, name)
    changed = other(value, rule)
    words = getattr(rule, "options", {})
    [clause] = between(CONFIG, replace(CONFIG, **{name: changed}))
    shown = [words.get(each, f"{each}") for each in (value, changed)]
    assert clause == f"{rule.label}: {shown[0]} in the first, {shown[1]} in the second"


@pytest.mark.parametrize("kind", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_every_hyperparameter_is_told(kind):
    for each, rule in ruled_fields(kind):
        changed = replace(kind(), **{each.name: other(getattr(kind(), each.name), rule)})
        first, second = (RaceConfig(racers=(Racer(it, "Mine"),)) for it in (kind(), changed))
        [clause] = between(first, second)
        assert clause.startswith(f"Mine's {rule.label}: ")


def test_hidden_units_of_a_linear_model_make_no_difference():
    linear = replace(CONFIG, model="linear")
    assert between(linear, replace(linear, hidden_units=3)) == []


def test_a_racer_of_one_race_only_is_told():
    assert between(CONFIG, replace(CONFIG, racers=CONFIG.racers[:1])) == [
        "Adam races only in the first"
    ]
    assert between(replace(CONFIG, racers=CONFIG.racers[:1]), CONFIG) == [
        "Adam races only in the second"
    ]


def test_another_optimiser_under_the_same_name_is_told():
    first, second = (RaceConfig(racers=(Racer(it, "Mine"),)) for it in (SGD(), Momentum()))
    assert between(first, second) == [
        "Mine's optimiser: SGD in the first, Momentum in the second",
    ]


def test_a_fork_is_told():
    racers = (Racer(SGD(), "Mine"), Racer(SGD(), "Mine", (Stage(SGD(lr=0.1), 1500),)))
    first, second = (RaceConfig(racers=(racer,)) for racer in racers)
    assert between(first, second) == [
        "Mine's start: no fork in the first, SGD with learning rate 0.1 until step 1,500 in the "
        "second"
    ]


def test_other_data_are_told():
    columns = torch.randn(20, 3, dtype=torch.float64)
    own = Table("mine.csv", columns[:, :2], columns[:, 2], ("a", "b"), "c")
    assert between(CONFIG, CONFIG, own) == [
        "data: airfoil self-noise in the first, mine.csv in the second"
    ]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "The two races have the same settings, so the same losses"),
        ({"seed": 7}, "differ in one setting, seed: 0 in the first, 7 in the second."),
        ({"seed": 7, "epochs": 9}, "differ in 2 settings: epochs: 4 in the first, 9 in the "),
    ],
)
def test_the_sentence_counts_the_settings(changes, words):
    assert words in difference_in_words(
        RaceHistory(CONFIG), RaceHistory(replace(CONFIG, **changes))
    )
