"""What a trace says about every round is what the schedule does to the vectors."""

import pytest
import torch

from labcore.collectives import ALLREDUCE, ring
from labcore.schedules import play
from labcore.trace import VALUES_SHOWN, trace

RANKS = (1, 2, 3, 5, 8, 16, 64)
every_algorithm = pytest.mark.parametrize("algorithm", ALLREDUCE.values(), ids=ALLREDUCE.keys())


def vectors(ranks, length=6):
    return torch.arange(1.0, ranks + 1).unsqueeze(1) * torch.arange(1.0, length + 1)


def held(told, after):
    """Every cell after so many rounds."""
    cells = [*told.start, *(cell for frame in told.frames[:after] for cell in frame.cells)]
    return {(cell.rank, cell.chunk): cell for cell in cells}


@every_algorithm
@pytest.mark.parametrize("ranks", RANKS)
def test_at_the_end_every_cell_holds_every_rank_once(algorithm, ranks):
    told = trace(algorithm(ranks), vectors(ranks))
    assert {cell.parts for cell in held(told, len(told.frames)).values()} == {2**ranks - 1}


@every_algorithm
def test_every_round_shows_the_values_that_playing_leaves(algorithm):
    schedule, buffers = algorithm(5), list(vectors(5, 20))
    told = trace(schedule, torch.stack(buffers))
    bounds = schedule.bounds(20)
    for number, _ in play(schedule, buffers):
        for (rank, chunk), cell in held(told, number + 1).items():
            part = buffers[rank][bounds[chunk].start : bounds[chunk].stop]
            assert cell.values == tuple(part[:VALUES_SHOWN].tolist())


@every_algorithm
def test_a_cell_is_the_sum_of_the_ranks_that_it_names(algorithm):
    # Powers of two: a sum says by itself whose parts are in it.
    values = torch.pow(2.0, torch.arange(6.0)).unsqueeze(1).repeat(1, 12)
    told = trace(algorithm(6), values)
    for after in range(len(told.frames) + 1):
        for cell in held(told, after).values():
            assert set(cell.values) <= {float(cell.parts)}


@every_algorithm
def test_what_is_traced_stays_as_it_was_and_the_sum_is_the_sum(algorithm):
    values = vectors(5)
    told = trace(algorithm(5), values)
    assert torch.equal(values, vectors(5))
    assert torch.equal(told.final, values.sum(0).expand(5, -1))


def test_the_sentence_the_message_and_the_state_agree():
    frame = trace(ring(4), torch.tensor([[1.0], [2.0], [3.0], [4.0]]).repeat(1, 4)).frames[1]
    assert frame.sentence == (
        "Rank 0 sends chunk 2 to rank 1, which adds: 1 + 2 = 3 of 4 ranks’ parts, in numbers "
        "2 + 5 = 7. 3 other messages at the same time."
    )
    assert frame.code == "cells[1][2].add_(cells[0][2])"
    assert frame.cells[0].count == 3
    assert frame.cells[0].values == (7.0,)


def test_a_copy_is_called_a_copy():
    last = trace(ring(2), vectors(2)).frames[-1]
    assert "which keeps a copy: the sum over all 2 ranks." in last.sentence
    assert last.code == "cells[1][0].copy_(cells[0][0])"


def test_rounded_numbers_are_not_added_up_in_words():
    told = trace(ring(2), torch.tensor([[0.1], [0.2]]))
    assert not any("in numbers" in frame.sentence for frame in told.frames)


@pytest.mark.parametrize("length", [0, 1, 1000])
def test_vectors_may_be_empty_shorter_or_longer_than_the_chunks(length):
    told = trace(ring(4), vectors(4, length))
    assert told.final.shape == (4, length)


def test_more_ranks_than_bits_are_refused():
    with pytest.raises(ValueError, match="at most 64; received 65 ranks"):
        trace(ring(65), torch.ones(65, 1))
