"""One training step in words and in code: what each move did, and which functions did it."""

import ast
import inspect
import math
from collections.abc import Callable, Sequence
from textwrap import dedent

from labcore.collectives import ALLREDUCE
from labcore.replicas import Replica, Replicas
from labcore.schedules import play
from labcore.splitting import PARTITIONS
from labcore.step_record import StepFacts


def sentences(
    facts: StepFacts, them: Replicas, split: str, allreduce: str, rounds: int
) -> dict[str, str]:
    """What each move did, in words: true of a step with a bug too, and silent about its cause."""
    ranks, parameters = len(them.ranks), len(them.ranks[0].flat)
    rows = sum(facts.rows)
    told = min(1, ranks - 1)
    return {
        "replicate": _replicated(facts, ranks, parameters),
        "split": f"{split} gives the {ranks} ranks {_listed(facts.rows)} of the {rows} rows."
        if ranks > 1
        else f"Rank 0 works on all {rows} rows.",
        "forward": _passed(facts, told, them.reduction),
        "backward": f"Rank {told}'s gradient, over all {parameters:,} parameters, has norm "
        f"{_text(facts.norms[told])} after its backward pass.",
        "allreduce": f"In {rounds} rounds of {allreduce}, the norm of rank {told}'s gradient goes "
        f"from {_text(facts.norms[told])} to {_text(facts.sums[told])}. "
        f"The ranks' norms are now {_between(facts.sums)}."
        if ranks > 1
        else "The only replica has the sum already: nothing needs to be sent.",
        "update": _updated(facts),
    }


def _replicated(facts: StepFacts, ranks: int, parameters: int) -> str:
    if facts.step > 1:
        apart = f", {_text(facts.apart)} apart" if ranks > 1 else ""
        return f"Nothing is copied: all go on where step {facts.step - 1} left them{apart}."
    if ranks == 1:
        return f"One replica with {parameters:,} parameters: there is nothing to copy."
    return (
        f"{ranks} ranks have the same values of all {parameters:,} parameters: they are "
        f"{_text(facts.apart)} apart."
    )


def _passed(facts: StepFacts, rank: int, reduction: str) -> str:
    loss, rows, batch = facts.passed[rank], facts.rows[rank], sum(facts.rows)
    per_row = f" ({_text(loss / rows)} per row)" if reduction == "sum" else ""
    idle = [f"Rank {each} has no rows. " for each, own in enumerate(facts.rows) if own == 0]
    return (
        f"Rank {rank} has {rows} of {batch} rows; its loss, the {reduction} over them, is "
        f"{_text(loss)}{per_row}. {''.join(idle)}Over all {batch} rows the mean is "
        f"{_text(facts.loss)}."
    )


def _updated(facts: StepFacts) -> str:
    moved = f"The parameters move by {_between(facts.lengths)}"
    if not facts.differences:
        return f"{moved}. The replicas are {_text(facts.drift)} apart. One device has diverged."
    times = f": {_between(facts.ratios)} times as far" if facts.ratios else ""
    return (
        f"{moved}, those of one device by {_text(facts.reference_length)}{times}. "
        f"The replicas are {_text(facts.drift)} apart, and {_between(facts.differences)} from the "
        "one device."
    )


def _listed(numbers: Sequence[int]) -> str:
    *most, last = map(str, numbers)
    return f"{', '.join(most)} and {last}"


def _between(values: Sequence[float]) -> str:
    """One number, or the smallest and the largest where they read differently."""
    if not all(map(math.isfinite, values)):
        return _text(math.nan)
    low, high = _text(min(values)), _text(max(values))
    return low if low == high else f"{low} to {high}"


def _text(value: float) -> str:
    return f"{value:.4g}" if math.isfinite(value) else "no finite number"


def code(kind: type[Replicas], split: str, allreduce: str) -> dict[str, str]:
    """The functions that do each move, the bug's included, without their docstrings.

    Args:
        kind: what the replicas are.
        split: a name in `PARTITIONS`.
        allreduce: a name in `ALLREDUCE`.

    Returns:
        Python by the moves' names.
    """
    own_play = [kind.play] if kind.play is not play else []
    return {
        "replicate": _source(*_executed(kind, "replicate")),
        "split": _source(*_executed(kind, "split"), PARTITIONS[split]),
        "forward": f'reduction = "{kind.reduction}"\n\n'
        + _source(*_executed(kind, "forward"), Replica.forward),
        "backward": _source(Replica.backward),
        "allreduce": _source(*_executed(kind, "allreduce"), *own_play, ALLREDUCE[allreduce]),
        "update": _source(*_executed(kind, "update"), Replica.update),
    }


def _executed(kind: type, name: str) -> list[Callable[..., object]]:
    """What a call of a method executes: that of the class, and what it overrides if it calls it."""
    found = []
    for each in kind.__mro__:
        if name in vars(each):
            found.append(vars(each)[name])
            if "super" not in found[-1].__code__.co_names:
                break
    return found


def _source(*functions: Callable[..., object]) -> str:
    """Source of these functions, without their docstrings."""
    return "\n\n".join(map(_without_docstring, functions))


def _without_docstring(function: Callable[..., object]) -> str:
    text = dedent(inspect.getsource(function))
    lines = text.splitlines()
    definition = ast.parse(text).body[0]
    if isinstance(definition, ast.FunctionDef) and ast.get_docstring(definition) is not None:
        docstring = definition.body[0]
        del lines[docstring.lineno - 1 : docstring.end_lineno]
    return "\n".join(line.split("  # type:")[0] for line in lines)
