"""Configs and events as plain values that JSON can hold, for the command line and for exports."""

import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from math import isfinite
from typing import Any

from labcore.config import Config
from labcore.events import Event


def facts(value: Any) -> Any:
    """The same as dicts, lists, texts and numbers.

    A dataclass becomes a dict of its fields, a config one that begins with its name. A number that
    is not finite becomes None: JSON has none, and a run that is about to diverge does.
    """
    match value:
        case Config():
            return {"name": value.name, **_fields(value)}
        case Mapping():
            return {key: facts(each) for key, each in value.items()}
        case list() | tuple():
            return [facts(each) for each in value]
        case float():
            return value if isfinite(value) else None
        case _ if is_dataclass(value):
            return _fields(value)
    return value


def _fields(value: Any) -> dict[str, Any]:
    return {each.name: facts(getattr(value, each.name)) for each in fields(value)}


def event_facts(event: Event) -> dict[str, Any]:
    """What an event says, with its kind under "event": `StepTaken` is called step_taken."""
    name = re.sub(r"(?<!^)(?=[A-Z])", "_", type(event).__name__).lower()
    return {"event": name, **facts(event)}
