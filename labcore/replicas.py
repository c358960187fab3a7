"""k full copies of a model in flat memory: each takes its shard, and all take the same step.

One data-parallel step: every replica computes the sum of its shard's losses and its gradients; the
gradients are allreduced; every replica takes the same SGD step with the gradient divided by the
size of the whole minibatch. So k replicas take the step that one would, whatever the shards.

Source: M. Li et al., Scaling distributed machine learning with the parameter server, 2014; S. Li et
al., PyTorch distributed: experiences on accelerating data parallel training, 2020.
"""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 (the name that everybody knows it by)

from labcore.events import ShardDone
from labcore.models import MODELS, initialise
from labcore.schedules import Schedule, play
from labcore.splitting import Shard, take


@dataclass(frozen=True)
class Placement:
    """Where each replica lives, and that in words."""

    devices: tuple[torch.device, ...]

    @property
    def words(self) -> str:
        """One sentence that says what the replicas are."""
        count = len(self.devices)
        replicas = "1 replica" if count == 1 else f"{count} replicas"
        kinds = {device.type for device in self.devices}
        if kinds == {"cpu"}:
            sharing = "" if count == 1 else ", which share its cores: same arithmetic, no speed-up"
            return f"{replicas} on the CPU (logical{sharing})"
        used = len(set(self.devices))
        if used == count:
            return f"{replicas} on {used} GPU{'s' * (used > 1)}, one each"
        return f"{replicas} on {used} GPU{'s' * (used > 1)} in turn: some share one"


def place(world_size: int) -> Placement:
    """One replica per CUDA device where there are enough, else in turn, else all on the CPU."""
    gpus = torch.cuda.device_count()
    if gpus == 0:
        return Placement((torch.device("cpu"),) * world_size)
    return Placement(tuple(torch.device("cuda", rank % gpus) for rank in range(world_size)))


