"""The finished races of a session: kept, named, pinned into one picture, compared, removed."""

from dataclasses import dataclass
from itertools import count
from typing import Any

import pyarrow  # type: ignore[import-untyped]
import streamlit as st

from labcore.charts import LossView, loss_axes, loss_columns, loss_spec
from labcore.config import format_value
from labcore.differences import difference_in_words, ranking, together
from labcore.jobs import Job
from labcore.race import MAX_RACERS, RaceHistory
from labui.own_data import shown_table
from labui.page import plain
from labui.prediction import Guess, take_guess
from labui.race_form import FORM, RaceDraft, show_race
from labui.session import forget_job

MOST_RACES = 30
MOST_PINNED = 7
MAX_NAME_LENGTH = 24
PAST = "past races"

_numbers = count(1)


@dataclass
class PastRace:
    """One race of the session.

    Attributes:
        number: counts the races of this process.
        history: what it reported.
        guess: what was predicted before its start, if anything was.
        title: what the user calls it; empty for nothing but its number.
        pinned: whether the picture shows it.
    """

    number: int
    history: RaceHistory
    guess: Guess | None = None
    title: str = ""
    pinned: bool = False

    @property
    def name(self) -> str:
        """What the page calls it."""
        return f"#{self.number} {self.title}".strip()

    @property
    def finished(self) -> bool:
        """Whether every racer has ended; a race that was stopped never does."""
        return all(lane.outcome for lane in self.history.lanes.values())


def keep_race(job: Job[RaceHistory] | None) -> PastRace | None:
    """The session's race of that job; a new one is added, with the guess made for it.

    Of those before, the ones that never ended are dropped, and the oldest unpinned one makes room.
    """
    if job is None:
        return None
    with job.reading() as history:
        known = next((each for each in _all() if each.history is history), None)
        if known is not None:
            return known
        new = PastRace(next(_numbers), history, take_guess(history.config))
    kept = [*(each for each in _all() if each.finished), new]
    if len(kept) > MOST_RACES:
        kept.remove(next((each for each in kept if not each.pinned), kept[0]))
    st.session_state[PAST] = kept
    return new


def _all() -> list[PastRace]:
    kept: list[PastRace] = st.session_state.setdefault(PAST, [])
    return kept


def finished_races() -> list[PastRace]:
    """The session's finished races, the last one last."""
    return [each for each in _all() if each.finished]


def past_races(draft: RaceDraft) -> None:
    """The races as a picture and a table, what two of them differ in, and a way back to one."""
    kept = finished_races()
    if not kept:
        st.info(
            "No race has finished in this session. Those that do are kept here until the browser "
            "is closed, to be named, pinned, compared and started again."
        )
        return
    _picture(kept, draft)
    _table(kept)
    _comparison(kept)


def _picture(kept: list[PastRace], draft: RaceDraft) -> None:
    shown = [each for each in kept if each.pinned] or kept[-1:]
    history = together({f"#{each.number}": each.history for each in shown})
    view = LossView(y=draft.values["y"], x="epochs")
    axes = loss_axes(history, view)
    spec, columns = loss_spec(history.config, view, axes), loss_columns(history, view, axes)
    st.vega_lite_chart(pyarrow.table(columns), spec, width="stretch", key="past races chart")
    most = MAX_RACERS // len(shown)
    best = "the best racer" if most == 1 else f"the best {most} racers"
    st.caption(
        f"Of each pinned race {best} at most; the number before a name is that of its race."
        if any(each.pinned for each in kept)
        else "The last race. Pin races to see them here side by side."
    )


def _table(kept: list[PastRace]) -> None:
    """All races, with pin, name and remove."""
    rows = [_row(each) for each in reversed(kept)]
    state = [(each.number, each.pinned, each.title) for each in kept]
    edited = st.data_editor(
        rows,
        key=f"past races table {state}",
        disabled=[name for name in rows[0] if name not in ("pin", "name")],
        column_config={
            "pin": st.column_config.CheckboxColumn(help="Show this race in the picture."),
            "name": st.column_config.TextColumn(help="Yours to choose.", max_chars=MAX_NAME_LENGTH),
            "loss (½ MSE)": st.column_config.NumberColumn(format="%.5f"),
        },
        hide_index=True,
        height="content",
    )
    _take(list(reversed(kept)), edited)
    removable = [each.name for each in kept if not each.pinned]
    with st.container(horizontal=True, vertical_alignment="bottom"):
        with st.container(width=456):
            names = st.multiselect(
                "Remove races", removable, help="Pinned races stay until they are unpinned."
            )
        st.button("Remove", on_click=_remove, args=(names,), disabled=not names, help="For good.")


def _take(kept: list[PastRace], edited: list[dict[str, Any]]) -> None:
    """Take over what was edited in the table."""
    if sum(bool(row["pin"]) for row in edited) > MOST_PINNED:
        st.warning(f"The picture has room for {MOST_PINNED} pinned races; unpin one first.")
        return
    changed = False
    for race, row in zip(kept, edited, strict=True):
        title = (row["name"] or "").strip()[:MAX_NAME_LENGTH]
        changed |= (race.pinned, race.title) != (bool(row["pin"]), title)
        race.pinned, race.title = bool(row["pin"]), title
    if changed:
        st.rerun()


def _remove(names: list[str]) -> None:
    st.session_state[PAST] = [each for each in _all() if each.pinned or each.name not in names]


def _row(race: PastRace) -> dict[str, Any]:
    config = race.history.config
    best = next(iter(ranking(race.history)), None)
    return {
        "pin": race.pinned,
        "race": f"#{race.number}",
        "name": race.title,
        "won": best.racer.name if best else "nobody: all diverged",
        "loss (½ MSE)": best.latest.loss if best and best.latest else None,
        "racers": ", ".join(racer.name for racer in config.racers),
        "model": config.model,
        "batch": config.batch_size,
        "epochs": format_value(config.epochs),
        "seed": str(config.seed),
    }


def _comparison(kept: list[PastRace]) -> None:
    """In which settings two races differ, and the way back to one."""
    numbers = [each.number for each in reversed(kept)]
    races = {each.number: each for each in kept}

    def choice(label: str, place: int) -> PastRace:
        chosen = st.selectbox(
            label,
            numbers,
            min(place, len(numbers) - 1),
            format_func=lambda number: races[number].name,
            key=f"past races {label}:{numbers}",
            help="One of the races above.",
        )
        return races[chosen]

    with st.container(horizontal=True, vertical_alignment="bottom"):
        with st.container(width=220):
            first = choice("Race", 0)
        with st.container(width=220):
            second = choice("Compared with", 1)
        st.button(
            "Load settings",
            icon=":material/undo:",
            on_click=_load,
            args=(first,),
            help="The racers and settings of the race on the left come back into the form. Forks "
            "and own data are not part of the form.",
        )
    if first is not second:
        words = difference_in_words(first.history, second.history)
        st.markdown(plain(f"{first.name} and {second.name}: {words}"))
    if first.history.data not in (None, shown_table()):
        st.caption(plain(f"{first.name} ran on {first.history.data.title}."))


def _load(race: PastRace) -> None:
    forget_job(FORM)
    show_race(race.history.config)
