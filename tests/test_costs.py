"""Prices of schedules: against formulas of the literature and rounds worked by hand."""

import math

import pytest

from labcore.collectives import ALLREDUCE, central, recursive_doubling, ring
from labcore.config import ConfigError
from labcore.costs import (
    BUS_FACTORS,
    LINKS,
    Cost,
    algbw,
    busbw,
    cost,
    crossover,
    line,
    running_costs,
)
from labcore.schedules import Phase, Schedule, Send

every_algorithm = pytest.mark.parametrize("algorithm", ALLREDUCE.values(), ids=ALLREDUCE.keys())
PCIE = (5.7e-6, 1 / 12e9)
RESNET18, LENET = 44.7e6, 0.516e6


def of_rounds(world_size, chunks, *rounds):
    """A schedule of one phase."""
    return Schedule(world_size, chunks, (Phase("test", "It is a test.", rounds),))


def seconds(schedule, alpha=0.0, beta=0.0, gamma=0.0):
    return cost(schedule, 100, alpha, beta, gamma).seconds


# Rounds by hand


def test_a_message_takes_alpha_and_beta_per_byte_and_gamma_per_byte_added():
    one = cost(of_rounds(2, 1, (Send(1, 0, 0),)), 100, alpha=7, beta=0.5, gamma=0.25)
    assert one == Cost(1, 100, 100, startup_seconds=7, transfer_seconds=50, adding_seconds=25)
    assert one.seconds == 82


def test_a_copy_is_not_added():
    assert seconds(of_rounds(2, 1, (Send(1, 0, 0, "copy"),)), gamma=1) == 0


def test_a_chunk_is_its_share_of_the_bytes():
    assert cost(of_rounds(2, 8, (Send(1, 0, 3),)), 100, 0, 1).transfer_seconds == 12.5


def test_a_message_of_several_chunks_starts_once():
    round_ = (Send(1, 0, 0), Send(1, 0, 1))
    assert seconds(of_rounds(2, 2, round_), alpha=1) == 1
    assert seconds(of_rounds(2, 2, round_), beta=1) == 100


def test_ranks_send_and_receive_at_the_same_time():
    chain = (Send(0, 1, 0), Send(1, 2, 0), Send(2, 0, 0))
    assert seconds(of_rounds(3, 1, chain), alpha=1, beta=1) == 101


def test_a_rank_that_receives_several_messages_takes_them_one_after_another():
    inbound = (Send(1, 0, 0), Send(2, 0, 0), Send(3, 0, 0))
    assert seconds(of_rounds(4, 1, inbound), alpha=1) == 3
    assert seconds(of_rounds(4, 1, inbound), beta=1) == 300
    assert seconds(of_rounds(4, 1, inbound), gamma=1) == 300


def test_a_rank_that_sends_several_messages_sends_them_one_after_another():
    outbound = (Send(0, 1, 0), Send(0, 2, 0))
    assert seconds(of_rounds(3, 1, outbound), alpha=1) == 2
    assert seconds(of_rounds(3, 1, outbound), beta=1) == 200
    assert seconds(of_rounds(3, 1, outbound), gamma=1) == 100


def test_the_busiest_rank_of_a_round_decides_how_long_it_takes():
    uneven = (Send(0, 1, 0), Send(2, 3, 0), Send(2, 3, 1))
    assert seconds(of_rounds(4, 2, uneven), beta=1) == 100


def test_the_busiest_rank_is_that_of_all_rounds_together():
    schedule = of_rounds(3, 1, (Send(0, 1, 0),), (Send(1, 2, 0),), (Send(1, 0, 0),))
    paid = cost(schedule, 10, 0, 0)
    assert (paid.rounds, paid.busiest_bytes, paid.total_bytes) == (3, 20, 30)


def test_running_costs_add_up_round_by_round():
    paid = running_costs(ring(3), 30, alpha=1, beta=1, gamma=1)
    # Each round: one message of 10 bytes each; the last two rounds copy.
    assert [each.seconds for each in paid] == [21, 42, 53, 64]
    assert [each.total_bytes for each in paid] == [30, 60, 90, 120]
    assert [each.rounds for each in paid] == [1, 2, 3, 4]


@every_algorithm
def test_the_last_running_cost_is_the_cost(algorithm):
    assert running_costs(algorithm(6), 1000, *PCIE)[-1] == cost(algorithm(6), 1000, *PCIE)


@every_algorithm
def test_a_lone_rank_pays_nothing(algorithm):
    assert running_costs(algorithm(1), 1000, *PCIE) == []
    assert cost(algorithm(1), 1000, *PCIE) == Cost(0, 0, 0, 0, 0, 0)


# Formulas


@pytest.mark.parametrize("world_size", [2, 3, 8, 13, 64])
def test_a_ring_takes_its_formula(world_size):
    alpha, beta, gamma, n_bytes = 3e-6, 1e-10, 2e-11, 1e6
    share = (world_size - 1) / world_size
    expected = 2 * (world_size - 1) * alpha + 2 * share * n_bytes * beta + share * n_bytes * gamma
    assert cost(ring(world_size), n_bytes, alpha, beta, gamma).seconds == pytest.approx(expected)


@pytest.mark.parametrize(
    ("algorithm", "n_bytes", "milliseconds"),
    [(ring, RESNET18, 7.2), (central, RESNET18, 112), (ring, LENET, 0.25), (central, LENET, 1.5)],
)
def test_gradients_over_pcie_take_what_was_worked_out(algorithm, n_bytes, milliseconds):
    took = 1000 * cost(algorithm(16), n_bytes, *PCIE).seconds
    assert float(f"{took:.2g}" if milliseconds < 100 else f"{took:.3g}") == milliseconds


