"""What the Training step page shows: the film, its code, the mistake, and 50 steps' curves."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from labcore.bugs import BUGS
from labcore.costs import LINKS, running_costs
from labcore.replicas import Replicas
from labcore.step_charts import (
    drift_columns,
    drift_spec,
    loss_columns,
    loss_spec,
    ratio_columns,
    ratio_spec,
)
from labcore.step_curves import STEPS, CurvePoint, RunDiverged, loss_curves
from labcore.step_record import AllreduceMove, StepRecord
from labcore.trace import VALUES_SHOWN, trace
from labcore.training_step import Trainer, TrainingStepConfig
from labui.draft import keep_draft, setting_widget, write_query
from labui.page import plain
from labui.player.allreduce import allreduce_film
from labui.player.mount import player
from labui.player.training_step import training_step_film
from labui.step_form import FORM, GUESSES, SURPRISE, Position, StepDraft, StepSettings

HIDDEN = "hidden until you have named the bug"
CODE_HEIGHT = 380


@dataclass(frozen=True)
class Shown:
    """A step that is on the page.

    Attributes:
        config: what it was taken with, mistake included.
        trainer: stands after it.
        record: what was to be seen of it.
    """

    config: TrainingStepConfig
    trainer: Trainer
    record: StepRecord


def shown_step(draft: StepDraft) -> Shown:
    """The step that the draft describes; the replicas' last one, if they diverged before.

    Raises:
        ConfigError: it describes nothing, with the reason.
        DataError: the images cannot be read.
    """
    if draft.refused:
        raise draft.refused
    config, wanted = draft.settings().config(), draft.values["step"]
    kept: Shown | None = st.session_state.get(f"{FORM}:shown")
    # A run of the page that was cut short may have left the trainer a step ahead of its record.
    if kept and kept.config == config and kept.record.facts.step == kept.trainer.steps:
        if wanted == kept.trainer.steps or (wanted > kept.trainer.steps and kept.trainer.diverged):
            return kept
        if wanted == kept.trainer.steps + 1:
            return Shown(config, kept.trainer, kept.trainer.step())
    return _replayed(config, wanted)


def _replayed(config: TrainingStepConfig, wanted: int) -> Shown:
    """A step that new replicas take after those before it."""
    trainer = Trainer(config)
    for _ in range(wanted - 1):
        trainer.advance()
        if trainer.diverged:
            return _replayed(config, trainer.steps)
    return Shown(config, trainer, trainer.step())


def draw_step(figure: DeltaGenerator, draft: StepDraft, shown: Shown) -> None:
    """The film of a step and, below it, the rounds of its allreduce.

    Args:
        figure: where the film is drawn.
        draft: says where the student is, and follows them.
        shown: the step.
    """
    with figure:
        _film(draft, shown)
        _rounds(draft, shown)


@st.fragment
def _film(draft: StepDraft, shown: Shown) -> None:
    """The film with what follows it; only this runs again when the student has come to rest."""
    # Neutral even when the surprise has been revealed: another film would begin at its start.
    surprise = draft.values["bug"] == SURPRISE
    film = training_step_film(shown.record, shown.config, neutral=surprise)
    left, right = st.columns([13, 7])
    with left:
        draft.values["at"] = player(FORM, film, draft.values["at"])
    with right:
        _where(draft, shown)
        _state_of(draft, shown)
        _code(draft, shown.record)
    write_query(FORM, draft)


def _where(draft: StepDraft, shown: Shown) -> None:
    """Which step, and which parameter; another one is taken by the whole page."""
    facts, before = shown.record.facts, dict(draft.values)
    with st.container(horizontal=True, vertical_alignment="bottom"):
        setting_widget(draft, Position, "step")
        following = st.button(
            "Next step",
            icon=":material/skip_next:",
            disabled=shown.trainer.diverged or facts.step == STEPS,
            help=f"The same replicas take the next minibatch; up to step {STEPS}.",
        )
    setting_widget(draft, StepSettings, "parameter")
    if following:
        keep_draft(FORM, StepDraft(draft.values | {"step": facts.step + 1, "at": 0}))
        st.rerun()
    if draft.values != before:
        st.rerun()


def _state_of(draft: StepDraft, shown: Shown) -> None:
    """What must be said of this run besides its numbers."""
    facts = shown.record.facts
    if facts.diverged is not None:
        st.warning(
            plain(
                f"Diverged. {facts.diverged} The replicas take no step after this one. "
                "Choose a smaller learning rate, or no mistake, or an earlier step."
            )
        )
    if facts.reference_diverged is not None:
        st.warning(f"The one device has diverged. {plain(str(facts.reference_diverged))}")
    if draft.values["bug"] in BUGS and shown.config.harmless:
        st.info("With these shards the mistake changes nothing: try an odd batch size such as 62.")


def _code(draft: StepDraft, record: StepRecord) -> None:
    """The functions that made the move at which the student rests."""
    at = draft.values["at"]
    if at == 0:
        st.caption("The code of each move appears here.")
        return
    move = record.moves[at - 1]
    if draft.hidden:
        st.markdown(f"**The code of {move.name}** · {HIDDEN}")
        return
    st.markdown(f"**The code of {move.name}**")
    st.code(move.code, language="python", height=CODE_HEIGHT, wrap_lines=True)


# --- the allreduce's rounds -----------------------------------------------------------------------


def _rounds(draft: StepDraft, shown: Shown) -> None:
    """The allreduce of the chosen parameter's gradient, round by round."""
    with st.expander(
        "Open the allreduce's rounds",
        icon=":material/sync_alt:",
        key=f"{FORM}:rounds",
        on_change="rerun",
    ) as opened:
        if not opened.open:
            return
        move = next(each for each in shown.record.moves if isinstance(each, AllreduceMove))
        if not move.schedule.rounds:
            st.caption("One replica has the sum already: nothing needs to be sent.")
        elif not draft.hidden and shown.config.replicas_class.play is Replicas.play:
            _played(move, shown.config)
        else:
            _tabled(move)


