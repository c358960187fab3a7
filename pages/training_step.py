"""One data-parallel training step, move by move, right or with a classic mistake."""

import streamlit as st

from labcore.config import ConfigError
from labcore.datasets.errors import DataError
from labui.page import page, plain
from labui.step_form import mistake_widgets, open_step, stay_at, step_widgets
from labui.step_view import draw_curves, draw_mistake, draw_step, shown_step

page("Training step")
st.title("One training step on k devices")
draft = open_step()
for problem in draft.problems:
    st.warning(plain(problem))
# The picture comes first, but what it shows is decided by the widgets below it.
figure = st.container()

st.subheader("Find the mistake")
mistake_widgets(draft)
mistake, curves = st.container(), st.container()
st.subheader("Settings")
step_widgets(draft)

try:
    st.session_state["step:shown"] = shown_step(draft)
except (ConfigError, DataError) as error:
    figure.error(plain(str(error)))
if "step:shown" in st.session_state:
    shown = st.session_state["step:shown"]
    # Replicas that have diverged stay at their last step.
    stay_at(draft, shown.record.facts.step)
    with mistake:
        draw_mistake(draft, shown)
    with curves:
        draw_curves(shown)
    draw_step(figure, draft, shown)
