"""The notes' table of runs as the Scaling page shows it: reported, and what is odd in it."""

import streamlit as st

from labcore.findings import findings
from labcore.models import MODELS
from labcore.reported import FASHION_MNIST_RUNS
from labcore.scaling_charts import REPORTED, reported_columns, reported_spec
from labui.exports import chart_exports
from labui.page import ink, plain
from labui.scaling_form import ScalingDraft

NUMBERS = {run: number for number, run in enumerate(FASHION_MNIST_RUNS, start=1)}
"""Rows of the table, from 1."""


def draw_reported(_draft: ScalingDraft) -> None:
    """Accuracy and seconds per epoch of every run, and what the numbers themselves point out."""
    columns = reported_columns(FASHION_MNIST_RUNS)
    rows = len(FASHION_MNIST_RUNS)
    st.markdown("**Reported by the notes**: ten epochs of Fashion-MNIST; not measured here.")
    for column, name in zip(st.columns(2), REPORTED, strict=True):
        column.vega_lite_chart(columns, reported_spec(name, rows, ink()), key=f"reported {name}")
    _odd()
    with st.expander("The notes' table, as reported", icon=":material/table:"):
        st.dataframe(
            {
                "row": list(NUMBERS.values()),
                "model": [MODELS[run.model].label for run in FASHION_MNIST_RUNS],
                "GPUs": [run.devices for run in FASHION_MNIST_RUNS],
                "batch": [run.batch_size for run in FASHION_MNIST_RUNS],
                "learning rate": [run.lr for run in FASHION_MNIST_RUNS],
                "test accuracy, reported": [run.accuracy for run in FASHION_MNIST_RUNS],
                "s/epoch, reported": [run.seconds_per_epoch for run in FASHION_MNIST_RUNS],
            },
            hide_index=True,
        )
    chart_exports(
        "reported",
        {
            "reported accuracy": lambda: (reported_spec("accuracy", rows), columns),
            "reported seconds": lambda: (reported_spec("seconds", rows), columns),
        },
    )


def _odd() -> None:
    """What stands out, each with the rows that it is about; in threes."""
    st.subheader("What is odd in it, found in the numbers")
    found = findings()
    for first in range(0, len(found), 3):
        for column, each in zip(st.columns(3), found[first : first + 3], strict=False):
            numbers = [str(NUMBERS[run]) for run in each.runs]
            which = "all rows" if len(numbers) == len(NUMBERS) else f"rows {', '.join(numbers)}"
            with column.container(border=True):
                st.markdown(f"**{plain(each.title)}** · {which}")
                st.markdown(plain(each.words))
