"""The notes' table of runs: reported, what is odd in it, and two of its runs over again here."""

import streamlit as st

from labcore import classification_charts
from labcore.config import ConfigError
from labcore.findings import findings
from labcore.jobs import Job
from labcore.models import MODELS
from labcore.reported import FASHION_MNIST_RUNS
from labcore.scaling_charts import REPORTED, reported_columns, reported_spec
from labcore.seeds import SeedsConfig, SeedsHistory, named, over_seeds
from labui.draft import setting_widget
from labui.exports import chart_exports
from labui.page import ink, plain
from labui.scaling_form import ScalingDraft
from labui.trial_panel import SEEDS, begin, trial_panel

NUMBERS = {run: number for number, run in enumerate(FASHION_MNIST_RUNS, start=1)}
"""Rows of the table, from 1."""


def draw_reported(draft: ScalingDraft) -> None:
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
    _over_seeds(draft)


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


# --- over again -----------------------------------------------------------------------------------


def _over_seeds(draft: ScalingDraft) -> None:
    """The pair of runs that differ in the devices alone, from several seeds."""
    st.subheader("Does the second GPU help? Train both, from several seeds")
    with st.container(horizontal=True):
        for name in ("sample", "start"):
            setting_widget(draft, SeedsConfig, name)
    for column, name in zip(st.columns(4), ("epochs", "seeds", "seed"), strict=False):
        with column:
            setting_widget(draft, SeedsConfig, name)
    config = None
    try:
        config = draft.config_of(SeedsConfig)
    except ConfigError as error:
        st.error(plain(str(error)))
    trial_panel(
        SEEDS,
        "Train them",
        "Trains LeNet with the notes' batch and learning rate on one and on two devices, seed by "
        "seed, on this machine.",
        lambda: _train(draft.config_of(SeedsConfig)),
        lambda history: _spread(history, config),
        ready=config is not None,
    )


def _train(config: SeedsConfig) -> Job[SeedsHistory]:
    return begin(SEEDS, over_seeds(config), SeedsHistory(config), wide=True)


def _spread(history: SeedsHistory, config: SeedsConfig | None) -> None:
    """Accuracy over epochs as a band, and what it says of the notes' pair."""
    names = tuple(map(named, history.config.devices))
    columns = classification_charts.seeds_columns(history)
    spec = classification_charts.seeds_spec(names, history.config.epochs)
    st.vega_lite_chart(columns, spec, key="seeds chart")
    st.markdown(f"**Measured here.** {plain(history.verdict())}")
    st.caption(
        "Line: the median over seeds; band: from the smallest to the largest. Diamonds: what the "
        "notes report after 10 epochs on all images, one run each. From the same seed both begin "
        "with the same weights and see the same minibatches: what parts them is rounding, which a "
        "learning rate as high as this one amplifies."
        + " The settings have changed: they count from the next start."
        * (history.config != config)
    )
    with st.expander("Every run as a table, measured here", icon=":material/table:"):
        st.dataframe(
            [
                {"devices": devices, "seed": seed, "epoch": epoch, "test accuracy": accuracy}
                for (devices, seed), curve in history.curves.items()
                for epoch, accuracy in enumerate(curve, start=1)
            ],
            hide_index=True,
        )
    chart_exports("seeds", {"accuracy over seeds": lambda: (spec, columns)})
