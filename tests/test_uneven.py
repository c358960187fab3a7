"""Sharing between unequal devices: against brute force, and edges worked by hand."""

import math
import random
from itertools import product

import pytest

from labcore.config import ConfigError
from labcore.costs import Link
from labcore.hardware import Device
from labcore.network import Network
from labcore.splitting import weighted
from labcore.uneven import (
    MOST_ROWS,
    MOST_WORKERS,
    UnevenConfig,
    Worker,
    best_sharing,
    best_split,
    equal_sharing,
    ideal,
    one_more,
    sharing,
    slowest_helps,
    sum_up,
)


def brute_force(rows, devices):
    """The earliest end of all ways to share so many rows."""
    ways = product(range(rows + 1), repeat=len(devices) - 1)
    full = ((*way, rows - sum(way)) for way in ways if sum(way) <= rows)
    return min(
        max(d.fixed + own / d.speed if own else 0.0 for d, own in zip(devices, way, strict=True))
        for way in full
    )


def drawn(seed):
    """One to four devices, some with a fixed cost beyond use, and up to twelve rows."""
    generator = random.Random(seed)
    devices = [
        Device(
            generator.choice([0.0, 0.1, 1.0, 30.0]) * generator.random(), generator.uniform(1, 9)
        )
        for _ in range(generator.randint(1, 4))
    ]
    return generator.randint(1, 12), devices


@pytest.mark.parametrize("seed", range(150))
def test_no_sharing_ends_earlier(seed):
    rows, devices = drawn(seed)
    best = best_sharing(rows, devices)
    assert sum(best.rows) == rows
    assert best.last == pytest.approx(brute_force(rows, devices), rel=1e-12)


@pytest.mark.parametrize("seed", range(50))
def test_no_sharing_ends_before_the_ideal(seed):
    rows, devices = drawn(seed)
    best, shares = ideal(rows, devices)
    assert sum(shares) == pytest.approx(rows)
    assert best_sharing(rows, devices).last >= best * (1 - 1e-12)
    # Whoever works ends at T*, and whoever does not could not have begun by then.
    for device, share in zip(devices, shares, strict=True):
        assert share > 0 or device.fixed >= best
        assert share == 0 or device.fixed + share / device.speed == pytest.approx(best)


def test_the_formula_by_hand():
    # T* = (100 + 1 · 10 + 2 · 30) / 40 = 4.25
    best, shares = ideal(100, [Device(1.0, 10), Device(2.0, 30)])
    assert best == pytest.approx(4.25)
    assert shares == pytest.approx([32.5, 67.5])


def test_leaving_one_out_may_leave_out_another():
    # All three: T* = 4.34, too early for the second; without it 1.01, too early for the third.
    devices = [Device(0.0, 10), Device(8.0, 10), Device(1.1, 1)]
    best, shares = ideal(10, devices)
    assert best == pytest.approx(1.0)
    assert shares == [pytest.approx(10), 0, 0]


def test_without_fixed_costs_shares_go_by_speed():
    _, shares = ideal(120, [Device(0.0, 3), Device(0.0, 1), Device(0.0, 2)])
    assert shares == pytest.approx([60, 20, 40])


@pytest.mark.parametrize("rows", [1, 7, 60, 256])
def test_without_fixed_costs_it_is_weighted_up_to_a_row(rows):
    speeds = [3.0, 1.0, 2.5]
    ours = best_split([Device(0.0, speed) for speed in speeds])(rows, 3)
    theirs = weighted(rows, 3, speeds)
    assert all(abs(len(a) - len(b)) <= 1 for a, b in zip(ours, theirs, strict=True))


def test_the_rows_as_speeds_make_weighted_the_best_split():
    devices = [Device(0.1, 100), Device(0.0, 40), Device(0.3, 200)]
    rows = best_sharing(100, devices).rows
    assert weighted(100, 3, rows) == best_split(devices)(100, 3)


def test_a_split_uses_every_row_once():
    shards = best_split([Device(0.1, 100), Device(5.0, 40), Device(0.3, 200)])(99, 3)
    assert [row for shard in shards for row in shard] == list(range(99))
    assert len(shards[1]) == 0


def test_like_devices_share_alike():
    devices = [Device(0.2, 50)] * 4
    assert sorted(best_sharing(10, devices).rows) == [2, 2, 3, 3]
    assert best_sharing(10, devices).last == equal_sharing(10, devices).last


def test_one_device_takes_all():
    assert best_sharing(7, [Device(1.0, 7)]).seconds == (2.0,)
    assert best_sharing(7, [Device(1.0, 7)]).idle == 0


