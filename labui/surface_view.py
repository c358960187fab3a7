"""The loss surface beside a race's curves: which plane of the weights, and all paths on it."""

from collections.abc import Callable
from typing import Any

import pyarrow  # type: ignore[import-untyped]
import streamlit as st
from torch import Tensor

from labcore.charts import Columns
from labcore.config import ConfigError, ruled_fields
from labcore.datasets import airfoil
from labcore.jobs import Job
from labcore.race import RaceHistory
from labcore.surface import SurfaceView, axis_names, surface
from labcore.surface_charts import racer_names, surface_columns, surface_extent, surface_spec
from labui.controls import field_help
from labui.draft import setting_widget
from labui.own_data import shown_table
from labui.page import ground, plain
from labui.race_form import RaceDraft
from labui.race_look import watch, watched
from labui.race_view import Beside, Drawing

LEGEND = (
    "Seen from above, colours as in the curves. ○ start · ★ lowest loss · bands: loss above it · "
    "dashed: the steepest direction, whose curvature sets the largest stable learning rate."
)


def surface_settings(draft: RaceDraft) -> None:
    """The widgets that choose the plane, into the row in which they are called."""
    setting_widget(draft, SurfaceView, "axes")
    for name in ("across", "up"):
        _axis_widget(draft, name)
    setting_widget(draft, SurfaceView, "others")


def _axis_widget(draft: RaceDraft, name: str) -> None:
    """An axis by its name; the last one in place of one that these data do not have."""
    axes = draft.values["axes"]
    names = axis_names(shown_table(), axes)
    each, rule = next(found for found in ruled_fields(SurfaceView) if found[0].name == name)
    draft.values[name] = min(draft.values[name], len(names) - 1)
    draft.values[name] = st.selectbox(
        rule.label[0].upper() + rule.label[1:],
        range(len(names)),
        draft.values[name],
        format_func=names.__getitem__,
        key=f"setting:{draft.number}:{axes}:{len(names)}:{name}",
        help=field_help(each, rule).partition(" Allowed")[0],
        width=230,
    )


def surface_beside(draft: RaceDraft) -> Beside:
    """The surface in the place beside the curves."""
    return Beside(right=lambda history: _take_surface(history, draft))


def _take_surface(history: RaceHistory, draft: RaceDraft) -> Drawing:
    names = racer_names(history)
    moving = draft.values["others"] == "current"
    try:
        view = SurfaceView(**draft.fields_of(SurfaceView))
        weights = _weights_of(history, watched(names)) if moving else None
        shown = surface(view, history.config, history.data or airfoil.load(), weights)
    except ConfigError as error:
        reason = plain(str(error))
        return lambda: _draw_reason(reason, names, moving)
    extent = surface_extent(shown, history)
    columns, spec = surface_columns(shown, history, extent), surface_spec(names, extent, ground())

    def draw() -> None:
        if moving:
            _choose_run(names)
        rows = pyarrow.table(columns)
        st.vega_lite_chart(rows, spec, width="stretch", key="surface chart")
        st.caption(LEGEND)

    return draw


def _draw_reason(reason: str, names: tuple[str, ...], moving: bool) -> None:
    if moving:
        _choose_run(names)
    st.info(reason)


def _choose_run(names: tuple[str, ...]) -> None:
    watch(names, "The plane goes through the weights of this run, and follows it.")


def _weights_of(history: RaceHistory, name: str) -> Tensor | None:
    """Where a run is now, None before it has begun."""
    path = list(history.lanes[name].path)
    return path[-1].weights if path else None


def surface_pictures(
    draft: RaceDraft, job: Job[RaceHistory] | None
) -> dict[str, Callable[[RaceHistory], tuple[dict[str, Any], Columns]]]:
    """The surface for files, as it is shown now; nothing where there is none."""
    if job is None:
        return {}
    with job.reading() as history:
        names, linear = racer_names(history), history.config.model == "linear"
    # Asked here: whoever makes the file later has no session.
    run = watched(names) if draft.values["others"] == "current" else None
    settings = draft.fields_of(SurfaceView)

    def chart(history: RaceHistory) -> tuple[dict[str, Any], Columns]:
        weights = _weights_of(history, run) if run else None
        data = history.data or airfoil.load()
        shown = surface(SurfaceView(**settings), history.config, data, weights)
        extent = surface_extent(shown, history)
        return surface_spec(names, extent, "white"), surface_columns(shown, history, extent)

    return {"surface": chart} if linear else {}
