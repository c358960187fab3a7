"""The browser session: the jobs it runs, and the lease on which they live.

A session's jobs outlive a page switch and a short loss of the network. When its browser is gone for
longer than the pool's lease, they end.
"""

import threading
from collections.abc import Iterator
from typing import Any

import streamlit as st
from streamlit import runtime
from streamlit.runtime.scriptrunner import get_script_run_ctx

from labcore.events import Event
from labcore.jobs import H, Job, pool

CHECK_SECONDS = 1.0

_keeper_lock = threading.Lock()
_keeper: threading.Thread | None = None


def current_job(name: str) -> Job[Any] | None:
    """The job that this session last started under a name, live or ended."""
    job: Job[Any] | None = st.session_state.get(f"job:{name}")
    return job


def start_job(
    name: str,
    events: Iterator[Event],
    history: H,
    *,
    paused: bool,
    pace: float | None = None,
    wide: bool = False,
) -> Job[H]:
    """Start a run under a name; a live one of that name is stopped first.

    Args:
        name: what the page calls it.
        events: the run.
        history: what keeps its events.
        paused: whether it waits for `Job.step` or `Job.resume`.
        pace: most steps per second, None for as fast as possible.
        wide: let single operations use all cores.
    """
    forget_job(name)
    job = pool().submit(events, history, owner=_session_id(), paused=paused, pace=pace, wide=wide)
    st.session_state[f"job:{name}"] = job
    _keep_leases()
    return job


def forget_job(name: str) -> None:
    """Stop the job of that name, if there is one, and drop it with its history."""
    job = st.session_state.pop(f"job:{name}", None)
    if job is not None:
        job.stop()


def _session_id() -> str:
    context = get_script_run_ctx()
    if context is None:
        raise RuntimeError("A job can only be started by a page that a browser has opened.")
    return context.session_id


def _keep_leases() -> None:
    """Watch, once per process, which sessions have a browser.

    Asked of the server itself: a page without a timer is not run again when a lost connection
    comes back, so the pages cannot tell.
    """
    global _keeper
    with _keeper_lock:
        if _keeper is None and runtime.exists():
            _keeper = threading.Thread(target=_watch_sessions, name="lab-leases", daemon=True)
            _keeper.start()


def _watch_sessions() -> None:
    pause = threading.Event()
    while not pause.wait(CHECK_SECONDS):
        for owner in pool().owners():
            if _gone(owner):
                pool().release(owner)
            else:
                pool().renew(owner)


def _gone(owner: str) -> bool:
    """Whether a server runs and has no browser connected for this session."""
    return runtime.exists() and runtime.get_instance().is_active_session(owner) is False
