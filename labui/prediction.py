"""Predict first: a guess made before a race, and afterwards beside what came out."""

from collections.abc import Iterator
from dataclasses import dataclass

import streamlit as st

from labcore.config import ConfigError, refusal
from labcore.differences import ranking
from labcore.events import Diverged
from labcore.race import RaceConfig, RaceHistory
from labui.page import plain

GUESS = "guess"
CLOSE = 0.01
"""A loss is well guessed if it is within this share of the true one."""


@dataclass(frozen=True)
class Guess:
    """What somebody expects of a race.

    Attributes:
        winner: the racer with the smallest loss at the end, None for no opinion.
        loss: the smallest last loss, half the mean squared error; None for no opinion.
        diverged: the racers that diverge.
    """

    winner: str | None
    loss: float | None
    diverged: frozenset[str]

    def about(self, config: RaceConfig) -> bool:
        """Whether everybody whom it names races."""
        named = self.diverged | ({self.winner} if self.winner else set())
        return named <= {racer.name for racer in config.racers}


@dataclass(frozen=True)
class Verdict:
    """One question with what was guessed, what came out, and what to say of it."""

    question: str
    guessed: str
    result: str
    words: str


def verdicts(guess: Guess, history: RaceHistory) -> Iterator[Verdict]:
    """A guess beside the result of a race that has ended."""
    best = next(iter(ranking(history)), None)
    if guess.winner:
        result = best.racer.name if best else "nobody"
        yield Verdict("Who wins?", guess.winner, result, _judged(guess.winner == result))
    if guess.loss is not None:
        loss = best.latest.loss if best and best.latest else None
        yield _loss_verdict(guess.loss, loss)
    lanes = history.lanes.values()
    lost = frozenset(lane.racer.name for lane in lanes if isinstance(lane.outcome, Diverged))
    yield Verdict(
        "Who diverges?", _names(guess.diverged), _names(lost), _judged(guess.diverged == lost)
    )


def _loss_verdict(guessed: float, loss: float | None) -> Verdict:
    question = "What is the winner's loss?"
    if loss is None:
        return Verdict(question, f"{guessed:g}", "none is left", _judged(False))
    share = abs(guessed - loss) / loss
    words = f"{_judged(share <= CLOSE)}, off by {share:.1%} (within {CLOSE:.0%} counts)"
    return Verdict(question, f"{guessed:g}", f"{loss:.4f}", words)


def _judged(right: bool) -> str:
    return "✓ right" if right else "✗ not this time"


def _names(racers: frozenset[str]) -> str:
    return ", ".join(sorted(racers)) or "nobody"


def take_guess(config: RaceConfig) -> Guess | None:
    """The guess that was made for the race that starts now; it is used up."""
    guess: Guess | None = st.session_state.pop(GUESS, None)
    return guess if guess and guess.about(config) else None


def show_verdicts(guess: Guess, history: RaceHistory) -> None:
    """The guess of a race; beside the result once it has ended."""
    if not all(lane.outcome for lane in history.lanes.values()):
        st.caption(plain(f"Your guess: {_in_words(guess)}. The result is shown beside it."))
        return
    st.markdown("**Your guess and the result**")
    st.table(
        {
            "question": [each.question for each in verdicts(guess, history)],
            "your guess": [plain(each.guessed) for each in verdicts(guess, history)],
            "result": [plain(each.result) for each in verdicts(guess, history)],
            "": [each.words for each in verdicts(guess, history)],
        }
    )


def _in_words(guess: Guess) -> str:
    parts = [f"{guess.winner} wins"] if guess.winner else []
    parts += [f"with a loss of {guess.loss:g}"] if guess.loss is not None else []
    return ", ".join([*parts, f"{_names(guess.diverged)} diverges"])


_HELP = "Guess who wins before you start: the guess is shown beside the result."


def predict_first(config: RaceConfig | ConfigError) -> None:
    """A small form, shut until somebody wants it, for the guess about the next race.

    Args:
        config: the race that would start, or why none would.
    """
    with st.popover("Predict first", icon=":material/psychology_alt:", help=_HELP):
        guess: Guess | None = st.session_state.get(GUESS)
        if isinstance(config, ConfigError):
            st.caption("There is no race to predict: see what is wrong with the settings.")
        elif guess:
            st.markdown(plain(f"Committed for the next start: {_in_words(guess)}."))
            if not guess.about(config):
                st.warning("It names somebody who does not race now: as it is, it will not count.")
            st.button("Take it back", on_click=_withdraw, help="To make another guess, or none.")
        else:
            _form([racer.name for racer in config.racers])


def _form(names: list[str]) -> None:
    with st.form("predict", border=False):
        winner = st.selectbox(
            "Who wins?", names, None, placeholder="no guess", help="The smallest loss at the end."
        )
        loss = st.text_input(
            "Its loss", placeholder="no guess", help="½ MSE at the end, such as 0.25."
        )
        diverged = st.multiselect(
            "Who diverges?", names, placeholder="nobody", help="Whose loss stops being finite."
        )
        if st.form_submit_button("Commit", help="It is kept for the next start."):
            try:
                guess = Guess(winner, parse_loss(loss), frozenset(diverged))
            except ConfigError as error:
                st.error(plain(str(error)))
            else:
                st.session_state[GUESS] = guess
                st.rerun()


def parse_loss(text: str) -> float | None:
    """A guessed loss, None if nothing was typed.

    Raises:
        ConfigError: it is no positive number.
    """
    if not text.strip():
        return None
    try:
        loss = float(text.replace(",", "."))
    except ValueError:
        loss = -1.0
    if not 0 < loss < 1e9:
        raise refusal("guess: loss", text, "a positive number", "0.25")
    return loss


def _withdraw() -> None:
    st.session_state.pop(GUESS, None)
