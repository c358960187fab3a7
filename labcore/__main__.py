"""The command line: the same runs as on the pages, without a browser.

    python -m labcore regression --batch-size 10 --engine "from scratch" adam --lr 0.01
    python -m labcore classify --replicas 2 --batch-size 256 --lr 0.2 --epochs 10
    python -m labcore sweep --optimizers adam sgd --chart sweep.svg
    python -m labcore fair-race --seeds 10
    python -m labcore classify --replicas 2 --engine processes --checkpoint run.ckpt
    torchrun --nproc-per-node=2 -m labcore classify --replicas 2 --engine processes
    python -m labcore optimizers
    python -m labcore data --download

No flag is listed here: names, types, ranges, defaults and help are those of the config's fields, so
a new field or optimiser is a new flag or subcommand by itself. To add a command, define its class
and add it to `COMMANDS` at the bottom.
"""

import signal

if __name__ == "__main__" and signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
    # Importing torch takes a second or two; Ctrl-C meanwhile should leave no traceback.
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import errno
import math
import os
import sys
from collections.abc import Generator, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, cast

import torch
import tyro
from tqdm import tqdm  # type: ignore[import-untyped]

from labcore import flags, report
from labcore.checkpoints import CheckpointError
from labcore.classification import (
    ClassificationConfig,
    patience,
    train_classifier,
)
from labcore.config import ConfigError, refusal
from labcore.datasets import fashion_mnist, own
from labcore.datasets.download import download
from labcore.datasets.errors import DataError
from labcore.datasets.fashion_mnist import FashionMNIST
from labcore.datasets.table import Table
from labcore.events import Checkpointed, ClassificationEvent, Diverged
from labcore.facts import facts
from labcore.fair_race import FairRaceConfig, FairRaceHistory, fair_race
from labcore.flags import WRONG_SETTING
from labcore.links import parse_racer
from labcore.meeting import LostRankError, started_by_torchrun
from labcore.optimizers import OPTIMIZERS
from labcore.processes import WorkerError
from labcore.race import Racer
from labcore.rank_process import be_a_rank
from labcore.regression import RegressionConfig, train_regression
from labcore.signals import STOP_SIGNALS, Stopped, stop, stopping_between_events, until
from labcore.sweep import SweepConfig, SweepHistory, sweep

FINISHED, DIVERGED, DATA_ERROR, RUN_ERROR, CLOSED_PIPE = 0, 3, 4, 5, 141
DESCRIPTION = f"""The optimiser lab without a browser. Each command explains itself with --help.

On a terminal the output is for people; into a pipe or a file, or with --json, it is JSON lines.

Exit status: {FINISHED} finished; 1 internal error, with a traceback; {WRONG_SETTING} wrong flag or
value; {DIVERGED} the run diverged; {DATA_ERROR} a data file is missing or damaged, has too few
images, or could not be downloaded; {RUN_ERROR} a process of the run failed or could not reach the
others, a checkpoint cannot be used or written, or the disk for the output is full; 130 interrupted
by Ctrl-C; {CLOSED_PIPE} the reader closed the pipe; 143 terminated."""

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""What the system says where no more can be written."""
STATUS: dict[type[Exception], int] = {ConfigError: WRONG_SETTING, DataError: DATA_ERROR}
"""Exit status of errors whose message is for the user, if it is not `RUN_ERROR`."""

DataFolder = Annotated[str, tyro.conf.arg(metavar="FOLDER")]
CheckpointFile = Annotated[str, tyro.conf.arg(metavar="FILE")]
Seconds = Annotated[float, tyro.conf.arg(metavar="SECONDS")]


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
                return _status(report.show_regression(events))
            report.write({"event": "config", **facts(self.run)})
            return _status(report.write_events(events, self.steps))


@dataclass(frozen=True)
class Classify:
    """Train an image classifier on Fashion-MNIST, data-parallel on one or more devices.

    With --engine processes each device is a process, which this command starts itself; started by
    torchrun, on one or several machines, each of its processes is one, and rank 0 reports.

    As JSON lines: the config with the source of the images, every minibatch, every evaluation, and
    the outcome.
    """

    run: ClassificationConfig
    """What is trained, and how."""
    data_dir: DataFolder = ""
    """A folder that holds its four files; if left out, LAB_DATA_DIR, or else the usual places."""
    json: bool = False
    """Write JSON lines on a terminal, too."""
    steps: bool = False
    """Also write a JSON line for every replica's pass, every step and every 250 test images."""
    checkpoint: CheckpointFile = ""
    """Keep a run on processes in this file after every epoch and when it is stopped; where the file
    is there already, go on from it."""
    timeout: Seconds = 0.0
    """Seconds without a sign of life after which processes are given up; if left out, a minute and
    a quarter of a second for each image of a shard."""

    def __call__(self) -> int:
        """Run to the end; returns the exit status."""
        data = fashion_mnist.load(self.data_dir)
        path = Path(os.path.abspath(self.checkpoint)) if self.checkpoint else None
        if not 0 <= self.timeout < math.inf:
            raise refusal("timeout", self.timeout, "a finite number of seconds from 0", 60)
        timeout = self.timeout or patience(self.run)
        if started_by_torchrun():
            with stopping_between_events() as stopped:
                events = be_a_rank(self.run, data, path, timeout, lambda: bool(stopped))
                status = self._report(events, data, silent=os.environ["RANK"] != "0")
                if stopped:
                    raise Stopped(stopped[0])
                return status
        events = train_classifier(self.run, data, checkpoint=path, timeout=timeout)
        if self.run.engine != "processes":
            return self._report(events, data)
        with stopping_between_events() as stopped:
            return self._report(until(stopped, events), data)

    def _report(
        self,
        events: Generator[ClassificationEvent, None, None],
        data: FashionMNIST,
        silent: bool = False,
    ) -> int:
        unkept: list[Checkpointed] = []
        with closing(events), closing(_noting(events, unkept)) as noted:
            if silent:
                return _status(report.follow(noted))
            if _for_people(self):
                runs = 2 if self.run.equivalence == "on" else 1
                status = _status(report.show_classification(noted, runs))
            else:
                report.write({"event": "config", **facts(self.run), "source": data.source})
                status = _status(report.write_events(noted, self.steps))
        return RUN_ERROR if unkept and status == FINISHED else status


