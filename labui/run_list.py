"""The runs of a session: kept, pinned into the charts, compared, removed."""

from dataclasses import dataclass
from itertools import count
from typing import Any

import streamlit as st

from labcore.classification import ClassificationConfig
from labcore.classification_history import ClassificationHistory
from labcore.events import ClassifierTrained, Diverged
from labcore.models import MODELS
from labcore.reported import FASHION_MNIST_RUNS

MOST_RUNS = 30
MOST_PINNED = 7
"""With the session's last run these are as many as the palette has colours."""

_numbers = count(1)


@dataclass
class Run:
    """One run of the session.

    Attributes:
        number: counts the runs of this process.
        history: what it reported.
        pinned: whether the charts show it beside the last one.
    """

    number: int
    history: ClassificationHistory
    pinned: bool = False

    @property
    def name(self) -> str:
        """What the charts call it."""
        config = self.history.config
        return f"#{self.number} {MODELS[config.model].label}, k={config.replicas}"


def runs() -> list[Run]:
    """The session's runs, the last one last."""
    kept: list[Run] = st.session_state.setdefault("runs", [])
    return kept


def keep_run(history: ClassificationHistory) -> None:
    """Add a run; the oldest one that is not pinned makes room."""
    kept = runs()
    kept.append(Run(next(_numbers), history))
    if len(kept) > MOST_RUNS:
        kept.remove(next((run for run in kept if not run.pinned), kept[0]))


def run_table(kept: list[Run]) -> None:
    """All runs of the session, and what the notes report, with pin and remove."""
    ours = [_row(run) for run in kept]
    notes = [
        {
            "pin": None,
            "run": "notes",
            "model": MODELS[each.model].label,
            "devices": each.devices,
            "batch": each.batch_size,
            "lr": each.lr,
            "accuracy": each.accuracy,
            "s/epoch": each.seconds_per_epoch,
            "origin": "reported in the notes, on GPUs",
        }
        for each in FASHION_MNIST_RUNS
    ]
    edited = st.data_editor(
        ours + notes,
        key=f"run table {[(run.number, run.pinned) for run in kept]}",
        disabled=["run", "model", "devices", "batch", "lr", "accuracy", "s/epoch", "origin"],
        column_config={
            "pin": st.column_config.CheckboxColumn(help="Show this run in the charts."),
            "accuracy": st.column_config.NumberColumn(format="%.3f"),
            "s/epoch": st.column_config.NumberColumn(format="%.2f"),
        },
        hide_index=True,
        height="content",
    )
    _pin(kept, [bool(row["pin"]) for row in edited[: len(kept)]])
    removable = [run.name for run in kept if not run.pinned]
    with st.container(horizontal=True, vertical_alignment="bottom"):
        names = st.multiselect("Remove runs", removable, help="Pinned runs stay until unpinned.")
        st.button("Remove", on_click=_remove, args=(names,), disabled=not names, help="For good.")


def _pin(kept: list[Run], wanted: list[bool]) -> None:
    if sum(wanted) > MOST_PINNED:
        st.warning(f"The charts have room for {MOST_PINNED} pinned runs; unpin one first.")
        return
    changed = [run for run, pin in zip(kept, wanted, strict=True) if run.pinned != pin]
    for run in changed:
        run.pinned = not run.pinned
    if changed:
        st.rerun()


def _remove(names: list[str]) -> None:
    st.session_state["runs"] = [run for run in runs() if run.name not in names]


def _row(run: Run) -> dict[str, Any]:
    config: ClassificationConfig = run.history.config
    epochs = list(run.history.epochs)
    match run.history.outcome:
        case ClassifierTrained():
            origin = "measured here"
        case Diverged(step=step):
            origin = f"measured here, diverged at step {step:,}"
        case _:
            origin = "measured here, not finished"
    return {
        "pin": run.pinned,
        "run": f"#{run.number}",
        "model": MODELS[config.model].label,
        "devices": config.replicas,
        "batch": config.global_batch,
        "lr": config.global_lr,
        "accuracy": epochs[-1].accuracy if epochs else None,
        "s/epoch": epochs[-1].seconds_per_epoch if epochs else None,
        "origin": origin,
    }
