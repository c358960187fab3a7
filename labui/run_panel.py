"""Controls and live view of one job: start, pause, step, stop, reset, and a figure that follows."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import streamlit as st

from labcore.config import Config, choice
from labcore.jobs import Job
from labui.session import current_job, forget_job

POLL_SECONDS = 0.5
REST_SECONDS = 0.4
"""How long a press of Step or Pause waits for the job to rest, to show it at once."""


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


def _resting(job: Job[Any] | None) -> bool:
    """Whether nothing more will come; a job just paused may have an event in hand."""
    return job is None or job.wait(0)


def transport(
    name: str,
    *,
    ready: bool,
    start: Callable[[bool], Job[Any]],
    new_seed: Callable[[], None],
    beside: Callable[[], None] | None = None,
) -> None:
    """The buttons that drive the session's job of that name.

    A callback only notes what was pressed, so that no press is lost when one run of the page
    interrupts another; it is acted on here, where a value typed just before has arrived.

    Args:
        name: of the job in this session.
        ready: whether the settings allow a start.
        start: starts a new job, paused if its argument is True.
        new_seed: draws another seed for the next run.
        beside: draws what else is in the line of buttons.
    """
    with st.container(horizontal=True):
        _buttons(name, current_job(name), ready)
        if beside:
            beside()
    presses = st.session_state.pop(f"{name}:presses", [])
    for pressed in presses:
        _act(name, pressed, ready, start, new_seed)
    if presses:
        st.rerun()


def _act(
    name: str,
    pressed: str,
    ready: bool,
    start: Callable[[bool], Job[Any]],
    new_seed: Callable[[], None],
) -> None:
    job = current_job(name)
    if pressed in ("start", "step") and ready and (job is None or not job.live):
        job = start(pressed == "step")
    match pressed:
        # The second of two quick presses finds the job running: nothing to do.
        case "start" if job:
            job.resume()
        case "pause" if job:
            job.pause()
            job.wait(REST_SECONDS)
        case "step" if job:
            job.step()
            job.wait(REST_SECONDS)
        case "stop" if job:
            job.stop()
        case "reset":
            forget_job(name)
        case "seed":
            forget_job(name)
            new_seed()


def _buttons(name: str, job: Job[Any] | None, ready: bool) -> None:
    live = job is not None and job.live
    enabled = {
        "start": (live or ready) and not moving(job),
        "pause": moving(job),
        "step": live or ready,
        "stop": live,
        "reset": job is not None,
        "seed": True,
    }
    for key, (label, icon, text) in _BUTTONS.items():
        kind: Literal["primary", "secondary"] = "primary" if key == "start" else "secondary"
        resume = key == "start" and job is not None and job.state == "paused"
        st.button(
            "Resume" if resume else label,
            key=f"{name}:{key}",
            help=text,
            on_click=_note,
            args=(name, key),
            icon=icon,
            type=kind,
            disabled=not enabled[key],
        )


def _note(name: str, pressed: str) -> None:
    st.session_state.setdefault(f"{name}:presses", []).append(pressed)


_BUTTONS = {
    "start": (
        "Start",
        ":material/play_arrow:",
        "Train until the last epoch; after a pause, go on.",
    ),
    "pause": ("Pause", ":material/pause:", "Hold after the step in hand; nothing is lost."),
    "step": ("Step", ":material/skip_next:", "One minibatch for everyone, then pause."),
    "stop": ("Stop", ":material/stop:", "End the run here; what it showed stays."),
    "reset": (
        "Reset",
        ":material/replay:",
        "Back to the start: the same initial weights, with the settings as they are now.",
    ),
    "seed": (
        "New seed",
        ":material/casino:",
        "Back to the start with other initial weights and another order of the rows.",
    ),
}


def live(name: str, draw: Callable[[], None]) -> None:
    """Draw now, and again every half second while the session's job of that name moves.

    Args:
        name: of the job in this session.
        draw: draws the job as it is; called inside a fragment.
    """
    follow = not _resting(current_job(name))

    @st.fragment(run_every=POLL_SECONDS if follow else None)
    def view() -> None:
        # Asked before drawing: what a job at rest has reported is then drawn to the last event.
        resting = _resting(current_job(name))
        draw()
        if follow and resting:
            # One run of the whole page: it removes the timer and sets the buttons right.
            st.rerun()

    view()


def status(job: Job[Any] | None, done: float, place: str) -> None:
    """A progress bar with the job's state in words, of one fixed height.

    Args:
        job: the job, None before the first start.
        done: share of the run that is done.
        place: where the run is, in words; empty where that is not known yet.
    """
    if job is None:
        words = "Ready"
    elif job.state == "queued":
        words = "Waiting for a worker" + (f", number {job.position} in line" * bool(job.position))
    else:
        words = f"{job.state.capitalize()} · {place or 'getting ready'}"
    st.progress(min(1.0, done), text=words)
