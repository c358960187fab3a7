"""What the ranks of an allreduce begin with: simple numbers, random ones, typed ones, a gradient.

The gradient is a real one: each rank's, for a layer of LeNet on its shard of a minibatch.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from labcore.config import refusal
from labcore.datasets.fashion_mnist import FashionMNIST
from labcore.models import LENET_NAMES, initialise
from labcore.replicas import Replica
from labcore.splitting import balanced, take

ROWS_PER_RANK = 4
"""Images in each rank's shard of the minibatch whose gradient is taken."""


def rank_plus_one(world_size: int, length: int) -> Tensor:
    """Rank r has r + 1 everywhere, so the notes' [[1, 1]] and [[2, 2]] for two; float32 (p, n)."""
    return torch.arange(1.0, world_size + 1).unsqueeze(1).repeat(1, length)


def standard_normal(world_size: int, length: int, seed: int) -> Tensor:
    """Numbers from N(0, 1), float32 (p, n); the same seed gives the same ones."""
    return torch.randn(world_size, length, generator=torch.Generator().manual_seed(seed))


def typed(rows: Sequence[Sequence[str]]) -> Tensor:
    """The numbers that a table's texts spell, a rank per row; float32 (p, n).

    Raises:
        ConfigError: a text that spells no finite number, with its place.
    """
    return torch.tensor(
        [
            [_number(text, rank, place) for place, text in enumerate(row)]
            for rank, row in enumerate(rows)
        ]
    )


def _number(text: str, rank: int, place: int) -> float:
    try:
        value = float(text.replace(",", "."))
    except ValueError:
        value = math.nan
    if not torch.tensor(value).isfinite():
        raise refusal(f"rank {rank}, element {place}", text, "a finite number", 1)
    return value


def lenet_gradient(world_size: int, tensor: str, seed: int, data: FashionMNIST) -> Tensor:
    """Each rank's gradient of the sum of its shard's losses, float32 (p, n): untrained LeNet.

    Args:
        world_size: number of ranks p, each with `ROWS_PER_RANK` images.
        tensor: which of LeNet's, a name in `LENET_NAMES`.
        seed: of the weights, and of which images the minibatch holds.
        data: the images.
    """
    generator = torch.Generator().manual_seed(seed)
    replica = Replica("lenet", torch.device("cpu"), torch.float32)
    initialise(replica.module, "torch", generator)
    place = LENET_NAMES.index(tensor)
    batch = ROWS_PER_RANK * world_size
    rows = torch.randperm(len(data.train_labels), generator=generator)[:batch]
    images, labels = data.train_images[rows], data.train_labels[rows]
    gradients = []
    for shard in balanced(batch, world_size):
        replica.clear()
        replica.backward(replica.forward(take(images, shard), take(labels, shard)))
        tensors = [each.grad for each in replica.module.parameters() if each.grad is not None]
        gradients.append(tensors[place].flatten().clone())
    return torch.stack(gradients)
