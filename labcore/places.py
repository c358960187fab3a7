"""Places for worker processes on this machine, and the line of those that wait for some.

All runs of this process, whichever session they are of, share `PLACES`. The line is fair: who came
first is served first, even where a smaller run behind would fit already. Only a run that has not
asked for `PASSED_AFTER` seconds, as a paused one, lets others pass; it keeps its place in the line.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock

from labcore.config import refusal

MOST_PROCESSES = 16
"""At once on this machine: each takes 300 MB. As many as the largest run has, so that none waits
for ever."""
PASSED_AFTER = 3.0
"""Seconds; a job in the pool asks every half second."""


class Places:
    """A number of places, taken and given back by several threads.

    Args:
        most: how many there are.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._lock = Lock()
        self._taken = 0
        self._line: list[Request] = []

    @property
    def taken(self) -> int:
        """Places that are in use."""
        return self._taken

    @contextmanager
    def request(self, count: int) -> Iterator["Request"]:
        """Join the line for so many places; whatever happens, leaving gives them back.

        Raises:
            ConfigError: there are not so many.
        """
        if count > self.most:
            allowed = f"at most {self.most} at once, since each takes 300 MB of memory"
            raise refusal("worker processes", count, allowed, self.most)
        request = Request(self, count)
        with self._lock:
            self._line.append(request)
        try:
            yield request
        finally:
            with self._lock:
                if request.granted:
                    self._taken -= count
                else:
                    self._line.remove(request)


@dataclass(eq=False)
class Request:
    """One run's wish for places.

    Attributes:
        count: how many it wants.
        granted: whether it has them.
    """

    _places: Places
    count: int
    granted: bool = False
    _asked: float = 0.0

    def missing(self) -> int:
        """Places that must yet become free for it; if 0, it has them from now on."""
        places, now = self._places, time.monotonic()
        with places._lock:
            self._asked = now
            if self.granted:
                return 0
            ahead = places._line[: places._line.index(self)]
            wanted = sum(each.count for each in ahead if each._asked > now - PASSED_AFTER)
            missing = wanted + self.count + places._taken - places.most
            if missing > 0:
                return missing
            places._line.remove(self)
            places._taken += self.count
            self.granted = True
            return 0


PLACES = Places(MOST_PROCESSES)
"""Those of this machine, as far as this process gives them out."""
