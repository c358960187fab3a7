"""A sweep: the final loss at many learning rates, alone or as a grid with another setting."""

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

import numpy as np

from labcore.config import ConfigError, choice, number, refusal
from labcore.datasets import airfoil
from labcore.datasets.table import Table
from labcore.events import CellMeasured, DivergedAt, Event, Reached, SweepAdvanced, SweepEvent
from labcore.optimizers import OPTIMIZERS, SGD, Adagrad, Adam, Momentum, Optimizer, RMSprop
from labcore.race import RaceConfig, Racer
from labcore.regression import RegressionConfig, floor, lr_limit
from labcore.stack import descend

MAX_VALUES = 12
"""Of the second setting of a grid."""

USUAL = (SGD, Momentum, Adagrad, RMSprop, Adam)
"""Optimisers that are swept where none are named: the five of the course notes."""

VALUES: dict[str, tuple[float, ...]] = {
    "nothing": (),
    "batch_size": (3, 10, 30, 100, 300, 1500),
    "momentum": (0.0, 0.3, 0.6, 0.8, 0.9, 0.95, 0.98, 0.99),
}
"""What a sweep may cross the learning rates with, and the values if none are named."""


@dataclass(frozen=True, kw_only=True)
class RatesConfig(RaceConfig):
    """The racers and settings of a race, and the learning rates to try instead of the racers' own.

    The rates are spaced evenly in ratio, and rounded to four digits. Without racers it takes those
    of `USUAL`, as far as they have all that is asked for.
    """

    name = "rates"

    engine: str = choice(
        "engine",
        "from scratch",
        {"from scratch": "from scratch"},
        help="This lab's own update rules compute all runs of an optimiser at once.",
    )
    lowest: float = number(
        "lowest learning rate", 1e-4, 1e-6, 10.0, log=True, help="The first rate that is tried."
    )
    highest: float = number(
        "highest learning rate", 1.0, 1e-6, 10.0, log=True, help="The last rate that is tried."
    )
    rates: int = number(
        "learning rates", 32, 2, 64, help="How many rates are tried, evenly spaced in ratio."
    )

    racers: tuple[Racer, ...] = ()

    def __post_init__(self) -> None:
        if self.racers == ():
            object.__setattr__(self, "racers", self._usual_racers())
        super().__post_init__()
        if len(set(self.lrs)) < self.rates or self.lowest >= self.highest:
            allowed = f"far enough above the lowest, {self.lowest:g}, for {self.rates} rates"
            works = 10.0 if self.lowest < 1 else "a lower lowest one, such as 0.0001"
            raise refusal(f"{self.name}: highest", self.highest, allowed, works)
        for racer in self.racers:
            if racer.before:
                raise ConfigError(
                    f"A {self.name} takes whole runs; {racer.name!r} is a fork. Leave it out, or "
                    "add its optimiser as a racer of its own."
                )

    def _usual_racers(self) -> tuple[Racer, ...]:
        return tuple(Racer(kind()) for kind in USUAL)

    @property
    def lrs(self) -> tuple[float, ...]:
        """The rates, ascending."""
        rates = np.geomspace(self.lowest, self.highest, self.rates)
        inner = [float(f"{rate:.4g}") for rate in rates[1:-1]]
        return (self.lowest, *inner, self.highest)


@dataclass(frozen=True, kw_only=True)
class SweepConfig(RatesConfig):
    """One sweep of every racer over the learning rates.

    Attributes:
        values: of the second setting, ascending; those of `VALUES` if left out.
    """

    name = "sweep"

    against: str = choice(
        "as a grid with",
        "nothing",
        {"nothing": "nothing", "batch_size": "batch size", "momentum": "momentum"},
        help="A second setting to cross the learning rates with.",
    )
    values: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        values = self.values or VALUES[self.against]
        if self.against == "batch_size":
            values = tuple(int(value) if value == int(value) else value for value in values)
        if self.against == "momentum":
            for racer in self.racers:
                if not hasattr(racer.optimizer, "momentum"):
                    kinds = [n for n, each in OPTIMIZERS.items() if hasattr(each, "momentum")]
                    raise refusal(
                        "sweep: racers", racer.optimizer.name, "one of " + ", ".join(kinds)
                        + " in a grid with momentum", kinds[0],
                    )  # fmt: skip
        if list(values) != sorted(set(values)) or len(values) > MAX_VALUES:
            allowed = f"at most {MAX_VALUES} ascending numbers"
            raise refusal("sweep: values", values, allowed, "10 100")
        if values and self.against == "nothing":
            raise refusal("sweep: values", values, "left out without a second setting", "()")
        object.__setattr__(self, "values", tuple(values))
        for value in values:
            self.run(self.racers[0], self.lowest, value)

    def _usual_racers(self) -> tuple[Racer, ...]:
        kinds = [k for k in USUAL if self.against != "momentum" or hasattr(k, "momentum")]
        return tuple(Racer(kind()) for kind in kinds)

    def run(self, racer: Racer, lr: float, value: float | None = None) -> RegressionConfig:
        """The single run of a cell, the same as outside the sweep.

        Raises:
            ConfigError: the value is not allowed for the second setting.
        """
        changes: dict[str, Any] = {"lr": lr}
        sizes: dict[str, Any] = {}
        if self.against != "nothing":
            (sizes if self.against == "batch_size" else changes)[self.against] = value
        optimizer = replace(racer.optimizer, **changes)
        return replace(self.run_of(racer), optimizer=optimizer, **sizes)


