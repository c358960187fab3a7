"""Collective operations along trees: sums climb from the leaves to a root, results come down.

Trees need the fewest rounds, but while a whole vector moves along one tree, most links are idle.
`double_tree` keeps them busy: chunks follow one another, along two trees at once.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from labcore.schedules import Phase, Round, Schedule, Send

CHUNKS_PER_TREE = 8
"""In `double_tree`. A round carries less with more chunks, but there are more rounds to start: 16
ranks add ResNet-18's 45 MB over PCIe in 11 ms with 8 and in 10 ms with 16; LeNet's 0.5 MB take 0.4
and 0.6 ms."""


def broadcast(world_size: int) -> Schedule:
    """Rank 0's vector goes to all others; every round doubles the number of ranks that have it.

    Args:
        world_size: number of ranks p, from 1.

    Returns:
        ⌈log₂ p⌉ rounds of sends of the whole vector, the farthest first; rank 0 has a part in
        every one. What the other ranks had is overwritten.

    Raises:
        ConfigError: the world size is no whole number from 1.

    Source: binomial tree in R. Thakur, R. Rabenseifner and W. Gropp, Optimization of collective
    communication operations in MPICH, Int. J. High Perform. Comput. Appl. 19, 2005
    """
    rounds = tuple(
        tuple(Send(parent, child, 0, "copy") for parent, child in pairs)
        for pairs in reversed(_binomial_pairs(world_size))
    )
    why = "In every round, each rank that has the vector sends it to one that has not."
    return Schedule(world_size, 1, (Phase("broadcast", why, rounds),))


def tree(world_size: int) -> Schedule:
    """Partial sums are added in pairs, pairs of pairs and so on into rank 0, which is broadcast.

    Args:
        world_size: number of ranks p, from 1.

    Returns:
        2 ⌈log₂ p⌉ rounds of sends of the whole vector; rank 0 has a part in every one, and sends
        ⌈log₂ p⌉ times.

    Raises:
        ConfigError: the world size is no whole number from 1.

    Source: binomial tree in R. Thakur, R. Rabenseifner and W. Gropp, Optimization of collective
    communication operations in MPICH, Int. J. High Perform. Comput. Appl. 19, 2005
    """
    rounds = tuple(
        tuple(Send(child, parent, 0) for parent, child in pairs)
        for pairs in _binomial_pairs(world_size)
    )
    why = "In every round, half of the ranks that hold partial sums hand theirs over and are done."
    return Schedule(world_size, 1, (Phase("reduce", why, rounds), *broadcast(world_size).phases))


def double_tree(world_size: int) -> Schedule:
    """Chunks go up and down two binary trees in turn; who is a leaf in one is a node in the other.

    Args:
        world_size: number of ranks p, from 1.

    Returns:
        Rounds of sends of one chunk each: a 16th of the vector, even chunks along the one tree and
        odd ones along the other. A rank sends at most four messages per two chunks, so twice the
        vector in all: up to 4 × `CHUNKS_PER_TREE` rounds, and 5 ⌈log₂ p⌉ more in which the trees
        fill and drain.

    Raises:
        ConfigError: the world size is no whole number from 1.

    Source: P. Sanders, J. Speck and J. L. Träff, Two-tree algorithms for full bandwidth broadcast,
    reduction and scan, Parallel Comput. 35, 2009; trees of NCCL 2.4, rounds filled greedily
    """
    one = _binary_tree(world_size)
    # Odd ranks are the leaves. Mirroring or, for an odd number, shifting makes the even ones it.
    shifted = world_size % 2
    moved = [(r + 1) % world_size if shifted else world_size - 1 - r for r in range(world_size)]
    other = {moved[child]: moved[parent] for child, parent in one.items()}
    rounds = tuple(_pipelined(world_size, [one, other] * CHUNKS_PER_TREE))
    ops = [{send.op for send in sends} for sends in rounds]
    start = next((number for number, each in enumerate(ops) if "copy" in each), 0)
    stop = sum("reduce" in each for each in ops)
    phases = (
        Phase("reduce", "The first chunks are summed on their way up both trees.", rounds[:start]),
        Phase(
            "reduce and broadcast",
            "Sums that are complete come down while later chunks still go up.",
            rounds[start:stop],
        ),
        Phase("broadcast", "The last sums come down, and everyone keeps a copy.", rounds[stop:]),
    )
    return Schedule(world_size, 2 * CHUNKS_PER_TREE, phases)


def _binomial_pairs(world_size: int) -> list[list[tuple[int, int]]]:
    """(parent, child) at distance 1, then at distance 2, 4 and so on: a list for each distance."""
    distances = [1 << bit for bit in range((world_size - 1).bit_length())]
    return [
        [(rank, rank + distance) for rank in range(0, world_size - distance, 2 * distance)]
        for distance in distances
    ]


def _binary_tree(world_size: int) -> dict[int, int]:
    """Each rank's parent but the root's, rank 0: ranks between their children in order.

    A rank's height is the number of zeros that its binary form ends in, so odd ranks are leaves.
    For its parent the last 1 moves up by one place or, where there is no such rank, is dropped.
    """
    parents = {}
    for rank in range(1, world_size):
        lowest = rank & -rank
        upper = (rank - lowest) | 2 * lowest
        parents[rank] = upper if upper < world_size else rank - lowest
    return parents


def _pipelined(world_size: int, trees: Sequence[Mapping[int, int]]) -> Iterator[Round]:
    """Rounds that take every chunk up its tree to the root, where it is summed, and down again.

    A round is filled with the sends whose data are there, in order of urgency, as long as no rank
    sends or receives twice: first what goes up, since nothing comes down before; of that, the
    first chunks. The order of adding follows from that, and is the same on every call.

    Args:
        world_size: number of ranks.
        trees: for each chunk every rank's parent but the root's.
    """
    below: list[list[list[int]]] = [[[] for _ in range(world_size)] for _ in trees]
    for chunk, parents in enumerate(trees):
        for child, parent in parents.items():
            below[chunk][parent].append(child)
    missing = [[len(children) for children in ranks] for ranks in below]
    ready = [
        Send(rank, parent, chunk)
        for chunk, parents in enumerate(trees)
        for rank, parent in parents.items()
        if not missing[chunk][rank]
    ]
    while ready:
        urgent = sorted(ready, key=lambda each: (each.op == "copy", each.chunk, each.src, each.dst))
        now, ready = _one_each(urgent)
        yield now
        for send in now:
            chunk, rank = send.chunk, send.dst
            if send.op == "reduce":
                missing[chunk][rank] -= 1
                if missing[chunk][rank]:
                    continue
                if rank in trees[chunk]:
                    ready.append(Send(rank, trees[chunk][rank], chunk))
                    continue
            ready += [Send(rank, child, chunk, "copy") for child in below[chunk][rank]]


def _one_each(sends: Iterable[Send]) -> tuple[Round, list[Send]]:
    """As many of the sends as go at once if a rank sends and receives one at most, and the rest."""
    now: list[Send] = []
    later: list[Send] = []
    senders: set[int] = set()
    receivers: set[int] = set()
    for send in sends:
        if send.src in senders or send.dst in receivers:
            later.append(send)
        else:
            now.append(send)
            senders.add(send.src)
            receivers.add(send.dst)
    return tuple(now), later