def _noting(
    events: Iterable[ClassificationEvent], unkept: list[Checkpointed]
) -> Generator[ClassificationEvent, None, None]:
    """The same events; the last checkpoint is put into the list if it could not be written."""
    for event in events:
        if isinstance(event, Checkpointed):
            unkept[:] = [event] if event.problem is not None else []
        yield event


@dataclass(frozen=True)
class Optimizers:
    """List the optimisers: hyperparameters, formula (in LaTeX) and source."""

    json: bool = False
    """Write JSON lines on a terminal, too: one object per optimiser."""

    def __call__(self) -> int:
        """Print them all; returns the exit status."""
        for optimizer in OPTIMIZERS.values():
            if _for_people(self):
                report.show_optimizer(optimizer)
            else:
                report.write_optimizer(optimizer)
        return FINISHED


@dataclass(frozen=True)
class Data:
    """Say where Fashion-MNIST is found on this machine, verify it, and say which of it is used."""

    download: bool = False
    """First fetch its 70,000 images (31 MB) into that folder, or else into the lab's cache."""
    data_dir: DataFolder = ""
    """A folder that holds its four files; if left out, LAB_DATA_DIR, or else the usual places."""
    json: bool = False
    """Write JSON lines on a terminal, too: one object per place."""

    def __call__(self) -> int:
        """Print every place in the order of the search; returns the exit status."""
        if self.download:
            _download(self.data_dir)
        candidates = fashion_mnist.places(self.data_dir)
        used = fashion_mnist.place_to_use(candidates)
        report_place = report.show_place if _for_people(self) else report.write_place
        for place in candidates:
            report_place(place, place == used)
        fashion_mnist.load_from(used)
        return FINISHED


ChartFile = Annotated[str, tyro.conf.arg(metavar="FILE")]
Names = Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME[,SETTING=VALUE…]")]
Values = Annotated[tuple[float, ...], tyro.conf.arg(metavar="NUMBER")]


@dataclass(frozen=True)
class Sweep:
    """Train at many learning rates at once, and say what final loss each reached.

    As JSON lines: the config, every run's end, and the best rate of each optimiser. Exit status 3
    if every run diverged.
    """

    run: SweepConfig
    """What is trained, and at which learning rates."""
    optimizers: Names = ()
    """Which, for example: adam momentum,momentum=0.95. If left out, the five of the notes."""
    values: Values = ()
    """Of the second setting of a grid; if left out, usual ones."""
    csv: ChartFile = ""
    """Train on this CSV file instead of the airfoil data."""
    label: str = ""
    """The column of that file to predict; if left out, its last one."""
    chart: ChartFile = ""
    """Also draw a chart: a file name that ends in .svg, .png or .html."""
    json: bool = False
    """Write JSON lines on a terminal, too."""

    def __call__(self) -> int:
        """Run to the end; returns the exit status."""
        racers = _racers(self.optimizers) or self.run.racers
        config = replace(self.run, values=self.values, racers=racers)
        _check_chart(self.chart, config)
        data = _own_data(self.csv, self.label)
        history = SweepHistory(config, data)
        torch.set_num_threads(1)
        with closing(sweep(config, data)) as events:
            (report.show_sweep if _for_people(self) else report.write_sweep)(events, history)
        _save_chart(self.chart, history)
        return DIVERGED if history.problem else FINISHED


