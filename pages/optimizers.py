"""Race optimisers on airfoil self-noise or on own data, live, and look closely at what they do."""

from collections.abc import Callable, Sequence
from functools import partial
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
from labui.fair_race_panel import fair_race_panel, fair_race_settings
from labui.fork_form import fork_form
from labui.own_data import own_data, own_table, shown_table
from labui.page import page, plain
from labui.past_races import keep_race, past_races
from labui.prediction import predict_first, show_verdicts
from labui.race_exports import race_exports
from labui.race_form import (
    FORM,
    RaceDraft,
    open_race,
    preset_buttons,
    racer_cards,
    show_new_seed,
    show_preset,
    update_rules,
)
from labui.race_look import Look
from labui.race_view import Beside, draw_race
from labui.run_panel import Pace, live, transport
from labui.session import current_job, forget_job, start_job
from labui.surface_view import surface_beside, surface_pictures, surface_settings
from labui.sweep_panel import sweep_panel, sweep_settings
from labui.under_the_hood import hood_beside

RACE = "race"


def begin_race(paused: bool) -> Job[RaceHistory]:
    """Start the race that the form describes."""
    if isinstance(config, ConfigError):
        raise config
    data = own_table()
    events, history = race(config, data, weights=True), RaceHistory(config, data)
    return start_job(RACE, events, history, paused=paused, pace=pace())


def pace() -> float | None:
    """Most steps per second."""
    return Pace(**draft.fields_of(Pace)).steps_per_second


def bring_in(racers: Sequence[Racer]) -> None:
    """A preset replaces the race on the page."""
    forget_job(RACE)
    show_preset(racers)


def race_figure(draft: RaceDraft, beside: Callable[[RaceDraft], Beside | None]) -> None:
    """The race, with what a look has beside its curves."""
    job = current_job(RACE)
    if job is not None:
        job.pace = pace()
    ready = isinstance(config, RaceConfig)
    view = LossView(**draft.fields_of(LossView))

    def predict_or_export() -> None:
        predict_first(config)
        more = surface_pictures(draft, job) if draft.values["look"] == "surface" else {}
        race_exports(draft, job, view, more)

    transport(RACE, ready=ready, start=begin_race, new_seed=show_new_seed, beside=predict_or_export)
    if isinstance(config, ConfigError):
        st.error(plain(str(config)))
    live(RACE, lambda: draw_race(current_job(RACE), config, view, beside(draft), own_table()))
    if kept and kept.guess:
        show_verdicts(kept.guess, kept.history)


RACE_LOOKS: dict[str, Callable[[RaceDraft], None]] = {
    "curves": partial(race_figure, beside=lambda draft: None),
    "surface": partial(race_figure, beside=surface_beside),
    "hood": partial(race_figure, beside=lambda draft: hood_beside()),
}
LOOKS = RACE_LOOKS | {"sweep": sweep_panel, "fair": fair_race_panel, "past": past_races}
# Of the looks that are not at the race.
SETTINGS = {"sweep": sweep_settings, "fair": fair_race_settings}


page("Optimizers")
try:
    airfoil.load()
except DataError as error:
    st.title("Race optimisers")
    st.error(str(error))
    st.stop()
st.title(f"Race optimisers on {plain(shown_table().title)}")
draft = open_race()
kept = keep_race(current_job(RACE))
for problem in draft.problems:
    st.warning(plain(problem))
setting_widget(draft, Look, "look")
# The picture comes first, but what it shows is decided by the widgets below it.
figure = st.container()

if draft.values["look"] in RACE_LOOKS:
    with st.container(horizontal=True):
        if draft.values["look"] == "surface":
            surface_settings(draft)
        setting_widget(draft, LossView, "y")
        setting_widget(draft, LossView, "x")
        setting_widget(draft, Pace, "pace")
elif draft.values["look"] in SETTINGS:
    SETTINGS[draft.values["look"]](draft)

st.subheader("Racers")
preset_buttons(bring_in)
racer_cards(draft)
fork_form(RACE, pace())
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
own_data(draft, on_change=partial(forget_job, RACE))
update_rules(draft)

config = draft.race()
write_query(FORM, draft)
with figure:
    LOOKS[draft.values["look"]](draft)

# While the user looks at the page: the first press of Start need not wait for it.
Thread(target=load_torch_optim, daemon=True).start()
