"""Allreduce: against a plain sum, a real group of processes, and schedules worked by hand."""

import inspect
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch

from labcore.collectives import ALLREDUCE, Schedule, Send, allreduce, central, play, ring
from labcore.config import ConfigError

ROOT = Path(__file__).parent.parent
RANKS = [*range(1, 18), 64]
FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex128]
WHOLE = [torch.int64, torch.int32, torch.uint8, torch.bool]

both = pytest.mark.parametrize("algorithm", [central, ring])
every_algorithm = pytest.mark.parametrize("algorithm", ALLREDUCE.values(), ids=ALLREDUCE.keys())
every_world_size = pytest.mark.parametrize("world_size", RANKS)
every_float = pytest.mark.parametrize("dtype", FLOATS, ids=str)
every_whole = pytest.mark.parametrize("dtype", WHOLE, ids=str)


def lengths(world_size):
    """Vectors shorter than, as long as, and longer than the number of ranks."""
    return sorted({0, 1, world_size - 1, world_size, 1000})


def draw(world_size, length, dtype=torch.float32):
    """A vector per rank; whole numbers up to 100 for dtypes that hold no others."""
    generator = torch.Generator().manual_seed(world_size * 1009 + length)
    if dtype.is_floating_point or dtype.is_complex:
        values = torch.randn(world_size, length, generator=generator, dtype=torch.float64)
    else:
        values = torch.randint(-100, 100, (world_size, length), generator=generator)
    return list((values > 0 if dtype == torch.bool else values).to(dtype))


def bits(buffer):
    return buffer.view(torch.uint8)


# The sum


@every_algorithm
@every_world_size
@every_float
def test_every_rank_ends_with_the_sum_up_to_rounding(algorithm, world_size, dtype):
    schedule = algorithm(world_size)
    wide = torch.complex128 if dtype.is_complex else torch.float64
    for length in lengths(world_size):
        buffers = draw(world_size, length, dtype)
        inputs = torch.stack(buffers).to(wide)
        allreduce(schedule, buffers)
        error = (torch.stack(buffers).to(wide) - inputs.sum(0)).abs()
        rounding = (world_size - 1) * torch.finfo(dtype).eps
        assert (error <= rounding * inputs.abs().sum(0)).all()


@every_algorithm
@every_world_size
@every_whole
def test_every_rank_ends_with_the_exact_sum_of_whole_numbers(algorithm, world_size, dtype):
    schedule = algorithm(world_size)
    for length in lengths(world_size):
        buffers = draw(world_size, length, dtype)
        inputs = torch.stack(buffers)
        expected = inputs.any(0) if dtype == torch.bool else inputs.sum(0, dtype=dtype)
        allreduce(schedule, buffers)
        assert all(torch.equal(buffer, expected) for buffer in buffers)


@every_algorithm
@every_world_size
@every_float
def test_all_ranks_end_bitwise_equal(algorithm, world_size, dtype):
    schedule = algorithm(world_size)
    for length in lengths(world_size):
        buffers = draw(world_size, length, dtype)
        allreduce(schedule, buffers)
        first, *others = map(bits, buffers)
        assert all(torch.equal(first, other) for other in others)


@every_algorithm
def test_the_notes_example_leaves_three_on_both(algorithm):
    first, second = torch.tensor([[1.0, 1.0]]), torch.tensor([[2.0, 2.0]])
    allreduce(algorithm(2), [first.view(-1), second.view(-1)])
    assert first.tolist() == second.tolist() == [[3.0, 3.0]]


@every_algorithm
def test_what_is_not_finite_reaches_every_rank(algorithm):
    buffers = [torch.tensor([float("inf"), 1.0]), torch.tensor([float("-inf"), float("inf")])]
    allreduce(algorithm(2), buffers)
    assert all(buffer.isnan().tolist() == [True, False] for buffer in buffers)


@every_algorithm
def test_the_sum_arrives_in_the_callers_memory(algorithm):
    matrix = torch.ones(3, 5)
    allreduce(algorithm(3), matrix.unbind())
    assert (matrix == 3).all()


