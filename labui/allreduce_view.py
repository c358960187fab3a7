"""What the Allreduce page shows beside and below the film: prices, sources, files, a real run."""

import inspect
from collections.abc import Mapping
from functools import partial

import streamlit as st
from streamlit.delta_generator import DeltaGenerator
from torch import Tensor

from labcore.collective_charts import (
    Price,
    cost_columns,
    cost_spec,
    crossings,
    time_columns,
    time_spec,
)
from labcore.collectives import ALLREDUCE
from labcore.costs import cost, running_costs
from labcore.exports import schedule_csv, schedule_json
from labcore.schedules import Schedule
from labcore.trace import trace
from labcore.units import in_bytes, in_seconds
from labui.allreduce_form import FORM, AllreduceDraft
from labui.draft import write_query
from labui.page import ink
from labui.player.allreduce import allreduce_film
from labui.player.mount import Film, player
from labui.real_allreduce import run_for_real


def draw_allreduce(
    figure: DeltaGenerator,
    draft: AllreduceDraft,
    name: str,
    schedule: Schedule,
    vectors: Tensor,
) -> None:
    """The film of an algorithm, and below everything that follows from it.

    Args:
        figure: where the film is drawn.
        draft: says what a message costs and where the student is.
        name: of the algorithm.
        schedule: its rounds.
        vectors: what the ranks begin with, (p, n).
    """
    price, n_bytes = draft.price(), draft.n_bytes(vectors)
    told = trace(schedule, vectors)
    costs = running_costs(schedule, n_bytes, *price)
    schedules = all_schedules(schedule.world_size)
    with figure:
        left, right = st.columns([13, 7])
        with left:
            _film(draft, allreduce_film(name.replace("_", " "), told, costs, n_bytes))
        with right:
            _compare(schedules, price, n_bytes)
    if schedule.rounds:
        _times(schedules, price, n_bytes)
        _cost_table(schedules, price, n_bytes)
    run_for_real(vectors, told.final)
    _final_values(told.final)
    _source_and_files(name, schedule)


@st.fragment
def _film(draft: AllreduceDraft, film: Film) -> None:
    """The film; only this runs again when the student has come to rest."""
    draft.values["at"] = player(FORM, film, draft.values["at"])
    write_query(FORM, draft)


@st.cache_data(max_entries=64, show_spinner=False)
def all_schedules(ranks: int) -> dict[str, Schedule]:
    """Every algorithm for so many ranks, by its label."""
    return {name.replace("_", " "): make(ranks) for name, make in ALLREDUCE.items()}


def _compare(schedules: Mapping[str, Schedule], price: Price, n_bytes: float) -> None:
    """What every algorithm costs at this size, fastest first."""
    ranks = next(iter(schedules.values())).world_size
    if ranks == 1:
        st.caption("One rank has the sum already: nothing is sent, and nothing costs anything.")
        return
    st.markdown(f"**All algorithms, {ranks} ranks, {in_bytes(n_bytes)}** · modelled")
    costs = {name: cost(schedule, n_bytes, *price) for name, schedule in schedules.items()}
    slowest = max(each.seconds for each in costs.values())
    spec = cost_spec(len(costs), slowest, ink())
    st.vega_lite_chart(cost_columns(costs), spec, key="costs")
    st.caption("Time · rounds · bytes that the busiest rank sends.")


def _cost_table(schedules: Mapping[str, Schedule], price: Price, n_bytes: float) -> None:
    """The same as numbers."""
    costs = {name: cost(schedule, n_bytes, *price) for name, schedule in schedules.items()}
    order = sorted(costs, key=lambda name: costs[name].seconds)
    with st.expander("The comparison as a table", icon=":material/table:"):
        st.dataframe(
            {
                "algorithm": order,
                "modelled time": [in_seconds(costs[name].seconds) for name in order],
                "rounds": [costs[name].rounds for name in order],
                "busiest rank sends": [in_bytes(costs[name].busiest_bytes) for name in order],
                "all links": [in_bytes(costs[name].total_bytes) for name in order],
            },
            hide_index=True,
        )


def _times(schedules: Mapping[str, Schedule], price: Price, n_bytes: float) -> None:
    """Modelled time over message size, with the sizes where the fastest algorithm changes."""
    columns = time_columns(schedules, price, n_bytes)
    drawn = [
        seconds
        for part, seconds in zip(columns["part"], columns["seconds"], strict=True)
        if part == "time" and seconds > 0
    ]
    if not drawn:
        return
    spec = time_spec(tuple(schedules), min(drawn) / 1.5, max(drawn) * 1.5)
    st.vega_lite_chart(columns, spec, key="times")
    found = crossings(schedules, price)
    words = "; ".join(f"{change} at {in_bytes(size)}" for change, size, _ in found)
    st.caption(
        f"Modelled: α per message, β per byte, γ per byte added. "
        f"{f'The fastest changes: {words}. ' if found else ''}"
        "For small messages the number of rounds decides, so a tree and recursive doubling win; "
        "for large ones the bytes of the busiest rank, so rings and halving-doubling do. Double "
        "tree is for large ones, too: it sends many pieces, one after another. That is why "
        "frameworks choose by size."
    )


def _source_and_files(name: str, schedule: Schedule) -> None:
    """The algorithm as it runs, with its source, and the schedule as files."""
    make = ALLREDUCE[name]
    caption, *_, source = (inspect.getdoc(make) or "").split("\n\n")
    with st.expander(f"The code that made these rounds: {name}", icon=":material/code:"):
        st.markdown(f"{caption} {' '.join(source.split())}.")
        st.code(inspect.getsource(make), language="python")
    with st.container(horizontal=True):
        for label, make_file, ending in (
            ("Schedule, CSV", schedule_csv, "csv"),
            ("Schedule, JSON", schedule_json, "json"),
        ):
            st.download_button(
                label,
                partial(make_file, schedule),
                file_name=f"{name}-{schedule.world_size}.{ending}",
                on_click="ignore",
                help="Every message of every round.",
            )


def _final_values(final: Tensor) -> None:
    """Every rank's vector at the end."""
    with st.expander("Every rank's vector at the end", icon=":material/table:"):
        shown = final[:, :64]
        st.dataframe(
            {f"R{rank}": values for rank, values in enumerate(shown.tolist())},
        )
        if final.shape[1] > shown.shape[1]:
            st.caption(f"The first {shown.shape[1]} of {final.shape[1]:,} elements.")
