"""A race: several optimisers from the same start, on the same minibatches, step by step in turn."""

from collections.abc import Generator, Sequence, Set
from dataclasses import dataclass, field, fields, replace
from itertools import chain, count

from labcore.config import ConfigError, refusal
from labcore.datasets import airfoil
from labcore.datasets.table import Table
from labcore.events import (
    Diverged,
    Event,
    Finished,
    LossRecorded,
    RacerEvent,
    Started,
    StepTaken,
    WeightsRecorded,
)
from labcore.history import Series
from labcore.optimizers import OPTIMIZERS, Optimizer
from labcore.regression import (
    RegressionConfig,
    RegressionSettings,
    Stage,
    floor,
    train_regression,
)

MAX_RACERS = 8
MAX_NAME_LENGTH = 24
JOINERS = (0x200C, 0x200D)
POINTS = 240
"""Losses kept per racer: more than a chart beside its table has pixels for."""
CLOSE = 0.01
"""A racer has arrived when its loss stays within this share above the exact minimum."""


@dataclass(frozen=True)
class Racer:
    """An optimiser under a name; a race names those who come without one.

    A fork has earlier stages, as in `RegressionConfig`.
    """

    optimizer: Optimizer
    name: str = ""
    before: tuple[Stage, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.optimizer, Optimizer):
            allowed = "an optimiser object: " + ", ".join(c.__name__ for c in OPTIMIZERS.values())
            raise refusal("racer: optimizer", self.optimizer, allowed, "SGD(lr=0.01)")
        name = self.name
        # Joiners print nothing, but Persian words and many emoji are made with them.
        text = name.translate(dict.fromkeys(JOINERS)) if isinstance(name, str) else "\0"
        if len(text) > MAX_NAME_LENGTH or not text.isprintable():
            allowed = f"at most {MAX_NAME_LENGTH} printable characters"
            raise refusal("racer: name", name, allowed, self.optimizer.label)
        object.__setattr__(self, "name", name.strip())


