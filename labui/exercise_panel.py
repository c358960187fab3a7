"""Questions of the Scaling page: first a guess, then what the lab computes."""

from dataclasses import dataclass

import streamlit as st

from labcore.config import format_fields
from labcore.exercises import EXERCISES, LARGE_BATCHES, Answer
from labui.draft import setting_widget
from labui.page import plain
from labui.scaling_form import TITLES, Look, ScalingDraft, show_exercise

GUESSES = "exercises:guesses"
TRAINED = ("learning rate", "epochs")
"""Exercises whose answer a class can check by training."""


@dataclass(frozen=True)
class Guess:
    """A guess that can no longer be changed, beside what is right."""

    choice: int
    answer: Answer

    @property
    def right(self) -> bool:
        """Whether it was the one."""
        return self.choice == self.answer.right


def draw_exercises(draft: ScalingDraft) -> None:
    """One question, and the guesses so far."""
    guesses: dict[str, Guess] = st.session_state.setdefault(GUESSES, {})
    setting_widget(draft, Look, "exercise")
    name = draft.values["exercise"]
    _ask(name, guesses)
    names = list(EXERCISES)
    with st.container(horizontal=True):
        for label, step, icon in (
            ("Question before", -1, ":material/arrow_back:"),
            ("Next question", 1, ":material/arrow_forward:"),
        ):
            place = names.index(name) + step
            st.button(
                label,
                on_click=show_exercise,
                args=(names[place % len(names)],),
                icon=icon,
                disabled=not 0 <= place < len(names),
                help="Guesses are kept as long as this window is open.",
            )
        st.button(
            "Forget my guesses",
            on_click=guesses.clear,
            disabled=not guesses,
            help="All questions can be guessed anew.",
        )
    _score(guesses)


def _ask(name: str, guesses: dict[str, Guess]) -> None:
    """A question with its choices; once committed, the guess beside the answer."""
    exercise, given = EXERCISES[name], guesses.get(name)
    with st.container(border=True):
        st.markdown(f"**{plain(exercise.question)}**")
        chosen = st.radio(
            "Your guess",
            range(len(exercise.choices)),
            index=given.choice if given else None,
            format_func=lambda number: plain(exercise.choices[number]),
            key=f"guess:{name}:{bool(given)}",
            disabled=given is not None,
            help="Commit to one; then the answer is shown.",
        )
        if given is None:
            if st.button(
                "Commit and reveal",
                type="primary",
                disabled=chosen is None,
                help="The guess can no longer be changed; the answer is computed now.",
            ):
                guesses[name] = Guess(int(chosen or 0), exercise.solve())
                st.rerun()
            return
        _reveal(name, given)


def _reveal(name: str, given: Guess) -> None:
    choices = EXERCISES[name].choices
    words = f"You said: {choices[given.choice]}. It is: {choices[given.answer.right]}."
    if given.right:
        st.success(f"Right. {plain(words)}", icon=":material/check:")
    else:
        st.error(f"Not so. {plain(words)}", icon=":material/close:")
    st.markdown(plain(given.answer.words))
    if name in TRAINED:
        st.markdown("See for yourself, by training, some minutes each. Measured by this lab:")
        for label, each in LARGE_BATCHES.items():
            st.page_link(
                "pages/fashion_mnist.py",
                label=label,
                icon=":material/hub:",
                query_params=format_fields(each.config),
            )
            # Not in the link, which a phone would cut.
            st.caption(f"{each.found[0].upper()}{each.found[1:]}.")
        st.caption(
            "A hundred epochs of 6,000 images, about as many steps as ten of 60,000. The rule has "
            "limits: those who found it trained a network with batch norm, which LeNet has not."
        )


def _score(guesses: dict[str, Guess]) -> None:
    """All guesses beside the answers."""
    right = sum(guess.right for guess in guesses.values())
    st.caption(f"{len(guesses)} of {len(EXERCISES)} guessed, {right} right.")
    if guesses:
        answered = [name for name in EXERCISES if name in guesses]
        st.dataframe(
            {
                "question": [TITLES.get(name, name.capitalize()) for name in answered],
                "your guess": [EXERCISES[n].choices[guesses[n].choice] for n in answered],
                "answer": [EXERCISES[n].choices[guesses[n].answer.right] for n in answered],
                "": ["✓" if guesses[n].right else "✗" for n in answered],
            },
            hide_index=True,
        )
