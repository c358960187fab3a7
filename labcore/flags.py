"""A config as command-line flags: names, types, ranges, defaults and help are its fields' own.

So a new field is a new flag, and a new optimiser a new subcommand, by itself.
"""

import shlex
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import Field, fields, is_dataclass
from functools import reduce
from operator import or_
from typing import Annotated, Any, get_type_hints

import tyro
from tyro import constructors

from labcore.config import Choice, Config, ConfigError, Rule, parse_fields, ruled_fields
from labcore.optimizers import OPTIMIZERS, Optimizer

WRONG_SETTING = 2
"""Exit status for a flag or value that is not allowed."""


def one_of(classes: Mapping[str, Any]) -> Any:
    """The type from which tyro makes one subcommand per class."""
    return reduce(
        or_,
        (
            Annotated[each, tyro.conf.subcommand(name, prefix_name=False)]
            for name, each in classes.items()
        ),
    )


def registry() -> constructors.ConstructorRegistry:
    """Tells tyro how to make a config: a flag per ruled field, a subcommand per optimiser."""
    registry = constructors.ConstructorRegistry()

    @registry.struct_rule
    def config(info: constructors.StructTypeInfo) -> constructors.StructConstructorSpec | None:
        kind = info.type
        if not (isinstance(kind, type) and issubclass(kind, Config)):
            return None
        specs = [_flag(kind, each, rule) for each, rule in ruled_fields(kind)]
        for name, hint in get_type_hints(kind).items():
            if hint is Optimizer:
                default = getattr(kind(), name)
                help = "The optimiser; --help after its name lists its hyperparameters."
                choices = one_of(OPTIMIZERS)
                specs.append(constructors.StructFieldSpec(name, choices, default, help))

        def build(**settings: Any) -> Config:
            with _refusing():
                return kind(**settings)

        return constructors.StructConstructorSpec(build, tuple(specs))

    return registry


def _flag(config: type[Config], field: Field[Any], rule: Rule) -> constructors.StructFieldSpec:
    def value(texts: list[str]) -> object:
        with _refusing():
            return parse_fields(config, {field.name: texts[0]})[field.name]

    if isinstance(rule, Choice):
        metavar = "|".join(shlex.quote(option) for option in rule.options)
    else:
        metavar = "INT" if rule.whole else "FLOAT"
    spec: constructors.PrimitiveConstructorSpec[object] = constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar=metavar,
        instance_from_str=value,
        is_instance=rule.accepts,
        str_from_instance=lambda instance: [str(instance)],
    )
    hint = tyro.conf.arg(help_behavior_hint=lambda default: f"({rule}; default {default})")
    kind: Any = Annotated[object, spec, hint]
    return constructors.StructFieldSpec(field.name, kind, field.default, field.metadata["help"])


@contextmanager
def _refusing() -> Iterator[None]:
    """End the program where a setting is refused, with that sentence and no other word."""
    try:
        yield
    except ConfigError as error:
        # As it is a ValueError, tyro would catch it and add words of its own.
        print(error, file=sys.stderr)
        raise SystemExit(WRONG_SETTING) from None


def flag_name(name: str) -> str:
    """The flag of a field."""
    return "--" + name.replace("_", "-")


def names(settings: Any) -> Iterator[str]:
    """The flags of a dataclass and of those within it."""
    kind = type(settings)
    ruled = [each.name for each, _ in ruled_fields(kind)] if issubclass(kind, Config) else None
    for each in fields(settings):
        value = getattr(settings, each.name)
        if is_dataclass(value):
            yield from names(value)
        elif ruled is None or each.name in ruled:
            yield flag_name(each.name)
