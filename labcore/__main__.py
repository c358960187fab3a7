"""The command line: the same runs as on the pages, without a browser.

    python -m labcore regression --batch-size 10 --engine "from scratch" adam --lr 0.01
    python -m labcore optimizers

No flag is listed here: names, types, ranges, defaults and help are those of the config's fields, so
a new field or optimiser is a new flag or subcommand by itself. To add a command, define its class
and add it to `COMMANDS`.
"""

import signal

if __name__ == "__main__" and signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
    # Importing torch takes a second or two; Ctrl-C meanwhile should leave no traceback.
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import json
import os
import re
import shlex
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import Field, asdict, dataclass, fields, is_dataclass
from functools import reduce, wraps
from operator import or_
from types import FrameType
from typing import Annotated, Any, ClassVar, ParamSpec, TypeVar, cast, get_type_hints

import tyro
from tqdm import tqdm  # type: ignore[import-untyped]
from tyro.constructors import (
    ConstructorRegistry,
    PrimitiveConstructorSpec,
    StructConstructorSpec,
    StructFieldSpec,
    StructTypeInfo,
)

from labcore.config import (
    Choice,
    Config,
    ConfigError,
    Rule,
    parse_fields,
    refusal,
    ruled_fields,
)
from labcore.datasets.errors import DataError
from labcore.events import Diverged, Event, Finished, LossRecorded, Started, StepTaken
from labcore.optimizers import OPTIMIZERS, Optimizer
from labcore.regression import RegressionConfig, train_regression

PROGRAM = "python -m labcore"
FINISHED, WRONG_SETTING, DIVERGED, DATA_ERROR, CLOSED_PIPE = 0, 2, 3, 4, 141
DESCRIPTION = f"""The optimiser lab without a browser. `{PROGRAM} COMMAND --help` explains a command.

On a terminal the output is for people; into a pipe or a file, or with --json, it is JSON lines.

Exit status: {FINISHED} finished; 1 internal error, with a traceback; {WRONG_SETTING} wrong flag or
value; {DIVERGED} the run diverged; {DATA_ERROR} a data file is missing or damaged; 130 interrupted
(Ctrl-C); {CLOSED_PIPE} the reader closed the pipe; 143 terminated."""

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True)
class Regression:
    """Train one model on the airfoil data with one optimiser.

    JSON lines: the config, then one object per event. Settings may also follow the optimiser.
    """

    run: RegressionConfig
    """The run's settings."""
    json: bool = False
    """Write JSON lines on a terminal, too."""
    steps: bool = False
    """Have a JSON line for every step, not only for every recorded loss."""

    def __call__(self) -> int:
        """Run to the end; returns the exit status."""
        # Every generator function makes a generator, whatever its annotation says of it.
        run = cast("Generator[Event, None, None]", train_regression(self.run))
        with closing(run) as events:
            if _for_people(self):
                return _show(events)
            _write({"event": "config", **_config_fields(self.run)})
            return _write_events(events, steps=self.steps)


@dataclass(frozen=True)
class Optimizers:
    """List the optimisers: hyperparameters, formula (in LaTeX) and source."""

    json: bool = False
    """Write JSON lines on a terminal, too: one object per optimiser."""

    def __call__(self) -> int:
        """Print them all; returns the exit status."""
        for name, optimizer in OPTIMIZERS.items():
            if _for_people(self):
                _print_optimizer(name, optimizer)
            else:
                _write(_optimizer_facts(name, optimizer))
        return FINISHED


Command = Regression | Optimizers
COMMANDS: dict[str, type[Command]] = {"regression": Regression, "optimizers": Optimizers}