@every_algorithm
def test_parameters_of_autograd_can_be_summed(algorithm):
    parameters = [torch.ones(4, requires_grad=True) for _ in range(2)]
    allreduce(algorithm(2), parameters)
    assert all(p.is_leaf and p.tolist() == [2.0] * 4 for p in parameters)


@every_algorithm
def test_a_lone_rank_keeps_what_it_has(algorithm):
    buffer = torch.arange(5.0)
    assert list(play(algorithm(1), [buffer])) == []
    assert buffer.tolist() == [0, 1, 2, 3, 4]


# The algorithms


@both
@every_world_size
def test_both_take_two_rounds_per_other_rank(algorithm, world_size):
    assert len(algorithm(world_size).rounds) == 2 * (world_size - 1)


def sent(schedule, length):
    """Elements that each rank sends."""
    sizes = [len(part) for part in schedule.bounds(length)]
    totals = Counter()
    for sends in schedule.rounds:
        for send in sends:
            totals[send.src] += sizes[send.chunk]
    return totals


@both
@every_world_size
def test_both_send_the_vector_twice_per_other_rank(algorithm, world_size):
    schedule = algorithm(world_size)
    for length in lengths(world_size):
        assert sent(schedule, length).total() == 2 * (world_size - 1) * length


@every_world_size
def test_no_rank_of_a_ring_sends_more_than_its_share(world_size):
    schedule = ring(world_size)
    for length in lengths(world_size):
        most = max(sent(schedule, length).values(), default=0)
        # Chunks differ by at most one element, and a rank leaves out one chunk in each half.
        assert most < 2 * length * (world_size - 1) / world_size + 2


@every_world_size
def test_rank_0_of_the_central_algorithm_sends_to_everybody(world_size):
    assert sent(central(world_size), 1000)[0] == (world_size - 1) * 1000


@every_world_size
def test_in_every_round_of_a_ring_every_rank_sends_one_chunk_to_the_next(world_size):
    to_the_next = {(rank, (rank + 1) % world_size) for rank in range(world_size)}
    for sends in ring(world_size).rounds:
        assert len(sends) == world_size
        assert {(send.src, send.dst) for send in sends} == to_the_next


@every_world_size
def test_half_way_round_the_ring_rank_r_holds_the_sum_of_chunk_r(world_size):
    buffers = draw(world_size, world_size, torch.int64)
    total = torch.stack(buffers).sum(0)
    for number, _ in play(ring(world_size), buffers):
        if number == world_size - 2:
            assert [int(buffers[r][r]) for r in range(world_size)] == total.tolist()


@both
def test_nothing_needs_to_be_set_aside(algorithm):
    assert not any(algorithm(17)._overwritten)


@every_algorithm
def test_an_algorithm_gives_equal_schedules(algorithm):
    assert algorithm(5) == algorithm(5)


@every_algorithm
@pytest.mark.parametrize("world_size", [0, -3])
def test_impossible_world_sizes_are_refused(algorithm, world_size):
    with pytest.raises(ConfigError, match=r"world_size must be a whole number from 1; received"):
        algorithm(world_size)


@every_algorithm
def test_every_algorithm_has_a_caption_and_a_source(algorithm):
    caption, *_, source = inspect.getdoc(algorithm).split("\n\n")
    assert caption.endswith(".")
    assert "\n" not in caption
    assert source.startswith("Source: ")


# Rounds


def after_each_round(schedule, *values):
    buffers = [torch.tensor(each) for each in values]
    return [[b.tolist() for b in current] for _, current in play(schedule, buffers)]


def test_a_page_sees_every_round_of_the_central_algorithm():
    assert after_each_round(central(3), [1], [10], [100]) == [
        [[11], [10], [100]],
        [[111], [10], [100]],
        [[111], [111], [100]],
        [[111], [111], [111]],
    ]


def test_a_page_sees_every_round_of_a_ring():
    assert after_each_round(ring(3), [1, 2, 3], [10, 20, 30], [100, 200, 300]) == [
        [[1, 202, 3], [10, 20, 33], [110, 200, 300]],
        [[111, 202, 3], [10, 222, 33], [110, 200, 333]],
        [[111, 202, 333], [111, 222, 33], [110, 222, 333]],
        [[111, 222, 333], [111, 222, 333], [111, 222, 333]],
    ]