@dataclass(frozen=True, kw_only=True)
class RaceConfig(RegressionSettings):
    """One race: the settings that all racers share, and the racers.

    Racers without a name get their optimiser's label, numbered where it is taken.
    """

    name = "race"

    racers: tuple[Racer, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        racers = self.racers
        if not (isinstance(racers, Sequence) and all(isinstance(each, Racer) for each in racers)):
            raise refusal("race: racers", racers, "a tuple of Racer objects", "(Racer(SGD()),)")
        if not 1 <= len(racers) <= MAX_RACERS:
            raise ConfigError(
                f"A {self.name} must have from 1 to {MAX_RACERS} racers; received {len(racers)}. "
                "Add or remove some."
            )
        names = [racer.name for racer in racers if racer.name]
        for name in names:
            if names.count(name) > 1:
                raise ConfigError(
                    f"Every racer must have a name of its own; received {names.count(name)} called "
                    f"{name!r}. Rename one, for example {_free_name(name, set(names))!r}."
                )
        object.__setattr__(self, "racers", _named(racers))

    def run_of(self, racer: Racer) -> RegressionConfig:
        """The racer's own run, the same as outside the race."""
        shared = {each.name: getattr(self, each.name) for each in fields(RegressionSettings)}
        return RegressionConfig(optimizer=racer.optimizer, before=racer.before, **shared)


def _named(racers: Sequence[Racer]) -> tuple[Racer, ...]:
    """The racers, each with a name: SGD, SGD 2, SGD 3 for three unnamed ones."""
    taken = {racer.name for racer in racers}
    named = []
    for racer in racers:
        name = racer.name or _free_name(racer.optimizer.label, taken)
        taken.add(name)
        named.append(replace(racer, name=name))
    return tuple(named)


def _free_name(wanted: str, taken: Set[str]) -> str:
    """The wanted name, numbered if it is taken, and then cut where it would grow too long."""
    endings = chain([""], (f" {number}" for number in count(2)))
    names = (wanted[: MAX_NAME_LENGTH - len(ending)] + ending for ending in endings)
    return next(name for name in names if name not in taken)


def race(
    config: RaceConfig,
    data: Table | None = None,
    *,
    weights: bool = False,
    racers: Sequence[Racer] | None = None,
) -> Generator[RacerEvent | StepTaken, None, None]:
    """Advance every racer's run by one minibatch in turn, until the last one has ended.

    Args:
        config: the race.
        data: what to train on; the airfoil data if left out.
        weights: whether to report the weights, too, after every recorded loss.
        racers: who runs, of those in `config`; all if left out.

    Yields:
        Per round: what the racers report, each as a `RacerEvent`, then one `StepTaken`.
    """
    runs = {
        racer.name: train_regression(config.run_of(racer), data, weights=weights)
        for racer in (config.racers if racers is None else racers)
    }
    while runs:
        taken = None
        for name, run in list(runs.items()):
            for event in run:
                if isinstance(event, StepTaken):
                    taken = event
                    break
                yield RacerEvent(name, event)
                if isinstance(event, Diverged):
                    taken = StepTaken(event.step, event.epochs)
            else:
                del runs[name]
        if taken:
            yield taken


@dataclass
class Lane:
    """What is known of one racer so far.

    Attributes:
        started: its run's size, floor and limit; None before its first turn.
        points: recorded losses, down-sampled.
        path: recorded weights, down-sampled, where they are reported.
        latest: the last recorded loss.
        arrived: step since which every recorded loss was within `CLOSE` of the floor, or None.
        outcome: how it ended, None while it races.
    """

    racer: Racer
    started: Started | None = None
    points: Series[LossRecorded] = field(default_factory=lambda: Series(POINTS))
    path: Series[WeightsRecorded] = field(default_factory=lambda: Series(POINTS))
    latest: LossRecorded | None = None
    arrived: int | None = None
    outcome: Finished | Diverged | None = None

    @property
    def gap(self) -> float | None:
        """Distance of the latest loss to the exact minimum, None where one of them is unknown."""
        if self.latest is None or self.started is None or self.started.floor is None:
            return None
        return self.latest.loss - self.started.floor

    def record(self, point: LossRecorded) -> None:
        """Take in a recorded loss."""
        self.points.add(point)
        self.latest = point
        gap = self.gap
        if self.started is None or self.started.floor is None or gap is None:
            return
        if gap > CLOSE * self.started.floor:
            self.arrived = None
        elif self.arrived is None:
            self.arrived = point.step


class RaceHistory:
    """What a race has reported so far, per racer: `add` takes its events one by one.

    Args:
        config: the race.
        data: on which it is run; the airfoil data if left out.
    """

    def __init__(self, config: RaceConfig, data: Table | None = None) -> None:
        self.config = config
        self.data = data
        self.lanes = {racer.name: Lane(racer) for racer in config.racers}
        self.taken: StepTaken | None = None

    @property
    def floor(self) -> float | None:
        """The smallest loss that the model can reach on the data, None if unknown."""
        return floor(self.config, self.data)

    @property
    def rows(self) -> int:
        """How many rows the data have."""
        return airfoil.ROWS if self.data is None else len(self.data.labels)

    @property
    def steps(self) -> int:
        """Steps in the whole race, 0 before it has started."""
        return max((lane.started.steps for lane in self.lanes.values() if lane.started), default=0)

    def add(self, event: Event) -> None:
        """Take in one event of `race(self.config)`."""
        match event:
            case StepTaken():
                self.taken = event
            case RacerEvent(name, Started() as started):
                self.lanes[name].started = started
            case RacerEvent(name, LossRecorded() as point):
                self.lanes[name].record(point)
            case RacerEvent(name, WeightsRecorded() as place):
                self.lanes[name].path.add(place)
            case RacerEvent(name, (Finished() | Diverged()) as outcome):
                self.lanes[name].outcome = outcome
