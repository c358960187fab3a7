"""Splits: against what torch itself cuts."""

import inspect

import pytest
import torch
from torch import nn

from labcore.config import ConfigError
from labcore.splitting import SPLITS, balanced, chunk, take

RANKS = [*range(1, 18), 64]
# Around every multiple that matters for up to 17 ranks, and the sizes of real minibatches.
ROWS = [*range(70), 96, 256, 1000]

every_split = pytest.mark.parametrize("split", SPLITS.values(), ids=SPLITS.keys())
every_world_size = pytest.mark.parametrize("world_size", RANKS)


def listed(chunks):
    return [each.tolist() for each in chunks]


@every_world_size
def test_chunk_cuts_as_torch_chunk_and_leaves_the_last_ranks_empty(world_size):
    for rows in ROWS[1:]:
        cut = listed(torch.arange(rows).chunk(world_size))
        expected = cut + [[]] * (world_size - len(cut))
        assert [list(shard) for shard in chunk(rows, world_size)] == expected


@every_world_size
def test_chunk_cuts_as_nn_parallel_scatter(world_size):
    for rows in ROWS[1:]:
        shards = [list(shard) for shard in chunk(rows, world_size) if shard]
        assert shards == listed(nn.parallel.scatter(torch.arange(rows), [-1] * world_size))


@every_world_size
def test_balanced_cuts_as_torch_tensor_split(world_size):
    for rows in ROWS:
        expected = listed(torch.arange(rows).tensor_split(world_size))
        assert [list(shard) for shard in balanced(rows, world_size)] == expected


@every_split
@every_world_size
def test_every_rank_has_a_shard(split, world_size):
    assert {len(split(rows, world_size)) for rows in ROWS} == {world_size}


@every_split
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
    ],
)
def test_sizes_worked_by_hand(split, rows, world_size, sizes):
    assert [len(shard) for shard in split(rows, world_size)] == sizes


@every_split
def test_the_notes_example_gives_each_device_two_rows(split):
    matrix = torch.arange(12).reshape(4, 3)
    first, second = (take(matrix, shard) for shard in split(4, 2))
    assert first.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert second.tolist() == [[6, 7, 8], [9, 10, 11]]


@every_split
def test_taking_a_shard_copies_nothing(split):
    minibatch = torch.zeros(13, 3)
    for shard in split(13, 4):
        take(minibatch, shard).fill_(1)
    assert minibatch.min() == 1


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


@every_split
def test_every_split_has_a_caption_and_a_source(split):
    caption, *_, source = inspect.getdoc(split).split("\n\n")
    assert caption.endswith(".")
    assert "\n" not in caption
    assert source.startswith("Source: ")
