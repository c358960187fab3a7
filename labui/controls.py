"""Widgets made from a config's fields: label, range, default and help come from the field itself.

A widget's state ends when its page is left, so the caller keeps the value and passes it each time.
It shows whenever the widget has no state yet: at first, after a return, and under a new key.
"""

from dataclasses import Field
from typing import Any

import streamlit as st

from labcore.config import Choice, Config, Number, Rule, format_value, parse_fields, ruled_fields

MOST_SIDE_BY_SIDE = 7
"""Options that are shown all at once; of more, the one that is chosen."""


def field_widget(
    config: type[Config], name: str, key: str, value: Any, *, disabled: bool = False
) -> Any:
    """The widget for one field of a config; returns its value.

    Args:
        config: the config class that declares the field.
        name: the field's name.
        key: of the widget, unique on the page.
        value: what it shows while it has no state of its own.
        disabled: whether it only shows.

    Raises:
        ConfigError: the user has typed what the field does not allow.
    """
    each, rule = next(found for found in ruled_fields(config) if found[0].name == name)
    common: dict[str, Any] = {"key": key, "help": field_help(each, rule), "disabled": disabled}
    label = rule.label[0].upper() + rule.label[1:]
    if isinstance(rule, Choice):
        return _choice(label, rule, value, common)
    if rule.whole:
        # The range is checked here, in words: the browser would only colour the field.
        text = str(st.number_input(label, value=value, step=1, **common))
    else:
        # A number field of the browser drops a decimal comma in silence: 0,01 would become 1.
        text = st.text_input(label, format_value(value), **common).replace(",", ".")
    return parse_fields(config, {name: text})[name]


def field_help(each: Field[Any], rule: Rule) -> str:
    """What a field does and what it allows, in words."""
    text = str(each.metadata["help"])
    return f"{text} Allowed: {rule}." if isinstance(rule, Number) else text


def _choice(label: str, rule: Choice, value: str, common: dict[str, Any]) -> str:
    if len(rule.options) > MOST_SIDE_BY_SIDE:
        names = list(rule.options)
        return str(
            st.selectbox(
                label, names, names.index(value), format_func=rule.options.__getitem__, **common
            )
        )
    chosen = st.segmented_control(
        label,
        list(rule.options),
        default=value,
        format_func=lambda option: rule.options[option],
        required=True,
        wrap=True,
        **common,
    )
    return str(chosen)
