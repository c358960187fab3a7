"""Image classification on 1…k devices: a data-parallel run is a generator of events."""

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from labcore.collectives import ALLREDUCE
from labcore.config import Config, ConfigError, choice, number, refusal
from labcore.datasets import fashion_mnist
from labcore.datasets.fashion_mnist import FashionMNIST
from labcore.events import (
    ClassificationEvent,
    ClassifierTrained,
    Diverged,
    EpochEvaluated,
    ImagesTested,
    Learnt,
    MinibatchTrained,
    ShardDone,
    Started,
    StepTaken,
)
from labcore.models import CLASSES, INITIALISATIONS, MODELS
from labcore.replicas import Replica, Replicas, StepReport, difference, place
from labcore.splitting import PARTITIONS, weighted

EXPLODED = 1e4
"""A mean loss from which no run comes back: guessing costs 2.3. Units that die on the way may bring
it down again, but the network stays at chance."""
EVALUATED_AT_ONCE = 250
"""Test images per forward pass: small enough to pause a slow model in between."""


@dataclass(frozen=True, kw_only=True)
class ClassificationConfig(Config):
    """One run: a model, its data, its devices and its optimiser."""

    name = "classify"

    model: str = choice(
        "model",
        "lenet",
        {name: model.label for name, model in MODELS.items()},
        help="LeNet learns in seconds. Residual networks take minutes on a CPU; the one with a "
        "quarter of the width is small enough to watch.",
    )
    replicas: int = number(
        "devices",
        4,
        1,
        16,
        help="Copies of the model, each of which works on its share of every minibatch: one per "
        "GPU where there are enough, else logical replicas that share what there is.",
    )
    images: int = number(
        "training images",
        6_000,
        100,
        60_000,
        log=True,
        help="As many of each class; 6,000 is the embedded sample, 60,000 the whole data set. "
        "Tested on a sixth as many test images.",
    )
    batch_size: int = number(
        "batch size",
        64,
        1,
        60_000,
        log=True,
        help="Images per step, over all devices together.",
    )
    lr: float = number(
        "learning rate",
        0.1,
        1e-6,
        100.0,
        log=True,
        help="How far one step goes against the gradient of the mean loss.",
    )
    momentum: float = number(
        "momentum",
        0.0,
        0.0,
        0.9999,
        help="Share of the velocity kept from step to step; 0 is plain SGD, as in the notes.",
    )
    scaling: str = choice(
        "batch and learning rate",
        "fixed",
        {"fixed": "as given", "scaled": "times the devices"},
        help="Whether both are multiplied by the number of devices, as the notes do.",
    )
    warmup_epochs: float = number(
        "warm-up epochs",
        0.0,
        0.0,
        100.0,
        help="Epochs in which the learning rate rises step by step from one device's, that is "
        "divided by the devices, to the whole: large batches need it. On 1 device nothing changes.",
    )
    epochs: int = number(
        "epochs", 4, 1, 100, log=True, help="How many times a run sees every training image."
    )
    initialisation: str = choice(
        "initialisation",
        "torch",
        {name: scheme.label for name, scheme in INITIALISATIONS.items()},
        help="How the weights start. With the notes' tiny N(0, 0.01²), LeNet stays at chance for "
        "its first 300 steps: the signal shrinks from layer to layer, and the gradient with it.",
    )
    split: str = choice(
        "split",
        "chunk",
        # Without speeds, weighted is balanced.
        {name: name for name, split in PARTITIONS.items() if split is not weighted},
        help="Which rows of a minibatch go where. chunk cuts blocks of ⌈rows / devices⌉, which may "
        "leave the last devices empty; balanced makes them as even as can be.",
    )
    allreduce: str = choice(
        "allreduce",
        "central",
        {name: name for name in ALLREDUCE},
        help="By which algorithm the gradients are summed: central, all into device 0 and back, is "
        "that of the notes. The result is the same up to rounding; what differs is who sends how "
        "much to whom in how many rounds.",
    )
    seed: int = number(
        "seed",
        0,
        0,
        2**31 - 1,
        help="Decides the initial weights and the order of the images: same seed, same run.",
    )
    equivalence: str = choice(
        "check against one device",
        "off",
        {"off": "off", "on": "on"},
        help="Train the same run on one device in lockstep, and show by how much the parameters "
        "differ. It takes twice the time.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.warmup_epochs > self.epochs:
            allowed = f"at most the epochs, {self.epochs}"
            raise refusal(f"{self.name}: warmup_epochs", self.warmup_epochs, allowed, self.epochs)
        if problem := self._problem(self.batch_size, self.replicas):
            raise ConfigError(f"{self.name}: {problem} {self._suggestion()}")

    def _problem(self, batch_size: int, replicas: int) -> str | None:
        """Why so many devices cannot share minibatches of this size; None if they can."""
        rows = batch_size * (replicas if self.scaling == "scaled" else 1)
        if rows > self.images:
            return (
                f"a minibatch must fit into the training images; received {rows} of {self.images}."
            )
        if replicas > rows:
            return (
                "every device must get a row of a minibatch; "
                f"received {replicas} devices for {rows} rows."
            )
        smallest = MODELS[self.model].smallest_shard
        for each in (rows, self.images % rows):
            if any(0 < len(shard) < smallest for shard in PARTITIONS[self.split](each, replicas)):
                return (
                    f"{MODELS[self.model].label} needs shards of at least {smallest} images, "
                    "because its feature maps shrink to one pixel and batch norm cannot average "
                    f"over that of one image; received rows {each}, devices {replicas}, "
                    f"split {self.split}."
                )
        return None

    def _suggestion(self) -> str:
        """The nearest batch size and number of devices that work, each beside the other's own."""
        sizes = sorted(range(1, self.images + 1), key=lambda size: abs(size - self.batch_size))
        size = next((n for n in sizes if not self._problem(n, self.replicas)), None)
        fewer = range(self.replicas - 1, 0, -1)
        devices = next((k for k in fewer if not self._problem(self.batch_size, k)), None)
        ways = [f"batch size {size}"] if size else []
        if devices:
            ways.append(f"{devices} device{'s' * (devices > 1)}")
        return f"Try {' or '.join(ways) or f'1 device and batch size {self.images}'}."

    @property
    def _factor(self) -> int:
        return self.replicas if self.scaling == "scaled" else 1

    @property
    def global_batch(self) -> int:
        """Images per step over all devices, after scaling."""
        return self.batch_size * self._factor

    @property
    def global_lr(self) -> float:
        """Learning rate after scaling, and after the warm-up."""
        return self.lr * self._factor

    def lr_at(self, step: int) -> float:
        """Learning rate of a step, from 1: in the warm-up it rises by as much from step to step.

        With k devices and W steps of warm-up it is η/k + (η − η/k) · min(1, (step − 1) / W).

        Source: P. Goyal et al., Accurate, large minibatch SGD: training ImageNet in 1 hour, 2017,
        sections 2.1 and 2.2
        """
        warmup = self.warmup_epochs * self.steps_per_epoch
        if step - 1 >= warmup:
            return self.global_lr
        start = self.global_lr / self.replicas
        return start + (self.global_lr - start) * (step - 1) / warmup

    @property
    def steps_per_epoch(self) -> int:
        """Minibatches in one epoch, the last of which may be smaller."""
        return math.ceil(self.images / self.global_batch)

    @property
    def test_images(self) -> int:
        """Test images: a sixth as many as training images, as in the data set."""
        return math.ceil(self.images / 6)


def train_classifier(
    config: ClassificationConfig, data: FashionMNIST | None = None
) -> Generator[ClassificationEvent, None, None]:
    """Train as `config` says, and report every step.

    Args:
        config: the run.
        data: the images; by default what `fashion_mnist.load` finds.

    Yields:
        `Started`; per step a `ShardDone` after each replica's pass, `MinibatchTrained` and
        `StepTaken`; per epoch `ImagesTested`, `EpochEvaluated` and `Learnt`; at last
        `ClassifierTrained`, or `Diverged` once the loss is beyond `EXPLODED` or no number.

    Raises:
        DataError: the images are not there, damaged, or fewer than the config asks for.
    """
    run = _Run(config, data or fashion_mnist.load())
    yield Started(config.epochs * config.steps_per_epoch, config.steps_per_epoch, None, None)
    accuracy = 0.0
    for epoch in range(1, config.epochs + 1):
        if not (yield from run.train_epoch(epoch)):
            loss = run.loss if math.isfinite(run.loss) else None
            yield Diverged(run.step, run.epochs, config.lr_at(run.step), None, loss)
            return
        learnt = yield from evaluate(run.replicas.ranks[0], run.data, config.test_images, epoch)
        evaluated = _evaluated(run, epoch, learnt)
        accuracy = evaluated.accuracy
        yield evaluated
        yield learnt
    per_epoch = run.seconds / config.epochs
    yield ClassifierTrained(run.step, config.epochs, accuracy, per_epoch, run.placement.words)


class _Run:
    """The moving parts of one run: its replicas, and how far it has come."""

    def __init__(self, config: ClassificationConfig, data: FashionMNIST) -> None:
        self.config = config
        self.data = data
        self.placement = place(config.replicas)
        self.replicas = self._replicas(self.placement.devices)
        self.reference: Replicas | None = None
        if config.equivalence == "on":
            self.reference = self._replicas(self.placement.devices[:1])
        self.step, self.epochs, self.seconds, self.loss = 0, 0.0, 0.0, 0.0
        self._rows = data.train_rows(config.images)
        self._order = torch.Generator().manual_seed(2 * config.seed + 1)

    def _replicas(self, devices: Sequence[torch.device]) -> Replicas:
        # A stream of its own for the weights: a larger model sees the same minibatches.
        weights = torch.Generator().manual_seed(2 * self.config.seed)
        return Replicas(self.config.model, devices, self.config.initialisation, weights)

    def train_epoch(self, epoch: int) -> Generator[ClassificationEvent, None, bool]:
        """One pass over the images in a new order; returns whether the loss stayed finite."""
        seen = 0
        shuffled = self._rows[torch.randperm(len(self._rows), generator=self._order)]
        for rows in torch.split(shuffled, self.config.global_batch):
            images, labels = self.data.train_images[rows], self.data.train_labels[rows]
            lr = self.config.lr_at(self.step + 1)
            report = yield from self._take_step(self.replicas, images, labels, lr)
            seen += len(rows)
            self.step += 1
            self.epochs = epoch - 1 + seen / len(shuffled)
            self.seconds += sum(report.seconds.values())
            self.loss = sum(report.losses) / len(rows)
            if not self.loss <= EXPLODED:
                return False
            apart = None
            if self.reference is not None:
                yield from self._take_step(self.reference, images, labels, lr)
                apart = difference(self.replicas.ranks[0], self.reference.ranks[0])
            yield self._trained(report, apart)
            yield StepTaken(self.step, self.epochs)
        return True

    def _take_step(
        self, replicas: Replicas, images: Tensor, labels: Tensor, lr: float
    ) -> Generator[ShardDone, None, StepReport]:
        return replicas.step(
            images,
            labels,
            split=PARTITIONS[self.config.split],
            schedule=ALLREDUCE[self.config.allreduce](len(replicas.ranks)),
            lr=lr,
            momentum=self.config.momentum,
        )

    def _trained(self, report: StepReport, apart: float | None) -> MinibatchTrained:
        shards = zip(report.losses, report.rows, strict=True)
        return MinibatchTrained(
            step=self.step,
            epochs=self.epochs,
            loss=self.loss,
            seconds=self.seconds,
            phases=report.seconds,
            rows=tuple(report.rows),
            losses=tuple(loss / rows if rows else None for loss, rows in shards),
            norms=tuple(report.norms),
            norm=report.norm,
            drift=self.replicas.drift(),
            difference=apart,
        )


def evaluate(
    replica: Replica, data: FashionMNIST, images: int, epoch: int
) -> Generator[ImagesTested, None, Learnt]:
    """Classify test images, with running statistics in the batch norms.

    Args:
        replica: whose model classifies.
        data: where the images are.
        images: how many test images.
        epoch: epochs trained.

    Yields:
        An `ImagesTested` after every `EVALUATED_AT_ONCE` images.

    Returns:
        The probabilities of all classes for all of these images, and the first filters.
    """
    rows = data.test_rows(images)
    parts: list[Tensor] = []
    for some in torch.split(rows, EVALUATED_AT_ONCE):
        parts.append(predict(replica, data.test_images[some]).softmax(dim=1))
        yield ImagesTested(sum(map(len, parts)), images)
    filters = next(replica.module.parameters()).detach().squeeze(1).float().cpu().clone()
    return Learnt(epoch, rows, torch.cat(parts), filters)


def predict(replica: Replica, images: Tensor) -> Tensor:
    """Logits, float32 (n, 10) on the CPU, for images (n, 28, 28), uint8."""
    replica.module.eval()
    try:
        with torch.no_grad():
            logits: Tensor = replica.module(replica.prepare(images))
    finally:
        replica.module.train()
    return logits.float().cpu()


def _evaluated(run: _Run, epoch: int, learnt: Learnt) -> EpochEvaluated:
    labels = run.data.test_labels[learnt.images]
    pairs = labels * CLASSES + learnt.probabilities.argmax(dim=1)
    confusion = torch.bincount(pairs, minlength=CLASSES**2).view(CLASSES, CLASSES)
    return EpochEvaluated(
        epoch=epoch,
        step=run.step,
        accuracy=float(confusion.diagonal().sum()) / len(labels),
        confusion=tuple(tuple(row) for row in confusion.tolist()),
        seconds_per_epoch=run.seconds / epoch,
        images_per_second=epoch * run.config.images / run.seconds,
    )
