"""The command line: the same runs as on the pages, without a browser.

    python -m labcore regression --batch-size 10 --engine "from scratch" adam --lr 0.01
    python -m labcore optimizers

No flag is listed here: names, types, ranges, defaults and help are those of the config's fields, so
a new field or optimiser is a new flag or subcommand by itself. To add a command, define its class
and add it to `COMMANDS` at the bottom.
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
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import Field, asdict, dataclass, fields, is_dataclass
from functools import reduce
from operator import or_
from types import FrameType
from typing import Annotated, Any, cast, get_type_hints

import torch
import tyro
from tqdm import tqdm  # type: ignore[import-untyped]
from tyro import constructors

from labcore.config import Choice, Config, ConfigError, Rule, parse_fields, refusal, ruled_fields
from labcore.datasets.errors import DataError
from labcore.events import Diverged, Event, Finished, LossRecorded, Started, StepTaken
from labcore.optimizers import OPTIMIZERS, Optimizer
from labcore.regression import RegressionConfig, train_regression

FINISHED, WRONG_SETTING, DIVERGED, DATA_ERROR, CLOSED_PIPE = 0, 2, 3, 4, 141
DESCRIPTION = f"""The optimiser lab without a browser. Each command explains itself with --help.

On a terminal the output is for people; into a pipe or a file, or with --json, it is JSON lines.

