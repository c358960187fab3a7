"""Trials on this machine, as jobs: a model's speed, and replicas of unequal speed."""

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from typing import Any

import streamlit as st

from labcore.calibration import MeasureConfig, Measured, StepTimed, measure
from labcore.events import ShardDone
from labcore.jobs import Job
from labcore.timed_steps import Compared, SlowedConfig, SlowStep, run_slowed
from labui.page import plain
from labui.run_panel import live, moving, status
from labui.session import current_job, forget_job, start_job

MEASURE, SLOWED = "measure", "slowed"
"""What the jobs are called."""


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
    # A page's job only hands events from a run to its own history.
    events: Iterator[Any] = trial(config, slowed)
    return start_job(name, events, Trial(config, slowed), paused=False)


def trial_panel(
    name: str,
    label: str,
    text: str,
    start: Callable[[], Job[Trial]],
    draw: Callable[[Trial], None],
    *,
    ready: bool = True,
) -> None:
    """A button that starts a trial, one that ends it, its progress, and what came of it.

    Args:
        name: of the session's job.
        label: of the button.
        text: what it does.
        start: starts the trial.
        draw: draws what is known.
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
            help="End the trial here.",
            disabled=not busy,
        )
    if pressed and not busy:
        start()
        st.rerun()
    if stopped:
        forget_job(name)
        st.rerun()
    if current_job(name):
        live(name, lambda: _draw(current_job(name), draw))


def _draw(job: Job[Trial] | None, draw: Callable[[Trial], None]) -> None:
    if job is None:
        return
    with job.reading() as kept:
        done, place = kept.progress()
    if job.error:
        st.error(plain(job.error))
    elif job.live:
        status(job, done, place)
    else:
        draw(kept)
