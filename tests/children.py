"""Which processes a process has started, and whether they have ended."""

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path


def _processes() -> Iterator[tuple[int, int, str]]:
    """Id, parent's id and state of every process of this machine.

    All are asked for their parent: a thread's own list of children moves to another thread when it
    ends, and might be missed.
    """
    for process in Path("/proc").glob("[0-9]*"):
        # It may end while it is looked at.
        with suppress(OSError):
            state, parent = (process / "stat").read_text().rpartition(")")[2].split()[:2]
            yield int(process.name), int(parent), state


def children(pid: int) -> set[int]:
    """The processes that this one has started and that run, or that it has not yet waited for."""
    return {child for child, parent, _ in _processes() if parent == pid}


def below(pid: int) -> list[int]:
    """All processes that this one has started and that run, and those of these."""
    parents = {child: parent for child, parent, state in _processes() if state != "Z"}
    found, new = [], [pid]
    while new:
        new = [child for child, parent in parents.items() if parent in new]
        found += new
    return found


def gone(pid: int) -> bool:
    """Whether a process has ended; one that nobody has waited for is a zombie, no process."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return Path("/proc").exists()  # gone meanwhile; elsewhere, there are no such files


def gone_within(seconds: float, pids: list[int]) -> bool:
    """Whether all of them end in this time."""
    until = time.monotonic() + seconds
    while not all(map(gone, pids)) and time.monotonic() < until:
        time.sleep(0.05)
    return all(map(gone, pids))
