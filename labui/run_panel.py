"""Controls and live view of one job: start, pause, step, stop, reset, and a figure that follows."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import streamlit as st

from labcore.config import Config, choice
from labcore.jobs import Job
from labui.session import current_job, forget_job

POLL_SECONDS = 0.5
STEP_SECONDS = 0.4
"""How long a press of Step waits for the step, so that the page shows it at once."""


@dataclass(frozen=True)
class Pace(Config):
    """How fast a run may go, so that a class can follow it."""

    name = "pace"

    pace: str = choice(
        "pace",
        "100",
        {"5": "5/s", "20": "20/s", "100": "100/s", "500": "500/s", "max": "Full speed"},
        help="Most steps per second. Slower to follow each step, full speed to see who is fastest.",
    )

    @property
    def steps_per_second(self) -> float | None:
        """None for as fast as possible."""
        return None if self.pace == "max" else float(self.pace)


def moving(job: Job[Any] | None) -> bool:
    """Whether the job will report more without being asked to."""
    return job is not None and job.state in ("queued", "running")


def transport(
    name: str, *, ready: bool, start: Callable[[bool], Job[Any]], new_seed: Callable[[], None]
) -> None:
    """The buttons that drive the session's job of that name.

    They act here and not in callbacks, which would run before a value just typed has arrived.

    Args:
        name: of the job in this session.
        ready: whether the settings allow a start.
        start: starts a new job, paused if its argument is True.
        new_seed: draws another seed for the next run.
    """
    job = current_job(name)
    with st.container(horizontal=True):
        pressed = _pressed(name, job, ready)
    if pressed is None:
        return
    if pressed == "reset" or pressed == "seed":
        forget_job(name)
        if pressed == "seed":
            new_seed()
    elif pressed == "start" or pressed == "step":
        # The second of two quick presses of Start finds the job running: nothing to do.
        if job is None or not job.live:
            job = start(pressed == "step")
        if pressed == "start":
            job.resume()
        else:
            job.step()
            job.wait(STEP_SECONDS)
    elif job is not None:
        {"pause": job.pause, "stop": job.stop}[pressed]()
    st.rerun()


def _pressed(name: str, job: Job[Any] | None, ready: bool) -> str | None:
    """Draw the buttons; which one was pressed."""
    live = job is not None and job.live
    can_go = live or ready
    buttons = {
        "start": (
            "Resume" if job is not None and job.state == "paused" else "Start",
            ":material/play_arrow:",
            can_go and not moving(job),
            "Train until the last epoch; after a pause, go on.",
        ),
        "pause": (
            "Pause",
            ":material/pause:",
            moving(job),
            "Hold after the step in hand; nothing is lost.",
        ),
        "step": ("Step", ":material/skip_next:", can_go, "One minibatch for everyone, then pause."),
        "stop": ("Stop", ":material/stop:", live, "End the run here; what it showed stays."),
        "reset": (
            "Reset",
            ":material/replay:",
            job is not None,
            "Back to the start: the same initial weights, with the settings as they are now.",
        ),
        "seed": (
            "New seed",
            ":material/casino:",
            True,
            "Back to the start with other initial weights and another order of the rows.",
        ),
    }
    pressed = None
    for key, (label, icon, enabled, text) in buttons.items():
        kind: Literal["primary", "secondary"] = "primary" if key == "start" else "secondary"
        if st.button(label, f"{name}:{key}", text, icon=icon, type=kind, disabled=not enabled):
            pressed = key
    return pressed


def live(name: str, draw: Callable[[], None]) -> None:
    """Draw now, and again every half second while the session's job of that name moves.

    Args:
        name: of the job in this session.
        draw: draws the job as it is; called inside a fragment.
    """
    follow = moving(current_job(name))

    @st.fragment(run_every=POLL_SECONDS if follow else None)
    def view() -> None:
        resting = not moving(current_job(name))
        draw()
        if follow and resting:
            # One run of the whole page: it removes the timer and sets the buttons right.
            st.rerun()

    view()


def status(job: Job[Any] | None, step: int, steps: int, epochs: float) -> None:
    """A progress bar with the job's state in words, of one fixed height.

    Args:
        job: the job, None before the first start.
        step: steps done.
        steps: steps in the whole run, 0 where not known yet.
        epochs: epochs done.
    """
    place = f"Step {step:,} of {steps:,} · epoch {epochs:.2f}"
    if job is None:
        words = "Ready"
    elif job.state == "queued":
        words = "Waiting for a worker" + (f", number {job.position} in line" * bool(job.position))
    else:
        words = f"{job.state.capitalize()} · {place}"
    st.progress(min(1.0, step / steps) if steps else 0.0, text=words)
