"""A training step as a film: the start, and a frame for each of its six moves."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from labcore.step_record import Move, StepFacts, StepRecord, View
from labcore.training_step import TrainingStepConfig
from labcore.units import in_seconds
from labui.player.mount import Film

TOTALS = (
    "drift between replicas",
    "difference to one device",
    "step length, one device = 1",
    "time of this move",
)


def training_step_film(record: StepRecord, config: TrainingStepConfig, *, neutral: bool) -> Film:
    """The film of a step.

    Args:
        record: the step.
        config: what it was taken with.
        neutral: whether nothing may say outright which mistake is made.
    """
    views = _Views()
    frames = [_start(record, config)]
    frames += [_frame(move, record, config, neutral=neutral) for move in record.moves]
    for frame, state in zip(frames, record.states, strict=True):
        frame["parameters"] = [views.place(each) for each in state.parameters]
        frame["gradients"] = [views.place(each) for each in state.gradients]
    return Film(
        figure="training_step",
        description=f"Step {record.facts.step} on {in_replicas(config.replicas)}, each with its "
        f"{record.parameter} and the gradient of it as heat maps: {record.window}.",
        unit="Move",
        file=f"training-step-{record.facts.step}-{record.parameter}",
        totals=TOTALS,
        scene={
            "ranks": config.replicas,
            "parameter": record.parameter,
            "window": str(record.window),
            "views": [asdict(each) for each in views.seen],
            "scales": [
                _largest(view for state in record.states for view in state.parameters),
                _largest(view for state in record.states for view in state.gradients),
            ],
        },
        frames=frames,
    )


def in_replicas(count: int) -> str:
    """A number of replicas in words."""
    return f"{count} replica" if count == 1 else f"{count} replicas"


class _Views:
    """What is shown of tensors, each kept once: equal replicas, and moves that change nothing."""

    def __init__(self) -> None:
        self._places: dict[View, int] = {}

    @property
    def seen(self) -> Sequence[View]:
        return list(self._places)

    def place(self, view: View | None) -> int | None:
        """Where a view is in `seen`."""
        return None if view is None else self._places.setdefault(view, len(self._places))


def _largest(views: Any) -> float:
    """Largest absolute value that is shown: the end of the colour scale."""
    rows = (row for view in views if view is not None for row in view.values)
    return max((abs(value) for row in rows for value in row if value is not None), default=0.0)


def _start(record: StepRecord, config: TrainingStepConfig) -> dict[str, Any]:
    facts = record.facts
    who = in_replicas(config.replicas)
    sentence = f"{who} of LeNet, as step {facts.step - 1} left them, and the next minibatch."
    if facts.step == 1:
        sentence = f"There is a minibatch of {config.batch_size} images, and no replica yet."
    shape = " × ".join(map(str, record.shape))
    return {
        "phase": "Start",
        "sentence": f"{sentence} Shown is {record.parameter}, {shape}: {record.window}.",
        "code": "",
        "totals": [_drift(facts.apart, config) if facts.step > 1 else "–", "–", "–", "–"],
        "rows": None,
        "losses": None,
    }


def _frame(
    move: Move, record: StepRecord, config: TrainingStepConfig, *, neutral: bool
) -> dict[str, Any]:
    facts, done = record.facts, [each.name for each in record.moves].index(move.name)
    updated = move.name == "update"
    sentence = _neutral(facts) if neutral and move.name == "forward" else move.sentence
    return {
        "phase": move.name[0].upper() + move.name[1:],
        "sentence": sentence,
        "code": _calls(facts, config)[move.name],
        "totals": [
            _drift(facts.drift if updated else facts.apart, config),
            _difference(facts) if updated else "–",
            _ratio(facts) if updated else "–",
            "–" if move.name == "replicate" and facts.step > 1 else in_seconds(move.seconds),
        ],
        "rows": facts.rows if done >= 1 else None,
        "losses": [_finite(loss) for loss in facts.losses] if done >= 2 else None,
    }


def _neutral(facts: StepFacts) -> str:
    """The forward pass without what becomes of a shard's losses, which may be the mistake."""
    loss = f"{facts.loss:.4g}" if math.isfinite(facts.loss) else "no finite number"
    rows = sum(facts.rows)
    return f"Every rank has the losses of its own rows. Over all {rows} rows the mean is {loss}."


def _calls(facts: StepFacts, config: TrainingStepConfig) -> Mapping[str, str]:
    """The call that each move is."""
    first = "replicas.replicate()"
    return {
        "replicate": first if facts.step == 1 else f"# once, before step 1: {first}",
        "split": f"shards = replicas.split(images, labels, {config.split})",
        "forward": "losses = [replicas.forward(r, *shard) for r, shard in enumerate(shards)]",
        "backward": "for replica, loss in zip(replicas.ranks, losses): replica.backward(loss)",
        "allreduce": f"replicas.allreduce({config.allreduce}({config.replicas}))",
        "update": f"replicas.update(lr={config.lr:g}, momentum=0, batch_size={config.batch_size})",
    }


def _drift(value: float, config: TrainingStepConfig) -> str:
    return "one replica" if config.replicas == 1 else _text(value)


def _difference(facts: StepFacts) -> str:
    if not facts.differences:
        return "it has diverged"
    if not all(map(math.isfinite, facts.differences)):
        return _text(math.nan)
    return _text(max(facts.differences))


def _ratio(facts: StepFacts) -> str:
    """How far the replicas move, from the shortest step to the longest."""
    if not facts.ratios or not all(map(math.isfinite, facts.ratios)):
        return "unknown"
    low, high = f"{min(facts.ratios):.3g}", f"{max(facts.ratios):.3g}"
    return low if low == high else f"{low} to {high}"


def _text(value: float) -> str:
    return f"{value:.3g}" if math.isfinite(value) else "no finite number"


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
