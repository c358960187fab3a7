"""Splits: which rows of a minibatch each rank works on.

A split is data: per rank a shard, its row indices in order. A `range` where they are evenly spaced,
so that `take` is a view and copies nothing; a tuple of indices where they are not. A rank may get
no rows, and only a partition uses every row exactly once; see `repeated` and `missing`.

To add a split, define its function here and add it at the bottom: to `PARTITIONS` if it is one, for
only with those do k devices take the step of one, else to `SPLITS`. The first line of its docstring
is its caption, the last paragraph its source.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import accumulate, chain, pairwise

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


def weighted(rows: int, world_size: int, speeds: Sequence[float] | None = None) -> list[range]:
    """Blocks in proportion to the ranks' speeds, so that all ranks finish at about the same time.

    Every rank gets its share rows · speed / Σ speeds rounded down, and the rows that are left over
    go one by one to the ranks that lost most, of equals to the first.

    Args:
        rows: rows in the minibatch, from 0.
        world_size: number of ranks, from 1.
        speeds: one per rank, in any unit, such as rows per second; by default all the same.

    Returns:
        `world_size` ranges; 10 rows at speeds 3, 1 and 1 are 6, 2 and 2. A slow rank may get
        nothing. At equal speeds the same as `balanced`.

    Raises:
        ConfigError: a number is not whole or too small, a speed not positive and finite, or there
            is not one speed per rank.

    Source: Hamilton's method of largest remainders; M. Balinski and H. Young, Fair representation,
    1982
    """
    _check(rows, world_size)
    _check_speeds(speeds, world_size)
    # Exact, so that equal speeds stay equal and sizes add up, whatever the speeds' magnitudes.
    exact = [Fraction(1 if speeds is None else speeds[rank]) for rank in range(world_size)]
    total = sum(exact)
    shares = [rows * speed / total for speed in exact]
    sizes = [math.floor(share) for share in shares]
    most_lost = sorted(range(world_size), key=lambda rank: sizes[rank] - shares[rank])
    for rank in most_lost[: rows - sum(sizes)]:
        sizes[rank] += 1
    return _between(list(accumulate(sizes, initial=0)))


def sampler(rows: int, world_size: int, drop_last: bool = False) -> list[Shard]:
    """Rows dealt out in turn like cards, all ranks as many: some rows are used twice, or dropped.

    Rank r gets rows r, r + p, r + 2p, … of p ranks.

    Args:
        rows: rows in the minibatch, from 0.
        world_size: number of ranks p, from 1.
        drop_last: leave out the rows that would not go round, instead of going on from row 0, as
            often as needed, until they do.

    Returns:
        `world_size` shards of the same length; 5 rows on 4 ranks are (0, 4), (1, 0), (2, 1) and
        (3, 2), or without the last row (0), (1), (2) and (3). Strided ranges where nothing wraps.

    Raises:
        ConfigError: a number is not whole or too small.

    Source: torch.utils.data.DistributedSampler(shuffle=False)
    """
    _check(rows, world_size)
    size = rows // world_size if drop_last else -(-rows // world_size)
    turns = [range(rank, rank + size * world_size, world_size) for rank in range(world_size)]
    return [_wrapped(turn, rows) for turn in turns]


def take(minibatch: Tensor, shard: Shard) -> Tensor:
    """The rows of `minibatch` that `shard` names: a view for a range, else a copy."""
    if isinstance(shard, range):
        return minibatch[shard.start : shard.stop : shard.step]
    return minibatch[list(shard)]


def repeated(shards: Sequence[Shard]) -> dict[int, int]:
    """The rows that are used more than once, in order, each with how often."""
    uses = Counter(chain.from_iterable(shards))
    return {row: count for row, count in sorted(uses.items()) if count > 1}


def missing(shards: Sequence[Shard], rows: int) -> list[int]:
    """Those of so many rows that no rank gets, in order."""
    return sorted(set(range(rows)).difference(*shards))


def ranks_with(size: int, shards: Sequence[Shard]) -> list[int]:
    """The ranks whose shards have so many rows: 0 finds those that idle."""
    return [rank for rank, shard in enumerate(shards) if len(shard) == size]


def _between(edges: list[int]) -> list[range]:
    return [range(start, stop) for start, stop in pairwise(edges)]


def _wrapped(turn: range, rows: int) -> Shard:
    """Positions that go on from row 0 after the last one, as rows."""
    if len(turn) == 1:
        return range(turn.start % rows, turn.start % rows + 1)
    if turn and turn[-1] >= rows:
        return tuple(position % rows for position in turn)
    return turn


def _check(rows: int, world_size: int) -> None:
    if not isinstance(rows, int) or rows < 0:
        raise refusal("rows", rows, "a whole number from 0", 256)
    if not isinstance(world_size, int) or world_size < 1:
        raise refusal("world_size", world_size, "a whole number from 1", 4)


def _check_speeds(speeds: Sequence[float] | None, world_size: int) -> None:
    if speeds is None:
        return
    numbers = all(isinstance(each, int | float) and 0 < each < math.inf for each in speeds)
    if not numbers or len(speeds) != world_size:
        works = repr([1.0] * world_size)
        raise refusal("speeds", speeds, f"{world_size} positive numbers, one per rank", works)


PARTITIONS: dict[str, Callable[[int, int], Sequence[Shard]]] = {
    each.__name__: each for each in (chunk, balanced, weighted)
}
"""The splits that use every row exactly once, as training must."""
SPLITS: dict[str, Callable[[int, int], Sequence[Shard]]] = {**PARTITIONS, "sampler": sampler}
"""All of them."""