def test_with_equal_shares_the_fast_wait_for_the_slow():
    equal = equal_sharing(8, [Device(0.0, 4), Device(0.0, 1)])
    assert equal.rows == (4, 4)
    assert equal.waiting == (3.0, 0.0)
    assert equal.idle == 3 / 8


def test_a_device_without_rows_takes_no_time():
    assert sharing([3, 0], [Device(0.0, 3), Device(9.0, 1)]).seconds == (1.0, 0.0)


def test_a_million_rows_are_shared_quickly():
    devices = [Device(0.001 * n, 10.0 + n) for n in range(1000)]
    assert sum(best_sharing(MOST_ROWS, devices).rows) == MOST_ROWS


# One more device

LINK = Link("", 1e-3, 1e9, "")
NETWORK = Network("ring", LINK, LINK, 8)
FAST, SLOW = Device(0.0, 1000), Device(0.0, 100)


def test_a_device_pays_where_it_saves_more_than_its_allreduce():
    # 100 rows take 100 ms, with the slow one's help 91 ms (10 of 110 rows).
    verdict = one_more(100, [FAST], SLOW, NETWORK, 0)
    assert verdict.saved == pytest.approx(0.100 - 0.091)
    assert verdict.added == pytest.approx(2 * 1e-3)
    assert verdict.pays
    assert str(verdict) == "It pays: it saves 9 ms of computing and adds 2 ms of allreduce."


def test_it_does_not_where_the_allreduce_costs_more():
    verdict = one_more(100, [FAST], SLOW, NETWORK, 10e6)
    assert verdict.added == pytest.approx(2 * (1e-3 + 5e6 / 1e9))
    assert not verdict.pays
    assert str(verdict).startswith("It does not pay: it saves 9 ms")


def test_a_device_that_could_not_begin_in_time_changes_nothing():
    verdict = one_more(100, [FAST], Device(1.0, 1000), NETWORK, 10e6)
    assert (verdict.rows, verdict.saved, verdict.added) == (0, 0.0, 0.0)
    assert not verdict.pays
    assert "before it could begin" in str(verdict)


# As the user sets it

TWO = UnevenConfig(
    batch_size=110, workers=(Worker(speed=100.0, fixed_ms=0.0), Worker(speed=1000.0, fixed_ms=0.0))
)


def test_a_worker_is_its_device_in_seconds():
    assert Worker(speed=50.0, fixed_ms=2.0).device == Device(0.002, 50)


def test_the_slowest_is_weighed_against_all_others():
    # 110 rows take the fast one 110 ms, and both 100 ms.
    verdict = slowest_helps(TWO, NETWORK, 0)
    assert verdict.computing == pytest.approx((0.110, 0.100))
    assert verdict == one_more(110, [FAST], SLOW, NETWORK, 0)


def test_a_lone_device_has_nobody_to_be_weighed_against():
    assert slowest_helps(UnevenConfig(workers=(Worker(),)), NETWORK, 1e6) is None


def test_what_the_best_shares_gain_is_summed_up():
    assert sum_up(TWO) == (
        "Modelled: with equal shares the last device is done after 550 ms, and 45% of all devices' "
        "time is waiting; with shares of 10, 100 images it is done after 100 ms, 5.5 times as fast."
    )


# What is refused


@pytest.mark.parametrize("workers", [(), (Worker(),) * (MOST_WORKERS + 1)], ids=len)
def test_no_devices_or_too_many_are_refused(workers):
    with pytest.raises(ConfigError, match="uneven: workers must be from 1 to 16 devices; received"):
        UnevenConfig(workers=workers)


@pytest.mark.parametrize("settings", [{"speed": 0.0}, {"fixed_ms": -1.0}, {"speed": math.nan}])
def test_impossible_workers_are_refused(settings):
    with pytest.raises(ConfigError, match=r"device: .* must be a number from"):
        Worker(**settings)


@pytest.mark.parametrize("share", [ideal, best_sharing, equal_sharing])
@pytest.mark.parametrize(
    ("rows", "devices", "message"),
    [
        (0, [FAST], "rows must be a whole number from 1 to 1000000; received 0"),
        (10**9, [FAST], "rows must be a whole number from 1 to 1000000; received 1000000000"),
        (1.5, [FAST], "rows must be a whole number"),
        (8, [], "devices must be at least one; all were left out; received 0"),
        (8, [Device(0.0, math.inf)], "speed of a device must be finite"),
    ],
    ids=str,
)
def test_impossible_sharings_are_refused(share, rows, devices, message):
    with pytest.raises(ConfigError, match=message):
        share(rows, devices)


def test_a_split_is_for_as_many_ranks_as_there_are_devices():
    with pytest.raises(ConfigError, match="world_size must be 2, one per device; received 3"):
        best_split([FAST, SLOW])(10, 3)