class Replica:
    """One copy of a model whose parameters and gradients are views of one flat tensor each.

    Images and convolutions have their channels innermost in memory, which CPUs and GPUs prefer.

    Attributes:
        module: the model; its parameters' memory is `flat`, their gradients' is `gradient`.
        flat: all parameters, (P,).
        gradient: all gradients, (P,).
        velocity: the momentum's memory, (P,); None until the first update with momentum.
    """

    def __init__(self, model: str, device: torch.device, dtype: torch.dtype) -> None:
        self.device = device
        self.dtype = dtype
        # Without memory, so without a draw from torch's shared random generator either.
        with torch.device("meta"):
            self.module = MODELS[model].build()
        size = sum(parameter.numel() for parameter in self.module.parameters())
        self.flat = torch.zeros(size, device=device, dtype=dtype)
        self.gradient = torch.zeros_like(self.flat)
        self.velocity: Tensor | None = None
        self._lay_out()

    def _lay_out(self) -> None:
        """Move the module's parameters, gradients and buffers out of nowhere into memory."""
        start = 0
        for module in self.module.modules():
            for name, parameter in list(module.named_parameters(recurse=False)):
                end = start + parameter.numel()
                moved = nn.Parameter(_view(self.flat[start:end], parameter.shape))
                moved.grad = _view(self.gradient[start:end], parameter.shape)
                setattr(module, name, moved)
                start = end
            for name, buffer in module.named_buffers(recurse=False):
                dtype = self.dtype if buffer.is_floating_point() else buffer.dtype
                setattr(module, name, torch.zeros(buffer.shape, dtype=dtype, device=self.device))
            if isinstance(module, nn.BatchNorm2d):
                module.reset_running_stats()

    def prepare(self, images: Tensor) -> Tensor:
        """Pixels (n, 28, 28), uint8, as the model takes them: (n, 1, 28, 28) in [0, 1]."""
        moved = images.to(self.device, non_blocking=True).unsqueeze(1)
        return moved.to(self.dtype, memory_format=torch.channels_last).div_(255)

    def clear(self) -> None:
        """Set the gradient to zeros: a backward pass adds to what is there."""
        self.gradient.zero_()

    def forward(self, images: Tensor, labels: Tensor, reduction: str = "sum") -> Tensor:
        """Sum of a shard's cross-entropy losses, a scalar with its graph; 0 without images.

        Args:
            images: (n, 28, 28), uint8, on any device.
            labels: (n,), int64, on any device.
            reduction: "sum", or "mean" for the mean of the losses.
        """
        if len(labels) == 0:
            return self.flat.new_zeros(())
        targets = labels.to(self.device, non_blocking=True)
        return F.cross_entropy(self.module(self.prepare(images)), targets, reduction=reduction)

    def backward(self, loss: Tensor) -> None:
        """Add the gradients of a loss from `forward` to `gradient`."""
        if loss.requires_grad:
            loss.backward()  # type: ignore[no-untyped-call]

    def update(self, lr: float, momentum: float, batch_size: int) -> None:
        """One SGD step along `gradient`, a sum over the minibatch, divided by its size."""
        if momentum == 0:
            self.flat.add_(self.gradient, alpha=-lr / batch_size)
            return
        if self.velocity is None:
            self.velocity = torch.zeros_like(self.flat)
        self.velocity.mul_(momentum).add_(self.gradient, alpha=1 / batch_size)
        self.flat.add_(self.velocity, alpha=-lr)

    def state(self) -> dict[str, list[Tensor]]:
        """What the next step depends on; the tensors are the replica's own, not copies."""
        return {
            "parameters": [self.flat],
            "velocity": [] if self.velocity is None else [self.velocity],
            "buffers": list(self.module.buffers()),
        }

    def restore(self, state: Mapping[str, Sequence[Tensor]]) -> None:
        """Go back to a state of the same model, whose tensors are copied."""
        self.velocity = torch.zeros_like(self.flat) if state["velocity"] else None
        for name, own in self.state().items():
            for mine, theirs in zip(own, state[name], strict=True):
                mine.copy_(theirs)


def _view(memory: Tensor, shape: torch.Size) -> Tensor:
    """A piece of flat memory as a parameter; a convolution's kernel with its channels innermost."""
    if len(shape) != 4:
        return memory.view(shape)
    outputs, inputs, height, width = shape
    return memory.view(outputs, height, width, inputs).permute(0, 3, 1, 2)


def difference(one: Replica, other: Replica) -> float:
    """Largest absolute difference of a parameter between two replicas."""
    return float((one.flat - other.flat.to(one.device)).abs().max())


PHASES = ("split", "forward", "backward", "allreduce", "update")


@dataclass
class StepReport:
    """What one step did, filled in as it goes on.

    Attributes:
        rows: images in each replica's shard.
        losses: sum of each shard's losses.
        norms: each replica's gradient norm before the allreduce.
        norm: the gradient's norm after it, the same on every replica; both divided by the batch.
        seconds: time by phase, in the order of `PHASES`.
    """

    rows: list[int] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    norm: float = 0.0
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))


