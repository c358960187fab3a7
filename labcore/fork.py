"""Forks: a racer rewound to a step of its run, and continued from there in another way.

A run is determined by its config, so nothing of it is stored: a fork's config says what it did
before and until which step, and running it repeats those steps bit by bit.
"""

from collections.abc import Generator
from copy import copy
from dataclasses import fields, replace

from labcore.config import ConfigError, refusal
from labcore.datasets.table import Table
from labcore.events import Diverged, RacerEvent, StepTaken
from labcore.optimizers import Optimizer
from labcore.race import MAX_NAME_LENGTH, MAX_RACERS, RaceConfig, RaceHistory, Racer, race
from labcore.regression import Stage


def fork(history: RaceHistory, parent: str, step: int, optimizer: Optimizer) -> RaceConfig:
    """The race with one more racer, the last: `parent` up to `step`, then `optimizer`.

    An optimiser of the parent's kind goes on with its state, another begins with a state of zeros.

    Args:
        history: of the race so far.
        parent: a racer's name.
        step: updates that the fork shares with its parent, at most what the parent has recorded.
        optimizer: what updates after that.

    Raises:
        ConfigError: no such racer, a step that it has not reached, or from which it has diverged,
            or no room for another racer.
    """
    names = list(history.lanes)
    if parent not in history.lanes:
        raise refusal("fork: racer", parent, "one of " + ", ".join(names), names[0])
    if len(names) == MAX_RACERS:
        raise ConfigError(
            f"A race has at most {MAX_RACERS} racers, and this one has them; remove one to fork."
        )
    lane = history.lanes[parent]
    last = lane.latest.step if lane.latest else 0
    if isinstance(lane.outcome, Diverged) and step > last:
        raise ConfigError(
            f"{parent!r} diverged at step {lane.outcome.step:,}: there is nothing to continue from "
            f"at step {step:,}. Rewind it to step {last:,} or before."
        )
    if history.steps and step >= history.steps:
        raise ConfigError(
            f"{parent!r} ends at step {history.steps:,}: a fork there has no step left. Rewind it "
            f"to step {history.steps - 1:,} or before."
        )
    earliest = lane.racer.before[-1].until + 1 if lane.racer.before else 0
    if not earliest <= step <= last:
        allowed = f"a step of {parent!r} from {earliest:,} to {last:,}"
        raise refusal("fork: step", step, allowed, last)
    before = (*lane.racer.before, Stage(lane.racer.optimizer, step))
    name = f"{optimizer.label} from {step}"
    if name in names or len(name) > MAX_NAME_LENGTH:
        name = ""  # the race finds one
    racer = Racer(optimizer, name, before)
    return replace(history.config, racers=(*history.config.racers, racer))


def continued(history: RaceHistory, config: RaceConfig) -> RaceHistory:
    """A history of `config` that knows of every racer it shares with `history` what that knows.

    So the parent's curve stays, and `race_fork` adds the fork's. The old history is not touched.
    """
    grown = RaceHistory(config, history.data)
    for racer in config.racers:
        lane = history.lanes.get(racer.name)
        if lane is not None and lane.racer == racer:
            kept = {each.name: getattr(lane, each.name) for each in fields(lane)}
            kept |= {"points": copy(lane.points), "path": copy(lane.path)}
            grown.lanes[racer.name] = type(lane)(**kept)
    return grown


def race_fork(
    config: RaceConfig, data: Table | None = None, *, weights: bool = False
) -> Generator[RacerEvent | StepTaken, None, None]:
    """Run the last racer of `config` alone, as `race` would: its shared steps, then its own.

    For a race that has ended; of one that goes on, `race_anew` runs all again, to the same curves.
    """
    return race(config, data, weights=weights, racers=config.racers[-1:])


def race_anew(
    config: RaceConfig, step: int, data: Table | None = None, *, weights: bool = False
) -> Generator[RacerEvent | StepTaken, None, None]:
    """Run all of `config`, as `race` would, but with `step` as the first one to be told of.

    For a race that goes on: whoever paces or pauses it at its steps has it back where it was.
    """
    for event in race(config, data, weights=weights):
        if not (isinstance(event, StepTaken) and event.step < step):
            yield event
