"""What would 16 GPUs do? And devices of unequal speed? Modelled, reported and measured."""

import streamlit as st

from labui.draft import setting_widget, write_query
from labui.exercise_panel import draw_exercises
from labui.page import page, plain
from labui.reported_panel import draw_reported
from labui.scaling_form import FORM, Look, open_scaling
from labui.scaling_view import draw_what_if
from labui.uneven_panel import draw_uneven

page("Scaling")
st.title("Scaling: what would more devices do?")
draft = open_scaling()
for problem in draft.problems:
    st.warning(plain(problem))
setting_widget(draft, Look, "part")
parts = {
    "what_if": draw_what_if,
    "uneven": draw_uneven,
    "reported": draw_reported,
    "exercises": draw_exercises,
}
parts[draft.values["part"]](draft)
write_query(FORM, draft)
