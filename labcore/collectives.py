"""Allreduce: every rank gives a vector, and every rank ends with the sum of all.

An algorithm is data, not execution: a function from the number of ranks to a `Schedule`. In each
round of each of them a rank sends one message at most, and receives one at most. The algorithms
along trees are in `trees`.

To add an algorithm, define its function here and add it to `ALLREDUCE` at the bottom. The first
line of its docstring is its caption, the last paragraph its source.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import chain

from labcore.schedules import Op, Phase, Round, Schedule, Send
from labcore.trees import broadcast, double_tree, tree


def central(world_size: int) -> Schedule:
    """Everything is added into rank 0, one rank after another; then rank 0 is copied to all.

    Args:
        world_size: number of ranks p, from 1.

    Returns:
        2 (p − 1) rounds of one send of the whole vector; rank 0 has a part in every one.

    Raises:
        ConfigError: the world size is no whole number from 1.

    Source: A. Zhang et al., Dive into Deep Learning, section 13.5, 2023
    """
    others = range(1, world_size)
    gather = tuple((Send(rank, 0, 0),) for rank in others)
    spread = tuple((Send(0, rank, 0, "copy"),) for rank in others)
    return Schedule(
        world_size,
        1,
        (
            Phase("gather", "Rank 0 adds every other rank's vector to its own.", gather),
            Phase("copy back", "Rank 0 sends the sum to every other rank.", spread),
        ),
    )


def reduce_scatter(world_size: int) -> Schedule:
    """Around a ring, every rank collects the sum of one chunk: rank r ends with that of chunk r.

    Args:
        world_size: number of ranks p, from 1.

    Returns:
        p − 1 rounds of p sends, of one p-th of the vector each: chunk c starts at rank c + 1 and
        collects the others' parts on its way to rank c. What else the ranks hold at the end is
        partial sums, of no use to anyone.

    Raises:
        ConfigError: the world size is no whole number from 1.

    Source: P. Patarasuk and X. Yuan, Bandwidth optimal all-reduce algorithms for clusters of
    workstations, J. Parallel Distrib. Comput. 69, 2009
    """
    ranks = range(world_size)
    why = "Each chunk travels once around the ring and collects every rank's part."
    rounds = _around(ranks, _apart(ranks), "reduce")
    return Schedule(world_size, world_size, (Phase("reduce-scatter", why, rounds),))


def allgather(world_size: int) -> Schedule:
    """Around a ring, every rank passes on the chunks that it has: all end with all of them.

    Args:
        world_size: number of ranks p, from 1.

    Returns:
        p − 1 rounds of p sends, of one p-th of the vector each: chunk r starts at rank r.

    Raises:
        ConfigError: the world size is no whole number from 1.

    Source: P. Patarasuk and X. Yuan, Bandwidth optimal all-reduce algorithms for clusters of
    workstations, J. Parallel Distrib. Comput. 69, 2009
    """
    ranks = range(world_size)
    why = "The finished chunks travel once more around the ring, and everyone keeps a copy."
    rounds = _around(ranks, _apart(ranks), "copy")
    return Schedule(world_size, world_size, (Phase("allgather", why, rounds),))


def ring(world_size: int) -> Schedule:
    """Every rank sends one chunk to its neighbour at a time: once around to add, once to copy.

    Args:
        world_size: number of ranks p, from 1.

    Returns:
        2 (p − 1) rounds of p sends, of one p-th of the vector each: `reduce_scatter`, after which
        rank r holds the sum of chunk r, then `allgather`.

    Raises:
        ConfigError: the world size is no whole number from 1.

    Source: P. Patarasuk and X. Yuan, Bandwidth optimal all-reduce algorithms for clusters of
    workstations, J. Parallel Distrib. Comput. 69, 2009
    """
    halves = reduce_scatter(world_size).phases + allgather(world_size).phases
    return Schedule(world_size, world_size, halves)


def ring_2d(world_size: int) -> Schedule:
    """Ranks form a rectangle: rings along its rows sum blocks, rings along its columns finish them.

    Args:
        world_size: number of ranks p, from 1: r rows of c ≥ r ranks, as near to a square as p's
            factors allow. A prime number is one row, and the rounds are those of `ring`.

    Returns:
        2 (c − 1) + 2 (r − 1) rounds of p messages. In the first and last c − 1 a message is a block
        of r chunks, to the neighbour in the row; between them it is one chunk, to the neighbour in
        the column. A chunk is one p-th of the vector.

    Raises:
        ConfigError: the world size is no whole number from 1.

    Source: H. Mikami et al., Massively distributed SGD: ImageNet/ResNet-50 training in a flash,
    2018 (2D-torus all-reduce)
    """
    divisors = [each for each in range(1, world_size + 1) if world_size % each == 0]
    height = max((each for each in divisors if each * each <= world_size), default=1)
    width = world_size // height
    rows = [range(row * width, (row + 1) * width) for row in range(height)]
    columns = [range(column, world_size, width) for column in range(width)]
    blocks = [range(column * height, (column + 1) * height) for column in range(width)]

    def along_rows(op: Op) -> tuple[Round, ...]:
        return _at_once(_around(row, blocks, op) for row in rows)

    def along_columns(op: Op) -> tuple[Round, ...]:
        pairs = zip(columns, blocks, strict=True)
        return _at_once(_around(column, _apart(block), op) for column, block in pairs)

    phases = (
        Phase(
            "reduce-scatter in rows",
            "Each block travels once around the ring of every row and collects the row's parts.",
            along_rows("reduce"),
        ),
        Phase(
            "reduce-scatter in columns",
            "Ranks of a column hold the same block of different rows; its chunks travel once "
            "around the column and collect them all.",
            along_columns("reduce"),
        ),
        Phase(
            "allgather in columns",
            "The finished chunks travel once around their column: all of it have the whole block.",
            along_columns("copy"),
        ),
        Phase(
            "allgather in rows",
            "The finished blocks travel once around every row, and everyone keeps a copy.",
            along_rows("copy"),
        ),
    )
    return Schedule(world_size, world_size, phases)


def recursive_doubling(world_size: int) -> Schedule:
    """Pairs exchange their vectors and add, then pairs of pairs and so on: nothing is copied back.

    Args:
        world_size: number of ranks p, from 1. The q ranks of the largest power of two do the work;
            each other one hands its vector to one of them first, and gets the sum last.

    Returns:
        log₂ q rounds of q sends of the whole vector, and two more unless p = q. Both ranks of a
        pair add the same two numbers, so all end bitwise equal.

    Raises:
        ConfigError: the world size is no whole number from 1.

    Source: R. Thakur, R. Rabenseifner and W. Gropp, Optimization of collective communication
    operations in MPICH, Int. J. High Perform. Comput. Appl. 19, 2005
    """
    phases = []
    for distance in _distances(world_size):
        why = (
            f"Ranks at distance {distance} exchange all that they have; both add the same two, so "
            f"groups of {2 * distance} agree."
        )
        exchange = tuple(Send(rank, rank ^ distance, 0) for rank in range(_core(world_size)))
        phases.append(Phase(f"exchange, distance {distance}", why, (exchange,)))
    return _folded(world_size, 1, phases)


def halving_doubling(world_size: int) -> Schedule:
    """Ranks exchange and add halves of halves until each has one chunk, then double them again.

    Args:
        world_size: number of ranks p, from 1. The q ranks of the largest power of two do the work;
            each other one hands its vector to one of them first, and gets the sum last.

    Returns:
        2 log₂ q rounds of q messages, and two more unless p = q. At distance d a message is d
        chunks, of one q-th of the vector each: first q / 2, at last 1, and back.

    Raises:
        ConfigError: the world size is no whole number from 1.

    Source: R. Rabenseifner, Optimization of collective reduction operations, ICCS 2004
    """
    core = _core(world_size)
    halving, doubling = [], []
    for distance in _distances(world_size):
        pairs = [(rank, rank ^ distance) for rank in range(core)]
        why = (
            f"Ranks at distance {distance} exchange halves of what they are responsible for; each "
            "adds the half that it keeps."
        )
        sends = tuple(
            Send(rank, other, chunk) for rank, other in pairs for chunk in _block(other, distance)
        )
        halving.append(Phase(f"reduce-scatter, distance {distance}", why, (sends,)))
        why = (
            f"Ranks at distance {distance} exchange the sums that they have; each then has twice "
            "as many."
        )
        sends = tuple(
            Send(rank, other, chunk, "copy")
            for rank, other in pairs
            for chunk in _block(rank, distance)
        )
        doubling.append(Phase(f"allgather, distance {distance}", why, (sends,)))
    return _folded(world_size, core, [*reversed(halving), *doubling])


def _around(ranks: Sequence[int], blocks: Sequence[Sequence[int]], op: Op) -> tuple[Round, ...]:
    """Rounds in which every block of chunks travels around a ring of ranks, all at the same time.

    Block b stops at the b-th rank after it has collected everyone's part ("reduce"), or starts
    there and leaves a copy everywhere ("copy").
    """
    size, start = len(ranks), 1 if op == "reduce" else 0
    return tuple(
        tuple(
            Send(rank, ranks[(place + 1) % size], chunk, op)
            for place, rank in enumerate(ranks)
            for chunk in blocks[(place - start - step) % size]
        )
        for step in range(size - 1)
    )


def _apart(chunks: Iterable[int]) -> list[tuple[int]]:
    """Each chunk as a block of its own."""
    return [(chunk,) for chunk in chunks]


def _at_once(rings: Iterable[tuple[Round, ...]]) -> tuple[Round, ...]:
    """The rounds of several rings that do not meet, side by side."""
    return tuple(tuple(chain.from_iterable(sends)) for sends in zip(*rings, strict=True))


def _distances(world_size: int) -> list[int]:
    """1, 2, 4 and so on, below the largest power of two that the world size reaches."""
    return [1 << bit for bit in range(world_size.bit_length() - 1)]


def _core(world_size: int) -> int:
    """The largest power of two that the world size reaches."""
    return 1 << len(_distances(world_size))


def _block(rank: int, size: int) -> range:
    """The chunks that a rank is responsible for while they are `size`: chunk `rank` among them."""
    first = rank // size * size
    return range(first, first + size)


def _folded(world_size: int, chunks: int, phases: Iterable[Phase]) -> Schedule:
    """Phases for the ranks of the core, between what lets all others take part."""
    core = _core(world_size)
    pairs = [(rank, rank - core) for rank in range(core, world_size)]
    fold = tuple(Send(extra, rank, c) for extra, rank in pairs for c in range(chunks))
    unfold = tuple(Send(rank, extra, c, "copy") for extra, rank in pairs for c in range(chunks))
    if not pairs:
        return Schedule(world_size, chunks, tuple(phases))
    return Schedule(
        world_size,
        chunks,
        (
            Phase(
                "fold",
                f"{core} is the largest power of two: each rank from {core} on hands its vector to "
                f"the one {core} below, and waits.",
                (fold,),
            ),
            *phases,
            Phase("unfold", "Each rank that waited gets the sum from the same one.", (unfold,)),
        ),
    )


ALLREDUCE: dict[str, Callable[[int], Schedule]] = {
    each.__name__: each
    for each in (
        central,
        tree,
        ring,
        recursive_doubling,
        halving_doubling,
        ring_2d,
        double_tree,
    )
}
COLLECTIVES: dict[str, Callable[[int], Schedule]] = {
    each.__name__: each for each in (reduce_scatter, allgather, broadcast)
}
"""Other collective operations, each by one algorithm; the first two are the halves of `ring`."""
