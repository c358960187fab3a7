"""Splits: which rows of a minibatch each rank works on.

A split is data: per rank a shard, its row indices in order. A `range` where they are evenly spaced,
so that `take` is a view and copies nothing; a tuple of indices where they are not. A rank may get
no rows, and a split need not use every row exactly once.

To add a split, define its function here and add it to `SPLITS` at the bottom. The first line of its
docstring is its caption, the last paragraph its source.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise

from torch import Tensor

from labcore.config import refusal

Shard = range | tuple[int, ...]


def chunk(rows: int, world_size: int) -> list[range]:
    """Blocks of ⌈rows / ranks⌉, as nn.parallel.scatter cuts them: the last ranks may get nothing.

    Args:
        rows: rows in the minibatch, from 0.
        world_size: number of ranks, from 1.

    Returns:
        `world_size` ranges. Where torch returns fewer chunks than asked for, the rest is empty:
        5 rows on 4 ranks are 2, 2, 1 and 0, and 10 are 3, 3, 3 and 1.

    Raises:
        ConfigError: a number is not whole or too small.

    Source: torch.chunk, torch.nn.parallel.scatter
    """
    _check(rows, world_size)
    size = -(-rows // world_size)
    edges = [min(rank * size, rows) for rank in range(world_size + 1)]
    return _between(edges)


def balanced(rows: int, world_size: int) -> list[range]:
    """Blocks as even as they can be: the first rows mod ranks of them hold one row more.

    Args:
        rows: rows in the minibatch, from 0.
        world_size: number of ranks, from 1.

    Returns:
        `world_size` ranges; 10 rows on 4 ranks are 3, 3, 2 and 2.

    Raises:
        ConfigError: a number is not whole or too small.

    Source: torch.tensor_split, numpy.array_split
    """
    _check(rows, world_size)
    size, longer = divmod(rows, world_size)
    edges = [rank * size + min(rank, longer) for rank in range(world_size + 1)]
    return _between(edges)


def take(minibatch: Tensor, shard: Shard) -> Tensor:
    """The rows of `minibatch` that `shard` names: a view for a range, else a copy."""
    if isinstance(shard, range):
        return minibatch[shard.start : shard.stop : shard.step]
    return minibatch[list(shard)]


def _between(edges: list[int]) -> list[range]:
    return [range(start, stop) for start, stop in pairwise(edges)]


def _check(rows: int, world_size: int) -> None:
    if not isinstance(rows, int) or rows < 0:
        raise refusal("rows", rows, "a whole number from 0", 256)
    if not isinstance(world_size, int) or world_size < 1:
        raise refusal("world_size", world_size, "a whole number from 1", 4)


SPLITS: dict[str, Callable[[int, int], Sequence[Shard]]] = {
    each.__name__: each for each in (chunk, balanced)
}
