"""Races, sweeps and fair races to take home: files made only when asked, and the link."""

from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlencode

import streamlit as st

from labcore.charts import Columns, LossView, loss_axes, loss_columns, loss_spec
from labcore.exports import cells_csv, points_csv, run_json
from labcore.fair_race import FairRaceHistory
from labcore.jobs import Job
from labcore.pictures import png, svg
from labcore.race import RaceHistory
from labcore.rerun_race import race_script
from labcore.sweep import SweepHistory
from labui.draft import Draft

Chart = tuple[dict[str, Any], Columns]
"""A specification and its rows."""
Files = dict[str, tuple[str, Callable[[], Any], str]]
"""By the words on a button: file name, what makes the file, and what it is."""
PAGE = "optimizers"
"""The page's path on every server of the lab."""


def race_exports(
    draft: Draft,
    job: Job[RaceHistory] | None,
    view: LossView,
    more: Mapping[str, Callable[[RaceHistory], Chart]] | None = None,
) -> None:
    """The link to what is on the page, and the race as files.

    Args:
        draft: the form, which the link restores.
        job: the session's race, None before its start, when there is only the link.
        view: which loss over what the picture shows.
        more: other charts of the race that are shown, by name.
    """
    files: Files = {}
    if job is not None:

        def read(make: Callable[[RaceHistory], Any]) -> Callable[[], Any]:
            def made() -> Any:
                with job.reading() as history:
                    return make(history)

            return made

        files = {
            "Points, CSV": ("points.csv", read(points_csv), "The kept losses of every racer."),
            "All, JSON": ("race.json", read(run_json), "Settings, versions, points and results."),
            "Script": (
                "race.py",
                read(lambda history: race_script(history.config, history.data)),
                "A Python program, with torch and numpy alone, that repeats the race's numbers, "
                "forks included. The data are in it.",
            ),
            **_pictures("loss", read(lambda history: _loss(history, view))),
        }
        for name, chart in (more or {}).items():
            files |= _pictures(name, read(chart))
    _popover("race", files, _link(draft))


def sweep_exports(history: SweepHistory, chart: Callable[[], Chart], draft: Draft) -> None:
    """A sweep that has ended as files, and its link."""
    files: Files = {
        "Runs, CSV": ("sweep.csv", lambda: cells_csv(history), "Every run with how it ended."),
        "All, JSON": ("sweep.json", lambda: run_json(history), "Settings, versions and runs."),
        **_pictures("sweep", chart),
    }
    _popover("sweep", files, _link(draft))


def fair_race_exports(history: FairRaceHistory, chart: Callable[[], Chart], draft: Draft) -> None:
    """A fair race that has ended as files, and its link."""
    files: Files = {
        "Bands, CSV": ("bands.csv", lambda: points_csv(history), "Losses over the race's seeds."),
        "Tried, CSV": ("tried.csv", lambda: cells_csv(history), "The runs that chose the rates."),
        "All, JSON": ("fair_race.json", lambda: run_json(history), "Settings, versions, all runs."),
        **_pictures("fair_race", chart),
    }
    _popover("fair race", files, _link(draft))


def _loss(history: RaceHistory, view: LossView) -> Chart:
    axes = loss_axes(history, view)
    return loss_spec(history.config, view, axes), loss_columns(history, view, axes)


def _pictures(name: str, chart: Callable[[], Chart]) -> Files:
    words = name.replace("_", " ").capitalize()
    return {
        f"{words}, SVG": (f"{name}.svg", lambda: svg(*chart()), "To scale without loss."),
        f"{words}, PNG": (f"{name}.png", lambda: png(*chart()), "As a picture."),
    }


def _link(draft: Draft) -> str:
    """The page with the draft, to be put behind the address of a server."""
    return f"/{PAGE}?{urlencode(draft.query(), doseq=True, safe=',=')}"


def _popover(name: str, files: Files, link: str) -> None:
    with st.popover("Take it home", icon=":material/download:", help="As files and as a link."):
        with st.container(horizontal=True):
            for label, (file, make, text) in files.items():
                st.download_button(
                    label, make, file_name=file, on_click="ignore", help=text, key=f"{name}:{file}"
                )
        st.caption("The link restores racers, settings and view, behind this lab's address:")
        st.code(link, language=None, wrap_lines=True)
