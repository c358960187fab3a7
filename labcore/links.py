"""A race as URL parameters, and back: a shared link restores the whole configuration.

`?racer=sgd,lr=0.01&racer=adam,lr=0.01,name=Mine&batch_size=10&…`: one `racer` per racer with the
optimiser's name and its hyperparameters; `name` comes last and may contain anything.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from labcore.config import Config, ConfigError, format_fields, parse_fields, refusal, ruled_fields
from labcore.optimizers import OPTIMIZERS
from labcore.race import MAX_RACERS, Racer

Query = Mapping[str, Sequence[str]]


def format_racer(racer: Racer) -> str:
    """A racer as text: optimiser, every hyperparameter, and the name if it has one."""
    parts = [racer.optimizer.name]
    parts += [f"{name}={text}" for name, text in format_fields(racer.optimizer).items()]
    return ",".join([*parts, *([f"name={racer.name}"] if racer.name else [])])


def parse_racer(text: str) -> Racer:
    """The inverse of `format_racer`.

    Raises:
        ConfigError: an unknown optimiser, or a hyperparameter that it does not have or allow.
    """
    settings, _, name = text.partition(",name=")
    kind, *pairs = settings.split(",")
    if kind not in OPTIMIZERS:
        raise refusal("racer: optimiser", kind, "one of " + ", ".join(OPTIMIZERS), "sgd")
    texts = {key: value for key, _, value in (pair.partition("=") for pair in pairs)}
    return Racer(OPTIMIZERS[kind](**parse_fields(OPTIMIZERS[kind], texts)), name)


def parse_racers(query: Query) -> tuple[list[Racer], list[str]]:
    """The racers of a link, and a sentence for each one that was left out and why."""
    racers, problems = [], []
    for text in query.get("racer", []):
        try:
            racers.append(parse_racer(text))
        except ConfigError as error:
            problems.append(f"{error} That racer was left out.")
    if len(racers) > MAX_RACERS:
        problems.append(
            f"A race has at most {MAX_RACERS} racers; the link has {len(racers)}. "
            f"The first {MAX_RACERS} were kept."
        )
    return racers[:MAX_RACERS], problems


def parse_settings(config: type[Config], query: Query) -> tuple[dict[str, Any], list[str]]:
    """A config's values in a link, and a sentence for each that was replaced by its default."""
    values, problems = {}, []
    for each, rule in ruled_fields(config):
        values[each.name] = rule.default
        try:
            for text in query.get(each.name, [])[:1]:
                values |= parse_fields(config, {each.name: text})
        except ConfigError as error:
            problems.append(f"{error} The default is used instead.")
    return values, problems
