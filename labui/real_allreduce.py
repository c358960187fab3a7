"""The allreduce on the page, run on real processes of this machine."""

import time
from contextlib import closing

import streamlit as st
from torch import Tensor

from labcore.config import ConfigError
from labcore.process_allreduce import (
    LARGEST_WORLD_SIZE,
    ProcessReduce,
    StageReached,
    difference,
    reduce_steps,
)
from labcore.processes import PlacesAwaited, WorkerError
from labcore.units import in_bytes, in_seconds
from labui.page import plain
from labui.process_run import has_processes, waiting_words
from labui.run_panel import POLL_SECONDS

RESULT = "allreduce:real"
STAGES = {"loaded": 0.25, "joined": 0.5, "reduced": 0.75, "timed": 1.0}
"""How far a rank's process is with each stage."""


@st.fragment
def run_for_real(vectors: Tensor, played: Tensor) -> None:
    """A button that sums the vectors on as many processes, and what came of it.

    Args:
        vectors: what the ranks begin with, (p, n).
        played: what the schedule on the page left on every rank, (p, n).
    """
    st.subheader("Run it for real")
    st.caption(
        f"{len(vectors)} process{'es' * (len(vectors) > 1)} on this machine sum these vectors with "
        "torch.distributed over gloo, which chooses an algorithm of its own."
    )
    why = f"At most {LARGEST_WORLD_SIZE} ranks: every one is a process that loads torch."
    refused = len(vectors) > LARGEST_WORLD_SIZE
    if has_processes():
        why = "One run on processes at a time: stop the one on the Fashion-MNIST page first."
        refused = True
    if st.button("Run", icon=":material/memory:", disabled=refused, help=why, key="run for real"):
        _run(vectors)
    if refused:
        st.caption(why)
    ran, result = st.session_state.get(RESULT, (None, None))
    if ran is not None and ran.shape == vectors.shape and bool((ran == vectors).all()):
        _show(result, played)


def _run(vectors: Tensor) -> None:
    """Run the processes, and keep their result; they end with this, whatever happens."""
    bar = st.progress(0.0)
    try:
        with closing(reduce_steps(vectors)) as events:
            done = dict.fromkeys(range(len(vectors)), 0.0)
            for event in events:
                words = "Starting the processes"
                match event:
                    case PlacesAwaited(missing):
                        words = waiting_words(missing)
                        time.sleep(POLL_SECONDS)
                    case StageReached(rank, stage):
                        done[rank] = STAGES[stage]
                    case ProcessReduce():
                        st.session_state[RESULT] = (vectors, event)
                bar.progress(sum(done.values()) / len(done), text=words)
    except (WorkerError, ConfigError) as error:
        st.error(plain(str(error)))
    bar.empty()


def _show(result: ProcessReduce, played: Tensor) -> None:
    """The processes' figures: all measured, and apart from the modelled ones."""
    apart = difference(result, played)
    figures = {
        "one allreduce, measured": in_seconds(result.seconds),
        "start-up, measured": in_seconds(result.startup_seconds),
    }
    if len(played) > 1 and result.n_bytes:
        figures["bus bandwidth"] = f"{in_bytes(result.busbw)}/s"
    figures["largest difference to the picture"] = f"{apart:.3g}"
    for column, (label, value) in zip(st.columns(4), figures.items(), strict=False):
        column.metric(label, value)
    same = "element by element the same" if apart == 0 else "the same up to the order of adding"
    st.caption(
        f"Every process received its sum: {same}. Vectors of {in_bytes(result.n_bytes)}; through "
        "this machine's memory and sockets, not over the link that is modelled above."
    )
