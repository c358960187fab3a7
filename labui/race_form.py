"""The race as the user edits it: racers, settings and view, kept for the session and in the URL."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import streamlit as st

from labcore.charts import LossView
from labcore.config import ConfigError, format_fields, ruled_fields
from labcore.links import Query, format_racer, parse_racers
from labcore.optimizers import OPTIMIZERS, Optimizer
from labcore.race import MAX_NAME_LENGTH, MAX_RACERS, RaceConfig, Racer
from labcore.regression import RegressionSettings
from labcore.reported import AIRFOIL_PRESETS
from labcore.surface import SurfaceView
from labui.draft import Draft, accepted, keep_draft, numbers, open_draft, values_of
from labui.page import plain
from labui.race_look import Look
from labui.run_panel import Pace
from labui.tuning_form import VALUES, Tuning

FORM = "race"
FLATTEST = 5
"""The axis of the airfoil data that tells most beside the steepest, which is 0."""
CARD_WIDTH = 171
"""In pixels: five beside one another on a laptop, two on a phone."""


@dataclass
class RaceDraft(Draft):
    """The race being edited; it may be one that cannot start, such as two racers with one name.

    Attributes:
        racers: by a number that stays with a racer while others come and go.
    """

    racers: dict[int, Racer] = field(default_factory=dict)

    def query(self) -> dict[str, list[str]]:
        query = super().query()
        if not self.values[VALUES]:
            del query[VALUES]
        return {"racer": [format_racer(racer) for racer in self.racers.values()], **query}

    def race(self) -> RaceConfig | ConfigError:
        """The race that the draft describes, or why there is none."""
        if self.refused:
            return self.refused
        racers = tuple(self.racers.values())
        try:
            return RaceConfig(**self.fields_of(RegressionSettings), racers=racers)
        except ConfigError as error:
            return error


def open_race() -> RaceDraft:
    """The session's race."""
    return open_draft(FORM, _parse)


def _parse(query: Query) -> RaceDraft:
    racers, problems = parse_racers(query)
    if problems and not racers:
        problems.append("No racer was left, so the five of the notes race instead.")
    configs = (RegressionSettings, LossView, Pace, Look, SurfaceView, Tuning)
    values, wrong = values_of(query, configs, others=("racer", VALUES))
    if "up" not in query:
        values["up"] = FLATTEST
    values[VALUES] = next(iter(query.get(VALUES, [])), "")
    return RaceDraft(values, problems + wrong, racers=_numbered(racers or _preset_racers()))


def _preset_racers() -> list[Racer]:
    return [Racer(optimizer) for optimizer in AIRFOIL_PRESETS]


def _numbered(racers: Sequence[Racer]) -> dict[int, Racer]:
    return {next(numbers): racer for racer in racers}


def _kept() -> RaceDraft:
    """The session's race, in a callback."""
    draft: RaceDraft = st.session_state[f"draft:{FORM}"]
    return draft


def show_preset(racers: Sequence[Racer]) -> None:
    """Bring in racers of the notes with the notes' settings; for a button's `on_click`."""
    defaults = {each.name: rule.default for each, rule in ruled_fields(RegressionSettings)}
    keep_draft(FORM, RaceDraft(_kept().values | defaults, racers=_numbered(racers)))


def show_race(config: RaceConfig) -> None:
    """Bring in a whole race, forks left out, and look at it; for a button's `on_click`."""
    settings = {each.name: getattr(config, each.name) for each, _ in ruled_fields(type(config))}
    racers = [_unnamed(racer) for racer in config.racers if not racer.before]
    values = _kept().values | settings | {"look": "curves"}
    keep_draft(FORM, RaceDraft(values, racers=_numbered(racers)))


def _unnamed(racer: Racer) -> Racer:
    """The racer without a name that it would get anyway."""
    return replace(racer, name="") if racer.name == racer.optimizer.label else racer


def show_racer(racer: Racer, settings: Mapping[str, Any]) -> None:
    """Bring in one more racer, and settings for all; for a button's `on_click`."""
    draft = _kept()
    racers = [*list(draft.racers.values())[: MAX_RACERS - 1], racer]
    keep_draft(FORM, RaceDraft(draft.values | dict(settings), racers=_numbered(racers)))


