"""Configs: what their rules accept, what their errors say, and how they travel as text."""

import math
import random
import re
from dataclasses import FrozenInstanceError, dataclass, replace

import numpy as np
import pytest

from labcore.config import (
    Choice,
    Config,
    ConfigError,
    Number,
    choice,
    format_fields,
    number,
    parse_fields,
    refusal,
    ruled_fields,
)
from labcore.optimizers import OPTIMIZERS, SGD
from labcore.race import RaceConfig, Racer
from labcore.regression import RegressionConfig

CONFIGS = [*OPTIMIZERS.values(), RegressionConfig, RaceConfig]
FIELDS = [
    pytest.param(config, each.name, rule, id=f"{config.name}-{each.name}")
    for config in CONFIGS
    for each, rule in ruled_fields(config)
]
NUMBERS = [each for each in FIELDS if isinstance(each.values[2], Number)]
CHOICES = [each for each in FIELDS if isinstance(each.values[2], Choice)]

every_config = pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.name)
every_optimizer = pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS.keys())
every_field = pytest.mark.parametrize(("config", "name", "rule"), FIELDS)
every_number = pytest.mark.parametrize(("config", "name", "rule"), NUMBERS)
every_choice = pytest.mark.parametrize(("config", "name", "rule"), CHOICES)

NO_NUMBERS = [math.nan, math.inf, -math.inf, True, False, "abc", "", None, [], 1j, b"1"]
NO_NUMBER_TEXTS = ["abc", "", " ", "nan", "inf", "-inf", "1e999", "True", "None", "0x10", "1,5"]


def build(config, **values):
    """A config of this class; what has no default is filled in."""
    if config is RaceConfig:
        values.setdefault("racers", (Racer(SGD()),))
    return config(**values)


def outside(rule):
    """Numbers that a numeric rule refuses: just outside, far away, or of the wrong kind."""
    if rule.whole:
        return [rule.low - 1, rule.high + 1, -(10**30), 10**30, float(rule.default), 2.5]
    below, above = math.nextafter(rule.low, -math.inf), math.nextafter(rule.high, math.inf)
    return [below, above, -1e300, 1e300, 10**400]


