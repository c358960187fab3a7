"""A form in the making: the values of its widgets, kept for the session and in the URL."""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from math import inf
from time import monotonic
from typing import Any, TypeVar

import streamlit as st

from labcore.config import Config, ConfigError, format_value, ruled_fields
from labcore.links import Query, parse_settings
from labui.controls import field_widget
from labui.page import plain

STALE_SECONDS = 5.0

numbers = count()
"""For whatever needs a number that nothing else in this process has."""


@dataclass
class Draft:
    """What a form holds; each value is allowed, but they may not go together.

    Attributes:
        values: by field name, for all configs that the form fills.
        problems: what was wrong with the link that it came from, a sentence each.
        number: changes where the widgets shall forget what they show and take the draft's values.
        refused: what is typed into a widget now and not allowed; the value before it stays.
    """

    values: dict[str, Any]
    problems: list[str] = field(default_factory=list)
    number: int = field(default_factory=lambda: next(numbers))
    refused: ConfigError | None = None

    def query(self) -> dict[str, list[str]]:
        """The draft as URL parameters."""
        return {name: [format_value(value)] for name, value in self.values.items()}

    def fields_of(self, config: type[Config]) -> dict[str, Any]:
        """The values for one config's fields, by name."""
        return {each.name: self.values[each.name] for each, _ in ruled_fields(config)}


D = TypeVar("D", bound=Draft)


def values_of(
    query: Query, configs: tuple[type[Config], ...], others: tuple[str, ...] = ()
) -> tuple[dict[str, Any], list[str]]:
    """A form's values from a link, and a sentence for everything in the link that is wrong.

    Args:
        query: the link's parameters.
        configs: whose fields the form fills.
        others: parameters that the form reads itself.
    """
    values: dict[str, Any] = {}
    problems: list[str] = []
    for config in configs:
        more, wrong = parse_settings(config, query)
        values |= more
        problems += wrong
    known = {*values, *others}
    problems += [f"The link's setting {name!r} is unknown." for name in query if name not in known]
    return values, problems


def open_draft(form: str, parse: Callable[[Query], D]) -> D:
    """The session's draft of a form: from the URL if the user came by a link, else as it was left.

    A URL other than the session's own is a link followed, or the browser's Back button.

    Args:
        form: the form's name.
        parse: makes a draft of a link's parameters.
    """
    query = _browser_query()
    draft: D | None = st.session_state.get(f"draft:{form}")
    if draft is None or (query and not _is_own(form, query)):
        draft = parse(query)
        keep_draft(form, draft)
        _make_own(form, query)
    draft.refused = None
    return draft


def keep_draft(form: str, draft: Draft) -> None:
    """Make a draft the session's."""
    st.session_state[f"draft:{form}"] = draft


def write_query(form: str, draft: Draft) -> None:
    """Bring the URL up to date, so that it restores what is on the page."""
    query = draft.query()
    _make_own(form, query)
    if query != _browser_query():
        st.query_params.from_dict(query)


def _browser_query() -> dict[str, list[str]]:
    return {name: st.query_params.get_all(name) for name in st.query_params}


def _is_own(form: str, query: Query) -> bool:
    """Whether the session has this URL, or had it so lately that the browser may not know better.

    A browser that acts before the page's new URL has reached it still sends the one before.
    """
    own: dict[str, float] = st.session_state[f"own queries:{form}"]
    return own.get(repr(query), -inf) > monotonic() - STALE_SECONDS


def _make_own(form: str, query: Query) -> None:
    """Remember a URL as the session's, and when it replaced the one before."""
    now = monotonic()
    own = st.session_state.get(f"own queries:{form}", {})
    lately = {
        old: min(replaced, now) for old, replaced in own.items() if replaced > now - STALE_SECONDS
    }
    st.session_state[f"own queries:{form}"] = lately | {repr(query): inf}


def setting_widget(
    draft: Draft, config: type[Config], name: str, *, disabled: bool = False
) -> None:
    """The widget for one value of the draft, which it changes."""
    key = f"setting:{draft.number}:{name}"
    draft.values[name] = accepted(draft, config, name, key, draft.values[name], disabled=disabled)


def accepted(
    draft: Draft, config: type[Config], name: str, key: str, value: Any, *, disabled: bool = False
) -> Any:
    """A field's widget: its value, or the one before with the reason why the new one is refused."""
    try:
        return field_widget(config, name, key, value, disabled=disabled)
    except ConfigError as error:
        st.error(plain(str(error)))
        draft.refused = error
        return value
