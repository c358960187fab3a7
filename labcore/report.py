"""How the command line reports: to people on a terminal, to programs as JSON lines.

Functions named `show` are for people, those named `write` for programs. A run is shown or written
as it goes on; both return how it ended.
"""

import json
import sys
from collections.abc import Iterable
from typing import Any

from tqdm import tqdm  # type: ignore[import-untyped]

from labcore.config import Choice, ruled_fields
from labcore.datasets.errors import DataError
from labcore.datasets.fashion_mnist import Place, load_from
from labcore.events import (
    CellMeasured,
    Checkpointed,
    ClassificationEvent,
    ClassifierTrained,
    Diverged,
    DivergedAt,
    EpochEvaluated,
    Event,
    FairRaceEvent,
    Finished,
    ImagesTested,
    Learnt,
    LossRecorded,
    MinibatchTrained,
    ProcessesAwaited,
    Reached,
    RegressionEvent,
    Resumed,
    ShardDone,
    Started,
    StepTaken,
    SweepAdvanced,
    SweepEvent,
)
from labcore.facts import event_facts, facts
from labcore.fair_race import FairRaceHistory
from labcore.flags import flag_name
from labcore.optimizers import Optimizer
from labcore.race import MAX_NAME_LENGTH
from labcore.sweep import SweepHistory

Outcome = Finished | ClassifierTrained | Diverged | None

EVERY_STEP = (StepTaken, ShardDone, ImagesTested)
"""Events that only say that something is done: written on request."""
UNWRITTEN = (Learnt, ProcessesAwaited)
"""Events that are never written: tensors, and that nothing has happened."""


def write(facts: dict[str, Any]) -> None:
    """Print one JSON line.

    Raises:
        ValueError: a number is not finite.
    """
    # Flushed, so that whoever reads the pipe can follow the run.
    print(json.dumps(facts, allow_nan=False), flush=True)


def write_events(events: Iterable[Event], steps: bool) -> Outcome:
    """Print a run's events as JSON lines: `EVERY_STEP` only with `steps`, `UNWRITTEN` never.

    Of what a resumed run had done before, only how far it was.
    """
    outcome: Outcome = None
    for event in events:
        if isinstance(event, Resumed):
            write({"event": "resumed", "step": event.step, "epochs": event.epochs})
        elif not isinstance(event, UNWRITTEN) and (steps or not isinstance(event, EVERY_STEP)):
            write(event_facts(event))
        if isinstance(event, Checkpointed) and event.problem is not None:
            print(event, file=sys.stderr)
        if isinstance(event, Outcome):
            outcome = event
    return outcome


def follow(events: Iterable[Event]) -> Outcome:
    """Report nothing: how the run of a rank ends that is not the one to report."""
    outcome: Outcome = None
    for event in events:
        if isinstance(event, Outcome):
            outcome = event
    return outcome


def show_regression(events: Iterable[RegressionEvent]) -> Outcome:
    """A progress bar with the loss, then a summary or why the run diverged."""
    floor = None
    outcome: Outcome = None
    with _bar(unit=" steps") as bar:
        for event in events:
            match event:
                case Started():
                    floor = event.floor
                    bar.reset(event.steps)
                case LossRecorded():
                    bar.set_postfix_str(f"½ MSE {event.loss:.5g}", refresh=False)
                case StepTaken():
                    bar.update()
                case Finished() | Diverged():
                    outcome = event
    if isinstance(outcome, Finished):
        _show_summary(outcome, floor)
    else:
        print(outcome)
    return outcome


def _show_summary(finished: Finished, floor: float | None) -> None:
    print(f"final ½ MSE       {finished.loss:.6g}")
    if floor is not None:
        print(f"above the minimum {finished.loss - floor:.3g} (the exact minimum is {floor:.6g})")
    print(f"time per epoch    {finished.seconds_per_epoch:.3g} s, evaluation excluded")
    print(f"steps             {finished.step:,} in {finished.epochs:g} epochs")


def show_classification(events: Iterable[ClassificationEvent], runs_in_lockstep: int) -> Outcome:
    """A progress bar with loss and accuracy, then the notes' summary line or why it diverged.

    Args:
        events: of the run.
        runs_in_lockstep: 2 where the same run on one device goes along, else 1.
    """
    outcome: Outcome = None
    loss = accuracy = testing = ""
    # As a step may take a minute, the bar counts its parts, and looks at the clock at each.
    format = "{l_bar}{bar}| {n:.1f}/{total_fmt} steps [{elapsed}<{remaining}{postfix}]"
    with _bar(bar_format=format, miniters=0) as bar:
        for event in events:
            done = 0.0
            match event:
                case ProcessesAwaited() if bar.n == 0:
                    testing = f"{event.ready} of {event.world_size} processes are ready"
                case Started():
                    bar.reset(event.steps)
                    testing = ""
                case Resumed():
                    done = event.step
                case Checkpointed() if event.problem is not None:
                    bar.write(str(event), file=sys.stderr)
                case ShardDone():
                    done = 1 / (2 * event.world_size * runs_in_lockstep)
                case MinibatchTrained():
                    loss, testing = f"loss {event.loss:.4g}", ""
                case StepTaken():
                    done = event.step - bar.n
                case ImagesTested():
                    testing = f", testing {event.done:,}/{event.images:,}"
                case EpochEvaluated():
                    accuracy, testing = f", test accuracy {event.accuracy:.3f}", ""
                case ClassifierTrained() | Diverged():
                    outcome = event
            bar.set_postfix_str(loss + accuracy + testing, refresh=False)
            bar.update(done)
    print(outcome)
    return outcome


