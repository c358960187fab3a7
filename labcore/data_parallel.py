"""Replicas that nn.DataParallel makes anew for every step, from the one that is kept.

It scatters a minibatch, copies the model to every GPU, gathers the logits on the first, and lets
the backward pass add up the gradients there. What the lab shows beside is told apart by its rows.

Source: torch.nn.DataParallel, which its own documentation advises against, in favour of
DistributedDataParallel; it is here to be compared.
"""

from collections.abc import Callable, Generator, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 (the name that everybody knows it by)

from labcore.events import ShardDone
from labcore.replicas import Replicas, StepReport
from labcore.schedules import Schedule
from labcore.splitting import Shard


class DataParallelReplicas(Replicas):
    """One replica, on the first of the GPUs, which nn.DataParallel copies to the others.

    Args:
        model, initialisation, generator: see `Replicas`.
        devices: a GPU for each copy, no two the same.
    """

    def __init__(
        self,
        model: str,
        devices: Sequence[torch.device],
        initialisation: str,
        generator: torch.Generator,
    ) -> None:
        super().__init__(model, devices[:1], initialisation, generator)
        self._copies = len(devices)
        gpus = [device.index for device in devices]
        self._parallel = nn.DataParallel(self.ranks[0].module, device_ids=gpus)

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
        """As `Replicas.step`; nobody sees the gradients of the copies, so their norms are NaN."""
        replica, report = self.ranks[0], StepReport()
        report.rows = [len(rows) for rows in split(len(labels), self._copies)]
        with self._timed(report, "split"):
            pixels, targets = replica.prepare(images), labels.to(replica.device)
        with self._timed(report, "forward"):
            replica.clear()
            each = F.cross_entropy(self._parallel(pixels), targets, reduction="none")
        self._finish(report, "forward")
        yield ShardDone("forward", 0, 1)
        with self._timed(report, "backward"):
            replica.backward(each.sum())
        self._finish(report, "backward")
        yield ShardDone("backward", 0, 1)
        report.losses = [float(own.sum()) for own in torch.split(each.detach(), report.rows)]
        report.norms = [float("nan")] * self._copies
        report.norm = float(replica.gradient.norm()) / len(labels)
        with self._timed(report, "update"):
            self.update(lr, momentum, len(labels))
        self._finish(report, "update")
        return report