def show_new_seed() -> None:
    """Draw another seed."""
    values = _kept().values | {"seed": random.randrange(10_000)}
    keep_draft(FORM, replace(_kept(), values=values, number=next(numbers)))


def preset_buttons(on_click: Any) -> None:
    """One button per preset of the notes, and one for all of them.

    Args:
        on_click: called with the preset's racers.
    """
    presets = {"All five": _preset_racers()}
    presets |= {optimizer.label: [Racer(optimizer)] for optimizer in AIRFOIL_PRESETS}
    st.caption(
        "Presets of the course notes: one click sets the racers and what is the same for all."
    )
    with st.container(horizontal=True):
        for label, racers in presets.items():
            st.button(
                label,
                key=f"preset:{label}",
                on_click=on_click,
                args=(racers,),
                help="The notes' settings: " + ", ".join(_words(r.optimizer) for r in racers) + ".",
            )


def _words(optimizer: Optimizer) -> str:
    settings = (
        f"{name} {text}" for name, text in format_fields(optimizer).items() if name != "eps"
    )
    return f"{optimizer.label} ({', '.join(settings)})"


def racer_cards(draft: RaceDraft) -> None:
    """The racers, each as a card with its optimiser, hyperparameters and name."""
    with st.container(horizontal=True):
        for number in draft.racers:
            with st.container(border=True, width=CARD_WIDTH, height="stretch"):
                draft.racers[number] = _racer_card(number, draft)
    st.button(
        "Add a racer",
        icon=":material/add:",
        on_click=_add_racer,
        disabled=len(draft.racers) >= MAX_RACERS,
        help=f"Up to {MAX_RACERS} optimisers race side by side.",
    )


def _add_racer() -> None:
    draft = _kept()
    racing = {type(racer.optimizer) for racer in draft.racers.values()}
    new = next((kind for kind in OPTIMIZERS.values() if kind not in racing), OPTIMIZERS["sgd"])
    draft.racers |= _numbered([Racer(new())])


def _remove_racer(number: int) -> None:
    _kept().racers.pop(number, None)


def _racer_card(number: int, draft: RaceDraft) -> Racer:
    racer = draft.racers[number]
    key = f"racer:{number}"
    place = list(draft.racers).index(number) + 1
    kinds = list(OPTIMIZERS)
    kind = st.selectbox(
        f"Racer {place}",
        kinds,
        kinds.index(racer.optimizer.name),
        format_func=lambda name: OPTIMIZERS[name].label,
        key=f"{key}:kind",
        help="Its update rule.",
    )
    optimizer = OPTIMIZERS[kind]
    # Another optimiser begins with its own defaults.
    current = racer.optimizer if type(racer.optimizer) is optimizer else optimizer()
    values = {
        each.name: accepted(
            draft,
            optimizer,
            each.name,
            f"{key}:{kind}:{each.name}",
            getattr(current, each.name),
        )
        for each, _ in ruled_fields(optimizer)
    }
    name = st.text_input(
        "Name",
        racer.name,
        key=f"{key}:name",
        max_chars=MAX_NAME_LENGTH,
        placeholder=optimizer.label,
        help="What the chart and the table call it. Empty: the optimiser's name.",
    )
    st.button(
        "Remove",
        key=f"{key}:remove",
        icon=":material/delete:",
        type="tertiary",
        on_click=_remove_racer,
        args=(number,),
        disabled=len(draft.racers) == 1,
        help="Take this racer out of the next race.",
    )
    try:
        return Racer(optimizer(**values), name)
    except ConfigError as error:
        st.error(plain(str(error)))
        draft.refused = error
        return Racer(optimizer(**values), racer.name)


def update_rules(draft: RaceDraft) -> None:
    """The formulas of the optimisers in the race, with their sources."""
    with st.expander("Update rules", icon=":material/function:"):
        st.markdown("$g$ is the minibatch gradient, $x$ the weights, $t$ the step.")
        for kind in dict.fromkeys(type(racer.optimizer) for racer in draft.racers.values()):
            st.markdown(f"**{kind.label}** · {kind.source}")
            st.latex(kind.formula)
