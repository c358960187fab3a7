"""The fair race on the Optimizers page: each optimiser at its best learning rate, over seeds."""

from typing import Any

import pyarrow  # type: ignore[import-untyped]
import streamlit as st

from labcore.config import ConfigError, format_value
from labcore.events import Reached
from labcore.fair_race import FairRaceConfig, FairRaceHistory, fair_race
from labcore.jobs import Job
from labcore.race import RaceConfig
from labcore.sweep_charts import drawn_race
from labui.draft import setting_widget
from labui.own_data import own_table
from labui.page import plain
from labui.race_exports import fair_race_exports
from labui.race_form import FORM, RaceDraft, show_race
from labui.run_panel import live, status
from labui.session import current_job, forget_job, start_job
from labui.tuning_form import Tuning, fair_race_of, run_and_stop

FAIR_RACE = "fair race"


def fair_race_settings(draft: RaceDraft) -> None:
    """The budget, beside the racers and the settings of the race."""
    with st.container(horizontal=True):
        for name in ("lowest", "highest", "rates", "seeds"):
            with st.container(width=160):
                setting_widget(draft, Tuning, name)


def fair_race_panel(draft: RaceDraft) -> None:
    """The fair race as a picture, its budget and buttons, and what was tried."""
    race = draft.race()
    config = race if isinstance(race, ConfigError) else fair_race_of(draft.values, race.racers)

    def start() -> Job[FairRaceHistory]:
        assert isinstance(config, FairRaceConfig)
        data = own_table()
        history = FairRaceHistory(config, data)
        return start_job(FAIR_RACE, fair_race(config, data), history, paused=False)

    run_and_stop(
        FAIR_RACE,
        "Tune and race",
        "Find each optimiser's best learning rate within the budget, then race with these.",
        ready=isinstance(config, FairRaceConfig),
        start=start,
    )
    if isinstance(config, ConfigError):
        st.error(plain(str(config)))
    live(FAIR_RACE, lambda: _draw(current_job(FAIR_RACE), config))
    job = current_job(FAIR_RACE)
    if job is not None and not job.live:
        with job.reading() as history, st.container(horizontal=True):
            _race_button(history)
            fair_race_exports(history, lambda: drawn_race(history), draft)


def _draw(job: Job[FairRaceHistory] | None, config: FairRaceConfig | ConfigError) -> None:
    """The fair race as it stands; without a job, what the form's would be allowed."""
    if job is not None:
        with job.reading() as history:
            shown, (spec, columns) = history.config, drawn_race(history)
            advanced, budget, notes = history.advanced, history.budget, history.notes
            chosen, tried = _chosen_rows(history), _tried_rows(history)
            same_data = history.data is own_table()
    elif isinstance(config, FairRaceConfig):
        history = FairRaceHistory(config, own_table())
        shown, (spec, columns) = config, drawn_race(history)
        advanced, budget, notes = None, history.budget, []
        chosen, tried, same_data = _chosen_rows(history), [], True
    else:
        return
    done, steps = (advanced.done, advanced.steps) if advanced else (0, 0)
    phase = "choosing rates" if 2 * done < steps else "racing"
    if done == steps:
        phase = "all seeds raced"
    status(job, done / steps if steps else 0.0, phase if steps else "")
    chart, table = st.columns([11, 9])
    chart.vega_lite_chart(pyarrow.table(columns), spec, width="stretch", key="fair race chart")
    with table:
        st.dataframe(chosen, hide_index=True, height="content", column_config=_NUMBERS)
        st.caption(_words(budget, changed=not same_data or shown != config))
    for note in notes:
        st.warning(plain(note))
    if st.toggle("What was tried", help="Every tuning run's loss by rate.", key="fair race tried"):
        st.dataframe(tried, hide_index=True, height=300, column_config=_NUMBERS)
    if job is not None and job.error:
        st.error(plain(job.error))


_NUMBERS: dict[str, Any] = {
    name: st.column_config.NumberColumn(format="%.5f")
    for name in ("median", "smallest", "largest", "mean loss", "smallest loss", "largest loss")
}


def _words(budget: str, *, changed: bool) -> str:
    words = (
        f"Budget: {budget[0].lower()}{budget[1:]} Line: the middle loss of the seeds that race; "
        "band: from the smallest to the largest. Losses are ½ MSE."
    )
    return words + " The settings below have changed: they count from the next start." * changed


def _chosen_rows(history: FairRaceHistory) -> list[dict[str, Any]]:
    """Per racer its rate and its last losses over the race's seeds, the best first."""
    rows = []
    for racer in history.config.racers:
        choice, last = history.chosen.get(racer.name), history.latest.get(racer.name)
        rate = "–" if choice is None else "none" if choice.lr is None else f"{choice.lr:g}"
        row: dict[str, Any] = {"run": racer.name, "best lr": rate}
        row["median"] = last.loss if last else None
        row |= {"smallest": last.low, "largest": last.high} if last else {}
        row["diverged"] = f"{last.diverged} of {history.config.seeds}" if last else ""
        rows.append(row)
    return sorted(rows, key=lambda row: (row["median"] is None, row["median"] or 0.0))


def _tried_rows(history: FairRaceHistory) -> list[dict[str, Any]]:
    rows = []
    for name, rates in history.tried.items():
        choice = history.chosen.get(name)
        for lr, cells in rates.items():
            losses = [each.outcome.loss for each in cells if isinstance(each.outcome, Reached)]
            whole = len(losses) == len(cells)
            rows.append(
                {
                    "run": name,
                    "learning rate": format_value(lr),
                    "mean loss": sum(losses) / len(losses) if whole else None,
                    "smallest loss": min(losses, default=None),
                    "largest loss": max(losses, default=None),
                    "seeds that diverged": len(cells) - len(losses),
                    "chosen": "✓" if choice and choice.lr == lr else "",
                }
            )
    return rows


def _race_button(history: FairRaceHistory) -> None:
    race = history.config.race(history.chosen)
    st.button(
        "Race with these",
        icon=":material/flag:",
        on_click=_bring_in,
        args=(race,),
        disabled=race is None,
        help="The chosen rates become those of the racers below, with the first seed that chose "
        "nothing.",
    )


def _bring_in(race: RaceConfig) -> None:
    forget_job(FORM)
    show_race(race)
