"""A race as a figure: progress, curves, standings and what they say in words."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pyarrow  # type: ignore[import-untyped]
import streamlit as st

from labcore.charts import Columns, LossView, loss_axes, loss_columns, loss_spec
from labcore.config import ConfigError
from labcore.datasets.table import Table
from labcore.jobs import Job
from labcore.race import RaceConfig, RaceHistory
from labui.page import chart_colors, plain
from labui.run_panel import status
from labui.standings import standings

Drawing = Callable[[], None]
"""Draws what was taken of one moment of a race."""
Taking = Callable[[RaceHistory], Drawing]


@dataclass(frozen=True)
class Beside:
    """What a look shows around the curves; the standings then come below.

    All are called with the history while it stands still, and what they return draws later.
    """

    right: Taking
    above: Taking | None = None
    below: Taking | None = None


@dataclass
class Picture:
    """All that is drawn of one moment of a race, taken while its history stands still."""

    done: float
    place: str
    spec: dict[str, Any]
    columns: Columns
    table: str
    above: Drawing
    right: Drawing | None
    below: Drawing


def take_picture(history: RaceHistory, view: LossView, beside: Beside | None = None) -> Picture:
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
        above=beside.above(history) if beside and beside.above else _nothing,
        right=beside.right(history) if beside else None,
        below=beside.below(history) if beside and beside.below else _nothing,
    )


def draw_race(
    job: Job[RaceHistory] | None,
    config: RaceConfig | ConfigError,
    view: LossView,
    beside: Beside | None = None,
    data: Table | None = None,
) -> None:
    """Draw the race as it stands; without a job, the race that `config` describes before its start.

    Args:
        job: the session's race, None before the first start.
        config: the race as the form has it, or why it has none.
        view: which loss over what.
        beside: what to show beside the curves in place of the standings.
        data: on which the race will run, None for the embedded ones.
    """
    if job is not None:
        if job.error:
            beside = None
        with job.reading() as history:
            shown, picture = history.config, take_picture(history, view, beside)
    elif isinstance(config, RaceConfig):
        shown, picture = config, take_picture(RaceHistory(config, data), view, beside)
    else:
        return
    status(job, picture.done, picture.place)
    picture.above()
    chart, right = st.columns([11, 9])
    # As a table of columns it goes to the browser without a detour by pandas.
    rows = pyarrow.table(picture.columns)
    chart.vega_lite_chart(rows, picture.spec, width="stretch", key="race chart")
    if picture.right is None:
        right.html(picture.table)
    else:
        with right:
            picture.right()
        picture.below()
        st.html(picture.table)
    st.caption(_fairness(shown, changed=job is not None and _own(shown) != config))
    if st.toggle(
        "Points as a table",
        help="Every recorded loss with its exact value, as the chart has it.",
        key="race points",
    ):
        st.dataframe(_points(picture.columns), hide_index=True, height=300)
    if job is not None and job.error:
        st.error(plain(job.error))


def _nothing() -> None:
    """What a look draws where it has nothing to show."""


def _own(config: RaceConfig) -> RaceConfig:
    """The race without its forks, which the form does not have."""
    return replace(config, racers=tuple(racer for racer in config.racers if not racer.before))


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
