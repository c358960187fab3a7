"""Schedules: what a round does, worked by hand, and what is refused."""

import pytest
import torch

from labcore.config import ConfigError
from labcore.schedules import Phase, Schedule, Send, allreduce, play


def of_rounds(world_size, chunks, *rounds):
    """A schedule of one phase."""
    return Schedule(world_size, chunks, (Phase("test", "It is a test.", rounds),))


def draw(world_size, length):
    """A vector per rank."""
    generator = torch.Generator().manual_seed(world_size * 1009 + length)
    return list(torch.randn(world_size, length, generator=generator))


def exchange(*pairs):
    return tuple(Send(src, dst, 0) for a, b in pairs for src, dst in ((a, b), (b, a)))


def after_each_round(schedule, *values):
    buffers = [torch.tensor(each) for each in values]
    return [[b.tolist() for b in current] for _, current in play(schedule, buffers)]


THRICE = (exchange((0, 1)),) * 3


# Rounds


def test_the_rounds_are_numbered_from_0():
    numbers = [number for number, _ in play(of_rounds(2, 1, *THRICE), draw(2, 8))]
    assert numbers == [0, 1, 2]


def test_playing_hands_out_the_callers_buffers():
    buffers = draw(2, 3)
    assert all(current is buffers for _, current in play(of_rounds(2, 1, *THRICE), buffers))


def test_nothing_changes_before_the_first_round_is_asked_for():
    buffers = [torch.ones(1), torch.ones(1)]
    play(of_rounds(2, 1, *THRICE), buffers)
    assert buffers[0].item() == 1


def test_ranks_that_exchange_add_what_the_other_had_before():
    assert after_each_round(of_rounds(2, 1, exchange((0, 1))), [1], [10]) == [[[11], [11]]]


def test_ranks_can_swap():
    swap = (Send(0, 1, 0, "copy"), Send(1, 0, 0, "copy"))
    assert after_each_round(of_rounds(2, 1, swap), [1], [10]) == [[[10], [1]]]


def test_values_do_not_travel_two_links_in_one_round():
    chain = (Send(0, 1, 0), Send(1, 2, 0), Send(2, 3, 0))
    assert after_each_round(of_rounds(4, 1, chain), [1], [10], [100], [1000]) == [
        [[1], [11], [110], [1100]]
    ]


def test_a_chunk_sent_twice_after_it_changed_is_sent_as_it_was():
    sends = (Send(0, 1, 0), Send(1, 2, 0), Send(1, 3, 0))
    assert after_each_round(of_rounds(4, 1, sends), [1], [10], [100], [1000]) == [
        [[1], [11], [110], [1010]]
    ]


def test_several_ranks_can_send_to_one_in_a_round():
    sends = (Send(1, 0, 0), Send(2, 0, 0), Send(3, 0, 0))
    assert after_each_round(of_rounds(4, 1, sends), [1], [10], [100], [1000]) == [
        [[1111], [10], [100], [1000]]
    ]


def test_arrivals_are_taken_in_in_the_order_of_the_round():
    sends = (Send(1, 0, 0), Send(2, 0, 0))
    backwards = sends[::-1]
    values = [2.0**53], [1.0], [-(2.0**53)]
    results = [
        after_each_round(of_rounds(3, 1, each), *map(list, values))[0][0]
        for each in (sends, backwards)
    ]
    assert results == [[0.0], [1.0]]


def test_only_the_chunk_that_is_sent_changes():
    assert after_each_round(of_rounds(2, 2, (Send(0, 1, 1),)), [1, 2, 3], [10, 20, 30]) == [
        [[1, 2, 3], [10, 20, 33]]
    ]


def test_only_what_changes_too_early_is_set_aside():
    # Send 0→1 leaves before rank 0 changes, so only rank 1's chunk needs a copy.
    assert of_rounds(2, 1, exchange((0, 1)))._overwritten == (frozenset({(1, 0)}),)


def test_ranks_that_add_the_same_two_numbers_stay_bitwise_equal():
    # Recursive doubling: no chunk is computed once only, yet all ranks agree.
    rounds = (exchange((0, 1), (2, 3)), exchange((0, 2), (1, 3)))
    buffers = draw(4, 1000)
    allreduce(of_rounds(4, 1, *rounds), buffers)
    first, *others = [buffer.view(torch.uint8) for buffer in buffers]
    assert all(torch.equal(first, other) for other in others)


