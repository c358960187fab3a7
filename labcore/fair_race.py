"""A fair race: for each optimiser the best learning rate under one budget, then a race with these.

Rates are chosen on some seeds and raced on others, so that no racer profits from the luck of the
seeds on which its rate was chosen.
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from math import ceil
from statistics import fmean

import torch

from labcore.config import number
from labcore.datasets import airfoil
from labcore.datasets.table import Table
from labcore.events import (
    BandRecorded,
    CellMeasured,
    DivergedAt,
    Event,
    FairRaceEvent,
    RateChosen,
    Reached,
    SweepAdvanced,
)
from labcore.history import Series
from labcore.race import POINTS, RaceConfig, Racer
from labcore.regression import floor
from labcore.stack import Advanced, descend
from labcore.sweep import RatesConfig


@dataclass(frozen=True, kw_only=True)
class FairRaceConfig(RatesConfig):
    """One fair race: the racers, their settings, and the budget for tuning.

    Seeds count up from `seed`: the first `seeds` of them choose the rates, the next ones race.
    """

    name = "fair race"

    rates: int = number(
        "learning rates", 16, 2, 64, help="How many rates each optimiser may try, evenly in ratio."
    )
    seeds: int = number(
        "seeds", 5, 1, 20, help="How many runs choose a rate, and how many others race with it."
    )

    @property
    def tuning_seeds(self) -> range:
        """On which the rates are chosen."""
        return range(self.seed, self.seed + self.seeds)

    @property
    def race_seeds(self) -> range:
        """On which the race is run, none of them used before."""
        return range(self.seed + self.seeds, self.seed + 2 * self.seeds)

    def budget(self, rows: int = airfoil.ROWS) -> str:
        """What every optimiser may use, in words; `rows` of the data."""
        steps = self.epochs * ceil(rows / self.batch_size)
        return (
            f"Each optimiser tries {self.rates} learning rates from {self.lowest:g} to "
            f"{self.highest:g} with {_seeds(self.tuning_seeds)}, {steps:,} steps each: "
            f"{self.rates * self.seeds * steps:,} steps. The best one races with "
            f"{_seeds(self.race_seeds)}, which chose nothing."
        )

    def race(self, chosen: dict[str, RateChosen]) -> RaceConfig | None:
        """The race with the chosen rates, on its first seed; None if nobody has one."""
        racers = [
            replace(racer, optimizer=replace(racer.optimizer, lr=found.lr))
            for racer in self.racers
            if (found := chosen.get(racer.name)) and found.lr is not None
        ]
        if not racers:
            return None
        shared = {
            each: getattr(self, each)
            for each in ("engine", "objective", "model", "hidden_units", "batch_size", "epochs")
        }
        return RaceConfig(racers=tuple(racers), seed=self.race_seeds[0], **shared)


def _seeds(seeds: range) -> str:
    return f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {seeds[0]}–{seeds[-1]}"


def fair_race(
    config: FairRaceConfig, data: Table | None = None
) -> Generator[FairRaceEvent, None, None]:
    """Choose each racer's learning rate, then race with these.

    Args:
        config: the race and the budget.
        data: what to train on; the airfoil data if left out.

    Yields:
        Per racer: its runs as `CellMeasured`, its `RateChosen`. Then, racers in turn, a
        `BandRecorded` where losses are recorded. `SweepAdvanced` after every few steps.
    """
    rows = airfoil.ROWS if data is None else len(data.labels)
    length = config.epochs * ceil(rows / config.batch_size)
    steps = 2 * len(config.racers) * length
    chosen: list[tuple[Racer, float]] = []
    for place, racer in enumerate(config.racers):
        optimizers = [replace(racer.optimizer, lr=lr) for lr in config.lrs]
        run = config.run_of(racer)
        for advanced in descend(run, optimizers, config.tuning_seeds, data, every=False):
            yield SweepAdvanced(place * length + advanced.step, steps)
        outcomes = advanced.outcomes()
        for lr, at_rate in zip(config.lrs, zip(*outcomes, strict=True), strict=True):
            for seed, outcome in zip(config.tuning_seeds, at_rate, strict=True):
                yield CellMeasured(racer.name, lr, None, seed, outcome)
        choice = _choose(racer.name, config.lrs, outcomes)
        yield choice
        if choice.lr is not None:
            chosen.append((racer, choice.lr))
    yield from _race(config, chosen, data, steps)
    yield SweepAdvanced(steps, steps)


def _choose(
    racer: str, lrs: Sequence[float], outcomes: list[list[Reached | DivergedAt]]
) -> RateChosen:
    """The rate with the smallest mean loss; `outcomes` by seed and rate."""
    means = {}
    for lr, at_rate in zip(lrs, zip(*outcomes, strict=True), strict=True):
        losses = [each.loss for each in at_rate if isinstance(each, Reached)]
        if len(losses) == len(at_rate):
            means[lr] = fmean(losses)
    if not means:
        return RateChosen(racer, None, None, at_edge=False)
    best = min(means, key=lambda lr: means[lr])
    return RateChosen(racer, best, means[best], at_edge=best in (lrs[0], lrs[-1]))


def _race(
    config: FairRaceConfig, chosen: Sequence[tuple[Racer, float]], data: Table | None, steps: int
) -> Generator[FairRaceEvent, None, None]:
    """Every racer from all race seeds at once, racers in turn."""
    runs = {
        racer.name: descend(
            config.run_of(racer), [replace(racer.optimizer, lr=lr)], config.race_seeds, data
        )
        for racer, lr in chosen
    }
    done = dict.fromkeys(runs, 0)
    while runs:
        for name, run in list(runs.items()):
            advanced = next(run, None)
            if advanced is None:
                del runs[name]
                continue
            yield from _bands(name, advanced)
            done[name] = advanced.step
            yield SweepAdvanced(steps // 2 + sum(done.values()), steps)


def _bands(name: str, advanced: Advanced) -> Generator[BandRecorded, None, None]:
    given_up = advanced.diverged[:, 0]
    for (step, epochs), losses in zip(advanced.recorded, advanced.losses[:, :, 0], strict=True):
        runs = losses[(given_up == 0) | (given_up > step)]
        if len(runs):
            low, middle, high = torch.quantile(runs, torch.tensor([0, 0.5, 1]).double()).tolist()
            yield BandRecorded(name, step, epochs, low, middle, high, len(losses) - len(runs))


class FairRaceHistory:
    """What a fair race has reported so far: `add` takes its events one by one.

    Args:
        config: the race.
        data: on which it is run; the airfoil data if left out.

    Attributes:
        tried: by racer and learning rate, the outcomes on the tuning seeds.
        chosen: by racer.
        bands: by racer, down-sampled.
        latest: the last band of each racer.
        advanced: how far it is, None before its start.
    """

    def __init__(self, config: FairRaceConfig, data: Table | None = None) -> None:
        self.config = config
        self.floor = floor(config, data)
        self.data = data
        self.budget = config.budget(airfoil.ROWS if data is None else len(data.labels))
        names = [racer.name for racer in config.racers]
        self.tried: dict[str, dict[float, list[CellMeasured]]] = {name: {} for name in names}
        self.chosen: dict[str, RateChosen] = {}
        self.bands: dict[str, Series[BandRecorded]] = {name: Series(POINTS) for name in names}
        self.latest: dict[str, BandRecorded] = {}
        self.advanced: SweepAdvanced | None = None

    def add(self, event: Event) -> None:
        """Take in one event of `fair_race(self.config)`."""
        match event:
            case SweepAdvanced():
                self.advanced = event
            case CellMeasured():
                self.tried[event.racer].setdefault(event.lr, []).append(event)
            case RateChosen():
                self.chosen[event.racer] = event
            case BandRecorded():
                self.bands[event.racer].add(event)
                self.latest[event.racer] = event

    @property
    def notes(self) -> list[str]:
        """A sentence for each racer without a rate, or with one at the edge of those tried."""
        edge = f"from {self.config.lowest:g} to {self.config.highest:g}"
        notes = []
        for name, choice in self.chosen.items():
            if choice.lr is None:
                notes.append(
                    f"{name} does not race: at every learning rate {edge} a seed diverged. Try "
                    "lower rates."
                )
            elif choice.at_edge:
                notes.append(
                    f"{name}'s best learning rate, {choice.lr:g}, is at the edge of those tried, "
                    f"{edge}: a wider range may hold a better one."
                )
        return notes
