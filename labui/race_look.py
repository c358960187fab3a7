"""What the Optimizers page shows of a race, and of what is done around it."""

from collections.abc import Sequence
from dataclasses import dataclass

import streamlit as st

from labcore.config import Config, choice


@dataclass(frozen=True)
class Look(Config):
    """Which figure is shown; all of them are of the racers and settings below it."""

    name = "look"

    look: str = choice(
        "look at",
        "curves",
        {
            "curves": "Curves",
            "surface": "Surface",
            "hood": "Under the hood",
            "sweep": "Sweep",
            "fair": "Fair race",
            "past": "Past races",
        },
        help="The race as curves, as paths over the loss surface, or one optimiser's step in "
        "numbers; many learning rates at once; each optimiser at its best one; races of before.",
    )


WATCHED = "watched racer"


def watched(names: Sequence[str]) -> str:
    """The racer that is looked at closely: the one last chosen, else the first."""
    chosen = st.session_state.get(f"{WATCHED}:widget", st.session_state.get(WATCHED))
    return next((name for name in names if name == chosen), names[0])


def watch(names: Sequence[str], help: str) -> None:
    """The widget that chooses it."""
    st.session_state[WATCHED] = st.selectbox(
        "Racer", names, names.index(watched(names)), key=f"{WATCHED}:widget", help=help, width=170
    )