Exit status: {FINISHED} finished; 1 internal error, with a traceback; {WRONG_SETTING} wrong flag or
value; {DIVERGED} the run diverged; {DATA_ERROR} a data file is missing or damaged; 130 interrupted
by Ctrl-C; {CLOSED_PIPE} the reader closed the pipe; 143 terminated."""


@dataclass(frozen=True)
class Regression:
    """Train one model on the airfoil data with one optimiser.

    As JSON lines: the config, then one object per event. Settings may also follow the optimiser.
    """

    run: RegressionConfig
    """What is trained, and how."""
    json: bool = False
    """Write JSON lines on a terminal, too."""
    steps: bool = False
    """Write a JSON line for every step as well, not only for every recorded loss."""

    def __call__(self) -> int:
        """Run to the end; returns the exit status."""
        torch.set_num_threads(1)  # as in the pool: such small operations gain nothing from more
        with closing(train_regression(self.run)) as events:
            if _for_people(self):
                return _show_events(events)
            _write({"event": "config", **_config_facts(self.run)})
            return _write_events(events, self.steps)


@dataclass(frozen=True)
class Optimizers:
    """List the optimisers: hyperparameters, formula (in LaTeX) and source."""

    json: bool = False
    """Write JSON lines on a terminal, too: one object per optimiser."""

    def __call__(self) -> int:
        """Print them all; returns the exit status."""
        for optimizer in OPTIMIZERS.values():
            if _for_people(self):
                _show_optimizer(optimizer)
            else:
                _write(_optimizer_facts(optimizer))
        return FINISHED


Command = Regression | Optimizers


def _parse(arguments: Sequence[str]) -> Command:
    if arguments and not arguments[0].startswith("-") and arguments[0] not in COMMANDS:
        raise refusal("command", arguments[0], "one of " + ", ".join(COMMANDS), "--help")
    command, unknown = tyro.cli(
        _one_of(COMMANDS),
        prog="python -m labcore",
        description=DESCRIPTION,
        args=arguments,
        return_unknown_args=True,
        registry=_registry(),
        config=(
            tyro.conf.OmitArgPrefixes,
            tyro.conf.CascadeSubcommandArgs,
            tyro.conf.FlagCreatePairsOff,
        ),
    )
    if unknown and unknown[0].startswith("-"):
        raise refusal("flag", unknown[0], "one of " + ", ".join(_flags(command)), "--help")
    if unknown:
        words = OPTIMIZERS if isinstance(command, Regression) else ()
        allowed = "at most one of " + ", ".join(words) if words else "left out"
        raise refusal("optimizer" if words else "argument", unknown[0], allowed, "--help")
    return cast("Command", command)


def _one_of(classes: dict[str, Any]) -> Any:
    """The type from which tyro makes one subcommand per class."""
    return reduce(
        or_,
        (
            Annotated[each, tyro.conf.subcommand(name, prefix_name=False)]
            for name, each in classes.items()
        ),
    )


def _registry() -> constructors.ConstructorRegistry:
    """Tells tyro how to make a config: a flag per ruled field, a subcommand per optimiser."""
    registry = constructors.ConstructorRegistry()

    @registry.struct_rule
    def config(info: constructors.StructTypeInfo) -> constructors.StructConstructorSpec | None:
        if not (isinstance(info.type, type) and issubclass(info.type, Config)):
            return None
        specs = [_flag(info.type, each, rule) for each, rule in ruled_fields(info.type)]
        for name, kind in get_type_hints(info.type).items():
            if kind is Optimizer:
                default = getattr(info.type(), name)
                help = "The optimiser; --help after its name lists its hyperparameters."
                choices = _one_of(OPTIMIZERS)
                specs.append(constructors.StructFieldSpec(name, choices, default, help))
        return constructors.StructConstructorSpec(info.type, tuple(specs))

    return registry


def _flag(config: type[Config], field: Field[Any], rule: Rule) -> constructors.StructFieldSpec:
    def value(texts: list[str]) -> object:
        try:
            return parse_fields(config, {field.name: texts[0]})[field.name]
        except ConfigError as error:
            # As it is a ValueError, tyro would catch it and add words of its own.
            print(error, file=sys.stderr)
            raise SystemExit(WRONG_SETTING) from None

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


def _flag_name(name: str) -> str:
    return "--" + name.replace("_", "-")


def _flags(settings: Any) -> Iterator[str]:
    for each in fields(settings):
        value = getattr(settings, each.name)
        if is_dataclass(value):
            yield from _flags(value)
        else:
            yield _flag_name(each.name)


def _for_people(command: Command) -> bool:
    return sys.stdout.isatty() and not command.json


def _write(facts: dict[str, Any]) -> None:
    # Flushed, so that whoever reads the pipe can follow the run.
    print(json.dumps(facts, allow_nan=False), flush=True)


def _write_events(events: Iterable[Event], steps: bool) -> int:
    status = FINISHED
    for event in events:
        if steps or not isinstance(event, StepTaken):
            name = re.sub(r"(?<!^)(?=[A-Z])", "_", type(event).__name__).lower()
            _write({"event": name, **asdict(event)})
        if isinstance(event, Diverged):
            status = DIVERGED
    return status


def _config_facts(config: Config) -> dict[str, Any]:
    facts: dict[str, Any] = {"name": config.name}
    for each in fields(config):
        value = getattr(config, each.name)
        facts[each.name] = _config_facts(value) if isinstance(value, Config) else value
    return facts


def _show_events(events: Iterable[Event]) -> int:
    floor = None
    outcome: Event | None = None
    # The bar goes to stderr, and only where that is a terminal as well.
    with tqdm(unit=" steps", dynamic_ncols=True, disable=None) as bar:
        for event in events:
            match event:
                case Started():
                    floor = event.floor
                    bar.reset(event.steps)
                case LossRecorded():
                    bar.set_postfix_str(f"½ MSE {event.loss:.5g}", refresh=False)
                case StepTaken():
                    bar.update()
                case _:
                    outcome = event
    if isinstance(outcome, Finished):
        _show_summary(outcome, floor)
        return FINISHED
    print(outcome)
    return DIVERGED


def _show_summary(finished: Finished, floor: float | None) -> None:
    print(f"final ½ MSE       {finished.loss:.6g}")
    if floor is not None:
        print(f"above the minimum {finished.loss - floor:.3g} (the exact minimum is {floor:.6g})")
    print(f"time per epoch    {finished.seconds_per_epoch:.3g} s, evaluation excluded")
    print(f"steps             {finished.step:,} in {finished.epochs:g} epochs")


def _show_optimizer(optimizer: type[Optimizer]) -> None:
    print(f"{optimizer.name:16}{optimizer.label}")
    for each, rule in ruled_fields(optimizer):
        scale = "" if isinstance(rule, Choice) else ", log scale" if rule.log else ", linear scale"
        print(f"  {_flag_name(each.name):14}default {rule.default!s:8}{rule}{scale}")
    print(f"  {'formula':14}{optimizer.formula}\n  {'source':14}{optimizer.source}\n")


def _optimizer_facts(optimizer: type[Optimizer]) -> dict[str, Any]:
    return {
        "name": optimizer.name,
        "label": optimizer.label,
        "hyperparameters": {
            each.name: {**asdict(rule), "help": each.metadata["help"]}
            for each, rule in ruled_fields(optimizer)
        },
        "formula": optimizer.formula,
        "source": optimizer.source,
    }


STOP_SIGNALS = {signal.SIGINT: "Interrupted.", signal.SIGTERM: "Terminated."}


class _Stopped(BaseException):
    """A signal asks the program to end; the argument is the signal."""


def _stop(number: int, frame: FrameType | None) -> None:
    # A second signal ends the process at once, in case the run does not close.
    for each in STOP_SIGNALS:
        signal.signal(each, signal.SIG_DFL)
    raise _Stopped(signal.Signals(number))


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the arguments say, `sys.argv` without any; returns the exit status.

    Raises:
        SystemExit: as argparse does, for `--help` and for some wrong arguments, with the status.
    """
    try:
        try:
            return _parse(sys.argv[1:] if arguments is None else arguments)()
        finally:
            # A closed pipe should show here, after --help too, and not when Python shuts down.
            sys.stdout.flush()
    except (ConfigError, DataError) as error:
        print(error, file=sys.stderr)
        return WRONG_SETTING if isinstance(error, ConfigError) else DATA_ERROR
    except BrokenPipeError:
        # What is left in the buffer goes nowhere, or Python would complain about it at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return CLOSED_PIPE
    except _Stopped as stopped:
        number = stopped.args[0]
        print(STOP_SIGNALS[number], file=sys.stderr)
        return 128 + int(number)


COMMANDS: dict[str, type[Command]] = {"regression": Regression, "optimizers": Optimizers}

if __name__ == "__main__":
    for each in STOP_SIGNALS:
        # Whoever started us in the background or with nohup may have shut a signal out.
        if signal.getsignal(each) is not signal.SIG_IGN:
            signal.signal(each, _stop)
    sys.exit(main())
