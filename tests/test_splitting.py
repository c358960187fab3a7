"""Splits: against what torch itself cuts."""

import inspect
from itertools import pairwise

import pytest
import torch
from torch import nn
from torch.utils.data import DistributedSampler

from labcore.config import ConfigError
from labcore.splitting import (
    PARTITIONS,
    SPLITS,
    balanced,
    chunk,
    missing,
    ranks_with,
    repeated,
    sampler,
    take,
    weighted,
)

RANKS = [*range(1, 18), 64]
# Around every multiple that matters for up to 17 ranks, and the sizes of real minibatches.
ROWS = [*range(70), 96, 256, 1000]

every_split = pytest.mark.parametrize("split", SPLITS.values(), ids=SPLITS.keys())
every_partition = pytest.mark.parametrize("split", PARTITIONS.values(), ids=PARTITIONS.keys())
every_world_size = pytest.mark.parametrize("world_size", RANKS)


def listed(chunks):
    return [each.tolist() for each in chunks]


def spread(rows, drop_last=False):
    """Splits `rows` on up to 16 ranks as DistributedSampler does, without a data loader."""
    for world_size in range(1, 17):
        samplers = (
            DistributedSampler(range(rows), world_size, rank, shuffle=False, drop_last=drop_last)
            for rank in range(world_size)
        )
        yield world_size, [list(each) for each in samplers]


@every_world_size
def test_chunk_cuts_as_torch_chunk_and_leaves_the_last_ranks_empty(world_size):
    for rows in ROWS:
        cut = listed(torch.arange(rows).chunk(world_size))
        expected = cut + [[]] * (world_size - len(cut))
        assert [list(shard) for shard in chunk(rows, world_size)] == expected


@every_world_size
def test_chunk_cuts_as_nn_parallel_scatter(world_size):
    for rows in ROWS:
        cut = listed(nn.parallel.scatter(torch.arange(rows), [-1] * world_size))
        expected = cut + [[]] * (world_size - len(cut))
        assert [list(shard) for shard in chunk(rows, world_size)] == expected


@every_world_size
def test_balanced_cuts_as_torch_tensor_split(world_size):
    for rows in ROWS:
        expected = listed(torch.arange(rows).tensor_split(world_size))
        assert [list(shard) for shard in balanced(rows, world_size)] == expected


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("rows", range(41))
def test_sampler_deals_as_torch_distributed_sampler(rows, drop_last):
    for world_size, expected in spread(rows, drop_last):
        assert [list(shard) for shard in sampler(rows, world_size, drop_last)] == expected


def test_sampler_pads_as_often_as_needed():
    assert [list(shard) for shard in sampler(2, 7)] == [[0], [1], [0], [1], [0], [1], [0]]


@every_world_size
def test_weighted_at_any_equal_speeds_is_balanced(world_size):
    for rows in ROWS:
        for speeds in (None, [1] * world_size, [0.1] * world_size, [1e300] * world_size):
            assert weighted(rows, world_size, speeds) == balanced(rows, world_size)


@pytest.mark.parametrize("seed", range(20))
def test_weighted_gives_every_rank_its_share_up_to_one_row(seed):
    generator = torch.Generator().manual_seed(seed)
    for rows in ROWS:
        speeds = torch.rand(7, generator=generator, dtype=torch.float64) + 1e-3
        sizes = torch.tensor([len(shard) for shard in weighted(rows, 7, speeds.tolist())])
        assert ((sizes - rows * speeds / speeds.sum()).abs() < 1).all()