def test_the_rounds_are_numbered_from_0():
    numbers = [number for number, _ in play(ring(4), draw(4, 8))]
    assert numbers == [0, 1, 2, 3, 4, 5]


def test_playing_hands_out_the_callers_buffers():
    buffers = draw(2, 3)
    assert all(current is buffers for _, current in play(ring(2), buffers))


def test_nothing_changes_before_the_first_round_is_asked_for():
    buffers = [torch.ones(1), torch.ones(1)]
    play(central(2), buffers)
    assert buffers[0].item() == 1


def exchange(*pairs):
    return tuple(Send(src, dst, 0) for a, b in pairs for src, dst in ((a, b), (b, a)))


def test_ranks_that_exchange_add_what_the_other_had_before():
    assert after_each_round(Schedule(2, 1, (exchange((0, 1)),)), [1], [10]) == [[[11], [11]]]


def test_ranks_can_swap():
    swap = (Send(0, 1, 0, "copy"), Send(1, 0, 0, "copy"))
    assert after_each_round(Schedule(2, 1, (swap,)), [1], [10]) == [[[10], [1]]]


def test_values_do_not_travel_two_links_in_one_round():
    chain = (Send(0, 1, 0), Send(1, 2, 0), Send(2, 3, 0))
    assert after_each_round(Schedule(4, 1, (chain,)), [1], [10], [100], [1000]) == [
        [[1], [11], [110], [1100]]
    ]


def test_a_chunk_sent_twice_after_it_changed_is_sent_as_it_was():
    sends = (Send(0, 1, 0), Send(1, 2, 0), Send(1, 3, 0))
    assert after_each_round(Schedule(4, 1, (sends,)), [1], [10], [100], [1000]) == [
        [[1], [11], [110], [1010]]
    ]


def test_several_ranks_can_send_to_one_in_a_round():
    sends = (Send(1, 0, 0), Send(2, 0, 0), Send(3, 0, 0))
    assert after_each_round(Schedule(4, 1, (sends,)), [1], [10], [100], [1000]) == [
        [[1111], [10], [100], [1000]]
    ]


def test_arrivals_are_taken_in_in_the_order_of_the_round():
    sends = (Send(1, 0, 0), Send(2, 0, 0))
    backwards = sends[::-1]
    values = [2.0**53], [1.0], [-(2.0**53)]
    results = [
        after_each_round(Schedule(3, 1, (each,)), *map(list, values))[0][0]
        for each in (sends, backwards)
    ]
    assert results == [[0.0], [1.0]]


def test_only_the_chunk_that_is_sent_changes():
    assert after_each_round(Schedule(2, 2, ((Send(0, 1, 1),),)), [1, 2, 3], [10, 20, 30]) == [
        [[1, 2, 3], [10, 20, 33]]
    ]


def test_only_what_changes_too_early_is_set_aside():
    # Send 0→1 leaves before rank 0 changes, so only rank 1's chunk needs a copy.
    assert Schedule(2, 1, (exchange((0, 1)),))._overwritten == (frozenset({(1, 0)}),)


def test_ranks_that_add_the_same_two_numbers_stay_bitwise_equal():
    # Recursive doubling: no chunk is computed once only, yet all ranks agree.
    rounds = (exchange((0, 1), (2, 3)), exchange((0, 2), (1, 3)))
    buffers = draw(4, 1000)
    allreduce(Schedule(4, 1, rounds), buffers)
    first, *others = map(bits, buffers)
    assert all(torch.equal(first, other) for other in others)


@pytest.mark.parametrize("length", [0, 1, 3, 4, 5, 1000])
def test_chunks_are_cut_as_torch_tensor_split(length):
    cut = torch.arange(length).tensor_split(4)
    assert [list(part) for part in ring(4).bounds(length)] == [part.tolist() for part in cut]


