"""A run on processes, as a session has it: one at a time, its checkpoint, and what it waits for."""

import shutil
import tempfile
import weakref
from pathlib import Path

import streamlit as st

from labcore.classification_history import ClassificationHistory
from labcore.jobs import Job
from labui.classification_form import FORM
from labui.session import current_job

FOLDER = "checkpoints"


class Folder:
    """A private folder that goes when nobody holds it: kept in the session, it ends with that."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="labui-"))
        self.runs = 0
        weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)


def new_checkpoint() -> Path:
    """Where a run that begins anew is kept; the one before it can no longer be resumed."""
    if FOLDER not in st.session_state:
        st.session_state[FOLDER] = Folder()
    folder: Folder = st.session_state[FOLDER]
    last_checkpoint().unlink(missing_ok=True)
    folder.runs += 1
    return last_checkpoint()


def last_checkpoint() -> Path:
    """Where the session's last run on processes is kept; perhaps there is none yet."""
    folder: Folder = st.session_state[FOLDER]
    return folder.path / f"run-{folder.runs}.checkpoint"


def resumable() -> ClassificationHistory | None:
    """The session's last run, where it ended early on processes and has a checkpoint; else None."""
    job: Job[ClassificationHistory] | None = current_job(FORM)
    # A run that was stopped writes itself down before it rests.
    if job is None or job.live or not job.wait(0):
        return None
    with job.reading() as history:
        ended = history.outcome is not None or history.config.engine != "processes"
    return None if ended or not last_checkpoint().exists() else history


def has_processes() -> bool:
    """Whether a run of this session has processes, or waits for room for them."""
    job: Job[ClassificationHistory] | None = current_job(FORM)
    if job is None or (job.wait(0) and not job.live):
        return False
    with job.reading() as history:
        return history.config.engine == "processes"


def waiting_words(missing: int) -> str:
    """What a run waits for that has no room for its processes yet."""
    return f"waiting for {missing} process{'es' * (missing > 1)} of other runs to end"
