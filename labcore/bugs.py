"""Classic mistakes of data-parallel training, each as the one thing that it changes in a step.

A bug is a kind of `Replicas`: what it does not override is the real thing. To add one, define it
here and add it to `BUGS` at the bottom.

Source: the traps of the course notes' code; S. Li et al., PyTorch distributed: experiences on
accelerating data parallel training, 2020.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor

from labcore import schedules
from labcore.replicas import Replicas
from labcore.schedules import Schedule


class NotCopiedBack(Replicas):
    """Only rank 0 gets the sum: the others' part in the allreduce is played on copies."""

    @staticmethod
    def play(
        schedule: Schedule, buffers: Sequence[Tensor]
    ) -> Iterator[tuple[int, Sequence[Tensor]]]:
        """As `schedules.play`, but the results of all ranks from 1 are thrown away."""
        copies = [buffer.clone() for buffer in buffers[1:]]
        for number, _ in schedules.play(schedule, [buffers[0], *copies]):
            yield number, buffers


class Aliased(Replicas):
    """All ranks share one memory, as where tensor.to("cpu") meets what is on the CPU already.

    With the notes' algorithm the step is 2^(k−1) times too long on k ranks: the shards' gradients
    pile up in the one memory and are their sum; it is then added to itself k − 1 times. The notes'
    SGD clears the gradient after each rank's update, so only the first rank's update does anything.
    """

    def replicate(self) -> None:
        """Every rank is rank 0."""
        self.ranks = self.ranks[:1] * len(self.ranks)

    @staticmethod
    def play(
        schedule: Schedule, buffers: Sequence[Tensor]
    ) -> Iterator[tuple[int, Sequence[Tensor]]]:
        """Send after send, without `schedules.play`'s check that no two buffers overlap."""
        cells = [buffer.tensor_split(schedule.chunks) for buffer in buffers]
        for number, sends in enumerate(schedule.rounds):
            for send in sends:
                own, carried = cells[send.dst][send.chunk], cells[send.src][send.chunk]
                own.copy_(carried) if send.op == "copy" else own.add_(carried)
            yield number, buffers

    def update(self, lr: float, momentum: float, batch_size: int) -> None:
        """One SGD step on every rank, each of which clears the gradient, as the notes' SGD does."""
        for replica in self.ranks:
            replica.update(lr, momentum, batch_size)
            replica.clear()


class MeanOfMeans(Replicas):
    """The mean over the ranks of the means over their shards: rows of small shards count more."""

    reduction = "mean"

    def update(self, lr: float, momentum: float, batch_size: int) -> None:
        """One SGD step, along the gradient divided by the number of ranks."""
        super().update(lr, momentum, len(self.ranks))


class NotCleared(Replicas):
    """The gradient of a step is added to the sum that the last allreduce left on every rank."""

    def forward(self, rank: int, images: Tensor, labels: Tensor) -> Tensor:
        """A rank's loss on its shard; its gradient stays as it is."""
        return self.ranks[rank].forward(images, labels, self.reduction)


class NotDivided(Replicas):
    """The step goes along the sum of the gradients instead of their mean over the rows."""

    def update(self, lr: float, momentum: float, batch_size: int) -> None:
        """One SGD step along the gradient, whatever the minibatch's size."""
        super().update(lr, momentum, batch_size=1)


class DividedTwice(Replicas):
    """The gradient is divided by the minibatch's size, and in the update once more."""

    def update(self, lr: float, momentum: float, batch_size: int) -> None:
        """One SGD step along the mean gradient divided by the minibatch's size."""
        for replica in self.ranks:
            replica.gradient.div_(batch_size)
        super().update(lr, momentum, batch_size)


def _never(sizes: Sequence[int]) -> bool:
    return False


def _alone(sizes: Sequence[int]) -> bool:
    return len(sizes) == 1


def _even(sizes: Sequence[int]) -> bool:
    return len(set(sizes)) == 1


@dataclass(frozen=True)
class Bug:
    """An entry of `BUGS`.

    Attributes:
        label: what menus call it.
        what: the mistake, in a sentence.
        giveaway: what gives it away in the numbers of a step and in the curves.
        fix: the line that is missing or should be there instead.
        replicas: the replicas that make the mistake.
        harmless: whether it changes nothing, given the rows of each rank's shard.
    """

    label: str
    what: str
    giveaway: str
    fix: str
    replicas: type[Replicas]
    harmless: Callable[[Sequence[int]], bool] = _never


BUGS = {
    "not_copied_back": Bug(
        "the sum is not copied back",
        "The allreduce leaves the sum on rank 0; every other rank steps along its own gradient.",
        "Drift above 0 from the first step on. Rank 0's first step is right; the others' are too "
        "short and their own, for each has seen its shard only. The loss hardly falls.",
        'Send(0, rank, 0, "copy")',
        NotCopiedBack,
        _alone,
    ),
    "aliased": Bug(
        "replicas share one memory",
        'All replicas are the same tensors: tensor.to("cpu") copies nothing that is on the CPU.',
        "Drift exactly 0, yet with the central algorithm the first step is 2^(k−1) times too long: "
        "the sum is added to itself once for every rank from 1.",
        "other.flat.copy_(ranks[0].flat)",
        Aliased,
        _alone,
    ),
    "mean_of_means": Bug(
        "mean of the shards' means",
        "Every rank takes the mean over its own shard, and the ranks' gradients are averaged.",
        "Drift 0, steps of about the right length and a curve that looks fine, but a difference to "
        "one device far above rounding where shards are uneven. Where they are even, nothing.",
        'F.cross_entropy(logits, labels, reduction="sum")',
        MeanOfMeans,
        _even,
    ),
    "not_cleared": Bug(
        "gradients are not cleared",
        "The backward pass adds to the sum that the last step's allreduce left on every rank.",
        "Drift 0, and the first step is right. Then steps grow about k-fold each time, for the old "
        "sum is on all k ranks and is summed again; the loss soon explodes.",
        "self.ranks[rank].clear()",
        NotCleared,
    ),
    "not_divided": Bug(
        "no division by the batch size",
        "The step goes along the sum of the rows' gradients, as if the minibatch had one row.",
        "Drift 0, and the first step is too long by a factor of just the batch size, whatever the "
        "number of ranks.",
        "self.flat.add_(self.gradient, alpha=-lr / batch_size)",
        NotDivided,
    ),
    "divided_twice": Bug(
        "divided by the batch size twice",
        "The gradient is averaged over the rows already, and the update divides it once more.",
        "Drift 0, and the first step is too short by a factor of just the batch size: the loss "
        "hardly moves.",
        "self.flat.add_(self.gradient, alpha=-lr / batch_size)",
        DividedTwice,
    ),
}
