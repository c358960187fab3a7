"""Events as JSON and back, between the processes of one run.

A line of JSON holds an event's kind and its fields, and reads back as an equal event: no digit is
lost, a number that is not finite stays one, and tensors travel as files. `facts` is for readers
outside, which get strict JSON instead.
"""

import types
import typing
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import torch
from torch import Tensor

from labcore.events import ClassificationEvent

KINDS: dict[str, type[ClassificationEvent]] = {
    each.__name__: each for each in typing.get_args(ClassificationEvent)
}


def pack(event: ClassificationEvent, folder: Path) -> dict[str, Any]:
    """An event as values that JSON can hold; its tensors become files in `folder`."""
    return {"event": type(event).__name__, **_plain(event, folder)}


def unpack(line: Mapping[str, Any]) -> ClassificationEvent:
    """The event that `pack` took apart; the files of its tensors are deleted.

    Raises:
        ValueError: it is no event, or lacks a field.
    """
    try:
        event: ClassificationEvent = _restored(KINDS[line["event"]], line)
    except (KeyError, TypeError) as error:
        raise ValueError(f"This is no event of a run: {dict(line)!s:.200}") from error
    return event


def _plain(value: Any, folder: Path) -> Any:
    if is_dataclass(value):
        return {each.name: _plain(getattr(value, each.name), folder) for each in fields(value)}
    match value:
        case Mapping():
            return {key: _plain(each, folder) for key, each in value.items()}
        case tuple():
            return [_plain(each, folder) for each in value]
        case Tensor():
            path = folder / f"{uuid4().hex}.npy"
            np.save(path, value.numpy())
            return str(path)
    return value


def _restored(kind: Any, value: Any) -> Any:
    """The value of this type, from what `_plain` has made of it."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if value is None or origin is types.UnionType:
        return value
    if isinstance(kind, type) and is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        return kind(**{name: _restored(hint, value[name]) for name, hint in hints.items()})
    if origin is tuple:
        return tuple(_restored(inner[0], each) for each in value)
    if kind is Tensor:
        path = Path(value)
        tensor = torch.from_numpy(np.load(path))
        path.unlink()
        return tensor
    return value