@dataclass(frozen=True)
class FairRace:
    """Find each optimiser's best learning rate under one budget, then race with these.

    As JSON lines: the config with the budget, every run that was tried, the rates chosen, and the
    race: median and range of the loss over seeds. Exit status 3 if no optimiser found a rate.
    """

    run: FairRaceConfig
    """What is trained, and what each optimiser may try."""
    optimizers: Names = ()
    """Which, for example: adam momentum,momentum=0.95. If left out, the five of the notes."""
    csv: ChartFile = ""
    """Train on this CSV file instead of the airfoil data."""
    label: str = ""
    """The column of that file to predict; if left out, its last one."""
    chart: ChartFile = ""
    """Also draw the race: a file name that ends in .svg, .png or .html."""
    json: bool = False
    """Write JSON lines on a terminal, too."""

    def __call__(self) -> int:
        """Run to the end; returns the exit status."""
        config = replace(self.run, racers=_racers(self.optimizers) or self.run.racers)
        _check_chart(self.chart, config)
        data = _own_data(self.csv, self.label)
        history = FairRaceHistory(config, data)
        torch.set_num_threads(1)
        with closing(fair_race(config, data)) as events:
            (report.show_fair_race if _for_people(self) else report.write_fair_race)(
                events, history
            )
        _save_chart(self.chart, history)
        return FINISHED if history.latest else DIVERGED


def _check_chart(file: str, config: SweepConfig | FairRaceConfig) -> None:
    """Refuse a chart that cannot be drawn or saved, before the run; nothing without a file."""
    if not file:
        return
    # What draws takes a second to load, and most commands draw nothing.
    from labcore import pictures, sweep_charts

    pictures.check_chart_file(file)
    if isinstance(config, SweepConfig):
        sweep_charts.check_drawable(config)


def _save_chart(file: str, history: SweepHistory | FairRaceHistory) -> None:
    """Draw into the file; nothing without one."""
    if not file:
        return
    from labcore import pictures, sweep_charts

    if isinstance(history, SweepHistory):
        pictures.save(file, *sweep_charts.drawn(history))
    else:
        pictures.save(file, *sweep_charts.drawn_race(history))


def _racers(texts: Sequence[str]) -> tuple[Racer, ...]:
    """Optimisers as links write them."""
    return tuple(parse_racer(text) for text in texts)


def _own_data(file: str, label: str) -> Table | None:
    """The table in a CSV file, None without a file."""
    if not file:
        if label:
            raise refusal("label", label, "left out without --csv", "--csv FILE")
        return None
    try:
        content = Path(file).read_bytes()
    except OSError as error:
        raise DataError(f"The file {file} cannot be read ({error.strerror}).") from error
    sheet = own.read_csv(content, Path(file).name)
    return sheet.table(label or sheet.names[-1])


Command = Regression | Classify | Sweep | FairRace | Optimizers | Data


def _for_people(command: Command) -> bool:
    return sys.stdout is not None and sys.stdout.isatty() and not command.json


def _status(outcome: report.Outcome) -> int:
    return DIVERGED if isinstance(outcome, Diverged) else FINISHED


def _download(folder: str) -> None:
    with tqdm(unit="B", unit_scale=True, dynamic_ncols=True, disable=None) as bar:

        def progress(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        download(progress, folder)


def _parse(arguments: Sequence[str]) -> Command:
    if arguments and not arguments[0].startswith("-") and arguments[0] not in COMMANDS:
        raise refusal("command", arguments[0], "one of " + ", ".join(COMMANDS), "--help")
    command, unknown = tyro.cli(
        flags.one_of(COMMANDS),
        prog="python -m labcore",
        description=DESCRIPTION,
        args=arguments,
        return_unknown_args=True,
        registry=flags.registry(),
        config=(
            tyro.conf.OmitArgPrefixes,
            tyro.conf.CascadeSubcommandArgs,
            tyro.conf.FlagCreatePairsOff,
        ),
    )
    if unknown and unknown[0].startswith("-"):
        raise refusal("flag", unknown[0], "one of " + ", ".join(flags.names(command)), "--help")
    if unknown:
        words = OPTIMIZERS if isinstance(command, Regression) else ()
        allowed = "at most one of " + ", ".join(words) if words else "left out"
        raise refusal("optimizer" if words else "argument", unknown[0], allowed, "--help")
    return cast("Command", command)


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
            if sys.stdout is not None:
                sys.stdout.flush()
    except (ConfigError, DataError, WorkerError, LostRankError, CheckpointError) as error:
        print(error, file=sys.stderr)
        return STATUS.get(type(error), RUN_ERROR)
    except OSError as error:
        closed = isinstance(error, BrokenPipeError)
        if not closed and error.errno not in FULL:
            raise
        # What is left in the buffer goes nowhere, or Python would complain about it at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if closed:
            return CLOSED_PIPE
        print(f"{error.strerror}: free some, or write elsewhere.", file=sys.stderr)
        return RUN_ERROR
    except Stopped as stopped:
        number = stopped.args[0]
        print(STOP_SIGNALS[number], file=sys.stderr)
        return 128 + int(number)


COMMANDS: dict[str, type[Command]] = {
    "regression": Regression,
    "classify": Classify,
    "sweep": Sweep,
    "fair-race": FairRace,
    "optimizers": Optimizers,
    "data": Data,
}

if __name__ == "__main__":
    for each in STOP_SIGNALS:
        # Whoever started us in the background or with nohup may have shut a signal out.
        if signal.getsignal(each) is not signal.SIG_IGN:
            signal.signal(each, stop)
    sys.exit(main())
