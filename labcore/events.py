"""What a run reports: one frozen dataclass per fact, in the order in which they happen.

A run is an iterator of these. Everything measured in a step comes before the `StepTaken` that
closes it, so whoever has seen `StepTaken` has seen the whole step.
"""

from dataclasses import dataclass

from torch import Tensor


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


@dataclass(frozen=True, slots=True, eq=False)
class WeightsRecorded:
    """Where the run is among all weights; follows the `LossRecorded` of the same step, on request.

    Attributes:
        step: updates done so far.
        loss: half the mean squared error there over all rows.
        weights: flat, float32 (P,), of a linear model the bias last.
    """

    step: int
    loss: float
    weights: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class WeightsUpdated:
    """What an optimiser did in one step, on request; all tensors are flat, float32 (P,).

    Attributes:
        step: updates of the run, this one included.
        count: those since the optimiser's state was zeros, t in its formula.
        before: the weights that it was given.
        gradient: of the objective over the minibatch.
        state_before: one tensor per state variable.
        state: the same after the step.
        after: the new weights.
    """

    step: int
    count: int
    before: Tensor
    gradient: Tensor
    state_before: tuple[Tensor, ...]
    state: tuple[Tensor, ...]
    after: Tensor


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
    """The loss stopped being finite, or grew beyond all use; nothing follows.

    Attributes:
        step: the step whose loss it was.
        epochs: the true fraction of epochs done.
        lr: the learning rate of the run.
        lr_limit: learning rate above which full-batch descent diverges, None where theory has none.
        loss: what the loss had grown to, None where it was no finite number.
    """

    step: int
    epochs: float
    lr: float
    lr_limit: float | None
    loss: float | None = None

    def __str__(self) -> str:
        what = "stopped being finite" if self.loss is None else f"grew to {self.loss:.2g}"
        sentence = f"The loss {what} at step {self.step:,}, at learning rate {self.lr:g}."
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


RegressionEvent = (
    Started | LossRecorded | WeightsRecorded | WeightsUpdated | StepTaken | Diverged | Finished
)


@dataclass(frozen=True, slots=True)
class RacerEvent:
    """An event of one racer in a race.

    Attributes:
        racer: the racer's name.
        event: what it reported.
    """

    racer: str
    event: RegressionEvent


@dataclass(frozen=True, slots=True)
class Reached:
    """How a run ended that took all its steps: at this loss, half the mean squared error."""

    loss: float


@dataclass(frozen=True, slots=True)
class DivergedAt:
    """How a run ended whose loss stopped being finite: at this step."""

    step: int


@dataclass(frozen=True, slots=True)
class CellMeasured:
    """One run of a sweep has ended.

    Attributes:
        racer: the racer whose optimiser it had.
        lr: its learning rate.
        value: its batch size or momentum, where the sweep is a grid, else None.
        seed: its seed.
        outcome: how it ended.
    """

    racer: str
    lr: float
    value: float | None
    seed: int
    outcome: Reached | DivergedAt


@dataclass(frozen=True, slots=True)
class SweepAdvanced:
    """Some steps of many runs are done at once: a place to pause.

    Attributes:
        done: steps so far.
        steps: in all.
    """

    done: int
    steps: int


@dataclass(frozen=True, slots=True)
class RateChosen:
    """The best of the learning rates that were tried for a racer.

    Attributes:
        racer: the racer.
        lr: the rate with the smallest mean final loss, of those at which no seed diverged; None if
            there is none.
        loss: that mean, half the mean squared error; None without a rate.
        at_edge: whether it is the lowest or highest of the rates, so that a better one may lie
            outside.
    """

    racer: str
    lr: float | None
    loss: float | None
    at_edge: bool


@dataclass(frozen=True, slots=True)
class BandRecorded:
    """The losses of a racer's runs from all seeds after `step` updates, half mean squared errors.

    Attributes:
        racer: the racer.
        step: updates done so far.
        epochs: the true fraction of epochs done.
        low: the smallest loss.
        loss: the median.
        high: the largest.
        diverged: how many seeds are left out because they have diverged.
    """

    racer: str
    step: int
    epochs: float
    low: float
    loss: float
    high: float
    diverged: int


@dataclass(frozen=True, slots=True)
class ShardDone:
    """One replica is through one pass over its shard: within a slow step, a place to pause.

    Attributes:
        phase: "forward" or "backward".
        rank: of the replica.
        world_size: number of replicas.
    """

    phase: str
    rank: int
    world_size: int


