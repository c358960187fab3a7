"""A series stays small and keeps its ends, its extremes and its shape."""

import itertools
import math
import random
from collections.abc import Iterable
from typing import Any, NamedTuple

import pytest

from labcore.events import LossRecorded
from labcore.history import Series


class Dot(NamedTuple):
    x: int
    y: float


def series_of(ys: Iterable[float], capacity: int = 40) -> Series[Dot]:
    series: Series[Dot] = Series(capacity, key=lambda dot: dot.y)
    for x, y in enumerate(ys):
        series.add(Dot(x, y))
    return series


def noise(count: int, seed: int = 0) -> list[float]:
    generator = random.Random(seed)
    return [generator.gauss(0, 1) for _ in range(count)]


SHAPES: dict[str, list[float]] = {
    "noise": noise(10_007),
    "rising": [float(x) for x in range(10_007)],
    "falling": [float(-x) for x in range(10_007)],
    "constant": [1.0] * 10_007,
    "spike": [1.0] * 5_000 + [9.0] + [1.0] * 3_000 + [-9.0] + [1.0] * 2_005,
    "some are nan": [math.nan if x % 3 else float(x % 101) for x in range(10_007)],
    "some are infinite": [math.inf if x % 7 else -float(x % 101) for x in range(10_007)],
}


@pytest.fixture(params=SHAPES)
def ys(request: pytest.FixtureRequest) -> Any:
    return SHAPES[request.param]


@pytest.mark.parametrize("capacity", [8, 9, 10, 11, 40, 400])
def test_never_more_than_capacity_at_any_time(ys: list[float], capacity: int) -> None:
    series = series_of([], capacity)
    for x, y in enumerate(ys[:2_000]):
        series.add(Dot(x, y))
        assert len(series) <= capacity


def test_first_is_kept(ys: list[float]) -> None:
    assert next(iter(series_of(ys))) == Dot(0, ys[0]) or math.isnan(ys[0])


@pytest.mark.parametrize("count", [1, 2, 37, 100, 1_001])
def test_last_is_kept_at_any_time(ys: list[float], count: int) -> None:
    assert list(series_of(ys[:count]))[-1].x == count - 1


@pytest.mark.parametrize("count", [1, 2, 37, 100, 1_001, 8_500])
def test_global_minimum_is_kept(ys: list[float], count: int) -> None:
    finite = [y for y in ys[:count] if math.isfinite(y)]
    kept = [dot.y for dot in series_of(ys[:count]) if math.isfinite(dot.y)]
    assert min(kept, default=None) == min(finite, default=None)


@pytest.mark.parametrize("count", [1, 2, 37, 100, 1_001, 8_500])
def test_global_maximum_is_kept(ys: list[float], count: int) -> None:
    finite = [y for y in ys[:count] if math.isfinite(y)]
    kept = [dot.y for dot in series_of(ys[:count]) if math.isfinite(dot.y)]
    assert max(kept, default=None) == max(finite, default=None)


def test_order_is_kept_and_no_point_comes_twice(ys: list[float]) -> None:
    xs = [dot.x for dot in series_of(ys)]
    assert xs == sorted(set(xs))


def test_a_short_series_is_kept_whole() -> None:
    assert [dot.y for dot in series_of([3.0, 1.0, 2.0])] == [3.0, 1.0, 2.0]


def test_a_long_series_still_uses_half_of_its_capacity() -> None:
    assert len(series_of(noise(12_345), capacity=400)) >= 200


def test_envelope_of_noise_keeps_its_shape() -> None:
    # Amplitude grows from 0 to 1: what is kept of every tenth must reach nearly as far.
    ys = [y * x / 20_000 for x, y in enumerate(noise(20_000))]
    kept = list(series_of(ys, capacity=400))
    for tenth in range(10):
        span = range(tenth * 2_000, (tenth + 1) * 2_000)
        highest = max(dot.y for dot in kept if dot.x in span)
        assert highest == max(ys[x] for x in span)


def test_points_kept_lie_evenly() -> None:
    kept = [dot.x for dot in series_of(noise(20_000), capacity=400)]
    assert max(b - a for a, b in itertools.pairwise(kept)) <= 4 * 20_000 / 200


def test_memory_is_bounded() -> None:
    series = series_of(noise(50_000), capacity=40)
    assert len(series._closed) < 40


def test_an_empty_series_is_an_empty_tuple() -> None:
    assert tuple(series_of([])) == ()


def test_only_non_finite_points_keep_the_ends() -> None:
    assert [dot.x for dot in series_of([math.nan] * 100)] == [0, 99]


def test_losses_need_no_key() -> None:
    series: Series[LossRecorded] = Series()
    loss = LossRecorded(0, 0.0, 0.0, 1.5)
    series.add(loss)
    assert tuple(series) == (loss,)


def test_too_small_a_capacity_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 8 points, not 7; try 400"):
        series_of([], capacity=7)
