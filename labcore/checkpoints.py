"""A run as a file: written whole or not at all, read without running anything that is in it.

A checkpoint holds what the next step depends on, and what is kept of the curve so far. It is first
written beside its place under a name that ends in `.partial`, and takes its place only when it is
on the disk: so whatever happens meanwhile, the file there is a whole one, this or the last, even
where two runs write to one place.
"""

import json
import os
import warnings
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import torch
from torch import Tensor

from labcore import wire
from labcore.events import Resumed

VERSION = 1
"""Of the file's content."""


State = dict[str, list[Tensor]]


class CheckpointError(RuntimeError):
    """A checkpoint cannot be used or kept where it should; the message says why and what to do."""

    for_user = True


@dataclass(frozen=True, slots=True, eq=False)
class Checkpoint:
    """Where a run stands after a step.

    Attributes:
        settings: of the run, name → text.
        epoch: in hand, from 1; one more than the run has when it is trained to its end.
        steps: of that epoch that are done.
        seconds: spent on training so far.
        order: state of the generator that draws the order of the images, before that epoch.
        replica: `Replica.state` of every rank, which are all the same.
        reference: of the same run on one device, None where that is not run beside it.
        curve: what is kept of the run's events.
    """

    settings: dict[str, str]
    epoch: int
    steps: int
    seconds: float
    order: Tensor
    replica: State
    reference: State | None
    curve: Resumed


def save(path: Path, checkpoint: Checkpoint) -> None:
    """Put a checkpoint in its place, atomically.

    Raises:
        OSError: it cannot be written; what was there before is untouched, and nothing else is left.
    """
    content = {each.name: getattr(checkpoint, each.name) for each in fields(checkpoint)}
    content["curve"] = json.dumps(wire.pack(checkpoint.curve, path.parent))
    partial = partial_of(path, os.getpid())
    try:
        with partial.open("wb") as file:
            torch.save({"labcore": VERSION, **content}, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except (OSError, RuntimeError) as error:
        with suppress(OSError):
            partial.unlink()
        # torch has its own words, in a RuntimeError, for a disk that is full.
        cause = error if isinstance(error, OSError) else (error.__cause__ or error.__context__)
        raise cause if isinstance(cause, OSError) else OSError(str(error)) from error


def partial_of(path: Path, pid: int) -> Path:
    """Where a checkpoint is while that process writes it."""
    return path.with_name(f"{path.name}.{pid}.partial")


def load(path: Path, settings: Mapping[str, str]) -> Checkpoint:
    """The checkpoint of a run with these settings.

    Raises:
        CheckpointError: it is none, damaged, of another version, or of other settings.
    """
    content = _read(path)
    if content.pop("labcore") != VERSION:
        raise _refusal(path, f"it is of another version than this lab's, which is {VERSION}")
    theirs = content["settings"]
    if apart := [name for name in settings if theirs.get(name) != settings[name]]:
        words = ", ".join(
            f"{name} {theirs.get(name, 'unknown')} instead of {settings[name]}" for name in apart
        )
        raise _refusal(path, f"it belongs to a run with {words}")
    try:
        content["curve"] = wire.unpack(json.loads(content["curve"]))
    except ValueError as error:
        raise _refusal(path, "its curve cannot be read") from error
    return Checkpoint(**content)


def _read(path: Path) -> dict[str, Any]:
    try:
        # torch has advice for programmers on what it cannot read.
        with warnings.catch_warnings(action="ignore"):
            content = torch.load(path, map_location="cpu", weights_only=True)
    # Whatever is in the file, which may be anything, torch has many ways not to understand it.
    except Exception as error:
        raise _refusal(path, "it is none, or damaged") from error
    names = {"labcore", *(each.name for each in fields(Checkpoint))}
    if not isinstance(content, dict) or set(content) != names:
        raise _refusal(path, "it was not written by this lab")
    return content


def check_place(path: Path) -> None:
    """Refuse a place at which no checkpoint can be written.

    Raises:
        CheckpointError: its folder does not exist, or nothing can be written there.
    """
    problem = "that is no file" if path.exists() and not path.is_file() else None
    try:
        # Only this tells: a folder with the right to write may lie on what can only be read.
        with TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        problem = error.strerror
    if problem:
        raise CheckpointError(
            "A checkpoint must be a file in a folder that exists and can be written to; "
            f"received {path} ({problem}). Make the folder, or name another."
        )


def _refusal(path: Path, why: str) -> CheckpointError:
    return CheckpointError(
        f"The checkpoint {path} cannot be continued: {why}. "
        "Name the one of this run, or a file that does not exist yet, to begin anew."
    )
