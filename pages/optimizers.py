"""Race optimisers on airfoil self-noise, live."""

from collections.abc import Sequence
from threading import Thread

import streamlit as st

from labcore.charts import LossView
from labcore.config import ConfigError
from labcore.datasets import airfoil
from labcore.datasets.errors import DataError
from labcore.jobs import Job
from labcore.race import RaceConfig, RaceHistory, Racer, race
from labcore.regression import RegressionSettings, load_torch_optim
from labui.draft import setting_widget, write_query
from labui.page import page, plain
from labui.race_form import (
    FORM,
    open_race,
    preset_buttons,
    racer_cards,
    show_new_seed,
    show_preset,
    update_rules,
)
from labui.race_view import draw_race
from labui.run_panel import Pace, live, transport
from labui.session import current_job, forget_job, start_job

RACE = "race"


def begin_race(paused: bool) -> Job[RaceHistory]:
    """Start the race that the form describes."""
    if isinstance(config, ConfigError):
        raise config
    pace = Pace(**draft.fields_of(Pace)).steps_per_second
    return start_job(RACE, race(config), RaceHistory(config), paused=paused, pace=pace)


def bring_in(racers: Sequence[Racer]) -> None:
    """A preset replaces the race on the page."""
    forget_job(RACE)
    show_preset(racers)


page("Optimizers")
st.title("Race optimisers on airfoil self-noise")
try:
    airfoil.load()
except DataError as error:
    st.error(str(error))
    st.stop()
draft = open_race()
for problem in draft.problems:
    st.warning(plain(problem))
# The picture comes first, but what it shows is decided by the widgets below it.
figure = st.container()

with st.container(horizontal=True):
    setting_widget(draft, LossView, "y")
    setting_widget(draft, LossView, "x")
    setting_widget(draft, Pace, "pace")

st.subheader("Racers")
preset_buttons(bring_in)
racer_cards(draft)
st.subheader("Same for all")
with st.container(horizontal=True):
    for name in ("model", "objective", "engine"):
        setting_widget(draft, RegressionSettings, name)
for column, name in zip(
    st.columns(4), ("batch_size", "epochs", "seed", "hidden_units"), strict=True
):
    with column:
        idle = name == "hidden_units" and draft.values["model"] == "linear"
        setting_widget(draft, RegressionSettings, name, disabled=idle)
update_rules(draft)

config = draft.race()
write_query(FORM, draft)
with figure:
    job = current_job(RACE)
    if job is not None:
        job.pace = Pace(**draft.fields_of(Pace)).steps_per_second
    ready = isinstance(config, RaceConfig)
    transport(RACE, ready=ready, start=begin_race, new_seed=show_new_seed)
    if isinstance(config, ConfigError):
        st.error(str(config))
    live(RACE, lambda: draw_race(current_job(RACE), config, LossView(**draft.fields_of(LossView))))

# While the user looks at the page: the first press of Start need not wait for it.
Thread(target=load_torch_optim, daemon=True).start()
