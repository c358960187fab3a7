"""Charts of modelled times: against the cost of each schedule at each size."""

import math

import pytest

from labcore.collective_charts import cost_columns, cost_spec, crossings, time_columns, time_spec
from labcore.collectives import ALLREDUCE, recursive_doubling, ring
from labcore.costs import LINKS, cost, crossover
from labcore.pictures import svg

PRICE = (LINKS["pcie3"].alpha, LINKS["pcie3"].beta, 0.0)
SCHEDULES = {name: make(8) for name, make in ALLREDUCE.items()}


def rows(columns):
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def test_every_point_is_the_cost_at_its_size():
    for row in rows(time_columns(SCHEDULES, PRICE, 100)):
        if row["part"] == "time":
            expected = cost(SCHEDULES[row["algorithm"]], row["bytes"], *PRICE).seconds
            assert math.isclose(row["seconds"], expected, rel_tol=1e-9)


def test_two_algorithms_cross_where_their_costs_do():
    two = {"ring": ring(8), "doubling": recursive_doubling(8)}
    [(change, size, seconds)] = crossings(two, PRICE)
    assert change == "doubling → ring"
    assert math.isclose(size, crossover(two["ring"], two["doubling"], *PRICE), rel_tol=1e-9)
    assert math.isclose(seconds, cost(two["ring"], size, *PRICE).seconds, rel_tol=1e-9)


@pytest.mark.parametrize("ranks", [3, 5, 8, 16, 64])
def test_between_two_crossings_nobody_is_faster_than_the_one_named(ranks):
    schedules = {name: make(ranks) for name, make in ALLREDUCE.items()}
    found = crossings(schedules, PRICE)
    assert found
    for change, size, _ in found:
        before, after = change.split(" → ")
        for name, near in ((before, size * 0.999), (after, size * 1.001)):
            times = {n: cost(each, near, *PRICE).seconds for n, each in schedules.items()}
            assert times[name] <= min(times.values()) * (1 + 1e-9)


def test_of_two_ranks_one_algorithm_is_the_fastest_for_every_size():
    assert crossings({name: make(2) for name, make in ALLREDUCE.items()}, PRICE) == []


def test_without_latency_nothing_crosses():
    assert crossings(SCHEDULES, (0.0, 1e-9, 0.0)) == []


def test_bars_are_ordered_and_add_up():
    costs = {name: cost(schedule, 1e6, *PRICE) for name, schedule in SCHEDULES.items()}
    drawn = rows(cost_columns(costs))
    totals = {}
    for row in drawn:
        totals[row["algorithm"]] = totals.get(row["algorithm"], 0.0) + row["seconds"]
    assert list(totals.values()) == sorted(totals.values())
    for name, seconds in totals.items():
        assert math.isclose(seconds, costs[name].seconds)


def test_the_charts_can_be_drawn():
    costs = {name: cost(schedule, 1e6, *PRICE) for name, schedule in SCHEDULES.items()}
    drawn = svg(cost_spec(len(costs), 1.0), cost_columns(costs))
    assert all(name in drawn for name in SCHEDULES)
    curves = svg(time_spec(tuple(SCHEDULES), 1e-6, 1.0), time_columns(SCHEDULES, PRICE, 100))
    assert curves.count("mark-line") >= 1
    assert all(name in curves for name in SCHEDULES)
