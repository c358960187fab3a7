"""Trials on this machine, as jobs: a model's speed, replicas of unequal speed, several seeds."""

from collections.abc import Callable, Generator, Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import streamlit as st

from labcore.calibration import MeasureConfig, Measured, StepTimed, measure
from labcore.events import ShardDone
from labcore.jobs import Job
from labcore.timed_steps import Compared, SlowedConfig, SlowStep, run_slowed
from labui.page import plain
from labui.run_panel import live, moving, status
from labui.session import current_job, start_job

MEASURE, SLOWED, SEEDS = "measure", "slowed", "seeds"
"""What the jobs are called."""


class Kept(Protocol):
    """What is known of a trial: a job's history that can tell how far it is."""

    def add(self, event: Any) -> None:
        """Take in an event."""

    def progress(self) -> tuple[float, str]:
        """Share that is done, and where the trial is in words."""


K = TypeVar("K", bound=Kept)


@dataclass
class Trial:
    """What is known of a trial so far.

    Attributes:
        config: what is timed.
        slowed: the replicas that follow, if any do.
        timed: the last trial step.
        measured: what they came to.
        steps: of the slowed replicas.
        compared: what they came to.
    """

    config: MeasureConfig
    slowed: SlowedConfig | None = None
    timed: StepTimed | None = None
    measured: Measured | None = None
    steps: list[SlowStep] = field(default_factory=list)
    compared: Compared | None = None

    def add(self, event: Any) -> None:
        """Take in an event of `trial`."""
        match event:
            case StepTimed():
                self.timed = event
            case Measured():
                self.measured = event
            case SlowStep():
                self.steps.append(event)
            case Compared():
                self.compared = event

    def progress(self) -> tuple[float, str]:
        """Share that is done, and where the trial is in words."""
        if self.steps and self.slowed:
            last, of = self.steps[-1], self.slowed.steps
            done = 0.5 + len(self.steps) / (4 * of)
            return done, f"step {last.step} of {of} with {last.sharing} shares"
        if self.timed is None:
            return 0.0, ""
        done = self.timed.done / self.timed.of * (0.5 if self.slowed else 1.0)
        return done, f"trial step {self.timed.done} of {self.timed.of}"


Events = Generator[ShardDone | StepTimed | Measured | SlowStep | Compared, None, None]


def trial(config: MeasureConfig, slowed: SlowedConfig | None = None) -> Events:
    """Measure a model here, and then, if asked, train slowed replicas of it.

    Raises:
        ConfigError: no speed can be told, at the end of the measurement.
        DataError: the images cannot be read.
    """
    for event in measure(config):
        yield event
        if isinstance(event, Measured) and slowed:
            yield from run_slowed(slowed, event.device)


def start_trial(name: str, config: MeasureConfig, slowed: SlowedConfig | None = None) -> Job[Trial]:
    """Start a trial as the session's job of that name."""
    return begin(name, trial(config, slowed), Trial(config, slowed))


def begin(name: str, events: Iterator[Any], kept: K, *, wide: bool = False) -> Job[K]:
    """Start what has events of its own, which only its own history has to know.

    Args:
        name: of the session's job.
        events: the run.
        kept: its history.
        wide: whether its operations are large enough for all cores.
    """
    return start_job(name, events, kept, paused=False, wide=wide)


def trial_panel(
    name: str,
    label: str,
    text: str,
    start: Callable[[], Job[K]],
    draw: Callable[[K], None],
    *,
    ready: bool = True,
) -> None:
    """A button that starts a trial, one that ends it, its progress, and what came of it.

    Args:
        name: of the session's job.
        label: of the button.
        text: what it does.
        start: starts the trial.
        draw: draws what is known, while the trial goes on and after it.
        ready: whether it may start.
    """
    busy = moving(current_job(name))
    with st.container(horizontal=True):
        pressed = st.button(
            label,
            key=f"{name}:start",
            icon=":material/timer:",
            help=text,
            disabled=busy or not ready,
        )
        stopped = st.button(
            "Stop",
            key=f"{name}:stop",
            icon=":material/stop:",
            help="End the trial here; what is known by then stays.",
            disabled=not busy,
        )
    if pressed and not busy:
        start()
        st.rerun()
    job = current_job(name)
    if stopped and job:
        job.stop()
        st.rerun()
    if job:
        live(name, lambda: _draw(current_job(name), draw))


def _draw(job: Job[K] | None, draw: Callable[[K], None]) -> None:
    if job is None:
        return
    with job.reading() as reading:
        kept = deepcopy(reading)
    if job.error:
        st.error(plain(job.error))
    elif job.state != "finished":
        status(job, *kept.progress())
    draw(kept)