class Replicas:
    """Replicas that start equal and are kept equal by the allreduce of each step.

    Args:
        model: a name in `MODELS`.
        devices: where each replica lives.
        initialisation: a name in `INITIALISATIONS`.
        generator: from which the weights are drawn, on the CPU.
        dtype: of parameters and gradients.
    """

    reduction: ClassVar[str] = "sum"
    """What becomes of a shard's losses: their sum, so that it does not matter who has which row."""
    play = staticmethod(play)
    """How a schedule is executed on the gradients."""

    def __init__(
        self,
        model: str,
        devices: Sequence[torch.device],
        initialisation: str,
        generator: torch.Generator,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.ranks = [Replica(model, device, dtype) for device in devices]
        initialise(self.ranks[0].module, initialisation, generator)
        self.replicate()

    def replicate(self) -> None:
        """Copy the parameters of rank 0 into the memory of every other rank."""
        for other in self.ranks[1:]:
            other.flat.copy_(self.ranks[0].flat)

    def step(
        self,
        images: Tensor,
        labels: Tensor,
        *,
        split: Callable[[int, int], Sequence[Shard]],
        schedule: Schedule,
        lr: float,
        momentum: float,
    ) -> Generator[ShardDone, None, StepReport]:
        """One data-parallel step on a minibatch.

        Args:
            images: (b, 28, 28), uint8.
            labels: (b,), int64.
            split: which rows each replica works on.
            schedule: how the gradients are summed over the replicas.
            lr: learning rate.
            momentum: share of the velocity kept; 0 is plain SGD.

        Yields:
            A `ShardDone` after every replica's forward and backward pass, so that a slow step can
            be left in between.

        Returns:
            What the step did.
        """
        report, batch = StepReport(), len(labels)
        with self._timed(report, "split"):
            shards = self.split(images, labels, split)
            report.rows = [len(own) for _, own in shards]
        losses = []
        for rank, shard in enumerate(shards):
            with self._timed(report, "forward"):
                losses.append(self.forward(rank, *shard))
            yield ShardDone("forward", rank, len(self.ranks))
        self._finish(report, "forward")
        for rank, (replica, loss) in enumerate(zip(self.ranks, losses, strict=True)):
            with self._timed(report, "backward"):
                replica.backward(loss)
            yield ShardDone("backward", rank, len(self.ranks))
        self._finish(report, "backward")
        report.losses = [loss.item() for loss in losses]
        report.norms = [float(replica.gradient.norm()) / batch for replica in self.ranks]
        with self._timed(report, "allreduce"):
            self.allreduce(schedule)
        self._finish(report, "allreduce")
        report.norm = float(self.ranks[0].gradient.norm()) / batch
        with self._timed(report, "update"):
            self.update(lr, momentum, batch)
        self._finish(report, "update")
        return report

    def split(
        self, images: Tensor, labels: Tensor, split: Callable[[int, int], Sequence[Shard]]
    ) -> list[tuple[Tensor, Tensor]]:
        """Each rank's images and labels."""
        shards = split(len(labels), len(self.ranks))
        return [(take(images, rows), take(labels, rows)) for rows in shards]

    def forward(self, rank: int, images: Tensor, labels: Tensor) -> Tensor:
        """A rank's loss on its shard, with its gradient cleared for the backward pass."""
        self.ranks[rank].clear()
        return self.ranks[rank].forward(images, labels, self.reduction)

    def allreduce(self, schedule: Schedule) -> None:
        """Sum the gradients over the ranks; every rank gets the sum."""
        for _ in self.play(schedule, [replica.gradient for replica in self.ranks]):
            pass

    def update(self, lr: float, momentum: float, batch_size: int) -> None:
        """One SGD step on every rank, along its gradient divided by the minibatch's size."""
        for replica in self.ranks:
            replica.update(lr, momentum, batch_size)

    @contextmanager
    def _timed(self, report: StepReport, phase: str) -> Iterator[None]:
        """Add the time of a block to a phase."""
        started = perf_counter()
        yield
        report.seconds[phase] += perf_counter() - started

    def _finish(self, report: StepReport, phase: str) -> None:
        """Wait until the GPUs' queues are empty, once all replicas' work is in them."""
        with self._timed(report, phase):
            for device in {replica.device for replica in self.ranks}:
                if device.type == "cuda":
                    torch.cuda.synchronize(device)

    def drift(self) -> float:
        """Largest difference of a parameter between any replica and replica 0: 0 if all is well."""
        apart = [difference(self.ranks[0], other) for other in self.ranks[1:]]
        # Not Python's max, which passes over what is no number.
        return float(torch.tensor([0.0, *apart], dtype=torch.float64).max())
