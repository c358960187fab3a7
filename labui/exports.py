"""What a run can be taken home as: download buttons that make a file only when asked."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import streamlit as st

from labcore import classification_charts as charts
from labcore.charts import Columns
from labcore.classification_history import ClassificationHistory
from labcore.exports import columns_csv, epochs_csv, points_csv, run_json
from labcore.pictures import png, svg
from labcore.rerun import script, why_no_script
from labui.classification_form import reported_for

Chart = tuple[dict[str, Any], Columns]
"""A specification and its rows."""


def classification_exports(history: ClassificationHistory) -> None:
    """Buttons for a run's numbers, its curves, and a script that repeats it."""
    runs = {"run": history}
    epochs = history.config.epochs
    reported = reported_for(history.config)

    # Only when asked: the buttons are drawn again at every tick of a run.
    def loss() -> Chart:
        return charts.loss_spec(("run",), epochs), charts.loss_columns(runs)

    def accuracy() -> Chart:
        spec = charts.accuracy_spec(("run",), epochs, reported is not None)
        return spec, charts.accuracy_columns(runs, reported)

    files: dict[str, tuple[str, Callable[[], Any], str]] = {
        "Steps, CSV": ("steps.csv", lambda: points_csv(history), "The kept points of every step."),
        "Epochs, CSV": ("epochs.csv", lambda: epochs_csv(history), "Accuracy after every epoch."),
        "All, JSON": ("run.json", lambda: run_json(history), "Settings, versions and results."),
        "Loss, SVG": ("loss.svg", lambda: svg(*loss()), "The loss curve, to scale without loss."),
        "Loss, PNG": ("loss.png", lambda: png(*loss()), "The loss curve as a picture."),
        "Accuracy, SVG": ("accuracy.svg", lambda: svg(*accuracy()), "The accuracy curve."),
        "Accuracy, PNG": ("accuracy.png", lambda: png(*accuracy()), "The same as a picture."),
        "Script": (
            "rerun.py",
            lambda: script(history.config),
            "A Python program, with torch and numpy alone, that repeats the run's numbers; those "
            "of processes up to rounding, with logical replicas.",
        ),
    }
    unlike = why_no_script(history.config)
    with st.popover("Take it home", icon=":material/download:", help="The run as files."):
        for label, (name, make, text) in files.items():
            refused = unlike if label == "Script" else None
            st.download_button(
                label,
                make,
                file_name=name,
                on_click="ignore",
                help=refused or text,
                key=f"export:{name}",
                disabled=refused is not None,
            )
        if unlike:
            st.caption(unlike)


def chart_exports(name: str, charts: Mapping[str, Callable[[], Chart]]) -> None:
    """Buttons for the numbers and the pictures of charts.

    Args:
        name: begins the files' names.
        charts: what makes each one, by what its files are called.
    """
    with st.popover("Take it home", icon=":material/download:", help="Numbers and pictures."):
        for label, make in charts.items():
            for kind, write in _CHART_FILES.items():
                st.download_button(
                    f"{label[0].upper()}{label[1:]}, {kind.upper()}",
                    partial(_written, write, make),
                    file_name=f"{name}-{label.replace(' ', '-')}.{kind}",
                    on_click="ignore",
                    help=f"The {label} as {kind.upper()}.",
                    key=f"export:{name}:{label}:{kind}",
                )


def _written(write: Callable[..., Any], make: Callable[[], Chart]) -> Any:
    # Only when asked: the buttons are drawn again with every change.
    return write(*make())


_CHART_FILES: dict[str, Callable[..., Any]] = {
    "csv": lambda _, columns: columns_csv(columns),
    "svg": svg,
    "png": png,
}
