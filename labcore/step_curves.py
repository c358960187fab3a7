"""What a bug does to training: the loss of some steps, beside that of one device without it."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from labcore.datasets.fashion_mnist import FashionMNIST
from labcore.events import Diverged
from labcore.step_record import StepFacts, finite
from labcore.training_step import Trainer, TrainingStepConfig

STEPS = 50


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """A step of the replicas and of the one device; None for whoever has diverged.

    Attributes:
        step: which step, from 1.
        loss: mean loss over the minibatch, before the update, of the replicas on their shards.
        reference_loss: of the one device.
        drift: largest difference of a parameter between a replica and replica 0, after the update.
        difference: between a replica and the one device.
        ratios: per rank, length of its step over that of the one device's step; None also where
            that did not move.
    """

    step: int
    loss: float | None
    reference_loss: float | None
    drift: float | None
    difference: float | None
    ratios: tuple[float, ...] | None


@dataclass(frozen=True, slots=True)
class RunDiverged:
    """The loss of one of the two runs has grown beyond use; that run takes no more steps.

    Attributes:
        run: which one.
        event: when, and how.
    """

    run: Literal["replicas", "one device"]
    event: Diverged


def loss_curves(
    config: TrainingStepConfig, steps: int = STEPS, data: FashionMNIST | None = None
) -> Iterator[CurvePoint | RunDiverged]:
    """Train the replicas, with the bug if there is one, beside the one device without.

    Args:
        config: the run.
        steps: how many, unless both diverge earlier.
        data: the images; by default what `fashion_mnist.load` finds.

    Yields:
        Per step a `RunDiverged` for a run that diverges in it, then a `CurvePoint`.
    """
    trainer = Trainer(config, data)
    for _ in range(steps):
        facts = trainer.advance()
        if facts.diverged is not None:
            yield RunDiverged("replicas", facts.diverged)
        if facts.reference_diverged is not None:
            yield RunDiverged("one device", facts.reference_diverged)
        yield _point(facts, trainer)
        if trainer.diverged and trainer.reference_diverged:
            return


def _point(facts: StepFacts, trainer: Trainer) -> CurvePoint:
    runs, compared = not trainer.diverged, bool(facts.differences) and not trainer.diverged
    return CurvePoint(
        step=facts.step,
        loss=finite(facts.loss) if runs else None,
        reference_loss=None if trainer.reference_diverged else finite(facts.reference_loss),
        drift=finite(facts.drift) if runs else None,
        difference=finite(max(facts.differences)) if compared else None,
        ratios=tuple(facts.ratios) or None if compared else None,
    )