def _played(move: AllreduceMove, config: TrainingStepConfig) -> None:
    """The rounds as a film."""
    link = LINKS["pcie3"]
    n_bytes = move.vectors[0].nbytes
    costs = running_costs(move.schedule, n_bytes, link.alpha, link.beta)
    told = trace(move.schedule, move.vectors)
    player(f"{FORM}:rounds film", allreduce_film(config.allreduce, told, costs, n_bytes), 0)
    st.caption(
        f"The gradient of {config.parameter} on its own; a cell shows at most the first "
        f"{VALUES_SHOWN} values of its chunk. Times are modelled for {link.label}."
    )


def _tabled(move: AllreduceMove) -> None:
    """The rounds as numbers, which show what a mistake does without saying which it is."""
    lines = []
    for number, vectors in enumerate((move.vectors, *move.rounds())):
        for rank, values in enumerate(vectors[:, :VALUES_SHOWN].tolist()):
            name = f"after round {number}" if number else "before"
            numbers = {str(place): f"{value:.4g}" for place, value in enumerate(values)}
            lines.append({"when": name, "replica": f"R{rank}"} | numbers)
    st.dataframe(lines, hide_index=True)
    st.caption(f"The first {VALUES_SHOWN} values of the gradient on every replica.")


# --- the mistake ----------------------------------------------------------------------------------


def draw_mistake(draft: StepDraft, shown: Shown) -> None:
    """What the mistake is, and how one could have known it; of a surprise only once revealed."""
    if draft.hidden:
        st.caption(
            "Which mistake is it? Look at drift, difference and step length under the picture, go "
            "on for some steps, train 50 of them; then guess, and reveal it."
        )
        return
    truth = shown.config.bug
    if draft.values["bug"] == SURPRISE:
        guess = draft.values["guess"]
        verdict = f"You said: {GUESSES[guess]}. It is: {GUESSES[truth]}."
        (st.success if guess == truth else st.error)(
            f"{'Right' if guess == truth else 'Not so'}. {verdict}"
        )
        if truth not in BUGS:
            st.caption(
                "Drift 0, a difference to one device no larger than rounding, and steps exactly "
                "as long as its steps: nothing is wrong."
            )
    if truth in BUGS:
        bug = BUGS[truth]
        st.markdown(f"**{bug.what}**")
        st.markdown(f"What gives it away: {bug.giveaway}")
        st.markdown("The line that is missing, or should be there instead:")
        st.code(bug.fix, language="python")


# --- 50 steps -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Curves:
    """Steps that were trained.

    Attributes:
        config: with what; which parameter is shown changes nothing.
        points: a point per step.
        ends: who has diverged.
    """

    config: TrainingStepConfig
    points: Sequence[CurvePoint]
    ends: Sequence[RunDiverged]


def draw_curves(shown: Shown) -> None:
    """Loss, drift and step length of the first steps, once they have been trained."""
    config = replace(shown.config, parameter="b1")
    if st.button(
        f"Train {STEPS} steps",
        icon=":material/show_chart:",
        help="Trains the replicas from the start, and beside them one device without the mistake.",
    ):
        st.session_state[f"{FORM}:curves"] = _train(config)
    kept: Curves | None = st.session_state.get(f"{FORM}:curves")
    if kept is None or kept.config != config:
        st.caption("Loss, drift and step length over 50 steps appear here; it takes seconds.")
        return
    _draw_curves(kept)


def _train(config: TrainingStepConfig) -> Curves:
    points: list[CurvePoint] = []
    ends: list[RunDiverged] = []
    bar = st.progress(0.0)
    for each in loss_curves(config):
        if isinstance(each, RunDiverged):
            ends.append(each)
        else:
            points.append(each)
            bar.progress(each.step / STEPS, f"step {each.step} of {STEPS}")
    bar.empty()
    return Curves(config, points, ends)


def _draw_curves(curves: Curves) -> None:
    for end in curves.ends:
        who = "The replicas have" if end.run == "replicas" else "The one device has"
        st.warning(f"{who} diverged. {plain(str(end.event))}")
    points = curves.points
    st.vega_lite_chart(loss_columns(points, curves.ends), loss_spec(), key=f"{FORM}:losses")
    left, right = st.columns(2)
    with left:
        st.vega_lite_chart(drift_columns(points), drift_spec(), key=f"{FORM}:drift")
    with right:
        st.vega_lite_chart(ratio_columns(points), ratio_spec(), key=f"{FORM}:ratio")
    with st.expander("The curves as a table", icon=":material/table:"):
        st.dataframe([_row(each) for each in points], hide_index=True)


def _row(point: CurvePoint) -> dict[str, float | None]:
    ratios = point.ratios or (None,)
    return {
        "step": point.step,
        "loss": point.loss,
        "loss, one device": point.reference_loss,
        "drift": point.drift,
        "difference": point.difference,
        "longest step": max(ratios, key=lambda each: each or 0.0),
        "shortest step": min(ratios, key=lambda each: each or 0.0),
    }
