"""What a classification run has reported so far: `add` takes its events one by one."""

from copy import copy

from labcore.classification import ClassificationConfig
from labcore.events import (
    Checkpointed,
    ClassifierTrained,
    Diverged,
    EpochEvaluated,
    Event,
    ImagesTested,
    Learnt,
    MinibatchTrained,
    ProcessesAwaited,
    Resumed,
    ShardDone,
    Started,
    StepTaken,
)
from labcore.history import Series
from labcore.replicas import PHASES


class ClassificationHistory:
    """The course of one run of `train_classifier(config)`.

    Attributes:
        config: the run.
        source: where its images came from, in words.
        starting: how far its processes are, None once it is ready or where it needs none.
        started: its size, None before it is ready.
        resumed: the step after which it was taken up again, None where it began at the beginning.
        minibatches: the steps, down-sampled by their loss.
        latest: the last step.
        taken: the last step that is closed.
        within: what goes on inside the step or the evaluation in hand, None in between.
        epochs: the evaluations, one per epoch.
        learnt: what the model had learnt at the last of them.
        phases: total seconds per phase of the steps.
        checkpoint: the last that was, or could not be, written.
        outcome: how the run ended, None while it goes on.
    """

    def __init__(self, config: ClassificationConfig, source: str) -> None:
        self.config = config
        self.source = source
        self.starting: ProcessesAwaited | None = None
        self.started: Started | None = None
        self.resumed: int | None = None
        self.minibatches: Series[MinibatchTrained] = Series()
        self.latest: MinibatchTrained | None = None
        self.taken: StepTaken | None = None
        self.within: ShardDone | ImagesTested | None = None
        self.epochs: list[EpochEvaluated] = []
        self.learnt: Learnt | None = None
        self.phases = dict.fromkeys(PHASES, 0.0)
        self.checkpoint: Checkpointed | None = None
        self.outcome: ClassifierTrained | Diverged | None = None

    @property
    def seconds(self) -> float:
        """Training time so far."""
        return self.latest.seconds if self.latest else 0.0

    @property
    def seconds_left(self) -> float | None:
        """Training time still to come at the speed so far; None before the first step."""
        if self.latest is None or self.started is None:
            return None
        return self.seconds / self.latest.step * (self.started.steps - self.latest.step)

    @property
    def images_per_second(self) -> float | None:
        """Training images over training time; None before the first step."""
        if self.latest is None or self.seconds == 0:
            return None
        return self.latest.epochs * self.config.images / self.seconds

    def copy(self) -> "ClassificationHistory":
        """The history as it is now, which stays so while the run goes on."""
        other = copy(self)
        other.minibatches = copy(self.minibatches)
        other.epochs = list(self.epochs)
        other.phases = dict(self.phases)
        return other

    def add(self, event: Event) -> None:
        """Take in one event of the run."""
        match event:
            case ProcessesAwaited():
                self.starting = event if self.started is None else None
            case Started():
                self.started = event
                self.starting = None
            case Resumed():
                self._take_up(event)
            case ShardDone() | ImagesTested():
                self.within = event
            case MinibatchTrained():
                self.minibatches.add(event)
                self.latest = event
                for phase, seconds in event.phases.items():
                    self.phases[phase] += seconds
            case StepTaken():
                self.taken = event
                self.within = None
            case EpochEvaluated():
                self.epochs.append(event)
                self.within = None
            case Learnt():
                self.learnt = event
            case Checkpointed():
                self.checkpoint = event
            case ClassifierTrained() | Diverged():
                self.outcome = event

    def _take_up(self, event: Resumed) -> None:
        self.resumed = event.step
        self.minibatches = Series()
        for each in event.minibatches:
            self.minibatches.add(each)
            self.latest = each
        self.taken = StepTaken(event.step, event.epochs)
        self.epochs = list(event.evaluations)
        self.phases = dict(event.phases)
