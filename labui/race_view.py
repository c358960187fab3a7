"""A race as a figure: progress, curves, standings and what they say in words."""

from dataclasses import dataclass
from typing import Any

import pyarrow  # type: ignore[import-untyped]
import streamlit as st

from labcore.charts import Columns, LossView, loss_axes, loss_columns, loss_spec
from labcore.config import ConfigError
from labcore.jobs import Job
from labcore.race import RaceConfig, RaceHistory
from labui.page import chart_colors, plain
from labui.run_panel import status
from labui.standings import standings


@dataclass
class Picture:
    """All that is drawn of one moment of a race, taken while its history stands still."""

    done: float
    place: str
    spec: dict[str, Any]
    columns: Columns
    table: str


def take_picture(history: RaceHistory, view: LossView) -> Picture:
    """What the page shows of `history` now."""
    axes = loss_axes(history, view)
    step, epochs = (history.taken.step, history.taken.epochs) if history.taken else (0, 0.0)
    steps = history.steps
    return Picture(
        done=step / steps if steps else 0.0,
        place=f"step {step:,} of {steps:,} · epoch {epochs:.2f}" if steps else "",
        spec=loss_spec(history.config, view, axes),
        columns=loss_columns(history, view, axes),
        table=standings(history, chart_colors()),
    )


def draw_race(
    job: Job[RaceHistory] | None, config: RaceConfig | ConfigError, view: LossView
) -> None:
    """Draw the race as it stands; without a job, the race that `config` describes before its start.

    Args:
        job: the session's race, None before the first start.
        config: the race as the form has it, or why it has none.
        view: which loss over what.
    """
    if job is not None:
        with job.reading() as history:
            shown, picture = history.config, take_picture(history, view)
    elif isinstance(config, RaceConfig):
        shown, picture = config, take_picture(RaceHistory(config), view)
    else:
        return
    status(job, picture.done, picture.place)
    chart, table = st.columns([11, 9])
    # As a table of columns it goes to the browser without a detour by pandas.
    rows = pyarrow.table(picture.columns)
    chart.vega_lite_chart(rows, picture.spec, width="stretch", key="race chart")
    table.html(picture.table)
    st.caption(_fairness(shown, changed=job is not None and shown != config))
    if st.toggle(
        "Points as a table",
        help="Every recorded loss with its exact value, as the chart has it.",
        key="race points",
    ):
        st.dataframe(_points(picture.columns), hide_index=True, height=300)
    if job is not None and job.error:
        st.error(plain(job.error))


def _fairness(config: RaceConfig, *, changed: bool) -> str:
    sentence = (
        f"Fair: same start, seed {config.seed}, same minibatches of {config.batch_size:,}, same "
        "number of steps for all; learning rates as typed, not tuned."
    )
    return sentence + " The settings below have changed: they count from the next start." * changed


def _points(columns: Columns) -> Columns:
    """The recorded losses among the chart's rows."""
    kept = [place for place, part in enumerate(columns["part"]) if part == "point"]
    names = {"racer": "run", "step": "step", "epochs": "epochs", "seconds": "seconds"}
    table = {title: [columns[name][i] for i in kept] for name, title in names.items()}
    return table | {"loss (½ MSE)": [columns["loss"][i] for i in kept]}