def inside(rule):
    """Values that a rule accepts: its bounds, its default and some between, in its own scale."""
    if isinstance(rule, Choice):
        return list(rule.options)
    if rule.whole:
        return [rule.low, rule.default, (rule.low + rule.high) // 2, rule.high]
    draws = random.Random(rule.label)
    if rule.log:
        low, high = math.log(rule.low), math.log(rule.high)
        between = [math.exp(draws.uniform(low, high)) for _ in range(20)]
    else:
        between = [draws.uniform(rule.low, rule.high) for _ in range(20)]
    return [rule.low, rule.default, *between, rule.high]


def refused_message(action):
    """What the ConfigError says that `action` must raise."""
    with pytest.raises(ConfigError) as caught:
        action()
    return str(caught.value)


def suggestion(message):
    """The value that an error message tells the user to try."""
    return re.search(r"Try (.+)\.$", message).group(1)


@every_field
def test_field_has_a_help_and_a_label(config, name, rule):
    helps = {each.name: each.metadata["help"] for each, _ in ruled_fields(config)}
    assert len(helps[name]) > 10
    assert rule.label


@every_field
def test_rule_accepts_its_own_default(config, name, rule):
    assert rule.accepts(rule.default)


@every_field
def test_default_of_the_rule_is_that_of_the_config(config, name, rule):
    assert getattr(build(config), name) == rule.default


@every_field
def test_values_inside_the_rule_are_kept_as_given(config, name, rule):
    for value in inside(rule):
        assert getattr(build(config, **{name: value}), name) == value


@every_number
def test_what_is_no_number_is_refused(config, name, rule):
    for value in NO_NUMBERS:
        with pytest.raises(ConfigError):
            build(config, **{name: value})


@every_number
def test_numbers_outside_the_rule_are_refused(config, name, rule):
    for value in outside(rule):
        with pytest.raises(ConfigError):
            build(config, **{name: value})


@every_choice
def test_what_is_no_option_is_refused(config, name, rule):
    for value in ["foo", "", rule.default.upper() + "!", None, True, 0, math.nan, [], {}]:
        with pytest.raises(ConfigError):
            build(config, **{name: value})


@every_choice
def test_every_option_has_a_wording(config, name, rule):
    assert all(rule.options.values())


@every_field
def test_replace_checks_again(config, name, rule):
    with pytest.raises(ConfigError):
        replace(build(config), **{name: None})


@every_field
def test_fields_cannot_be_changed(config, name, rule):
    with pytest.raises(FrozenInstanceError):
        setattr(build(config), name, rule.default)


@every_field
def test_message_names_config_and_field(config, name, rule):
    message = refused_message(lambda: build(config, **{name: None}))
    assert message.startswith(f"{config.name}: {name} must be ")


@every_number
def test_message_repeats_the_value_received(config, name, rule):
    for value in [*NO_NUMBERS, *outside(rule)]:
        message = refused_message(lambda value=value: build(config, **{name: value}))
        assert f"; received {value!r}"[:80] in message


@every_number
def test_message_states_the_exact_bounds(config, name, rule):
    message = refused_message(lambda: build(config, **{name: None}))
    low, high = re.search(r" from (\S+) to (\S+);", message).groups()
    assert float(low.replace(",", "")) == rule.low
    assert float(high.replace(",", "")) == rule.high


@every_number
def test_message_asks_for_whole_numbers_only_where_it_takes_no_others(config, name, rule):
    message = refused_message(lambda: build(config, **{name: None}))
    assert ("a whole number" in message) is rule.whole


@every_choice
def test_message_lists_every_option(config, name, rule):
    message = refused_message(lambda: build(config, **{name: "foo"}))
    assert "one of " + ", ".join(rule.options) in message


@every_field
def test_suggestion_of_the_message_works(config, name, rule):
    text = suggestion(refused_message(lambda: build(config, **{name: None})))
    assert getattr(build(config, **parse_fields(config, {name: text})), name) == rule.default


@every_number
def test_texts_that_spell_no_allowed_number_are_refused(config, name, rule):
    for text in NO_NUMBER_TEXTS:
        message = refused_message(lambda text=text: parse_fields(config, {name: text}))
        assert message.startswith(f"{config.name}: {name} must be ")
        assert f"received {text!r}" in message


@every_number
def test_texts_of_numbers_outside_the_rule_are_refused(config, name, rule):
    for value in (rule.low - 1, rule.high + 1):
        message = refused_message(lambda value=value: parse_fields(config, {name: str(value)}))
        assert f"received {str(value)!r}" in message


@every_number
def test_suggestion_for_a_text_works(config, name, rule):
    text = suggestion(refused_message(lambda: parse_fields(config, {name: "abc"})))
    assert parse_fields(config, {name: text}) == {name: rule.default}


@every_choice
def test_texts_that_are_no_option_are_refused(config, name, rule):
    message = refused_message(lambda: parse_fields(config, {name: "foo"}))
    assert message.startswith(f"{config.name}: {name} must be one of ")


@every_config
def test_text_for_a_field_that_does_not_exist_is_refused(config):
    message = refused_message(lambda: parse_fields(config, {"nosuchfield": "1"}))
    assert message.startswith(f"{config.name} setting must be one of ")
    assert "'nosuchfield'" in message
    assert suggestion(message) in {each.name for each, _ in ruled_fields(config)}


@every_config
def test_every_ruled_field_has_a_text(config):
    assert list(format_fields(build(config))) == [each.name for each, _ in ruled_fields(config)]


@every_config
def test_texts_of_the_default_parse_back_to_it(config):
    assert build(config, **parse_fields(config, format_fields(build(config)))) == build(config)


@every_field
def test_texts_parse_back_to_an_equal_config(config, name, rule):
    for value in inside(rule):
        made = build(config, **{name: value})
        assert build(config, **parse_fields(config, format_fields(made))) == made


@every_config
def test_no_texts_parse_to_no_values(config):
    assert parse_fields(config, {}) == {}


@every_optimizer
def test_optimizer_with_every_field_changed_parses_back_to_an_equal_one(optimizer):
    for pick in range(4):
        values = {each.name: inside(rule)[pick] for each, rule in ruled_fields(optimizer)}
        made = optimizer(**values)
        assert optimizer(**parse_fields(optimizer, format_fields(made))) == made


@every_optimizer
def test_numpy_floats_have_a_text_too(optimizer):
    # As in `for lr in np.geomspace(…)`: np.float64 is a float, so the rules accept it.
    made = optimizer(lr=np.float64(0.0123))
    assert format_fields(made)["lr"] == "0.0123"


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.1, "0.1"), (1.0, "1"), (1e-6, "1e-06"), (1 / 3, "0.3333333333333333"), (5, "5")],
)
def test_text_is_the_shortest_that_is_exact(value, text):
    assert format_fields(SGD(lr=value)) == {"lr": text}


def test_whole_number_is_accepted_for_a_field_with_fractions():
    assert SGD(lr=1) == SGD(lr=1.0)


def test_config_error_is_written_for_the_user():
    assert ConfigError("…").for_user is True


def test_config_error_is_a_value_error():
    assert issubclass(ConfigError, ValueError)


def test_refusal_writes_numbers_as_they_may_be_typed():
    message = str(refusal("speed", 0, "positive", 12_500))
    assert message == "speed must be positive; received 0. Try 12500."


@dataclass(frozen=True)
class Sample(Config):
    """A config with a field of each kind, and one without a rule."""

    name = "sample"
    count: int = number("count", 3, 1, 9, help="A whole number.")
    share: float = number("share", 0.5, 0.0, 1.0, help="A fraction.")
    way: str = choice("way", "here", {"here": "Here", "there": "There"}, help="A choice.")
    note: str = ""


def test_fields_without_a_rule_are_left_alone():
    assert [each.name for each, _ in ruled_fields(Sample)] == ["count", "share", "way"]
    assert Sample(note="anything").note == "anything"
    assert "note" not in format_fields(Sample(note="anything"))


def test_first_wrong_field_is_the_one_named():
    with pytest.raises(
        ConfigError, match=r"^sample: share must be a number from 0 to 1; received 2"
    ):
        Sample(share=2, way="nowhere")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"count": 10},
            "sample: count must be a whole number from 1 to 9; received 10. Try 3.",
        ),
        (
            {"share": math.nan},
            "sample: share must be a number from 0 to 1; received nan. Try 0.5.",
        ),
        (
            {"way": "nowhere"},
            "sample: way must be one of here, there; received 'nowhere'. Try here.",
        ),
    ],
)
def test_message_in_full(values, message):
    assert refused_message(lambda: Sample(**values)) == message
