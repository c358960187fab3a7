"""A curve of bounded size: however long the run, what is kept still looks like the whole."""

from collections.abc import Callable, Iterator
from math import isfinite
from operator import attrgetter, itemgetter
from typing import Generic, TypeVar

T = TypeVar("T")

# A point with its place in the order of arrival and its y.
_Entry = tuple[int, float, T]
_arrival = itemgetter(0)
_y = itemgetter(1)


class Series(Generic[T]):
    """At most `capacity` of the points added, in order, which keep the shape of the curve.

    The points fall into buckets of equally many, and of each bucket the lowest and the highest are
    kept. When the list is full, neighbouring buckets merge, so an `add` costs O(1) on average. The
    first point, the last, the global minimum and the global maximum are always among those kept.
    A point whose y is no finite number cannot be drawn: it is kept only as the first or the last.

    Args:
        capacity: the most points ever read back, at least 8.
        key: the y of a point.
    """

    def __init__(self, capacity: int = 400, key: Callable[[T], float] = attrgetter("loss")) -> None:
        if capacity < 8:
            raise ValueError(f"A series needs room for at least 8 points, not {capacity}; try 400.")
        self._key = key
        # Beside the closed buckets there are the first, the last and the open bucket's extremes.
        # A multiple of 4, so that two whole buckets of two points each merge into one.
        self._room = (capacity - 4) // 4 * 4
        self._closed: list[_Entry[T]] = []
        self._width = 1
        self._in_bucket = 0
        self._low: _Entry[T] | None = None
        self._high: _Entry[T] | None = None
        self._first: _Entry[T] | None = None
        self._last: _Entry[T] | None = None

    def add(self, point: T) -> None:
        """Append a point."""
        y = self._key(point)
        entry = (0 if self._last is None else self._last[0] + 1, y, point)
        self._last = entry
        if self._first is None:
            self._first = entry
        if not isfinite(y):
            return
        if self._low is None or y < self._low[1]:
            self._low = entry
        # Of equals the latest, so a bucket of more than one point always has two extremes.
        if self._high is None or y >= self._high[1]:
            self._high = entry
        self._in_bucket += 1
        if self._in_bucket == self._width:
            self._closed += _in_order([self._low, self._high])
            self._low = self._high = None
            self._in_bucket = 0
            if len(self._closed) == self._room:
                self._merge_buckets()

    def _merge_buckets(self) -> None:
        fours = [self._closed[i : i + 4] for i in range(0, self._room, 4)]
        self._closed = [
            entry
            for four in fours
            for entry in _in_order([min(four, key=_y), max(reversed(four), key=_y)])
        ]
        self._width = 4 if self._width == 1 else 2 * self._width

    def __iter__(self) -> Iterator[T]:
        entries = [self._first, *self._closed, self._low, self._high, self._last]
        return iter([point for _, _, point in _in_order(entries)])

    def __copy__(self) -> "Series[T]":
        other: Series[T] = object.__new__(Series)
        other.__dict__ |= self.__dict__ | {"_closed": list(self._closed)}
        return other

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _in_order(entries: list[_Entry[T] | None]) -> list[_Entry[T]]:
    # Each entry once, in order of arrival.
    present = sorted((entry for entry in entries if entry is not None), key=_arrival)
    return list({entry[0]: entry for entry in present}.values())
