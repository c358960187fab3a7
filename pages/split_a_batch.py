"""Step through splitting a batch: which rows go to which device, and what that does to training."""

import streamlit as st

from labcore.config import ConfigError
from labcore.datasets.errors import DataError
from labui.page import page, plain
from labui.split_form import PRESETS, open_split, show_preset, split_widgets
from labui.split_view import draw_split, shown_split

page("Split a batch")
st.title("Split a batch over devices")
draft = open_split()
for problem in draft.problems:
    st.warning(plain(problem))
# The picture comes first, but what it shows is decided by the widgets below it.
figure = st.container()

st.subheader("Settings")
with st.container(horizontal=True):
    for name in PRESETS:
        st.button(name, on_click=show_preset, args=(name,), help="Show this example.")
split_widgets(draft)

try:
    st.session_state["split:shown"] = shown_split(draft)
except (ConfigError, DataError) as error:
    figure.error(plain(str(error)))
if "split:shown" in st.session_state:
    draw_split(figure, draft, st.session_state["split:shown"])