@dataclass(frozen=True, slots=True)
class MinibatchTrained:
    """What one data-parallel step did; `StepTaken` follows.

    Attributes:
        step: steps done, from 1.
        epochs: the true fraction of epochs done.
        loss: mean cross-entropy over the minibatch, before the update.
        seconds: time spent training so far, evaluation excluded.
        phases: seconds of this step by phase: split, forward, backward, allreduce, update.
        rows: images per replica.
        losses: mean loss per replica, None where its shard was empty.
        norms: norm of each replica's gradient before the allreduce, over the minibatch's size.
        norm: norm of the summed gradient, over the minibatch's size.
        drift: largest difference of a parameter between two replicas after the update.
        difference: largest difference of a parameter to the same run on one device, None where
            that is not run beside it.
        rank_phases: `phases` of every process, where each replica is one; else empty. Then `phases`
            are those of rank 0.
    """

    step: int
    epochs: float
    loss: float
    seconds: float
    phases: dict[str, float]
    rows: tuple[int, ...]
    losses: tuple[float | None, ...]
    norms: tuple[float, ...]
    norm: float
    drift: float
    difference: float | None
    rank_phases: tuple[dict[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class ImagesTested:
    """A part of the test images is evaluated: within a slow evaluation, a place to pause.

    Attributes:
        done: images evaluated.
        images: images in the whole test set of this run.
    """

    done: int
    images: int


@dataclass(frozen=True, slots=True)
class EpochEvaluated:
    """How well the model does on the test images after an epoch.

    Attributes:
        epoch: epochs done, from 1.
        step: steps done.
        accuracy: share of the test images whose class is right.
        confusion: counts, [true class][predicted class].
        seconds_per_epoch: training time so far over epochs, evaluation excluded.
        images_per_second: training images over that time.
    """

    epoch: int
    step: int
    accuracy: float
    confusion: tuple[tuple[int, ...], ...]
    seconds_per_epoch: float
    images_per_second: float

    @property
    def class_accuracies(self) -> tuple[float | None, ...]:
        """Share of each true class's images that are right, None for a class without images."""
        return tuple(
            row[true] / sum(row) if sum(row) else None for true, row in enumerate(self.confusion)
        )


@dataclass(frozen=True, slots=True)
class ClassifierTrained:
    """The run took all its epochs; nothing follows.

    Attributes:
        step: steps done.
        epochs: epochs done.
        accuracy: on the test images at the end.
        seconds_per_epoch: training time over epochs, evaluation excluded.
        placement: where the replicas were, in words.
    """

    step: int
    epochs: int
    accuracy: float
    seconds_per_epoch: float
    placement: str

    def __str__(self) -> str:
        return (
            f"test accuracy {self.accuracy:.3f}, {self.seconds_per_epoch:.1f} s/epoch, "
            f"on {self.placement}"
        )


@dataclass(frozen=True, slots=True, eq=False)
class Learnt:
    """What the model has learnt so far, to look at; follows an `EpochEvaluated`.

    Attributes:
        epoch: epochs done.
        images: which test images were evaluated, int64 (m,), rows of the data set.
        probabilities: of every class for each of them, float32 (m, 10).
        filters: weights of the first convolution, float32 (channels, 3, 3).
    """

    epoch: int
    images: Tensor
    probabilities: Tensor
    filters: Tensor


@dataclass(frozen=True, slots=True)
class ProcessesAwaited:
    """The processes of a run have nothing new: they wait, start, or are slow. A place to pause.

    Attributes:
        ready: processes that have met the others.
        world_size: number of processes.
        seconds: since the first was started.
        missing: processes of other runs that must end before these can start; then 0.
    """

    ready: int
    world_size: int
    seconds: float
    missing: int = 0


@dataclass(frozen=True, slots=True)
class Checkpointed:
    """The run can be continued from here; or it could not be written down, and goes on.

    Attributes:
        step: steps done.
        epochs: the true fraction of epochs done.
        path: of the file, which holds the last checkpoint that could be written, if any.
        problem: why this one could not be written, None if it is.
    """

    step: int
    epochs: float
    path: str
    problem: str | None

    def __str__(self) -> str:
        if self.problem is None:
            return f"Step {self.step:,} is kept in {self.path}."
        return (
            f"Step {self.step:,} could not be kept in {self.path}: {self.problem}. "
            "The run goes on; if it was kept there before, that is untouched."
        )


@dataclass(frozen=True, slots=True)
class Resumed:
    """The run goes on where a checkpoint left it; follows `Started`.

    Attributes:
        step: steps done before.
        epochs: the true fraction of epochs done.
        minibatches: what is kept of those steps, down-sampled, the last one included.
        evaluations: after every epoch done.
        phases: total seconds of all those steps by phase.
    """

    step: int
    epochs: float
    minibatches: tuple[MinibatchTrained, ...]
    evaluations: tuple[EpochEvaluated, ...]
    phases: dict[str, float]


ClassificationEvent = (
    Started
    | ShardDone
    | MinibatchTrained
    | StepTaken
    | ImagesTested
    | EpochEvaluated
    | Learnt
    | Diverged
    | ClassifierTrained
    | ProcessesAwaited
    | Checkpointed
    | Resumed
)
SweepEvent = CellMeasured | SweepAdvanced
FairRaceEvent = SweepEvent | RateChosen | BandRecorded
Event = RegressionEvent | RacerEvent | FairRaceEvent | ClassificationEvent