def _bar(**settings: Any) -> Any:
    """A progress bar on stderr, and only where that is a terminal as well."""
    return tqdm(dynamic_ncols=True, disable=None, **settings)


def show_optimizer(optimizer: type[Optimizer]) -> None:
    """An optimiser's facts as a block of text."""
    print(f"{optimizer.name:16}{optimizer.label}")
    for each, rule in ruled_fields(optimizer):
        scale = "" if isinstance(rule, Choice) else ", log scale" if rule.log else ", linear scale"
        print(f"  {flag_name(each.name):14}default {rule.default!s:8}{rule}{scale}")
    print(f"  {'formula':14}{optimizer.formula}\n  {'source':14}{optimizer.source}\n")


def write_optimizer(optimizer: type[Optimizer]) -> None:
    """The same as a JSON line."""
    write(
        {
            "name": optimizer.name,
            "label": optimizer.label,
            "hyperparameters": {
                each.name: {**facts(rule), "help": each.metadata["help"]}
                for each, rule in ruled_fields(optimizer)
            },
            "formula": optimizer.formula,
            "source": optimizer.source,
        }
    )


def show_place(place: Place, used: bool) -> None:
    """What a place of the data set holds, as a line of text."""
    found = _place_facts(place, used)
    counts = f": {found['train']:,} + {found['test']:,} images" if found["train"] else ""
    print(f"{found['state']:10}{place.origin} ({place.folder}){counts}")


def write_place(place: Place, used: bool) -> None:
    """The same as a JSON line."""
    write(_place_facts(place, used))


def _place_facts(place: Place, used: bool) -> dict[str, Any]:
    found = {"origin": place.origin, "folder": str(place.folder), "train": 0, "test": 0}
    if not used and not place.holds_any():
        return {"state": "absent", **found}
    try:
        data = load_from(place)
    except DataError as error:
        return {"state": "unusable", **found, "problem": str(error)}
    found |= {"train": len(data.train_images), "test": len(data.test_images)}
    return {"state": "used" if used else "found", **found}


def write_sweep(events: Iterable[SweepEvent], history: SweepHistory) -> None:
    """The config, every run's end and the best of each racer as JSON lines."""
    write({"event": "config", **facts(history.config), "floor": history.floor})
    for event in events:
        history.add(event)
        if isinstance(event, CellMeasured):
            write(event_facts(event))
    for racer in history.config.racers:
        best = history.best(racer.name)
        write({"event": "best", "racer": racer.name, "cell": facts(best)})
    if history.problem:
        write({"event": "problem", "problem": history.problem})


def show_sweep(events: Iterable[SweepEvent], history: SweepHistory) -> None:
    """A progress bar, then the best of each racer."""
    _follow(events, history)
    for racer in history.config.racers:
        best = history.best(racer.name)
        if best is None or not isinstance(best.outcome, Reached):
            print(f"{racer.name:{MAX_NAME_LENGTH}} diverged at every rate")
            continue
        value = "" if best.value is None else f", {history.config.against} {best.value:g}"
        loss = _loss(best.outcome.loss, history.floor)
        print(f"{racer.name:{MAX_NAME_LENGTH}} best at lr {best.lr:g}{value}: {loss}")
    diverged = sum(isinstance(cell.outcome, DivergedAt) for cell in history.cells.values())
    print(f"{len(history.cells)} runs, {diverged} of them diverged")
    if history.problem:
        print(history.problem)


def write_fair_race(events: Iterable[FairRaceEvent], history: FairRaceHistory) -> None:
    """The config with its budget, every run tried, the rates chosen and the race as JSON lines."""
    write({"event": "config", **facts(history.config), "budget": history.budget})
    for event in events:
        history.add(event)
        if not isinstance(event, SweepAdvanced):
            write(event_facts(event))
    for note in history.notes:
        write({"event": "note", "note": note})


def show_fair_race(events: Iterable[FairRaceEvent], history: FairRaceHistory) -> None:
    """A progress bar, then the budget, and how each racer ended."""
    _follow(events, history)
    print(history.budget)
    for name, choice in history.chosen.items():
        last = history.latest.get(name)
        if choice.lr is not None and last is not None:
            ends = f"{last.low:.6g} to {last.high:.6g}"
            out = f", {last.diverged} diverged" if last.diverged else ""
            loss = _loss(last.loss, history.floor)
            print(f"{name:{MAX_NAME_LENGTH}} lr {choice.lr:<10g} median {loss}; {ends}{out}")
    for note in history.notes:
        print(note)


def _follow(events: Iterable[FairRaceEvent], history: SweepHistory | FairRaceHistory) -> None:
    """Take all events, with a progress bar."""
    with _bar(unit=" steps") as bar:
        for event in events:
            history.add(event)
            if isinstance(event, SweepAdvanced):
                bar.total = event.steps
                bar.update(event.done - bar.n)


def _loss(loss: float, floor: float | None) -> str:
    above = "" if floor is None else f" ({loss - floor:.3g} above the minimum)"
    return f"½ MSE {loss:.6g}{above}"
