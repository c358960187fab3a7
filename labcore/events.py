"""What a run reports: one frozen dataclass per fact, in the order in which they happen.

A run is an iterator of these. Everything measured in a step comes before the `StepTaken` that
closes it, so whoever has seen `StepTaken` has seen the whole step.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Started:
    """The run is ready: its size, and the smallest loss that its model can reach, if known.

    Attributes:
        steps: minibatches in the whole run.
        steps_per_epoch: minibatches in one epoch.
        floor: exact minimum of the reported loss, None where no closed form exists.
        lr_limit: learning rate above which full-batch descent diverges, None where theory has none.
    """

    steps: int
    steps_per_epoch: int
    floor: float | None
    lr_limit: float | None


@dataclass(frozen=True, slots=True)
class LossRecorded:
    """The loss over the whole data set after `step` updates.

    Attributes:
        step: updates done so far, 0 before the first.
        epochs: the true fraction of epochs done.
        seconds: time spent training so far, evaluation excluded.
        loss: half the mean squared error over all rows, whatever the objective.
    """

    step: int
    epochs: float
    seconds: float
    loss: float


@dataclass(frozen=True, slots=True)
class StepTaken:
    """One minibatch is done and the parameters are updated.

    Attributes:
        step: updates done so far, at least 1.
        epochs: the true fraction of epochs done.
    """

    step: int
    epochs: float


@dataclass(frozen=True, slots=True)
class Diverged:
    """The loss stopped being finite; nothing follows.

    Attributes:
        step: the update after which the loss was no finite number.
        epochs: the true fraction of epochs done.
        lr: the learning rate of the run.
        lr_limit: learning rate above which full-batch descent diverges, None where theory has none.
    """

    step: int
    epochs: float
    lr: float
    lr_limit: float | None

    def __str__(self) -> str:
        sentence = (
            f"The loss stopped being finite at step {self.step:,}, at learning rate {self.lr:g}."
        )
        if self.lr_limit is None:
            return sentence
        if self.lr > self.lr_limit:
            return f"{sentence} Full-batch descent is stable only below {self.lr_limit:.4g}."
        return (
            f"{sentence} That is below the full-batch limit {self.lr_limit:.4g}: "
            "a minibatch can be steeper than the whole data set."
        )


@dataclass(frozen=True, slots=True)
class Finished:
    """The run took all its steps; nothing follows.

    Attributes:
        step: updates done.
        epochs: epochs done.
        loss: half the mean squared error over all rows at the end.
        seconds_per_epoch: training time over epochs, evaluation excluded.
        evaluation_seconds: total time spent on measuring the loss.
    """

    step: int
    epochs: float
    loss: float
    seconds_per_epoch: float
    evaluation_seconds: float


@dataclass(frozen=True, slots=True)
class RacerEvent:
    """An event of one racer in a race.

    Attributes:
        racer: the racer's name.
        event: what it reported.
    """

    racer: str
    event: Started | LossRecorded | Diverged | Finished


Event = Started | LossRecorded | StepTaken | Diverged | Finished | RacerEvent
