"""Allreduce: against a plain sum, a real group of processes, and schedules worked by hand."""

import inspect
import json
import math
import os
import subprocess
import sys
from collections import Counter
from fractions import Fraction
from pathlib import Path

import pytest
import torch

from labcore.collectives import (
    ALLREDUCE,
    COLLECTIVES,
    allgather,
    central,
    halving_doubling,
    recursive_doubling,
    reduce_scatter,
    ring,
    ring_2d,
)
from labcore.config import ConfigError
from labcore.schedules import Send, allreduce, play
from labcore.trees import broadcast, double_tree, tree

ROOT = Path(__file__).parent.parent
RANKS = [*range(1, 18), 64]
FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex128]
WHOLE = [torch.int64, torch.int32, torch.uint8, torch.bool]

every_algorithm = pytest.mark.parametrize("algorithm", ALLREDUCE.values(), ids=ALLREDUCE.keys())
every_collective = pytest.mark.parametrize(
    "collective", [*ALLREDUCE.values(), *COLLECTIVES.values()], ids=[*ALLREDUCE, *COLLECTIVES]
)
every_world_size = pytest.mark.parametrize("world_size", RANKS)


def cases(first, *others):
    """Every world size with one dtype, five ranks with the others."""
    pairs = [(world_size, first) for world_size in RANKS] + [(5, dtype) for dtype in others]
    return pytest.mark.parametrize(("world_size", "dtype"), pairs, ids=str)


every_float = cases(*FLOATS)
every_whole = cases(*WHOLE)


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


def messages(sends):
    """Source and destination of each message of a round, which may carry several chunks."""
    return {(send.src, send.dst) for send in sends}


def sent(schedule):
    """What each rank sends, in vectors."""
    counts = Counter(send.src for sends in schedule.rounds for send in sends)
    return {rank: Fraction(count, schedule.chunks) for rank, count in counts.items()}


def log(world_size):
    """Binary logarithm, rounded down."""
    return math.floor(math.log2(world_size))


def log_up(world_size):
    """Binary logarithm, rounded up."""
    return math.ceil(math.log2(world_size))


def folds(world_size):
    """1 if some ranks have to wait for a power of two of others, else 0."""
    return int(world_size != 2 ** log(world_size))


def around(world_size):
    """What a rank sends that sends every chunk but one of p, twice."""
    return Fraction(2 * (world_size - 1), world_size)


def perimeter(world_size):
    """The least rows + columns of a rectangle of ranks."""
    sides = range(1, world_size + 1)
    return min(
        rows + columns for rows in sides for columns in sides if rows * columns == world_size
    )


# Rounds, and vectors that the busiest rank sends.
PRICES = {
    "central": (lambda p: 2 * (p - 1), lambda p: p - 1),
    "tree": (lambda p: 2 * log_up(p), log_up),
    "ring": (lambda p: 2 * (p - 1), around),
    "recursive_doubling": (lambda p: log(p) + 2 * folds(p), lambda p: log(p) + folds(p)),
    "halving_doubling": (
        lambda p: 2 * log(p) + 2 * folds(p),
        lambda p: around(2 ** log(p)) + folds(p),
    ),
    "ring_2d": (lambda p: 2 * (perimeter(p) - 2), around),
}
every_price = pytest.mark.parametrize("name", PRICES)


@every_price
@every_world_size
def test_rounds_are_as_many_as_the_algorithm_promises(name, world_size):
    rounds, _ = PRICES[name]
    assert len(ALLREDUCE[name](world_size).rounds) == rounds(world_size)


@every_price
@every_world_size
def test_the_busiest_rank_sends_what_the_algorithm_promises(name, world_size):
    _, busiest = PRICES[name]
    assert max(sent(ALLREDUCE[name](world_size)).values(), default=0) == busiest(world_size)


@pytest.mark.parametrize("name", [name for name in ALLREDUCE if name != "recursive_doubling"])
@every_world_size
def test_every_other_ranks_part_and_every_copy_travel_once(name, world_size):
    assert sum(sent(ALLREDUCE[name](world_size)).values()) == 2 * (world_size - 1)


