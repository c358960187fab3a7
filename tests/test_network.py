"""Allreduces on many devices: formulas against schedules, and figures worked by hand."""

import math

import pytest

from labcore.collectives import ALLREDUCE
from labcore.config import ConfigError
from labcore.costs import Link, cost
from labcore.network import FORMULAS, HALVED, MOST_DEVICES, Network, volume

PCIE = Link("PCIe", 5.7e-6, 12e9, "")
SLOW = Link("slow", 20e-6, 1.25e9, "")
ENDLESS = Link("endless", 5.7e-6, math.inf, "")
RESNET18, LENET = 44.7e6, 0.516e6
every_algorithm = pytest.mark.parametrize("algorithm", ALLREDUCE)


def network(algorithm="ring", inside=PCIE, between=SLOW, per_machine=8):
    return Network(algorithm, inside, between, per_machine)


@every_algorithm
@pytest.mark.parametrize("world_size", [*range(1, 20), 24, 31, 32, 48, 64])
def test_a_formula_is_the_cost_of_the_schedule(algorithm, world_size):
    schedule = ALLREDUCE[algorithm](world_size)
    for alpha, gamma in ((1, 0), (0, 0), (0, 1)):
        fixed, per_byte = volume(algorithm, world_size).line(Link("", alpha, 1, ""), gamma)
        expected = cost(schedule, 1, alpha, 1, gamma)
        assert fixed == pytest.approx(expected.startup_seconds, rel=1e-12)
        moved = expected.transfer_seconds + expected.adding_seconds
        assert per_byte == pytest.approx(moved, rel=1e-12)


@every_algorithm
def test_a_thousand_devices_have_their_price(algorithm):
    assert 0 < network(algorithm, per_machine=MOST_DEVICES).seconds(MOST_DEVICES, LENET) < 1


def test_formulas_belong_to_algorithms():
    assert set(FORMULAS) <= set(ALLREDUCE)


# By hand: 30 messages of 1/16, or 30 of everything, on 16 devices.
@pytest.mark.parametrize(
    ("algorithm", "n_bytes", "milliseconds"),
    [
        ("ring", RESNET18, 30 * 5.7e-3 + 30 / 16 * 44.7 / 12),
        ("central", RESNET18, 30 * 5.7e-3 + 30 * 44.7 / 12),
        ("ring", LENET, 30 * 5.7e-3 + 30 / 16 * 0.516 / 12),
        ("central", LENET, 30 * 5.7e-3 + 30 * 0.516 / 12),
    ],
)
def test_sixteen_devices_over_pcie_take_what_was_worked_out(algorithm, n_bytes, milliseconds):
    took = 1e3 * network(algorithm, per_machine=16).seconds(16, n_bytes)
    assert took == pytest.approx(milliseconds, rel=1e-9)


@pytest.mark.parametrize(
    ("algorithm", "n_bytes", "words"),
    [
        ("ring", RESNET18, "7.2"),
        ("central", RESNET18, "112"),
        ("ring", LENET, "0.25"),
        ("central", LENET, "1.5"),
    ],
)
def test_rounded_they_are_the_figures_that_the_lab_quotes(algorithm, n_bytes, words):
    took = 1e3 * network(algorithm, per_machine=16).seconds(16, n_bytes)
    assert f"{took:.{len(words.partition('.')[2])}f}" == words


# Machines


@every_algorithm
@pytest.mark.parametrize(("devices", "machines"), [(9, 2), (16, 2), (17, 3), (64, 8)])
def test_more_devices_than_a_machine_holds_go_in_three_stages(algorithm, devices, machines):
    inside = ALLREDUCE[HALVED.get(algorithm, algorithm)](8)
    expected = (
        cost(inside, 1e6, PCIE.alpha, PCIE.beta).seconds
        + cost(ALLREDUCE[algorithm](machines), 1e6, SLOW.alpha, SLOW.beta).seconds
    )
    assert network(algorithm).seconds(devices, 1e6) == pytest.approx(expected)


@every_algorithm
def test_what_goes_on_inside_machines_has_two_halves(algorithm):
    schedule = ALLREDUCE[HALVED.get(algorithm, algorithm)](8)
    # Some rank has summed each chunk before anybody copies it.
    for chunk in range(schedule.chunks):
        ops = [send.op for sends in schedule.rounds for send in sends if send.chunk == chunk]
        assert ops == ["reduce"] * 7 + ["copy"] * 7


def test_inside_a_machine_the_other_link_does_not_matter():
    assert network(between=SLOW).seconds(8, 1e6) == network(between=PCIE).seconds(8, 1e6)
    assert network(between=SLOW).seconds(9, 1e6) > network(between=PCIE).seconds(9, 1e6)


def test_machines_of_one_device_know_only_the_link_between_them():
    assert network(per_machine=1).seconds(5, 1e6) == network(inside=SLOW).seconds(5, 1e6)


@every_algorithm
def test_a_lone_device_pays_nothing(algorithm):
    assert network(algorithm).seconds(1, 1e9) == 0


@every_algorithm
def test_without_limit_to_the_bandwidth_only_messages_cost(algorithm):
    free = network(algorithm, inside=ENDLESS)
    assert free.seconds(8, 1e9) == volume(algorithm, 8).messages * 5.7e-6


def test_a_gigabyte_has_a_price():
    # 14 messages of an eighth of it.
    assert network().seconds(8, 1e9) == pytest.approx(14 * (5.7e-6 + 1.25e8 / 12e9))


# What is refused


@pytest.mark.parametrize("devices", [0, -1, 1.5, MOST_DEVICES + 1])
def test_impossible_numbers_of_devices_are_refused(devices):
    with pytest.raises(ConfigError, match="devices must be a whole number from 1 to 1024"):
        network().seconds(devices, 1e6)


@pytest.mark.parametrize("n_bytes", [-1.0, math.nan, math.inf])
def test_impossible_sizes_are_refused(n_bytes):
    with pytest.raises(ConfigError, match="n_bytes must be a finite number from 0; received"):
        network().seconds(2, n_bytes)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"inside": Link("", -1e-6, 1e9, "")}, "latency of the link inside must be a finite time"),
        ({"between": Link("", math.nan, 1e9, "")}, "latency of the link between must be"),
        ({"between": Link("", 0.0, 0.0, "")}, "bandwidth of the link between must be above 0"),
        ({"inside": Link("", 0.0, -1.0, "")}, "bandwidth of the link inside must be above 0"),
        ({"per_machine": 0}, "per_machine must be a whole number from 1; received 0"),
        ({"algorithm": "gossip"}, "algorithm must be one of central, .*; received 'gossip'"),
    ],
    ids=str,
)
def test_impossible_networks_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        network(**settings)
