"""The training step that a student looks at: its settings, its mistake, and what they guess."""

from dataclasses import dataclass, fields
from random import Random

import streamlit as st

from labcore.bugs import BUGS
from labcore.config import Config, choice, number
from labcore.links import Query
from labcore.step_curves import STEPS
from labcore.training_step import TrainingStepConfig
from labui.draft import Draft, keep_draft, numbers, open_draft, setting_widget, values_of

FORM = "step"
NONE, SURPRISE = "none", "surprise"
"""Mistakes that are not in `BUGS`: no mistake, and one that is not told."""
GUESSES = {NONE: "no bug"} | {name: bug.label for name, bug in BUGS.items()}


@dataclass(frozen=True, kw_only=True)
class StepSettings(TrainingStepConfig):
    """A step as the form knows it: the mistake may be a surprise."""

    bug: str = choice(
        "mistake",
        NONE,
        {NONE: "none"} | {name: bug.label for name, bug in BUGS.items()} | {SURPRISE: "a surprise"},
        help="A classic mistake to make in every step. A surprise is one of them, or none, which "
        "the seed decides: watch, guess, and reveal it.",
    )

    def config(self) -> TrainingStepConfig:
        """The step itself, with the mistake that the surprise is."""
        values = {each.name: getattr(self, each.name) for each in fields(TrainingStepConfig)}
        return TrainingStepConfig(**values | {"bug": self._bug()})

    def _bug(self) -> str:
        """The mistake; a surprise is the seed's first that does anything with these shards."""
        if self.bug != SURPRISE:
            return self.bug
        values = {each.name: getattr(self, each.name) for each in fields(TrainingStepConfig)}
        order = [NONE, *BUGS]
        Random(f"surprise {self.seed}").shuffle(order)
        return next(
            name
            for name in order
            if name == NONE or not TrainingStepConfig(**values | {"bug": name}).harmless
        )


@dataclass(frozen=True)
class Position(Config):
    """Where the student is, and what they think of it."""

    name = "position"

    step: int = number("step", 1, 1, STEPS, help="Steps taken by the same replicas, one by one.")
    at: int = number("move", 0, 0, 6, help="Moves of this step that are done.")
    guess: str = choice(
        "your guess", NONE, GUESSES, help="Which mistake do drift, step length and loss betray?"
    )
    revealed: int = number("revealed", 0, 0, 1, help="Whether the surprise has been told.")


@dataclass
class StepDraft(Draft):
    """The settings, and where the student is."""

    def settings(self) -> StepSettings:
        """What the draft describes.

        Raises:
            ConfigError: its values do not go together, with the reason.
        """
        return StepSettings(**self.fields_of(StepSettings))

    @property
    def hidden(self) -> bool:
        """Whether there is a surprise that has not been revealed."""
        return self.values["bug"] == SURPRISE and not self.values["revealed"]


def open_step() -> StepDraft:
    """The session's training step."""
    return open_draft(FORM, _parse)


def _parse(query: Query) -> StepDraft:
    return StepDraft(*values_of(query, (StepSettings, Position)))


def change(**values: object) -> None:
    """Give the draft other values, and the widgets with it; for a button's `on_click`."""
    kept: StepDraft = st.session_state[f"draft:{FORM}"]
    keep_draft(FORM, StepDraft(kept.values | values))


def another_surprise() -> None:
    """The next seed's surprise, from its first step; for a button's `on_click`."""
    kept: StepDraft = st.session_state[f"draft:{FORM}"]
    seed = (kept.values["seed"] + 1) % 2**31
    change(bug=SURPRISE, seed=seed, step=1, at=0, guess=NONE, revealed=0)


def stay_at(draft: StepDraft, step: int) -> None:
    """Be at a step, and let the widgets show it."""
    if draft.values["step"] != step:
        draft.values["step"] = step
        draft.number = next(numbers)


def step_widgets(draft: StepDraft) -> None:
    """Devices, minibatch, split, allreduce and start; another seed is another surprise."""
    seed = draft.values["seed"]
    for column, name in zip(st.columns(4), ("replicas", "batch_size", "lr", "seed"), strict=True):
        with column:
            setting_widget(draft, StepSettings, name)
    for name in ("split", "allreduce", "initialisation"):
        setting_widget(draft, StepSettings, name)
    if draft.values["seed"] != seed:
        draft.values["revealed"] = 0


def mistake_widgets(draft: StepDraft) -> None:
    """The mistake; of a surprise, the guess and what reveals it."""
    before = draft.values["bug"]
    left, right = st.columns(2)
    with left:
        setting_widget(draft, StepSettings, "bug")
    if draft.values["bug"] != before:
        draft.values["revealed"] = 0
    if draft.values["bug"] != SURPRISE:
        return
    with right:
        setting_widget(draft, Position, "guess", disabled=not draft.hidden)
    with st.container(horizontal=True):
        st.button(
            "Reveal",
            on_click=change,
            kwargs={"revealed": 1},
            type="primary",
            disabled=not draft.hidden,
            help="Tell the mistake, and show the code that makes it.",
        )
        st.button("Another surprise", on_click=another_surprise, help="That of the next seed.")
