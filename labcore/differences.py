"""Several races beside one another: their best racers as one history, and what two differ in."""

from collections.abc import Mapping
from dataclasses import replace

from labcore.config import format_value, ruled_fields
from labcore.datasets import airfoil
from labcore.events import Diverged
from labcore.optimizers import Optimizer
from labcore.race import MAX_NAME_LENGTH, MAX_RACERS, Lane, RaceConfig, RaceHistory, Racer
from labcore.regression import RegressionSettings


def ranking(history: RaceHistory) -> list[Lane]:
    """What is known of each racer, the smallest loss first; the diverged ones are left out."""
    lanes = [lane for lane in history.lanes.values() if not isinstance(lane.outcome, Diverged)]
    losses = [(lane.latest.loss, lane) for lane in lanes if lane.latest]
    return [lane for _, lane in sorted(losses, key=lambda each: each[0])]


class Together(RaceHistory):
    """The racers of several races as if they were one race, for a chart; it takes no events."""

    exact: float | None = None

    @property
    def floor(self) -> float | None:
        """The smallest loss that all of them can reach, None if that is not the same for all."""
        return self.exact


def together(histories: Mapping[str, RaceHistory]) -> Together:
    """The best racers of each race, as many of each as make `MAX_RACERS` at most in all.

    A race of which every racer has diverged is there with its first ones.

    Args:
        histories: one to `MAX_RACERS` races, by what comes before the names of their racers.
    """
    most = MAX_RACERS // len(histories)
    lanes: dict[str, Lane] = {}
    for title, history in histories.items():
        best = ranking(history) or list(history.lanes.values())
        for lane in best[:most]:
            name = f"{title} {lane.racer.name}"[:MAX_NAME_LENGTH].strip()
            if name in lanes:
                name = f"{title} ({len(lanes)})"
            lanes[name] = replace(lane, racer=replace(lane.racer, name=name))
    longest = max(histories.values(), key=lambda each: each.config.epochs)
    racers = tuple(lane.racer for lane in lanes.values())
    shown = Together(replace(longest.config, racers=racers), longest.data)
    shown.lanes = lanes
    floors = {history.floor for history in histories.values()}
    shown.exact = floors.pop() if len(floors) == 1 else None
    return shown


def differences(first: RaceHistory, second: RaceHistory) -> list[str]:
    """What is not the same in two races, a clause for each setting; empty if they are equal.

    Settings without effect do not count: the hidden units of a linear model. Racers are told by
    their names.
    """
    titles = [_data(each) for each in (first, second)]
    clauses = [] if first.data is second.data else [_clause("data", *titles)]
    for each, rule in ruled_fields(RegressionSettings):
        idle = each.name == "hidden_units" and "hidden" not in _models(first, second)
        values = [format_value(getattr(run.config, each.name)) for run in (first, second)]
        if values[0] != values[1] and not idle:
            options = getattr(rule, "options", {})
            clauses.append(_clause(rule.label, *(options.get(value, value) for value in values)))
    return clauses + _racers(first.config, second.config)


def difference_in_words(first: RaceHistory, second: RaceHistory) -> str:
    """One sentence that says in which settings two races differ."""
    clauses = differences(first, second)
    if not clauses:
        return (
            "The two races have the same settings, so the same losses; only measured times differ."
        )
    if len(clauses) == 1:
        return f"The two races differ in one setting, {clauses[0]}."
    return f"The two races differ in {len(clauses)} settings: {'; '.join(clauses)}."


def _models(*histories: RaceHistory) -> set[str]:
    return {each.config.model for each in histories}


def _data(history: RaceHistory) -> str:
    return history.data.title if history.data else airfoil.load().title


def _clause(what: str, first: str, second: str) -> str:
    return f"{what}: {first} in the first, {second} in the second"


def _racers(first: RaceConfig, second: RaceConfig) -> list[str]:
    ours = {racer.name: racer for racer in first.racers}
    theirs = {racer.name: racer for racer in second.racers}
    clauses = []
    for name in ours | theirs:
        if name in ours and name in theirs:
            clauses += _optimizers(name, ours[name], theirs[name])
        else:
            clauses.append(f"{name} races only in the {'first' if name in ours else 'second'}")
    return clauses


def _optimizers(name: str, first: Racer, second: Racer) -> list[str]:
    clauses = []
    if type(first.optimizer) is not type(second.optimizer):
        labels = (each.optimizer.label for each in (first, second))
        clauses.append(_clause(f"{name}'s optimiser", *labels))
    else:
        for each, rule in ruled_fields(type(first.optimizer)):
            values = [format_value(getattr(r.optimizer, each.name)) for r in (first, second)]
            if values[0] != values[1]:
                clauses.append(_clause(f"{name}'s {rule.label}", *values))
    if first.before != second.before:
        clauses.append(_clause(f"{name}'s start", _start(first), _start(second)))
    return clauses


def _start(racer: Racer) -> str:
    """What a racer did before its optimiser took over."""
    stages = [f"{_settings(stage.optimizer)} until step {stage.until:,}" for stage in racer.before]
    return ", then ".join(stages) or "no fork"


def _settings(optimizer: Optimizer) -> str:
    return f"{optimizer.label} with learning rate {optimizer.lr:g}"
