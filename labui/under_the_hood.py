"""Under the hood of one racer: its rule, and the numbers of the step that it has just taken."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

import streamlit as st
from torch import Tensor

from labcore.datasets import airfoil
from labcore.datasets.table import Table
from labcore.events import WeightsUpdated
from labcore.optimizers import Optimizer
from labcore.race import RaceHistory
from labcore.regression import RegressionConfig
from labcore.retrace import Retrace, optimizer_at, rule_code
from labui.race_look import watch, watched
from labui.race_view import Beside, Drawing

PATIENCE = 0.3
"""Seconds between two words about a long run that is being repeated."""
WORDS_HEIGHT = 270
TOLD = "hood weight"
MOST = "the one that moved most"
LARGE = 1000
"""From here on, numbers are rounded to digits and not to decimals."""

_STYLE = """
<style>
.hood { overflow: auto; max-height: 19rem; }
.hood table { border-collapse: collapse; width: 100%; font-size: 0.875rem;
  font-variant-numeric: tabular-nums; }
.hood th, .hood td { padding: 0.2rem 0.5rem; text-align: right; white-space: nowrap;
  border-bottom: 1px solid rgba(128, 128, 128, 0.3); }
.hood th:first-child { text-align: left; }
.hood thead th { white-space: normal; vertical-align: bottom; }
</style>
"""


@dataclass(frozen=True)
class _Moment:
    """Whose step is to be shown, and which one."""

    names: tuple[str, ...]
    run: RegressionConfig
    step: int
    data: Table | None

    @property
    def optimizer(self) -> Optimizer:
        return optimizer_at(self.run, self.step)

    @property
    def weight_names(self) -> tuple[str, ...]:
        return (self.data or airfoil.load()).weight_names if self.run.model == "linear" else ()


def hood_beside() -> Beside:
    """The numbers of a step above the curves, its words beside them, its source below."""
    return Beside(above=_taken(_draw_numbers), right=_taken(_draw_words), below=_taken(_draw_code))


def _taken(draw: Callable[[_Moment], None]) -> Callable[[RaceHistory], Drawing]:
    def take(history: RaceHistory) -> Drawing:
        names = tuple(history.lanes)
        lane = history.lanes[watched(names)]
        step = history.taken.step if history.taken else 0
        step = lane.outcome.step if lane.outcome else step
        moment = _Moment(names, history.config.run_of(lane.racer), step, history.data)
        return lambda: draw(moment)

    return take


def _draw_numbers(moment: _Moment) -> None:
    updated = _updated(moment)
    names = _weight_names(moment, updated)
    with st.container(horizontal=True):
        watch(moment.names, "Whose rule and numbers are shown.")
        st.session_state[TOLD] = st.selectbox(
            "In words for",
            (MOST, *names),
            (MOST, *names).index(_told(names)),
            key=f"{TOLD}:{len(names)}",
            help="Of which weight the sentences tell what its state did.",
            width=170,
        )
    st.html(_STYLE + _table(moment.optimizer, updated, names))


def _told(names: Sequence[str]) -> str:
    """The weight that was last chosen to be told of, if it is here."""
    told: str = st.session_state.get(TOLD, MOST)
    return told if told in names else MOST


def _draw_words(moment: _Moment) -> None:
    optimizer, updated = moment.optimizer, _updated(moment)
    with st.container(height=WORDS_HEIGHT, border=False):
        if updated is None:
            st.markdown("Press **Step**: the table above then has what it did, number by number.")
        else:
            st.html(_words(optimizer, updated, _weight_names(moment, updated)))


def _draw_code(moment: _Moment) -> None:
    optimizer = moment.optimizer
    if moment.run.engine == "torch":
        st.caption(
            "This race is computed by torch's own optimisers. The numbers are those of the twin "
            "from scratch, on the same minibatches: they differ by rounding only."
        )
    # One line per assignment: a phone has no room for all beside one another.
    lines = optimizer.formula.replace(r",\quad ", r",\\ ")
    st.latex(rf"\begin{{gathered}} {lines} \end{{gathered}}")
    with st.expander(f"The update rule as it runs: {optimizer.label}", expanded=True):
        st.code(rule_code(type(optimizer)), language="python")
        st.caption(optimizer.source)


def _words(optimizer: Optimizer, updated: WeightsUpdated, names: Sequence[str]) -> str:
    """What the step did to one weight and to its state, as HTML."""
    told = _told(names)
    place = _moved_most(updated) if told == MOST else names.index(told)
    [gradient] = _at(place, updated.gradient)
    old, new = _at(place, updated.before, updated.after)
    sentences = [
        f"Step {updated.step:,} moved <em>{escape(names[place])}</em> by {new - old:.4g}; its "
        f"gradient was {gradient:.4g}."
    ]
    before, after = _at(place, *updated.state_before), _at(place, *updated.state)
    explained = optimizer.explain(gradient, before, after, updated.count)
    sentences += [
        f"<strong>{escape(name[0].upper() + name[1:])}</strong>: {escape(sentence)}"
        for name, sentence in zip(optimizer.state_names, explained, strict=True)
    ]
    if not explained:
        sentences.append(f"{optimizer.label} keeps no state: a step knows only its own gradient.")
    return "".join(f"<p>{sentence}</p>" for sentence in sentences)


def _at(place: int, *tensors: Tensor) -> tuple[float, ...]:
    return tuple(float(tensor[place]) for tensor in tensors)


def _moved_most(updated: WeightsUpdated) -> int:
    return int((updated.after - updated.before).abs().nan_to_num(0.0).argmax())


def _table(optimizer: Optimizer, updated: WeightsUpdated | None, names: Sequence[str]) -> str:
    """A row per weight. What was and the update add up to what is, as shown."""
    heads = ["weight", "value", "gradient g"]
    for name in optimizer.state_names:
        heads += [f"{name} before", "after"]
    heads += ["update", "new value"]
    rows = []
    for place, name in enumerate(names):
        cells = ["–"] * (len(heads) - 1) if updated is None else _cells(updated, place)
        rows.append(
            f"<tr><th scope='row'>{escape(name)}</th>"
            + "".join(f"<td>{cell}</td>" for cell in cells)
            + "</tr>"
        )
    head = "".join(f"<th scope='col'>{escape(each)}</th>" for each in heads)
    return (
        f"<div class='hood' tabindex='0'><table><thead><tr>{head}</tr></thead>"
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def _cells(updated: WeightsUpdated, place: int) -> list[str]:
    value, update, new_value = _sum(*_at(place, updated.before, updated.after))
    cells = [value, f"{float(updated.gradient[place]):.6g}"]
    for before, after in zip(updated.state_before, updated.state, strict=True):
        cells += [f"{number:.6g}" for number in _at(place, before, after)]
    return [*cells, update, new_value]


def _sum(old: float, new: float) -> tuple[str, str, str]:
    """What was, what was added and what is; of rounded numbers, so that the sum is right."""
    if not max(abs(old), abs(new)) < LARGE:
        return f"{old:.6g}", f"{new - old:.6g}", f"{new:.6g}"
    rounded = round(new, 8) - round(old, 8)
    return f"{old:.8f}", f"{rounded:+.8f}", f"{new:.8f}"


def _weight_names(moment: _Moment, updated: WeightsUpdated | None) -> tuple[str, ...]:
    """Those of a linear model come from the data, those of a network are numbers."""
    if moment.weight_names or updated is None:
        return moment.weight_names
    return tuple(f"weight {number}" for number in range(1, len(updated.after) + 1))


def _updated(moment: _Moment) -> WeightsUpdated | None:
    """What happened in the step; the run is repeated up to there, the first time in full."""
    if not moment.step:
        return None
    retrace: Retrace | None = st.session_state.get("retrace")
    if retrace is None or retrace.run != moment.run or retrace.data is not moment.data:
        retrace = st.session_state["retrace"] = Retrace(moment.run, moment.data)
    note = st.empty()
    while not retrace.go_to(moment.step, PATIENCE):
        done = retrace.latest.step if retrace.latest else 0
        note.caption(f"Repeating the run to look inside: step {done:,} of {moment.step:,}.")
    note.empty()
    return retrace.latest
