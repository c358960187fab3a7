"""The same training on PyTorch's own distributed engine: the loop that every rank runs.

It is the same wherever the rank is: on this machine or on another, started by the lab or by
torchrun. All ranks do the same steps and see the same figures; rank 0 is listened to.
"""

import math
from collections.abc import Callable, Generator
from dataclasses import replace
from pathlib import Path
from time import perf_counter

import torch

from labcore import checkpoints
from labcore.checkpoints import Checkpoint, CheckpointError
from labcore.classification import EXPLODED, ClassificationConfig
from labcore.collectives import ALLREDUCE
from labcore.config import format_fields
from labcore.datasets.fashion_mnist import FashionMNIST
from labcore.ddp import RankReplica, RanksReport
from labcore.evaluation import EVALUATED_AT_ONCE, filters, judge, predict
from labcore.events import (
    Checkpointed,
    ClassificationEvent,
    ClassifierTrained,
    Diverged,
    EpochEvaluated,
    ImagesTested,
    Learnt,
    MinibatchTrained,
    Resumed,
    ShardDone,
    Started,
    StepTaken,
)
from labcore.history import Series
from labcore.meeting import Meeting
from labcore.models import CLASSES, initialise
from labcore.replicas import PHASES, Replica, Replicas, difference
from labcore.splitting import PARTITIONS, balanced, take

Events = Generator[ClassificationEvent, None, bool]
"""A part of a run; returns whether the run goes on."""


def train_rank(
    config: ClassificationConfig,
    data: FashionMNIST,
    meeting: Meeting,
    *,
    checkpoint: Path | None = None,
    stop: Callable[[], bool] = lambda: False,
    handed: Callable[[], object] = lambda: None,
) -> Generator[ClassificationEvent, None, None]:
    """Train one rank's replica in step with the others'.

    Args:
        config: the run, with as many replicas as ranks have met.
        data: the images.
        meeting: of all ranks.
        checkpoint: rank 0's file, in which the run is kept after every epoch and on stop, and from
            which it goes on where there is one.
        stop: whether this rank is asked to stop; if any is, all do so after the step in hand.
        handed: called when this rank has done its part of a step's gradient, from any thread.

    Yields:
        As `train_classifier`, but of the `ShardDone` only this rank's. The run has been stopped
        where neither `ClassifierTrained` nor `Diverged` is the last event.

    Raises:
        CheckpointError: rank 0's cannot be used.
        DataError: fewer images than the config asks for.
        LostRankError: another rank is gone.
    """
    with meeting.noticing():
        run = _RankRun(config, data, meeting, checkpoint, stop, handed)
        yield Started(config.epochs * config.steps_per_epoch, config.steps_per_epoch, None, None)
        if run.resumed is not None:
            yield run.resumed
        while run.epoch <= config.epochs:
            if not (yield from run.train_epoch()) or not (yield from run.evaluate()):
                return
        yield run.trained()


