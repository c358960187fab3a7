"""Ctrl-C and SIGTERM on the command line: the program ends, a run on processes in order."""

import signal
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from types import FrameType
from typing import TypeVar

T = TypeVar("T")

STOP_SIGNALS = {signal.SIGINT: "Interrupted.", signal.SIGTERM: "Terminated."}


class Stopped(BaseException):
    """A signal asks the program to end; the argument is the signal."""


def stop(number: int, frame: FrameType | None) -> None:
    """End the program wherever it is: a signal's handler."""
    # A second signal ends the process at once, in case the run does not close.
    for each in STOP_SIGNALS:
        signal.signal(each, signal.SIG_DFL)
    raise Stopped(signal.Signals(number))


@contextmanager
def stopping_between_events() -> Iterator[list[signal.Signals]]:
    """For a block, the signals that `stop` handles only put themselves into this list."""
    stopped: list[signal.Signals] = []

    def note(number: int, frame: FrameType | None) -> None:
        stopped.append(signal.Signals(number))
        for each in handled:
            signal.signal(each, signal.SIG_DFL)

    handled = [each for each in STOP_SIGNALS if signal.getsignal(each) is stop]
    for each in handled:
        signal.signal(each, note)
    try:
        yield stopped
    finally:
        # Once one has come, the next one ends the process at once.
        for each in [] if stopped else handled:
            signal.signal(each, stop)


def until(
    stopped: list[signal.Signals], events: Generator[T, None, None]
) -> Generator[T, None, None]:
    """A run's events until a signal has come: then the run is closed.

    Raises:
        Stopped: it has.
    """
    with closing(events):
        for event in events:
            if stopped:
                raise Stopped(stopped[0])
            yield event