@every_world_size
def test_in_recursive_doubling_all_ranks_of_the_power_of_two_send_all_the_time(world_size):
    core = 2 ** log(world_size)
    expected = core * log(core) + 2 * (world_size - core)
    assert sum(sent(recursive_doubling(world_size)).values()) == expected


@every_algorithm
@every_world_size
def test_no_algorithm_beats_the_bound_on_what_the_busiest_rank_sends(algorithm, world_size):
    # P. Patarasuk and X. Yuan, 2009, section 3.
    busiest = max(sent(algorithm(world_size)).values(), default=0)
    assert busiest >= around(world_size)


@every_collective
@every_world_size
def test_a_rank_sends_one_message_a_round_and_receives_one(collective, world_size):
    for sends in collective(world_size).rounds:
        assert max(Counter(src for src, _ in messages(sends)).values()) == 1
        assert max(Counter(dst for _, dst in messages(sends)).values()) == 1


@every_collective
@every_world_size
def test_every_phase_has_a_name_and_says_why(collective, world_size):
    phases = collective(world_size).phases
    assert len({phase.name for phase in phases}) == len(phases)
    assert all(phase.why.endswith(".") and phase.rounds for phase in phases)


@pytest.mark.parametrize("name", [name for name in ALLREDUCE if name != "recursive_doubling"])
@every_world_size
def test_only_recursive_doubling_needs_to_set_chunks_aside(name, world_size):
    assert not any(ALLREDUCE[name](world_size)._overwritten)


@every_collective
def test_an_algorithm_gives_equal_schedules(collective):
    assert collective(13) == collective(13)


@every_collective
@pytest.mark.parametrize("world_size", [0, -3])
def test_impossible_world_sizes_are_refused(collective, world_size):
    with pytest.raises(ConfigError, match=r"world_size must be a whole number from 1; received"):
        collective(world_size)


@every_collective
def test_every_algorithm_has_a_caption_and_a_source(collective):
    caption, *_, source = inspect.getdoc(collective).split("\n\n")
    assert caption.endswith(".")
    assert "\n" not in caption
    assert source.startswith("Source: ")


@every_world_size
def test_in_every_round_of_a_ring_every_rank_sends_one_chunk_to_the_next(world_size):
    to_the_next = {(rank, (rank + 1) % world_size) for rank in range(world_size)}
    for sends in ring(world_size).rounds:
        assert len(sends) == world_size
        assert messages(sends) == to_the_next


@pytest.mark.parametrize("world_size", [2, 3, 5, 7, 61])
def test_a_rectangle_of_a_prime_number_is_a_ring(world_size):
    assert ring_2d(world_size).rounds == ring(world_size).rounds


@pytest.mark.parametrize("world_size", range(1, 65))
def test_the_two_trees_have_different_inner_ranks(world_size):
    inner = [set(), set()]
    for sends in double_tree(world_size).rounds:
        for send in sends:
            if send.op == "reduce":
                inner[send.chunk % 2].add(send.dst)
    # Of an odd number of ranks one is left over: an inner one of one tree, and both times with
    # one child.
    assert inner[0] & inner[1] <= ({0} if world_size % 2 else set())


@pytest.mark.parametrize("world_size", range(2, 65))
def test_two_trees_are_filled_and_drained_in_a_few_rounds(world_size):
    schedule = double_tree(world_size)
    assert max(sent(schedule).values()) <= 2
    assert len(schedule.rounds) <= 2 * schedule.chunks + 5 * log_up(world_size)


# The other collective operations


@every_world_size
def test_reduce_scatter_leaves_the_sum_of_chunk_r_on_rank_r(world_size):
    schedule = reduce_scatter(world_size)
    for length in lengths(world_size):
        buffers = draw(world_size, length, torch.int64)
        total = torch.stack(buffers).sum(0).tensor_split(world_size)
        allreduce(schedule, buffers)
        for rank, buffer in enumerate(buffers):
            assert torch.equal(buffer.tensor_split(world_size)[rank], total[rank])


@every_world_size
def test_allgather_puts_chunk_r_of_rank_r_together_everywhere(world_size):
    schedule = allgather(world_size)
    for length in lengths(world_size):
        buffers = draw(world_size, length)
        parts = [buffer.tensor_split(world_size)[rank] for rank, buffer in enumerate(buffers)]
        expected = torch.cat(parts)
        allreduce(schedule, buffers)
        assert all(torch.equal(buffer, expected) for buffer in buffers)


