"""Fifty runs on processes, started and stopped: `python -m tests.start_and_stop`.

Each is stopped at another moment: while its processes start, in the first steps, or later. It
takes some minutes; the first argument is the number of runs. Exits with 1 if a process or a
temporary file of one is left.
"""

import os
import sys
import tempfile
import time
from pathlib import Path

from labcore.classification import ClassificationConfig, train_classifier
from labcore.datasets import fashion_mnist
from labcore.events import ProcessesAwaited, StepTaken
from tests.children import children

RUNS = 50
CONFIG = ClassificationConfig(engine="processes", replicas=2, images=100, batch_size=50, epochs=100)


def start_and_stop(number: int, folder: Path) -> float:
    """Start a run and stop it at a moment of its own; returns the seconds that its end took."""
    kind, count = [(ProcessesAwaited, 1), (ProcessesAwaited, 10 + number), (StepTaken, number)][
        number % 3
    ]
    data = fashion_mnist.load(fashion_mnist.EMBEDDED)
    events = train_classifier(CONFIG, data, checkpoint=folder / f"{number}.ckpt")
    seen = 0
    for event in events:
        seen += isinstance(event, kind)
        if seen >= count:
            break
    started = time.monotonic()
    events.close()
    return time.monotonic() - started


def main() -> int:
    """Start and stop; returns the exit status."""
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else RUNS
    longest = 0.0
    with tempfile.TemporaryDirectory() as temporary, tempfile.TemporaryDirectory() as folder:
        tempfile.tempdir = temporary
        for number in range(1, runs + 1):
            longest = max(longest, start_and_stop(number, Path(folder)))
            left = [
                *children(os.getpid()),
                *Path(temporary).iterdir(),
                *Path(folder).glob("*.partial"),
            ]
            if left:
                print(f"run {number} left {left}")
                return 1
    print(f"{runs} runs started and stopped, none left anything; the longest stop {longest:.2f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
