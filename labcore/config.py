"""Configs that cannot be wrong: frozen dataclasses whose fields carry their own rules.

A field made by `number` or `choice` knows what is allowed, how it is called and what it does. That
one declaration feeds validation, widgets, URL and command line, so every door has the same checks.
"""

from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields
from typing import Any, ClassVar

LONGEST_SHOWN = 80
"""Characters of a refused value that its error repeats."""


class ConfigError(ValueError):
    """A setting that is not allowed; the message says which, what was received and what works."""

    for_user = True


@dataclass(frozen=True)
class Number:
    """The rule of a numeric field: `low` ≤ value ≤ `high`, whole numbers only if `whole`.

    `log` says that ratios matter rather than differences, as for learning rates.
    """

    label: str
    low: float
    high: float
    default: float
    whole: bool
    log: bool

    def __str__(self) -> str:
        kind = "a whole number" if self.whole else "a number"
        return f"{kind} from {_plain(self.low)} to {_plain(self.high)}"

    def accepts(self, value: object) -> bool:
        """Whether `value` is a number of the right kind within the range; NaN is not."""
        kinds = int if self.whole else int | float
        if isinstance(value, bool) or not isinstance(value, kinds):
            return False
        return self.low <= value <= self.high

    def parse(self, text: str) -> float:
        """The number that `text` spells; raises ValueError where it spells none."""
        return int(text) if self.whole else float(text)


@dataclass(frozen=True)
class Choice:
    """The rule of a field with a few named values; `options` maps each value to its wording."""

    label: str
    options: Mapping[str, str]
    default: str

    def __str__(self) -> str:
        return "one of " + ", ".join(self.options)

    def accepts(self, value: object) -> bool:
        """Whether `value` is one of the options."""
        return isinstance(value, str) and value in self.options

    def parse(self, text: str) -> str:
        """The text itself: options are text."""
        return text


Rule = Number | Choice


def number(
    label: str, default: float, low: float, high: float, *, log: bool = False, help: str
) -> Any:
    """A dataclass field that holds a number from `low` to `high`, both included.

    The field takes whole numbers only when `default` is an `int`.
    """
    rule = Number(label, low, high, default, whole=isinstance(default, int), log=log)
    return field(default=default, metadata={"rule": rule, "help": help})


def choice(label: str, default: str, options: Mapping[str, str], *, help: str) -> Any:
    """A dataclass field that holds one of `options`, a mapping from value to wording."""
    return field(default=default, metadata={"rule": Choice(label, options, default), "help": help})


@dataclass(frozen=True)
class Config:
    """Base of all configs: checks every ruled field when an object is made."""

    name: ClassVar[str]
    """What error messages call it."""

    def __post_init__(self) -> None:
        for each, rule in ruled_fields(type(self)):
            value = getattr(self, each.name)
            if not rule.accepts(value):
                raise refusal(f"{self.name}: {each.name}", value, str(rule), rule.default)


def ruled_fields(config: type[Config]) -> list[tuple[Field[Any], Rule]]:
    """The fields of a config class that carry a rule, in order, each with its rule."""
    return [(each, each.metadata["rule"]) for each in fields(config) if "rule" in each.metadata]


def refusal(what: str, received: object, allowed: str, works: object) -> ConfigError:
    """The error for a refused value, always in the same words."""
    works = works if isinstance(works, str) else _plain(works)
    shown = repr(received)
    if len(shown) > LONGEST_SHOWN:
        shown = shown[: LONGEST_SHOWN - 1] + "…"
    return ConfigError(f"{what} must be {allowed}; received {shown}. Try {works}.")


def parse_fields(config: type[Config], texts: Mapping[str, str]) -> dict[str, Any]:
    """Values for a config's ruled fields from texts, as they come from a URL.

    Raises:
        ConfigError: a name that the config does not have, or a text outside the field's rule.
    """
    rules = {each.name: rule for each, rule in ruled_fields(config)}
    values = {}
    for name, text in texts.items():
        if name not in rules:
            raise refusal(
                f"{config.name} setting", name, "one of " + ", ".join(rules), next(iter(rules))
            )
        rule = rules[name]
        try:
            values[name] = rule.parse(text)
        except ValueError:
            values[name] = text
        if not rule.accepts(values[name]):
            raise refusal(f"{config.name}: {name}", text, str(rule), rule.default)
    return values


def format_fields(config: Config) -> dict[str, str]:
    """The inverse of `parse_fields`: every ruled field as text."""
    return {
        each.name: format_value(getattr(config, each.name))
        for each, _ in ruled_fields(type(config))
    }


def format_value(value: object) -> str:
    """The shortest text that parses back to the same value."""
    if isinstance(value, float):
        return min(repr(float(value)), f"{value:g}", key=lambda t: (float(t) != value, len(t)))
    return str(value)


def _plain(value: object) -> str:
    """A number as one may type it: 1500, 0.001, 1e-12."""
    return str(value) if isinstance(value, int) else f"{value:g}"