@every_world_size
def test_broadcast_gives_rank_0s_vector_to_all(world_size):
    schedule = broadcast(world_size)
    for length in lengths(world_size):
        buffers = draw(world_size, length)
        expected = buffers[0].clone()
        allreduce(schedule, buffers)
        assert all(torch.equal(buffer, expected) for buffer in buffers)


@every_world_size
def test_a_broadcast_doubles_who_has_the_vector_in_every_round(world_size):
    assert len(broadcast(world_size).rounds) == log_up(world_size)


def test_a_tree_ends_with_a_broadcast():
    assert tree(13).phases[-1:] == broadcast(13).phases


# By hand


def after_each_round(schedule, *values):
    buffers = [torch.tensor(each) for each in values]
    return [[b.tolist() for b in current] for _, current in play(schedule, buffers)]


def test_every_round_of_the_central_algorithm():
    assert after_each_round(central(3), [1], [10], [100]) == [
        [[11], [10], [100]],
        [[111], [10], [100]],
        [[111], [111], [100]],
        [[111], [111], [111]],
    ]


def test_every_round_of_a_tree():
    assert after_each_round(tree(4), [1], [10], [100], [1000]) == [
        [[11], [10], [1100], [1000]],
        [[1111], [10], [1100], [1000]],
        [[1111], [10], [1111], [1000]],
        [[1111], [1111], [1111], [1111]],
    ]


def test_every_round_of_a_ring():
    assert after_each_round(ring(3), [1, 2, 3], [10, 20, 30], [100, 200, 300]) == [
        [[1, 202, 3], [10, 20, 33], [110, 200, 300]],
        [[111, 202, 3], [10, 222, 33], [110, 200, 333]],
        [[111, 202, 333], [111, 222, 33], [110, 222, 333]],
        [[111, 222, 333], [111, 222, 333], [111, 222, 333]],
    ]


def test_every_round_of_recursive_doubling():
    assert after_each_round(recursive_doubling(4), [1], [10], [100], [1000]) == [
        [[11], [11], [1100], [1100]],
        [[1111], [1111], [1111], [1111]],
    ]


def test_every_round_of_recursive_doubling_on_three_ranks():
    assert after_each_round(recursive_doubling(3), [1], [10], [100]) == [
        [[101], [10], [100]],
        [[111], [111], [100]],
        [[111], [111], [111]],
    ]


FOUR = [1, 2, 3, 4], [10, 20, 30, 40], [100, 200, 300, 400], [1000, 2000, 3000, 4000]


def test_every_round_of_halving_and_doubling():
    assert after_each_round(halving_doubling(4), *FOUR) == [
        [[101, 202, 3, 4], [1010, 2020, 30, 40], [100, 200, 303, 404], [1000, 2000, 3030, 4040]],
        [[1111, 202, 3, 4], [1010, 2222, 30, 40], [100, 200, 3333, 404], [1000, 2000, 3030, 4444]],
        [
            [1111, 2222, 3, 4],
            [1111, 2222, 30, 40],
            [100, 200, 3333, 4444],
            [1000, 2000, 3333, 4444],
        ],
        [[1111, 2222, 3333, 4444]] * 4,
    ]


def test_every_round_of_a_square():
    assert after_each_round(ring_2d(4), *FOUR) == [
        [[11, 22, 3, 4], [10, 20, 33, 44], [1100, 2200, 300, 400], [1000, 2000, 3300, 4400]],
        [[1111, 22, 3, 4], [10, 20, 3333, 44], [1100, 2222, 300, 400], [1000, 2000, 3300, 4444]],
        [
            [1111, 2222, 3, 4],
            [10, 20, 3333, 4444],
            [1111, 2222, 300, 400],
            [1000, 2000, 3333, 4444],
        ],
        [[1111, 2222, 3333, 4444]] * 4,
    ]


def test_two_ranks_are_the_root_of_one_tree_each():
    first, second, *_ = double_tree(2).rounds
    assert first == (Send(1, 0, 0), Send(0, 1, 1))
    assert second == (Send(1, 0, 2), Send(0, 1, 3))


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
