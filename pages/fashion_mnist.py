"""Train an image classifier on 1…k devices, live."""

from pathlib import Path

import streamlit as st

from labcore.checkpoints import CheckpointError
from labcore.classification import ClassificationConfig, train_classifier
from labcore.classification_history import ClassificationHistory
from labcore.datasets import fashion_mnist
from labcore.datasets.errors import DataError
from labcore.jobs import Job
from labui.classification_form import (
    FORM,
    classification,
    estimate_in_words,
    open_classification,
    preset_buttons,
    settings_widgets,
    show_new_seed,
)
from labui.classification_view import draw_run
from labui.data_panel import data_panel
from labui.draft import write_query
from labui.page import page, plain
from labui.process_run import last_checkpoint, new_checkpoint, resumable
from labui.run_list import keep_run, runs
from labui.run_panel import live, transport
from labui.session import current_job, start_job


def begin(paused: bool) -> Job[ClassificationHistory]:
    """Start the run that the form describes."""
    if config is None or refusal:
        raise refusal or RuntimeError("There is no run to start.")
    return start(config, new_checkpoint() if config.engine == "processes" else None, paused)


def start(
    run: ClassificationConfig, checkpoint: Path | None, paused: bool
) -> Job[ClassificationHistory]:
    """Start a run, from its checkpoint where there is one."""
    events = train_classifier(run, data, checkpoint=checkpoint)
    history = ClassificationHistory(run, data.source)
    keep_run(history)
    return start_job(FORM, events, history, paused=paused, wide=True)


def offer_to_resume() -> None:
    """A button that takes a run on processes up again where it was stopped or failed."""
    ended = resumable()
    if ended is None:
        return
    text = "With its own settings, from the last step that it has written down."
    if st.button("Go on with the run that has ended", icon=":material/resume:", help=text):
        try:
            start(ended.config, last_checkpoint(), paused=False)
        except (CheckpointError, DataError) as error:
            st.error(plain(str(error)))
        else:
            st.rerun()


page("Fashion-MNIST")
st.title("Train on 1…16 devices: Fashion-MNIST")
try:
    data = fashion_mnist.load()
except DataError as error:
    st.error(str(error))
    st.stop()
draft = open_classification()
for problem in draft.problems:
    st.warning(plain(problem))
# The picture comes first, but what it shows is decided by the widgets below it.
figure = st.container()

st.subheader("Settings")
preset_buttons()
settings_widgets(draft)
data_panel(data)

config, refusal = classification(draft, data)
write_query(FORM, draft)
with figure:
    transport(FORM, ready=refusal is None, start=begin, new_seed=show_new_seed)
    offer_to_resume()
    words = st.empty()
    words.caption("Trying how long the settings below will take.")
    live(FORM, lambda: draw_run(current_job(FORM), config, runs(), data, draft))
# The trial of a large model takes seconds: after all that can be drawn without it.
if refusal:
    words.error(plain(str(refusal)))
elif config:
    words.caption(f"The settings below take {estimate_in_words(config)}.")
