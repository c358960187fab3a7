"""The race as the user edits it: racers, settings and view, kept for the session and in the URL."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from math import inf
from time import monotonic
from typing import Any

import streamlit as st

from labcore.charts import LossView
from labcore.config import Config, ConfigError, format_fields, ruled_fields
from labcore.links import format_racer, parse_racers, parse_settings
from labcore.optimizers import OPTIMIZERS, Optimizer
from labcore.race import MAX_NAME_LENGTH, MAX_RACERS, RaceConfig, Racer
from labcore.regression import RegressionSettings
from labcore.reported import AIRFOIL_PRESETS
from labui.controls import field_widget
from labui.page import plain
from labui.run_panel import Pace

STALE_SECONDS = 5.0
CARD_WIDTH = 171
"""In pixels: five beside one another on a laptop, two on a phone."""

Query = dict[str, list[str]]

_numbers = count()


@dataclass
class Draft:
    """The race being edited; it may be one that cannot start, such as two racers with one name.

    Attributes:
        settings: what all racers share, by field name.
        racers: by a number that stays with a racer while others come and go.
        view: which loss over what, by field name.
        pace: steps per second, by field name.
        problems: what was wrong with the link that it came from, a sentence each.
        number: changes where the widgets shall forget what they show and take the draft's values.
        refused: what is typed into a widget now and not allowed; the value before it stays.
    """

    settings: dict[str, Any]
    racers: dict[int, Racer]
    view: dict[str, Any]
    pace: dict[str, Any]
    problems: list[str] = field(default_factory=list)
    number: int = field(default_factory=lambda: next(_numbers))
    refused: ConfigError | None = None

    def query(self) -> Query:
        """The draft as URL parameters."""
        texts = {
            **format_fields(RegressionSettings(**self.settings)),
            **format_fields(LossView(**self.view)),
            **format_fields(Pace(**self.pace)),
        }
        racers = [format_racer(racer) for racer in self.racers.values()]
        return {"racer": racers} | {name: [text] for name, text in texts.items()}


def _numbered(racers: Sequence[Racer]) -> dict[int, Racer]:
    return {next(_numbers): racer for racer in racers}


def _draft_of(query: Query) -> Draft:
    racers, problems = parse_racers(query)
    if problems and not racers:
        problems.append("No racer was left, so the five of the notes race instead.")
    parts = []
    for config in (RegressionSettings, LossView, Pace):
        values, wrong = parse_settings(config, query)
        parts.append(values)
        problems += wrong
    known = {"racer", *(name for values in parts for name in values)}
    problems += [f"The link's setting {name!r} is unknown." for name in query if name not in known]
    settings, view, pace = parts
    return Draft(settings, _numbered(racers or _preset_racers()), view, pace, problems)


def _preset_racers() -> list[Racer]:
    return [Racer(optimizer) for optimizer in AIRFOIL_PRESETS]


def open_draft() -> Draft:
    """The session's draft: from the URL if the user came by a link, else as it was left.

    A URL other than the session's own is a link followed, or the browser's Back button.
    """
    query = _browser_query()
    draft: Draft | None = st.session_state.get("draft")
    if draft is None or (query and not _is_own(query)):
        draft = st.session_state["draft"] = _draft_of(query)
        _make_own(query)
    draft.refused = None
    return draft


def _browser_query() -> Query:
    return {name: st.query_params.get_all(name) for name in st.query_params}


def _is_own(query: Query) -> bool:
    """Whether the session has this URL, or had it so lately that the browser may not know better.

    A browser that acts before the page's new URL has reached it still sends the one before.
    """
    own: dict[str, float] = st.session_state["own queries"]
    return own.get(repr(query), -inf) > monotonic() - STALE_SECONDS


def _make_own(query: Query) -> None:
    """Remember a URL as the session's, and when it replaced the one before."""
    now = monotonic()
    own = st.session_state.get("own queries", {})
    lately = {
        old: min(replaced, now) for old, replaced in own.items() if replaced > now - STALE_SECONDS
    }
    st.session_state["own queries"] = lately | {repr(query): inf}


def write_query(draft: Draft) -> None:
    """Bring the URL up to date, so that it restores what is on the page."""
    query = draft.query()
    _make_own(query)
    if query != _browser_query():
        st.query_params.from_dict(query)


def setting_widget(draft: Draft, config: type[Any], name: str, *, disabled: bool = False) -> None:
    """The widget for one setting of the draft, which takes its value."""
    values = next(v for v in (draft.settings, draft.view, draft.pace) if name in v)
    key = f"setting:{draft.number}:{name}"
    values[name] = _accepted(draft, config, name, key, values[name], disabled=disabled)


def _accepted(
    draft: Draft, config: type[Config], name: str, key: str, value: Any, *, disabled: bool = False
) -> Any:
    """The widget's value, or the one before it with the reason why the new one is refused."""
    try:
        return field_widget(config, name, key, value, disabled=disabled)
    except ConfigError as error:
        st.error(plain(str(error)))
        draft.refused = error
        return value


def show_preset(racers: Sequence[Racer]) -> None:
    """Bring in racers of the notes with the notes' settings; for a button's `on_click`."""
    draft: Draft = st.session_state["draft"]
    defaults = {each.name: rule.default for each, rule in ruled_fields(RegressionSettings)}
    st.session_state["draft"] = Draft(defaults, _numbered(racers), draft.view, draft.pace)


def show_new_seed() -> None:
    """Draw another seed."""
    draft: Draft = st.session_state["draft"]
    settings = draft.settings | {"seed": random.randrange(10_000)}
    st.session_state["draft"] = replace(draft, settings=settings, number=next(_numbers))


def race_config(draft: Draft) -> RaceConfig | ConfigError:
    """The race that the draft describes, or why there is none."""
    if draft.refused:
        return draft.refused
    try:
        return RaceConfig(**draft.settings, racers=tuple(draft.racers.values()))
    except ConfigError as error:
        return error


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


def racer_cards(draft: Draft) -> None:
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
    draft: Draft = st.session_state["draft"]
    racing = {type(racer.optimizer) for racer in draft.racers.values()}
    new = next((kind for kind in OPTIMIZERS.values() if kind not in racing), OPTIMIZERS["sgd"])
    draft.racers |= _numbered([Racer(new())])


def _remove_racer(number: int) -> None:
    draft: Draft = st.session_state["draft"]
    draft.racers.pop(number, None)


def _racer_card(number: int, draft: Draft) -> Racer:
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
        each.name: _accepted(
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


def update_rules(draft: Draft) -> None:
    """The formulas of the optimisers in the race, with their sources."""
    with st.expander("Update rules", icon=":material/function:"):
        st.markdown("$g$ is the minibatch gradient, $x$ the weights, $t$ the step.")
        for kind in dict.fromkeys(type(racer.optimizer) for racer in draft.racers.values()):
            st.markdown(f"**{kind.label}** · {kind.source}")
            st.latex(kind.formula)