class _RankRun:
    """The moving parts of one rank: its replica, and how far the run has come."""

    def __init__(
        self,
        config: ClassificationConfig,
        data: FashionMNIST,
        meeting: Meeting,
        checkpoint: Path | None,
        stop: Callable[[], bool],
        handed: Callable[[], object],
    ) -> None:
        self.config, self.data, self.meeting, self.stop = config, data, meeting, stop
        self.path = checkpoint if meeting.rank == 0 else None
        self.epoch, self.done, self.seconds = 1, 0, 0.0
        self.minibatches: Series[MinibatchTrained] = Series()
        self.evaluations: tuple[EpochEvaluated, ...] = ()
        self.phases = dict.fromkeys(PHASES, 0.0)
        self._rows = data.train_rows(config.images)
        self._shuffler = torch.Generator().manual_seed(2 * config.seed + 1)
        self._order = self._shuffler.get_state()
        replica = Replica(config.model, meeting.device, torch.float32)
        initialise(replica.module, config.initialisation, self._weights())
        self._reference = self._alone()
        self.resumed = self._resume(replica)
        synchronised = config.batch_norm == "synchronised"
        self.replica = RankReplica(replica, meeting, synchronised, handed)

    def _weights(self) -> torch.Generator:
        return torch.Generator().manual_seed(2 * self.config.seed)

    def _alone(self) -> Replicas | None:
        """The same run on one device, beside rank 0."""
        if self.config.equivalence == "off" or self.meeting.rank != 0:
            return None
        devices = [self.meeting.device]
        return Replicas(self.config.model, devices, self.config.initialisation, self._weights())

    @property
    def step(self) -> int:
        """Steps done."""
        return (self.epoch - 1) * self.config.steps_per_epoch + self.done

    @property
    def epochs(self) -> float:
        """The true fraction of epochs done."""
        seen = min(self.done * self.config.global_batch, self.config.images)
        return self.epoch - 1 + seen / self.config.images

    def train_epoch(self) -> Events:
        """What is left of the epoch in hand, in its own order of the images."""
        self._shuffler.set_state(self._order)
        shuffled = self._rows[torch.randperm(len(self._rows), generator=self._shuffler)]
        for rows in torch.split(shuffled, self.config.global_batch)[self.done :]:
            report = yield from self._take_step(rows)
            self.done += 1
            self.seconds += sum(report.phases[0].values())
            loss = sum(report.losses) / len(rows)
            if not loss <= EXPLODED:
                last = loss if math.isfinite(loss) else None
                yield Diverged(self.step, self.epochs, self.config.lr_at(self.step), None, last)
                return False
            yield self._note(report, loss, self._apart(rows))
            yield StepTaken(self.step, self.epochs)
            if report.stop:
                yield from self._keep()
                return False
        return True

    def _take_step(self, rows: torch.Tensor) -> Generator[ShardDone, None, RanksReport]:
        started = perf_counter()
        shards = PARTITIONS[self.config.split](len(rows), self.meeting.world_size)
        own = take(rows, shards[self.meeting.rank])
        images, labels = self.data.train_images[own], self.data.train_labels[own]
        return self.replica.step(
            images,
            labels,
            len(rows),
            perf_counter() - started,
            self.stop(),
            lr=self.config.lr_at(self.step + 1),
            momentum=self.config.momentum,
        )

    def _apart(self, rows: torch.Tensor) -> float | None:
        """How far the parameters are from those of the same run on one device."""
        if self._reference is None:
            return None
        for _ in self._reference.step(
            self.data.train_images[rows],
            self.data.train_labels[rows],
            split=balanced,
            schedule=ALLREDUCE["central"](1),
            lr=self.config.lr_at(self.step),
            momentum=self.config.momentum,
        ):
            pass
        return difference(self.replica.replica, self._reference.ranks[0])

    def _note(self, report: RanksReport, loss: float, apart: float | None) -> MinibatchTrained:
        shards = zip(report.losses, report.rows, strict=True)
        trained = MinibatchTrained(
            step=self.step,
            epochs=self.epochs,
            loss=loss,
            seconds=self.seconds,
            phases=report.phases[0],
            rows=report.rows,
            losses=tuple(loss / rows if rows else None for loss, rows in shards),
            norms=report.norms,
            norm=report.norm,
            drift=report.drift,
            difference=apart,
            rank_phases=report.phases,
        )
        self.minibatches.add(replace(trained, rank_phases=()))
        for phase, seconds in report.phases[0].items():
            self.phases[phase] += seconds
        return trained

    def evaluate(self) -> Events:
        """The epoch's end: each rank classifies its share of the test images, each image once."""
        rows = self.data.test_rows(self.config.test_images)
        own = balanced(len(rows), self.meeting.world_size)[self.meeting.rank]
        found = torch.zeros(len(rows), CLASSES)
        self.replica.share_buffers()
        for start in range(own.start, own.stop, EVALUATED_AT_ONCE):
            if self.stop():
                break
            some = slice(start, min(start + EVALUATED_AT_ONCE, own.stop))
            images = self.data.test_images[rows[some]]
            found[some] = predict(self.replica.replica, images).softmax(dim=1)
            yield ImagesTested(some.stop - own.start, len(rows))
        # Whoever has not classified an image adds nothing to its probabilities.
        found = self.meeting.total(found)
        if any(stop for [stop] in self.meeting.gather([self.stop()])):
            yield from self._keep()
            return False
        learnt = Learnt(self.epoch, rows, found, filters(self.replica.replica))
        labels = self.data.test_labels[rows]
        judged = judge(learnt, labels, self.step, self.seconds, self.config.images)
        self.evaluations = (*self.evaluations, judged)
        self.epoch, self.done, self._order = self.epoch + 1, 0, self._shuffler.get_state()
        yield judged
        yield learnt
        yield from self._keep()
        return True

    def trained(self) -> ClassifierTrained:
        """How the run ended."""
        epochs = self.config.epochs
        accuracy = self.evaluations[-1].accuracy
        per_epoch = self.seconds / epochs
        return ClassifierTrained(self.step, epochs, accuracy, per_epoch, self.meeting.words)

    def _keep(self) -> Generator[Checkpointed, None, None]:
        """Write the run down, on rank 0; that it could not be is no reason to end it."""
        if self.path is None:
            return
        kept = tuple(self.minibatches)
        reference = self._reference
        checkpoint = Checkpoint(
            settings=format_fields(self.config),
            epoch=self.epoch,
            steps=self.done,
            seconds=self.seconds,
            order=self._order,
            replica=self.replica.replica.state(),
            reference=None if reference is None else reference.ranks[0].state(),
            curve=Resumed(self.step, self.epochs, kept, self.evaluations, self.phases),
        )
        problem = None
        try:
            checkpoints.save(self.path, checkpoint)
        except OSError as error:
            problem = error.strerror or str(error)
        yield Checkpointed(self.step, self.epochs, str(self.path), problem)

    def _resume(self, replica: Replica) -> Resumed | None:
        """Go back to rank 0's checkpoint, if there is one; DDP shares what is in the replica."""
        found: Checkpoint | CheckpointError | None = None
        if self.path is not None and self.path.exists():
            try:
                found = checkpoints.load(self.path, format_fields(self.config))
            except CheckpointError as error:
                found = error
        found = self.meeting.share(found)
        if found is None:
            return None
        if isinstance(found, CheckpointError):
            raise found
        replica.restore(found.replica)
        if self._reference is not None and found.reference is not None:
            self._reference.ranks[0].restore(found.reference)
        self.epoch, self.done, self.seconds = found.epoch, found.steps, found.seconds
        self._order = found.order
        for each in found.curve.minibatches:
            self.minibatches.add(each)
        self.evaluations, self.phases = found.curve.evaluations, dict(found.curve.phases)
        return found.curve
