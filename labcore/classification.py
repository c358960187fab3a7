"""Image classification on 1…k devices: a data-parallel run is a generator of events."""

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from labcore import checkpoints
from labcore.collectives import ALLREDUCE
from labcore.config import Config, ConfigError, choice, format_fields, number, refusal
from labcore.data_parallel import DataParallelReplicas
from labcore.datasets import fashion_mnist
from labcore.datasets.fashion_mnist import FashionMNIST
from labcore.evaluation import evaluate, judge
from labcore.events import (
    ClassificationEvent,
    ClassifierTrained,
    Diverged,
    MinibatchTrained,
    ShardDone,
    Started,
    StepTaken,
)
from labcore.launch import run_on_processes
from labcore.models import INITIALISATIONS, MODELS
from labcore.replicas import Replicas, StepReport, difference, place
from labcore.splitting import PARTITIONS, weighted

EXPLODED = 1e4
"""A mean loss from which no run comes back: guessing costs 2.3. Units that die on the way may bring
it down again, but the network stays at chance."""


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
    engine: str = choice(
        "engine",
        "logical",
        {
            "logical": "replicas in one process",
            "processes": "a process per device",
            "dataparallel": "nn.DataParallel",
        },
        help="What runs the replicas. A process per device is PyTorch's DistributedDataParallel, "
        "which sums the gradients with gloo on CPUs and nccl on GPUs, whatever the allreduce; each "
        "process takes 300 MB of memory, and seconds to start. nn.DataParallel needs a GPU for "
        "each device.",
    )
    batch_norm: str = choice(
        "batch norm",
        "local",
        {"local": "over each shard", "synchronised": "over the whole minibatch"},
        help="What batch norms average over while they are trained. Over the whole minibatch is "
        "SyncBatchNorm, which PyTorch has for a process per device, on GPUs only.",
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
        if self.batch_norm != "local" and self.engine != "processes":
            what, allowed = f"{self.name}: batch_norm", "local unless the engine is processes"
            raise refusal(what, self.batch_norm, allowed, "local")
        if self.split != "chunk" and self.engine == "dataparallel":
            what, allowed = f"{self.name}: split", "chunk with nn.DataParallel, which cuts so"
            raise refusal(what, self.split, allowed, "chunk")

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
    config: ClassificationConfig,
    data: FashionMNIST | None = None,
    *,
    checkpoint: Path | None = None,
    timeout: float | None = None,
) -> Generator[ClassificationEvent, None, None]:
    """Train as `config` says, on its engine, and report every step.

    Args:
        config: the run.
        data: the images; by default what `fashion_mnist.load` finds.
        checkpoint: for the engine processes, the file in which the run is kept after every epoch
            and when it is closed before its end, and from which it goes on where there is one.
        timeout: seconds after which processes that show no sign of life are given up; by default
            `patience(config)`.

    Yields:
        `Started`; per step a `ShardDone` after each replica's pass, `MinibatchTrained` and
        `StepTaken`; per epoch `ImagesTested`, `EpochEvaluated` and `Learnt`; at last
        `ClassifierTrained`, or `Diverged` once the loss is beyond `EXPLODED` or no number.
        On processes also a `ProcessesAwaited` wherever they have nothing new, `Resumed` after
        `Started`, and `Checkpointed`.

    Raises:
        ConfigError: this machine cannot run it so; at the call.
        CheckpointError: it belongs to another run, is damaged, or cannot be there; at the call.
        DataError: the images are not there, damaged, or fewer than the config asks for.
        WorkerError: a process could not start, ended early or hung.
    """
    check_machine(config)
    if checkpoint is not None:
        _check_checkpoint(config, checkpoint)
    if config.engine == "processes":
        data = data or fashion_mnist.load()
        data.train_rows(config.images)  # refuses here what every process would refuse
        limit = patience(config) if timeout is None else timeout
        return run_on_processes(config, config.replicas, data, checkpoint=checkpoint, timeout=limit)
    return _train_here(config, data)


def check_machine(config: ClassificationConfig) -> None:
    """Refuse an engine for which this machine lacks the GPUs.

    Raises:
        ConfigError: it does.
    """
    gpus = torch.cuda.device_count()
    if config.engine == "dataparallel" and config.replicas > gpus:
        allowed = f"logical or processes where there is no GPU for each device (here are {gpus}): "
        allowed += "without, nn.DataParallel runs a single copy and does not say so"
        raise refusal(f"{config.name}: engine", config.engine, allowed, "processes")
    if config.batch_norm == "synchronised" and gpus == 0:
        allowed = "local on a CPU, which SyncBatchNorm refuses"
        raise refusal(f"{config.name}: batch_norm", config.batch_norm, allowed, "local")


def _check_checkpoint(config: ClassificationConfig, checkpoint: Path) -> None:
    if config.engine != "processes":
        allowed = "processes for a run with a checkpoint"
        raise refusal(f"{config.name}: engine", config.engine, allowed, "processes")
    checkpoints.check_place(checkpoint)
    if checkpoint.exists():
        checkpoints.load(checkpoint, format_fields(config))


def patience(config: ClassificationConfig) -> float:
    """Seconds without a sign of life after which a process counts as hanging.

    A minute, to start or to test 250 images, and for its shard's images ten times what the largest
    model takes for them on one slow core.
    """
    return 60 + 0.25 * math.ceil(config.global_batch / config.replicas)


def _train_here(
    config: ClassificationConfig, data: FashionMNIST | None
) -> Generator[ClassificationEvent, None, None]:
    """Train in this process."""
    run = _Run(config, data or fashion_mnist.load())
    yield Started(config.epochs * config.steps_per_epoch, config.steps_per_epoch, None, None)
    accuracy = 0.0
    for epoch in range(1, config.epochs + 1):
        if not (yield from run.train_epoch(epoch)):
            loss = run.loss if math.isfinite(run.loss) else None
            yield Diverged(run.step, run.epochs, config.lr_at(run.step), None, loss)
            return
        learnt = yield from evaluate(run.replicas.ranks[0], run.data, config.test_images, epoch)
        labels = run.data.test_labels[learnt.images]
        evaluated = judge(learnt, labels, run.step, run.seconds, config.images)
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
        if self.config.engine == "dataparallel":
            return DataParallelReplicas(
                self.config.model, devices, self.config.initialisation, weights
            )
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
