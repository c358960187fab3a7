"""Which processes a process has started, from /proc."""

from contextlib import suppress
from pathlib import Path


def children(parent: int) -> set[int]:
    """Process ids of its children that run, or that it has not yet waited for.

    All processes are asked for their parent: a thread's own list of children moves to another
    thread when it ends, and might be missed.
    """
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        # It may end while it is looked at.
        with suppress(OSError):
            its_parent = (process / "stat").read_text().rpartition(")")[2].split()[1]
            if int(its_parent) == parent:
                found.add(int(process.name))
    return found