@pytest.mark.parametrize("length", [0, 1, 3, 4, 5, 1000])
def test_chunks_are_cut_as_torch_tensor_split(length):
    cut = torch.arange(length).tensor_split(4)
    assert [list(part) for part in of_rounds(4, 4).bounds(length)] == [
        part.tolist() for part in cut
    ]


# Phases


def test_rounds_are_those_of_all_phases_in_order():
    first, second = (Send(0, 1, 0),), (Send(1, 0, 0, "copy"),)
    phases = (Phase("one", "", (first, second)), Phase("two", "", (second,)))
    assert Schedule(2, 1, phases).rounds == (first, second, second)


def test_a_phase_without_rounds_is_dropped():
    phase = Phase("one", "", ((Send(0, 1, 0),),))
    assert Schedule(2, 1, (Phase("none", "", ()), phase)).phases == (phase,)


def test_schedules_of_equal_phases_are_equal():
    assert of_rounds(2, 1, *THRICE) == of_rounds(2, 1, *THRICE)
    assert of_rounds(2, 1, *THRICE) != of_rounds(2, 1, *THRICE[1:])


# What is refused


@pytest.mark.parametrize("world_size", [0, -3, 2.0, "4"])
def test_impossible_world_sizes_are_refused(world_size):
    with pytest.raises(ConfigError, match=r"world_size must be a whole number from 1; received"):
        of_rounds(world_size, 1)


@pytest.mark.parametrize(
    ("send", "rule"),
    [
        (Send(0, 2, 0), "both from 0 to 1"),
        (Send(-1, 0, 0), "both from 0 to 1"),
        (Send(1, 1, 0), "from one rank to another"),
        (Send(0, 1, 3), "a chunk from 0 to 2"),
        (Send(0, 1, 0, "add"), '"reduce" or "copy"'),
    ],
    ids=str,
)
def test_a_send_that_no_rank_can_make_is_refused(send, rule):
    with pytest.raises(ValueError, match=rf"{rule}.*; round 1 has Send\(.*Correct it"):
        of_rounds(2, 3, (Send(0, 1, 0),), (send,))


def test_a_schedule_without_chunks_is_refused():
    with pytest.raises(ValueError, match="at least 1 chunk, not 0; try 1"):
        of_rounds(2, 0)


STRIDED = torch.zeros(6)[::2]
SHARED = torch.zeros(6)


@pytest.mark.parametrize(
    ("buffers", "message"),
    [
        ([torch.zeros(3)], "one buffer per rank, here 2; received 1"),
        ([torch.zeros(3)] * 3, "one buffer per rank, here 2; received 3"),
        ([torch.zeros(3), torch.zeros(1, 3)], r"1-D and contiguous; .* rank 1 has shape \(1, 3\)"),
        ([torch.zeros(3), torch.tensor(0.0)], r"1-D and contiguous; .* rank 1 has shape \(\)"),
        ([torch.zeros(3), STRIDED], r"contiguous; .* stride \(2,\)\. Pass"),
        ([torch.zeros(3), torch.zeros(1).expand(3)], r"contiguous; .* stride \(0,\)\. Pass"),
        ([torch.zeros(3), torch.zeros(4)], r"rank 0 has 3 × torch.float32, rank 1 4 × .*\. Give"),
        ([torch.zeros(3), torch.zeros(3).double()], r"same .* dtype; .* 3 × torch.float64\. Give"),
        ([SHARED, SHARED], "memory of its own; .* 0 and 1 overlap. Pass tensor.clone"),
        ([SHARED, SHARED.to("cpu")], "memory of its own; .* 0 and 1 overlap. Pass tensor.clone"),
        ([SHARED[2:5], SHARED[:3]], "memory of its own; .* 0 and 1 overlap. Pass tensor.clone"),
    ],
)
def test_buffers_that_do_not_fit_are_refused_at_the_call(buffers, message):
    with pytest.raises(ValueError, match=message):
        play(of_rounds(2, 1), buffers)


def test_overlap_is_found_between_ranks_far_apart():
    buffers = draw(5, 4)
    buffers[4] = buffers[1]
    with pytest.raises(ValueError, match="those of ranks 1 and 4 overlap"):
        play(of_rounds(5, 1), buffers)


def test_neighbours_in_memory_do_not_overlap():
    shared, exchanged = torch.ones(6), of_rounds(2, 1, exchange((0, 1)))
    allreduce(exchanged, [shared[3:], shared[:3]])
    assert shared.tolist() == [2.0] * 6
