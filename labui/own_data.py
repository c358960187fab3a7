"""A class's own data in place of the embedded ones: uploaded, and kept for the session."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf

import streamlit as st
from streamlit.runtime.uploaded_file_manager import UploadedFile

from labcore.datasets import airfoil
from labcore.datasets.errors import DataError
from labcore.datasets.own import LARGEST_FILE, MOST_FEATURES, Sheet, read_csv
from labcore.datasets.table import Table
from labcore.regression import RegressionSettings, objective_scale
from labui.draft import numbers
from labui.page import plain
from labui.race_form import RaceDraft

DATA = "own data"
REFUSED = f"{DATA}:refused"


@dataclass(frozen=True)
class _Own:
    """An accepted file, and the column of it that is to be predicted."""

    file_id: str
    sheet: Sheet
    table: Table


@dataclass(frozen=True)
class _Refused:
    """A file that cannot be used, and why."""

    file_id: str
    reason: str


def own_table() -> Table | None:
    """The session's own data, None for the embedded ones."""
    own: _Own | None = st.session_state.get(DATA)
    return own.table if own else None


def shown_table() -> Table:
    """What this session trains on."""
    return own_table() or airfoil.load()


def own_data(draft: RaceDraft, on_change: Callable[[], None]) -> None:
    """The place to upload data, to choose the label, and to go back to the embedded ones.

    Args:
        draft: the race, whose stability limits on these data are told.
        on_change: called when the page's data have become others.
    """
    with st.expander("Own data", icon=":material/upload_file:"):
        st.caption(
            "Race on a table of your own: numbers only, one column per feature and one to "
            f"predict; 10 rows or more, at most {MOST_FEATURES} features and 5 MB. Every column is "
            "standardised. The data stay in this session and on this machine: a link does not "
            "carry them, nor does a reload."
        )
        generation = st.session_state.setdefault(f"{DATA}:uploader", next(numbers))
        file = st.file_uploader(
            "A CSV file",
            type=["csv", "tsv", "txt"],
            max_upload_size=LARGEST_FILE // 2**20,
            key=f"{DATA}:{generation}",
            help="Columns separated by commas, semicolons or tabs; a decimal comma is understood "
            "where semicolons or tabs separate them. The first line may hold names.",
        )
        if file is not None:
            _take(file, on_change)
        own: _Own | None = st.session_state.get(DATA)
        if own is None:
            return
        _choose_label(own, on_change)
        st.markdown(_facts(own.table, draft))
        st.button(
            "Back to the airfoil data",
            icon=":material/undo:",
            on_click=_forget,
            args=(on_change,),
            help="Drop these data and race on the embedded ones again.",
        )


def _take(file: UploadedFile, on_change: Callable[[], None]) -> None:
    """Read a file, once; one that is refused leaves the data as they were."""
    known = [st.session_state.get(key) for key in (DATA, REFUSED)]
    if file.file_id not in [each.file_id for each in known if each]:
        try:
            sheet = read_csv(file.getvalue(), file.name)
        except DataError as error:
            st.session_state[REFUSED] = _Refused(file.file_id, str(error))
        else:
            _keep(_Own(file.file_id, sheet, sheet.table(sheet.names[-1])), on_change)
    refused: _Refused | None = st.session_state.get(REFUSED)
    if refused and refused.file_id == file.file_id:
        st.error(plain(refused.reason))


def _choose_label(own: _Own, on_change: Callable[[], None]) -> None:
    names = own.sheet.names
    label = st.selectbox(
        "Label",
        names,
        names.index(own.table.label_name),
        key=f"{DATA}:label:{own.file_id}",
        help="The column to predict, from all the others.",
    )
    if label != own.table.label_name:
        _keep(replace(own, table=own.sheet.table(label)), on_change)


def _keep(own: _Own, on_change: Callable[[], None]) -> None:
    """Take data over, also in what the page has drawn already."""
    st.session_state[DATA] = own
    on_change()
    st.rerun()


def _facts(table: Table, draft: RaceDraft) -> str:
    """What is known of the data, in Markdown."""
    rows, features = table.features.shape
    exact = table.exact
    condition = exact.condition_number
    sentences = [
        f"**{plain(table.title)}**: {rows:,} rows, {features} feature{'s' * (features > 1)}, to "
        f"predict *{plain(table.label_name)}*. Exact minimum of a linear model: "
        f"½ MSE {exact.floor:.6f}; condition number "
        + ("infinite, as columns depend on one another" if condition == inf else f"{condition:.4g}")
        + "."
    ]
    scale = objective_scale(RegressionSettings(objective=draft.values["objective"]))
    kinds = {type(racer.optimizer): racer.optimizer for racer in draft.racers.values()}
    limits = [
        f"{optimizer.label} {limit:.4g}"
        for optimizer in kinds.values()
        if (limit := optimizer.lr_limit(scale * exact.sharpness)) is not None
    ]
    if limits:
        sentences.append(f"Full-batch descent is stable below lr: {', '.join(limits)}.")
    return " ".join(sentences)


def _forget(on_change: Callable[[], None]) -> None:
    st.session_state.pop(DATA, None)
    st.session_state[f"{DATA}:uploader"] = next(numbers)
    on_change()