# Devices


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@every_algorithm
@pytest.mark.parametrize("pinned", [False, True])
@pytest.mark.parametrize("devices", [("cuda",) * 4, ("cpu", "cuda", "cuda", "cpu")], ids=str)
def test_buffers_may_live_on_several_devices(algorithm, devices, pinned):
    schedule = algorithm(4)
    # Large enough for a transfer to be still under way when the next send begins.
    for length in (*lengths(4), 4_000_000):
        buffers = draw(4, length, torch.int64)
        total = torch.stack(buffers).sum(0)
        for rank, device in enumerate(devices):
            on_cpu = buffers[rank].pin_memory() if pinned else buffers[rank]
            buffers[rank] = on_cpu if device == "cpu" else on_cpu.to(device)
        allreduce(schedule, buffers)
        assert all(torch.equal(buffer.cpu(), total) for buffer in buffers)


# What is refused


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
        Schedule(2, 3, ((Send(0, 1, 0),), (send,)))


def test_a_schedule_without_chunks_is_refused():
    with pytest.raises(ValueError, match="at least 1 chunk, not 0; try 1"):
        Schedule(2, 0, ())


STRIDED = torch.zeros(6)[::2]
SHARED = torch.zeros(6)


@every_algorithm
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
def test_buffers_that_do_not_fit_are_refused_at_the_call(algorithm, buffers, message):
    with pytest.raises(ValueError, match=message):
        play(algorithm(2), buffers)


def test_overlap_is_found_between_ranks_far_apart():
    buffers = draw(5, 4)
    buffers[4] = buffers[1]
    with pytest.raises(ValueError, match="those of ranks 1 and 4 overlap"):
        allreduce(ring(5), buffers)


def test_neighbours_in_memory_do_not_overlap():
    shared = torch.ones(6)
    allreduce(ring(2), [shared[3:], shared[:3]])
    assert shared.tolist() == [2.0] * 6


# A real group of processes

WORLD_SIZES = (2, 3, 4)
SIZES = (1, 5, 1000)

# Rank r of groups of 2, 3 and 4 processes; the last line it prints is every sum that it received.
PROCESS = """
import json, sys
from datetime import timedelta
import torch
import torch.distributed as dist
from tests.test_collectives import SIZES, WORLD_SIZES, draw
rank, rendezvous = int(sys.argv[1]), sys.argv[2]
dist.init_process_group(
    "gloo", f"file://{rendezvous}", timedelta(seconds=30), max(WORLD_SIZES), rank
)
sums = {}
for world_size in WORLD_SIZES:
    group = dist.new_group(range(world_size))
    if rank < world_size:
        for size in SIZES:
            for dtype in (torch.int64, torch.float64):
                buffer = draw(world_size, size, dtype)[rank]
                dist.all_reduce(buffer, group=group)
                sums[f"{world_size} {size} {dtype}"] = buffer.tolist()
dist.destroy_process_group()
print(json.dumps(sums))
"""


@pytest.fixture(scope="module")
def gloo(tmp_path_factory):
    """The sums that each rank of a real group received, per world size, length and dtype."""
    rendezvous = str(tmp_path_factory.mktemp("gloo") / "rendezvous")
    environment = os.environ | {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PROCESS, str(rank), rendezvous],
            stdout=subprocess.PIPE,
            env=environment,
            cwd=ROOT,
            text=True,
        )
        for rank in range(max(WORLD_SIZES))
    ]
    try:
        outputs = [process.communicate(timeout=60)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return [json.loads(output.splitlines()[-1]) for output in outputs]


@every_algorithm
@pytest.mark.parametrize("world_size", WORLD_SIZES)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", [torch.int64, torch.float64], ids=str)
def test_a_group_of_processes_gets_the_same(gloo, algorithm, world_size, size, dtype):
    buffers = draw(world_size, size, dtype)
    allreduce(algorithm(world_size), buffers)
    for rank, buffer in enumerate(buffers):
        theirs = torch.tensor(gloo[rank][f"{world_size} {size} {dtype}"], dtype=dtype)
        # Their order of adding is their own.
        tolerance = 1e-14 if dtype.is_floating_point else 0
        torch.testing.assert_close(buffer, theirs, rtol=0, atol=tolerance)
