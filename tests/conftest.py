"""What all tests share: a page without a browser, and Ctrl-C, which a shell may shut out."""

import signal
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from labcore.jobs import pool

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Whoever they start would inherit that, and tests send SIGINT to those.
    signal.signal(signal.SIGINT, signal.default_int_handler)

JOBS = ("race", "classify", "sweep", "fair race", "measure", "slowed", "seeds")
"""What pages call their jobs."""
ROOT = Path(__file__).parent.parent


@pytest.fixture
def visit():
    """Opens a page of the lab in a session of its own; no job outlives the test."""
    visits = []

    def open_page(page="pages/optimizers.py", **query):
        app = AppTest.from_file(str(ROOT / "app.py"), default_timeout=60)
        app.query_params = query
        if page != "app.py":
            app.switch_page(page)
        visits.append(app)
        return app.run()

    yield open_page
    for app in visits:
        stop_jobs(app)
    assert pool().owners() == set()


def stop_jobs(app):
    """End every job of a session."""
    names = [f"job:{name}" for name in JOBS if f"job:{name}" in app.session_state]
    jobs = [app.session_state[name] for name in names]
    for job in jobs:
        job.stop()
    assert all(job.wait(20) for job in jobs)
