"""Forks on the page: a racer rewound to a step of its run, and continued in another way."""

from typing import Any

import streamlit as st

from labcore.config import ConfigError, ruled_fields
from labcore.fork import continued, fork, race_anew, race_fork
from labcore.jobs import Job
from labcore.optimizers import OPTIMIZERS, Optimizer
from labcore.race import RaceHistory
from labui.controls import field_widget
from labui.page import plain
from labui.run_panel import REST_SECONDS, moving
from labui.session import current_job, start_job

KEPT = "fork"


def fork_form(name: str, pace: float | None) -> None:
    """Who is to be forked, from where, and who goes on; a press is acted on at once.

    Args:
        name: of the race's job in this session.
        pace: most steps per second of the race that goes on.
    """
    with st.expander("Fork a racer", icon=":material/fork_right:"):
        st.caption(
            "Rewind one racer to a step of its run and let it go on from there with another "
            "learning rate or optimiser, on the same minibatches. Its own curve stays. Forks live "
            "in this session: a link does not carry them, and the next Start goes without."
        )
        job: Job[RaceHistory] | None = current_job(name)
        if job is None:
            st.caption("There is nothing to fork yet: press Start or Step first.")
            return
        with job.reading() as history:
            lanes = {each: (lane.racer.optimizer, lane.latest) for each, lane in
                     history.lanes.items()}  # fmt: skip
        kept: dict[str, Any] = st.session_state.setdefault(KEPT, {})
        columns = st.columns([3, 2, 3, 5])
        with columns[0]:
            parent = _kept_choice("Racer to fork", list(lanes), "Whose run is rewound.", "parent")
        optimizer, latest = lanes[parent]
        with columns[1]:
            step = _step_widget(latest.step if latest else 0, moves=moving(job))
        with columns[2]:
            kept.setdefault("kind", optimizer.name)
            kind = _kept_choice(
                "Goes on with",
                list(OPTIMIZERS),
                "The optimiser after that step. One of the same kind takes over the state, "
                "another begins with a state of zeros.",
                "kind",
            )
        with columns[3], st.container(horizontal=True):
            chosen = _optimizer_widgets(OPTIMIZERS[kind], optimizer)
        st.button(
            "Fork",
            icon=":material/fork_right:",
            on_click=_note,
            disabled=chosen is None,
            help="Add the fork to the race. A race that has ended runs the fork alone; another is "
            "brought back to the step where it is, with the fork in it.",
        )
        if st.session_state.pop(f"{KEPT}:pressed", False) and chosen is not None:
            try:
                _start(name, job, parent, step, chosen, pace)
            except ConfigError as error:
                st.error(plain(str(error)))


def _note() -> None:
    st.session_state[f"{KEPT}:pressed"] = True


def _kept_choice(label: str, names: list[str], help: str, key: str) -> str:
    kept = st.session_state[KEPT]
    value = kept.get(key)
    kept[key] = st.selectbox(
        label,
        names,
        names.index(value) if value in names else 0,
        format_func=lambda name: OPTIMIZERS[name].label if key == "kind" else name,
        key=f"{KEPT}:{key}",
        help=help,
    )
    return str(kept[key])


def _step_widget(last: int, *, moves: bool) -> int:
    """The step to rewind to: once the race rests half of what it did, until another is typed."""
    kept, key = st.session_state[KEPT], f"{KEPT}:step"
    if key not in st.session_state or not kept.get("typed"):
        st.session_state[key] = kept["step"] if kept.get("typed") else 0 if moves else last // 2

    def typed() -> None:
        kept["typed"] = True

    step = st.number_input(
        "From step",
        step=1,
        key=key,
        on_change=typed,
        help=f"A step that it has taken: recorded so far up to {last:,}.",
    )
    kept["step"] = step
    return int(step)


def _optimizer_widgets(kind: type[Optimizer], parents: Optimizer) -> Optimizer | None:
    """The optimiser that goes on, None while something not allowed is typed."""
    values = st.session_state[KEPT].setdefault(f"values {kind.name}", {})
    start = parents if type(parents) is kind else kind()
    for each, _ in ruled_fields(kind):
        shown = values.get(each.name, getattr(start, each.name))
        try:
            value = field_widget(kind, each.name, f"{KEPT}:{kind.name}:{each.name}", shown)
        except ConfigError as error:
            st.error(plain(str(error)))
            return None
        values[each.name] = value
    return kind(**values)


def _start(
    name: str, job: Job[RaceHistory], parent: str, step: int, chosen: Optimizer, pace: float | None
) -> None:
    with job.reading() as history:
        config = fork(history, parent, step, chosen)
        ended = all(lane.outcome for lane in history.lanes.values())
        grown = continued(history, config) if ended else RaceHistory(config, history.data)
        reached = history.taken.step if history.taken else 0
    data = grown.data
    if ended:
        events = race_fork(config, data, weights=True)
        start_job(name, events, grown, paused=False, pace=pace)
        return
    resting = not moving(job)
    events = race_anew(config, reached, data, weights=True)
    again = start_job(name, events, grown, paused=resting, pace=pace)
    if resting and reached:
        again.step()
    again.wait(REST_SECONDS)
