"""Step through an allreduce, message by message."""

import streamlit as st

from labcore.config import ConfigError
from labcore.datasets import fashion_mnist
from labcore.datasets.errors import DataError
from labui.allreduce_form import (
    allreduce_widgets,
    open_allreduce,
    price_widgets,
    schedule_and_vectors,
    show_example,
)
from labui.allreduce_view import draw_allreduce
from labui.page import page, plain

page("Allreduce")
st.title("Allreduce, one round at a time")
draft = open_allreduce()
for problem in draft.problems:
    st.warning(plain(problem))
# The picture comes first, but what it shows is decided by the widgets below it.
figure = st.container()

st.subheader("Settings")
st.button(
    "The notes' example: [[1, 1]] and [[2, 2]]",
    on_click=show_example,
    help="Two devices; everything is added into device 0, then device 0 is copied to all.",
)
allreduce_widgets(draft)
st.subheader("What a message costs")
price_widgets(draft)

try:
    st.session_state["allreduce:shown"] = schedule_and_vectors(draft, fashion_mnist.load())
except (ConfigError, DataError) as error:
    figure.error(plain(str(error)))
if "allreduce:shown" in st.session_state:
    draw_allreduce(figure, draft, *st.session_state["allreduce:shown"])
