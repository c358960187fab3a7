"""A sweep and a fair race as the user edits them: what they try besides the race's own settings."""

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Any

import streamlit as st

from labcore.config import Config, ConfigError, number, refusal
from labcore.fair_race import FairRaceConfig
from labcore.jobs import Job
from labcore.race import MAX_RACERS, Racer
from labcore.regression import RegressionSettings
from labcore.sweep import RatesConfig, SweepConfig
from labui.session import current_job

VALUES = "values"
"""The name of a grid's second values in the draft and the URL; they are a text."""


def _as_in(config: type[Config], name: str) -> Any:
    """A field with the rule that it has in another config."""
    [found] = [each for each in fields(config) if each.name == name]
    return field(default=found.default, metadata=found.metadata)


@dataclass(frozen=True)
class Tuning(Config):
    """What a sweep and a fair race ask for and a race does not have."""

    name = "sweep"

    lowest: float = _as_in(SweepConfig, "lowest")
    highest: float = _as_in(SweepConfig, "highest")
    rates: int = _as_in(SweepConfig, "rates")
    against: str = _as_in(SweepConfig, "against")
    grid: int = number("grid of", 1, 1, MAX_RACERS, help="Whose grid the sweep computes.")
    seeds: int = _as_in(FairRaceConfig, "seeds")


def _shared(values: dict[str, Any], racers: tuple[Racer, ...]) -> dict[str, Any]:
    """What both configs take from the form; only the lab's own engine runs many at once."""
    names = [each.name for each in fields(RegressionSettings)] + ["lowest", "highest", "rates"]
    return {name: values[name] for name in names} | {"engine": "from scratch", "racers": racers}


def sweep_of(values: dict[str, Any], racers: tuple[Racer, ...]) -> SweepConfig | ConfigError:
    """The sweep that a form describes, or why there is none.

    Args:
        values: of the form, by name.
        racers: of the form; those that differ only in their learning rates are swept once, and a
            grid is that of a single one.
    """
    against = values["against"]
    try:
        if against == "nothing":
            return SweepConfig(**_shared(values, _distinct(racers)))
        chosen = racers[min(values["grid"], len(racers)) - 1 :][:1]
        second = parse_values(values[VALUES])
        return SweepConfig(**_shared(values, chosen), against=against, values=second)
    except ConfigError as error:
        return error


def fair_race_of(values: dict[str, Any], racers: tuple[Racer, ...]) -> FairRaceConfig | ConfigError:
    """The fair race that a form describes, or why there is none."""
    try:
        return FairRaceConfig(**_shared(values, _distinct(racers)), seeds=values["seeds"])
    except ConfigError as error:
        return error


def _distinct(racers: tuple[Racer, ...]) -> tuple[Racer, ...]:
    """The first of those racers that differ only in their learning rates."""
    first: dict[Any, Racer] = {}
    for racer in racers:
        first.setdefault(replace(racer.optimizer, lr=1.0), racer)
    return tuple(first.values())


def swept_as(config: RatesConfig, racer: Racer) -> Racer | None:
    """Under which racer a sweep has the runs of this one, None if it has none."""
    alike = replace(racer.optimizer, lr=1.0)
    found = (each for each in config.racers if replace(each.optimizer, lr=1.0) == alike)
    return next(found, None)


def parse_values(text: str) -> tuple[float, ...]:
    """Numbers with spaces between them.

    Raises:
        ConfigError: what is between two spaces is no number.
    """
    try:
        return tuple(float(each.replace(",", ".")) for each in text.split())
    except ValueError:
        raise refusal("sweep: values", text, "numbers with spaces between", "10 100") from None


def run_and_stop(
    name: str, label: str, help: str, *, ready: bool, start: Callable[[], Job[Any]]
) -> None:
    """Two buttons that drive the session's job of that name; as in `transport`, none is lost.

    Args:
        name: of the job in this session.
        label: of the button that starts it.
        help: what it does.
        ready: whether the settings allow a start.
        start: starts a new job.
    """
    job = current_job(name)
    live = job is not None and job.live
    with st.container(horizontal=True):
        st.button(
            label,
            key=f"{name}:start",
            icon=":material/play_arrow:",
            type="primary",
            help=help,
            on_click=_note,
            args=(name, "start"),
            disabled=live or not ready,
        )
        st.button(
            "Stop",
            key=f"{name}:stop",
            icon=":material/stop:",
            help="End it here; what it showed stays.",
            on_click=_note,
            args=(name, "stop"),
            disabled=not live,
        )
    presses = st.session_state.pop(f"{name}:presses", [])
    for pressed in presses:
        job = current_job(name)
        if pressed == "start" and ready and not (job and job.live):
            start()
        elif pressed == "stop" and job:
            job.stop()
    if presses:
        st.rerun()


def _note(name: str, pressed: str) -> None:
    st.session_state.setdefault(f"{name}:presses", []).append(pressed)