@every_algorithm
def test_a_line_is_the_cost_at_every_size(algorithm):
    price = (5e-6, 1e-10, 3e-11)
    fixed, per_byte = line(algorithm(12), *price)
    for n_bytes in (0, 1, 4096, 1e9):
        expected = cost(algorithm(12), n_bytes, *price).seconds
        assert fixed + per_byte * n_bytes == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("world_size", "times"), [(4, 8), (8, 8.8), (16, 12.2)])
def test_ring_and_recursive_doubling_cross_where_their_formulas_do(world_size, times):
    alpha, beta = PCIE
    n_bytes = crossover(ring(world_size), recursive_doubling(world_size), alpha, beta)
    log = math.log2(world_size)
    excess = log - 2 * (world_size - 1) / world_size
    assert n_bytes == pytest.approx(alpha / beta * (2 * (world_size - 1) - log) / excess)
    assert round(n_bytes / (alpha / beta), 1) == times


@pytest.mark.parametrize("gamma", [0.0, 1e-10])
def test_at_a_crossover_both_cost_the_same_and_below_it_the_other_is_faster(gamma):
    one, other, price = ring(7), recursive_doubling(7), (*PCIE, gamma)
    n_bytes = crossover(one, other, *price)
    slower, faster = (cost(each, n_bytes / 2, *price).seconds for each in (one, other))
    same, as_other = (cost(each, n_bytes, *price).seconds for each in (one, other))
    assert same == pytest.approx(as_other, rel=1e-12)
    assert slower > faster
    assert crossover(other, one, *price) == n_bytes


def test_there_is_no_crossover_where_one_is_always_faster():
    # As many rounds, but rank 0 sends more.
    assert crossover(central(4), ring(4), *PCIE) is None
    # More rounds and more bytes.
    assert crossover(central(16), recursive_doubling(16), *PCIE) is None


def test_there_is_no_crossover_with_oneself_or_where_bytes_are_free():
    assert crossover(ring(4), ring(4), *PCIE) is None
    assert crossover(ring(4), recursive_doubling(4), 1e-6, 0.0) is None


# Bandwidths


def test_algorithm_bandwidth_is_size_over_time():
    assert algbw(1e9, 0.1) == 1e10


# The factors of NCCL Tests' page on performance, for 8 ranks.
@pytest.mark.parametrize(
    ("collective", "factor"),
    [("allreduce", 1.75), ("reduce_scatter", 0.875), ("allgather", 0.875), ("broadcast", 1)],
)
def test_bus_bandwidth_is_that_of_nccl_tests(collective, factor):
    assert busbw(1e9, 0.1, 8, collective) == pytest.approx(factor * 1e10)


@pytest.mark.parametrize("world_size", [2, 5, 16])
def test_the_bus_bandwidth_of_a_ring_without_latency_is_the_links(world_size):
    took = cost(ring(world_size), 1e6, 0, 1 / 12e9).seconds
    assert busbw(1e6, took, world_size) == pytest.approx(12e9)


# Links


@pytest.mark.parametrize("name", LINKS)
def test_a_link_is_plausible_and_says_where_its_figures_are_from(name):
    link = LINKS[name]
    assert 1e-6 <= link.alpha <= 1e-4
    assert 1e9 <= link.bandwidth <= 1e12
    assert link.beta * link.bandwidth == pytest.approx(1)
    assert {"bandwidth", "latency"} <= {word.strip(":;") for word in link.source.split()}


@pytest.mark.parametrize(
    ("name", "gigabytes"),
    [
        ("pcie3", 15.754),
        ("pcie4", 31.508),
        ("nvlink2", 150),
        ("nvlink3", 300),
        ("nvlink4", 450),
        ("ethernet10", 1.25),
        ("ethernet25", 3.125),
        ("ethernet100", 12.5),
        ("ethernet400", 50),
        ("infiniband_hdr", 25),
        ("infiniband_ndr", 50),
    ],
)
def test_links_have_the_bandwidth_that_vendors_state_for_one_direction(name, gigabytes):
    assert LINKS[name].bandwidth / 1e9 == pytest.approx(gigabytes, rel=1e-4)


# What is refused


@pytest.mark.parametrize("name", ["n_bytes", "alpha", "beta", "gamma"])
@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf])
def test_impossible_prices_are_refused(name, value):
    price = {"n_bytes": 1.0, "alpha": 1.0, "beta": 1.0, "gamma": 1.0} | {name: value}
    with pytest.raises(ConfigError, match=rf"^{name} must be a finite number from 0; received"):
        cost(ring(2), **price)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((1.0, 0.0, 2), "seconds must be above 0; received 0.0"),
        ((1.0, -1.0, 2), "seconds must be a finite number from 0"),
        ((math.nan, 1.0, 2), "n_bytes must be a finite number from 0"),
        ((1.0, 1.0, 0), "world_size must be a whole number from 1; received 0"),
        ((1.0, 1.0, 2, "gather"), f"must be one of {', '.join(BUS_FACTORS)}; received 'gather'"),
    ],
    ids=str,
)
def test_impossible_bandwidths_are_refused(arguments, message):
    with pytest.raises(ConfigError, match=message):
        busbw(*arguments)