@dataclass(frozen=True)
class _Pass:
    """Runs that are computed at once: settings, and value and optimiser of each."""

    racer: Racer
    settings: RegressionConfig
    cells: tuple[tuple[float | None, Optimizer], ...]

    def steps(self, rows: int) -> int:
        return self.settings.epochs * ceil(rows / self.settings.batch_size)


def _passes(config: SweepConfig) -> Iterator[_Pass]:
    values = config.values or (None,)
    # Runs with batches of one size share their minibatches, whatever their optimisers' settings.
    groups = [(value,) for value in values] if config.against == "batch_size" else [values]
    for racer in config.racers:
        for group in groups:
            runs = [(value, config.run(racer, lr, value)) for value in group for lr in config.lrs]
            cells = tuple((value, run.optimizer) for value, run in runs)
            yield _Pass(racer, runs[0][1], cells)


def sweep(config: SweepConfig, data: Table | None = None) -> Generator[SweepEvent, None, None]:
    """Train at every learning rate, all rates of an optimiser at once.

    Args:
        config: the sweep.
        data: what to train on; the airfoil data if left out.

    Yields:
        `SweepAdvanced` after every few steps, and a `CellMeasured` per run once it has ended.
    """
    rows = airfoil.ROWS if data is None else len(data.labels)
    passes = list(_passes(config))
    steps = sum(each.steps(rows) for each in passes)
    done = 0
    for each in passes:
        optimizers = [optimizer for _, optimizer in each.cells]
        for advanced in descend(each.settings, optimizers, [config.seed], data, every=False):
            yield SweepAdvanced(done + advanced.step, steps)
        done += each.steps(rows)
        outcomes = advanced.outcomes()[0]
        for (value, optimizer), outcome in zip(each.cells, outcomes, strict=True):
            yield CellMeasured(each.racer.name, optimizer.lr, value, config.seed, outcome)
    yield SweepAdvanced(steps, steps)


class SweepHistory:
    """What a sweep has measured so far: `add` takes its events one by one.

    Args:
        config: the sweep.
        data: on which it is run; the airfoil data if left out.

    Attributes:
        cells: by racer, value of the second setting (or None) and learning rate.
        advanced: how far it is, None before its start.
    """

    def __init__(self, config: SweepConfig, data: Table | None = None) -> None:
        self.config = config
        self.floor = floor(config, data)
        self.data = data
        self.cells: dict[tuple[str, float | None, float], CellMeasured] = {}
        self.advanced: SweepAdvanced | None = None

    def add(self, event: Event) -> None:
        """Take in one event of `sweep(self.config)`."""
        match event:
            case SweepAdvanced():
                self.advanced = event
            case CellMeasured():
                self.cells[event.racer, event.value, event.lr] = event

    def limit(self, racer: str, value: float | None = None) -> float | None:
        """The learning rate above which full-batch descent diverges, None if unknown."""
        [found] = [each for each in self.config.racers if each.name == racer]
        return lr_limit(self.config.run(found, self.config.lowest, value), self.data)

    def best(self, racer: str) -> CellMeasured | None:
        """The cell of a racer with the smallest final loss, None if all have diverged."""
        reached = [each for each in self.cells.values() if each.racer == racer]
        losses = {each: each.outcome.loss for each in reached if isinstance(each.outcome, Reached)}
        return min(losses, key=lambda cell: losses[cell], default=None)

    @property
    def problem(self) -> str | None:
        """A sentence if every cell so far has diverged, else None."""
        outcomes = [(each.lr, each.outcome) for each in self.cells.values()]
        if not outcomes or any(isinstance(each, Reached) for _, each in outcomes):
            return None
        lr, first = min(outcomes, key=lambda each: each[0])
        assert isinstance(first, DivergedAt)
        values: Sequence[float | None] = self.config.values or (None,)
        each_limit = (self.limit(r.name, value) for r in self.config.racers for value in values)
        limits = [limit for limit in each_limit if limit is not None]
        known = f" Full-batch descent is stable only below {min(limits):.4g}." if limits else ""
        return (
            f"Every run diverged, the one at the lowest learning rate, {lr:g}, at step "
            f"{first.step:,}.{known} Try rates below {lr / 10:.2g}."
        )