@pytest.mark.parametrize("seed", range(20))
def test_weighted_is_as_close_to_the_shares_as_whole_rows_can_be(seed):
    speeds = torch.rand(3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    shares = 9 * speeds / speeds.sum()
    ways = [torch.tensor([a, b, 9 - a - b]) for a in range(10) for b in range(10 - a)]
    best = min(ways, key=lambda sizes: float((sizes - shares).square().sum()))
    assert [len(shard) for shard in weighted(9, 3, speeds.tolist())] == best.tolist()


@pytest.mark.parametrize("speeds", [[5e-324, 1.7e308], [1, 10**400]], ids=["floats", "whole"])
def test_weighted_takes_speeds_of_any_magnitude(speeds):
    assert weighted(10, 2, speeds) == [range(0), range(10)]


@every_split
@every_world_size
def test_every_rank_has_a_shard(split, world_size):
    assert {len(split(rows, world_size)) for rows in ROWS} == {world_size}


@every_partition
@every_world_size
def test_every_row_goes_to_exactly_one_rank(split, world_size):
    for rows in ROWS:
        assert [row for shard in split(rows, world_size) for row in shard] == list(range(rows))


@pytest.mark.parametrize(
    ("split", "rows", "world_size", "sizes"),
    [
        (chunk, 5, 4, [2, 2, 1, 0]),
        (chunk, 10, 4, [3, 3, 3, 1]),
        (balanced, 10, 4, [3, 3, 2, 2]),
        (balanced, 5, 4, [2, 1, 1, 1]),
        (chunk, 96, 13, [8] * 12 + [0]),
        (lambda rows, ranks: weighted(rows, ranks, [3, 1, 1]), 10, 3, [6, 2, 2]),
        (lambda rows, ranks: weighted(rows, ranks, [4.7, 2.6, 2.7]), 10, 3, [5, 2, 3]),
        (lambda rows, ranks: weighted(rows, ranks, [9, 1]), 1, 2, [1, 0]),
    ],
)
def test_sizes_worked_by_hand(split, rows, world_size, sizes):
    assert [len(shard) for shard in split(rows, world_size)] == sizes


def test_sampler_deals_five_rows_to_four_ranks_by_hand():
    assert [list(shard) for shard in sampler(5, 4)] == [[0, 4], [1, 0], [2, 1], [3, 2]]
    assert [list(shard) for shard in sampler(5, 4, drop_last=True)] == [[0], [1], [2], [3]]


@every_partition
def test_the_notes_example_gives_each_device_two_rows(split):
    matrix = torch.arange(12).reshape(4, 3)
    first, second = (take(matrix, shard) for shard in split(4, 2))
    assert first.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert second.tolist() == [[6, 7, 8], [9, 10, 11]]


@every_partition
def test_taking_a_shard_copies_nothing(split):
    minibatch = torch.zeros(13, 3)
    for shard in split(13, 4):
        take(minibatch, shard).fill_(1)
    assert minibatch.min() == 1


def test_taking_every_fourth_row_copies_nothing():
    minibatch = torch.zeros(12, 3)
    for shard in sampler(12, 4):
        take(minibatch, shard).fill_(1)
    assert minibatch.min() == 1


@every_split
@every_world_size
def test_shards_are_ranges_exactly_where_they_are_evenly_spaced(split, world_size):
    for rows in ROWS:
        for shard in split(rows, world_size):
            steps = {after - before for before, after in pairwise(shard)}
            even = len(steps) < 2 and min(steps, default=1) > 0
            assert isinstance(shard, range if even else tuple)


@pytest.mark.parametrize("shard", [range(1, 5, 2), (4, 0, 4), (), range(3, 3)], ids=str)
def test_taking_gives_the_rows_in_order(shard):
    minibatch = torch.arange(10).reshape(5, 2)
    assert take(minibatch, shard).tolist() == [minibatch[row].tolist() for row in shard]


@every_split
@pytest.mark.parametrize("rows", [-1, 2.5, float("nan"), "5", None])
def test_impossible_row_counts_are_refused(split, rows):
    with pytest.raises(ConfigError, match=r"rows must be a whole number from 0; .* Try 256\."):
        split(rows, 2)


@every_split
@pytest.mark.parametrize("world_size", [0, -1, 2.0, "2", None])
def test_impossible_world_sizes_are_refused(split, world_size):
    with pytest.raises(ConfigError, match=r"world_size must be a whole number from 1; .* Try 4\."):
        split(5, world_size)


@pytest.mark.parametrize(
    "speeds",
    [[1, 2], [1, 1, 1, 1], [], [1, 0, 1], [1, -1, 1], [1, float("nan"), 1], [1, float("inf"), 1],
     [1, "2", 1], [1, None, 1]],
    ids=str,
)  # fmt: skip
def test_impossible_speeds_are_refused(speeds):
    rule = r"speeds must be 3 positive numbers, one per rank; .* Try \[1\.0, 1\.0, 1\.0\]\."
    with pytest.raises(ConfigError, match=rule):
        weighted(10, 3, speeds)


@every_world_size
def test_only_partitions_use_every_row_exactly_once_for_any_number_of_rows(world_size):
    exact = {
        name
        for name, split in SPLITS.items()
        if all(
            not repeated(split(rows, world_size)) and not missing(split(rows, world_size), rows)
            for rows in ROWS
        )
    }
    assert exact == (set(SPLITS) if world_size == 1 else set(PARTITIONS))


def test_repeated_rows_are_told_with_their_number_of_uses():
    assert repeated(sampler(5, 4)) == {0: 2, 1: 2, 2: 2}
    assert list(repeated([(3, 1), range(4), (1, 0)]).items()) == [(0, 2), (1, 3), (3, 2)]


def test_missing_rows_are_told():
    assert missing(sampler(11, 4, drop_last=True), 11) == [8, 9, 10]
    assert missing([(4, 1)], 5) == [0, 2, 3]


def test_ranks_without_rows_and_with_a_single_one_are_told():
    assert ranks_with(0, chunk(5, 4)) == [3]
    assert ranks_with(1, chunk(5, 4)) == [2]


@every_split
def test_every_split_has_a_caption_and_a_source(split):
    caption, *_, source = inspect.getdoc(split).split("\n\n")
    assert caption.endswith(".")
    assert "\n" not in caption
    assert source.startswith("Source: ")
