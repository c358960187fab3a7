"""One rank's replica under DistributedDataParallel: what it does in a step, and how all fared.

The gradient is right for any shards. DDP takes the mean of the ranks' gradients, so each rank steps
on the sum of its shard's losses × world size / rows of the whole minibatch: the mean of those is
the gradient of the mean loss. A mean loss per rank would weigh the rows of a small shard more.

DDP sums the gradients in buckets while the backward pass goes on. "allreduce" is what that takes
beyond the backward pass, with the time for which this rank waits for the others.

Source: S. Li et al., PyTorch distributed: experiences on accelerating data parallel training, 2020.
"""

from collections.abc import Callable, Generator
from dataclasses import dataclass
from time import perf_counter

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch._C._distributed_c10d import GradBucket
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn import functional as F  # noqa: N812 (the name that everybody knows it by)
from torch.nn.parallel import DistributedDataParallel

from labcore.events import ShardDone
from labcore.meeting import Meeting
from labcore.replicas import PHASES, Replica


@dataclass(frozen=True, slots=True)
class RanksReport:
    """What a step did on all ranks; the same on each.

    Attributes:
        rows: images per rank.
        losses: sum of the losses on each rank's shard.
        norms: of each rank's gradient before the allreduce, over the minibatch's size.
        norm: of the gradient after it, likewise.
        phases: seconds by phase of each rank.
        drift: largest difference of a parameter to rank 0's.
        stop: whether any rank was asked to stop.
    """

    rows: tuple[int, ...]
    losses: tuple[float, ...]
    norms: tuple[float, ...]
    norm: float
    phases: tuple[dict[str, float], ...]
    drift: float
    stop: bool


class RankReplica:
    """This rank's replica, which DDP keeps equal to the others'.

    Args:
        replica: the model; rank 0's parameters and buffers become everybody's.
        meeting: of all ranks.
        synchronised: batch norms average over all ranks' shards; torch has that for GPUs only.
        handed: called when this rank has done its part of a step's gradient, from any thread.
    """

    def __init__(
        self,
        replica: Replica,
        meeting: Meeting,
        synchronised: bool,
        handed: Callable[[], object],
    ) -> None:
        self.replica = replica
        self._meeting = meeting
        self._handed = handed
        self._squares: list[Tensor] = []
        self._handed_at = 0.0
        if synchronised:
            replica.module = _synchronised(replica.module)
        self._loss = DistributedDataParallel(_ShardLoss(replica, synchronised))
        self._loss.register_comm_hook(self, RankReplica._allreduce)

    def step(
        self,
        images: Tensor,
        labels: Tensor,
        batch: int,
        split_seconds: float,
        stop: bool,
        *,
        lr: float,
        momentum: float,
    ) -> Generator[ShardDone, None, RanksReport]:
        """One step on this rank's shard.

        Args:
            images: of the shard, (n, 28, 28), uint8; n may be 0.
            labels: (n,), int64.
            batch: rows of the whole minibatch.
            split_seconds: that it took to cut the shard.
            stop: whether this rank is asked to stop.
            lr: learning rate.
            momentum: share of the velocity kept.

        Yields:
            This rank's `ShardDone` after its forward and its backward pass.

        Returns:
            What the step did on all ranks.
        """
        rank, world_size = self._meeting.rank, self._meeting.world_size
        self._squares.clear()
        started = self._now()
        self.replica.clear()
        loss = self._loss(images, labels)
        forward = self._now() - started
        yield ShardDone("forward", rank, world_size)
        started = self._now()
        (loss * (world_size / batch)).backward()
        # On a GPU the work may still be in its queue when it is handed on.
        handed, ended = self._handed_at, self._now()
        yield ShardDone("backward", rank, world_size)
        norm = float(self.replica.gradient.norm())
        updating = self._now()
        self.replica.update(lr, momentum, 1)
        seconds = (split_seconds, forward, handed - started, ended - handed, self._now() - updating)
        own_norm = float(torch.stack(self._squares).sum().sqrt()) / world_size
        return self._report(len(labels), float(loss.detach()), own_norm, norm, seconds, stop)

    def _report(
        self,
        rows: int,
        loss: float,
        own_norm: float,
        norm: float,
        seconds: tuple[float, ...],
        stop: bool,
    ) -> RanksReport:
        # One message for all of it, since each costs all ranks some time.
        high, low = divmod(self._fingerprint(), 1 << 32)
        told = self._meeting.gather([rows, loss, own_norm, stop, high, low, *seconds])
        return RanksReport(
            rows=tuple(int(each[0]) for each in told),
            losses=tuple(each[1] for each in told),
            norms=tuple(each[2] for each in told),
            norm=norm,
            phases=tuple(dict(zip(PHASES, each[6:], strict=True)) for each in told),
            drift=self._drift() if any(each[4:6] != told[0][4:6] for each in told) else 0.0,
            stop=any(each[3] for each in told),
        )

    def _fingerprint(self) -> int:
        """A number that equal parameters, bit for bit, have in common, and others hardly."""
        return int(self.replica.flat.view(torch.int32).sum(dtype=torch.int64))

    def _drift(self) -> float:
        first = self.replica.flat.clone()
        dist.broadcast(first, 0)
        apart = float((self.replica.flat - first).abs().max())
        return max(each for [each] in self._meeting.gather([apart]))

    def share_buffers(self) -> None:
        """Take over the running statistics of rank 0, as DDP does before every step."""
        for buffer in self.replica.module.buffers():
            dist.broadcast(buffer, 0)

    def _allreduce(self, bucket: GradBucket) -> torch.futures.Future[Tensor]:
        """DDP's own allreduce of a bucket, after a look at what this rank brings along."""
        gradient = bucket.buffer()
        self._squares.append(torch.dot(gradient, gradient))
        if bucket.is_last():
            self._handed_at = self._now()
            self._handed()
        return allreduce_hook(None, bucket)  # type: ignore[arg-type]

    def _now(self) -> float:
        """The time when the GPU, if there is one, has done all that it was given."""
        if self.replica.device.type == "cuda":
            torch.cuda.synchronize(self.replica.device)
        return perf_counter()


def _synchronised(module: nn.Module) -> nn.Module:
    """The same model, with the same parameters, whose batch norms average over all ranks."""
    convert: Callable[[nn.Module], nn.Module] = nn.SyncBatchNorm.convert_sync_batchnorm
    return convert(module)


class _ShardLoss(nn.Module):
    """Images and labels of a shard to the sum of its losses: what DDP wraps."""

    def __init__(self, replica: Replica, synchronised: bool) -> None:
        super().__init__()
        self.module = replica.module
        self._replica = replica
        self._synchronised = synchronised

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        if len(labels) == 0 and not self._synchronised:
            # Batch norm refuses no rows, and yet every parameter must take part in the allreduce.
            return torch.stack([(each * 0).sum() for each in self.module.parameters()]).sum()
        logits = self.module(self._replica.prepare(images))
        return F.cross_entropy(logits, labels.to(self._replica.device), reduction="sum")
