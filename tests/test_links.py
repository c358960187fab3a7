"""A race survives its way through a URL, and a bad link says what was wrong."""

import pytest

from labcore.config import ruled_fields
from labcore.links import format_racer, parse_racer, parse_racers, parse_settings
from labcore.optimizers import OPTIMIZERS, SGD, Momentum, Optimizer
from labcore.race import MAX_RACERS, Racer
from labcore.regression import RegressionSettings


@pytest.mark.parametrize("kind", OPTIMIZERS.values(), ids=OPTIMIZERS)
@pytest.mark.parametrize("end", ["low", "high"])
def test_a_racer_comes_back_from_its_text(kind: type[Optimizer], end: str) -> None:
    values = {each.name: getattr(rule, end) for each, rule in ruled_fields(kind)}
    racer = Racer(kind(**values), "mine, lr=3 & more; ½")
    assert parse_racer(format_racer(racer)) == racer


def test_a_racer_without_settings_has_the_defaults() -> None:
    assert parse_racer("momentum") == Racer(Momentum())


def test_the_name_may_contain_the_separators() -> None:
    assert parse_racer("sgd,lr=0.1,name=a,b=c,name=d").name == "a,b=c,name=d"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("nadam", "nadam"),
        ("", "''"),
        ("sgd,lr=0", "0"),
        ("sgd,lr=-1", "-1"),
        ("sgd,lr=nan", "nan"),
        ("sgd,lr=1e9", "1e9"),
        ("sgd,lr=abc", "abc"),
        ("sgd,lr", "lr"),
        ("sgd,momentum=0.9", "momentum"),
        ("momentum,momentum=1.5", "1.5"),
        ("sgd,name=" + "x" * 25, "x" * 25),
        ("sgd,name=a\nb", "a\\nb"),
    ],
)
def test_a_bad_racer_is_left_out_with_a_sentence_that_names_it(text: str, named: str) -> None:
    racers, problems = parse_racers({"racer": [text, "sgd"]})
    assert racers == [Racer(SGD())]
    assert len(problems) == 1
    assert named in problems[0]


def test_more_racers_than_a_race_has_are_cut() -> None:
    racers, problems = parse_racers({"racer": ["sgd"] * (MAX_RACERS + 1)})
    assert len(racers) == MAX_RACERS
    assert str(MAX_RACERS + 1) in problems[0]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("batch_size", "0"),
        ("batch_size", "1501"),
        ("batch_size", "abc"),
        ("batch_size", "10.5"),
        ("epochs", "0"),
        ("epochs", "10001"),
        ("seed", "-1"),
        ("engine", "jax"),
        ("objective", ""),
    ],
)
def test_a_bad_setting_becomes_the_default_with_a_sentence(name: str, text: str) -> None:
    values, problems = parse_settings(RegressionSettings, {name: [text]})
    assert values[name] == getattr(RegressionSettings(), name)
    assert len(problems) == 1
    assert name in problems[0]
    assert repr(text) in problems[0]


def test_what_a_link_does_not_say_is_the_default() -> None:
    values, problems = parse_settings(RegressionSettings, {"epochs": ["7"]})
    assert RegressionSettings(**values) == RegressionSettings(epochs=7)
    assert not problems
