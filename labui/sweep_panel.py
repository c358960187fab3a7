"""The sweep on the Optimizers page: final loss over learning rate, and racers taken from it."""

from functools import partial
from math import inf
from typing import Any

import pyarrow  # type: ignore[import-untyped]
import streamlit as st

from labcore.config import ConfigError, format_value
from labcore.events import CellMeasured, DivergedAt, Reached
from labcore.jobs import Job
from labcore.race import MAX_RACERS, Racer
from labcore.sweep import VALUES as USUAL_VALUES
from labcore.sweep import SweepConfig, SweepHistory, sweep
from labcore.sweep_charts import PICK, Mark, drawn
from labui.draft import setting_widget
from labui.own_data import own_table
from labui.page import plain
from labui.race_exports import sweep_exports
from labui.race_form import RaceDraft, show_racer
from labui.run_panel import live, moving, status
from labui.session import current_job, start_job
from labui.tuning_form import VALUES, Tuning, run_and_stop, sweep_of, swept_as

SWEEP = "sweep"
CHART = "sweep chart"


def sweep_settings(draft: RaceDraft) -> None:
    """What is swept, beside the racers and the settings of the race."""
    with st.container(horizontal=True, vertical_alignment="bottom"):
        for name in ("lowest", "highest", "rates"):
            with st.container(width=160):
                setting_widget(draft, Tuning, name)
        setting_widget(draft, Tuning, "against")
        if draft.values["against"] != "nothing":
            with st.container(width=160):
                _grid_of(draft)
            with st.container(width=240):
                _second_values(draft)


def _grid_of(draft: RaceDraft) -> None:
    """Whose grid; one that has the second setting, if there is one."""
    racers, against = list(draft.racers.values()), draft.values["against"]
    places = [i for i, each in enumerate(racers, 1) if hasattr(each.optimizer, against)]
    if against == "batch_size" or not places:
        places = list(range(1, len(racers) + 1))
    place = draft.values["grid"] if draft.values["grid"] in places else places[0]
    draft.values["grid"] = st.selectbox(
        "Grid of",
        places,
        places.index(place),
        format_func=lambda number: f"{number}: {_name(racers[number - 1])}",
        key=f"sweep grid:{draft.number}:{places}",
        help="Whose grid the sweep computes.",
    )


def _second_values(draft: RaceDraft) -> None:
    usual = " ".join(format_value(each) for each in USUAL_VALUES[draft.values["against"]])
    draft.values[VALUES] = st.text_input(
        "Its values",
        draft.values[VALUES],
        key=f"sweep values:{draft.number}:{draft.values['against']}",
        placeholder=usual,
        help=f"Up to 12 ascending numbers with spaces between. Empty: {usual}.",
    )


def _name(racer: Racer) -> str:
    return racer.name or racer.optimizer.label


def sweep_panel(draft: RaceDraft) -> None:
    """The sweep as a picture, its buttons, and the racer to take from it."""
    race = draft.race()
    config = race if isinstance(race, ConfigError) else sweep_of(draft.values, race.racers)

    def start() -> Job[SweepHistory]:
        assert isinstance(config, SweepConfig)
        data = own_table()
        return start_job(SWEEP, sweep(config, data), SweepHistory(config, data), paused=False)

    run_and_stop(
        SWEEP,
        "Sweep",
        "Run every racer at every learning rate, with the settings below.",
        ready=isinstance(config, SweepConfig),
        start=start,
    )
    if isinstance(config, ConfigError):
        st.error(plain(str(config)))
    racers = () if isinstance(race, ConfigError) else race.racers
    job: Job[SweepHistory] | None = current_job(SWEEP)
    if moving(job):
        live(SWEEP, lambda: _draw(current_job(SWEEP), config, racers))
        return
    # At rest it is no fragment: a click on a run has the whole page follow.
    _draw(job, config, racers)
    if job is not None:
        with job.reading() as history:
            with st.container(horizontal=True, vertical_alignment="bottom"):
                _add_racer(history, len(draft.racers))
                chart = partial(drawn, history, _marks(history.config, racers))
                sweep_exports(history, chart, draft)
            if st.toggle("Sweep as a table", help="Every run with how it ended."):
                st.dataframe(_rows(history), hide_index=True, height=300)


def _draw(
    job: Job[SweepHistory] | None, config: SweepConfig | ConfigError, racers: tuple[Racer, ...]
) -> None:
    """The sweep as it stands; without a job, the axes of the one that the form describes."""
    if job is not None:
        with job.reading() as history:
            shown, (spec, columns) = history.config, drawn(history, _marks(history.config, racers))
            advanced, problem = history.advanced, history.problem
            ended, same_data = bool(history.cells), history.data is own_table()
    elif isinstance(config, SweepConfig):
        shown, (spec, columns) = config, drawn(SweepHistory(config, own_table()))
        advanced, problem, ended, same_data = None, None, False, True
    else:
        return
    done, steps = (advanced.done, advanced.steps) if advanced else (0, 0)
    runs = len(shown.racers) * shown.rates * max(1, len(shown.values))
    place = f"step {done:,} of {steps:,}, {runs:,} runs" if steps else ""
    status(job, done / steps if steps else 0.0, place)
    listen: dict[str, Any] = {"on_select": "rerun", "selection_mode": PICK} if ended else {}
    st.vega_lite_chart(pyarrow.table(columns), spec, width="stretch", key=CHART, **listen)
    st.caption(_words(shown, changed=not same_data or shown != config))
    if problem:
        st.error(plain(problem))
    if job is not None and job.error:
        st.error(plain(job.error))


def _marks(config: SweepConfig, racers: tuple[Racer, ...]) -> list[Mark]:
    """The racers' own learning rates, each on the line that has its other settings."""
    lines = [(racer, swept_as(config, racer)) for racer in racers]
    return [Mark(line.name, each.optimizer.lr, each.name) for each, line in lines if line]


def _words(config: SweepConfig, *, changed: bool) -> str:
    whole = (
        "The lighter, the closer to the minimum; framed: the best; ✕: diverged at that step."
        if config.values
        else "Large dot: the best rate of a line; ◇: a racer's own rate; ✕ at the top: diverged; "
        "dotted: beyond it full-batch descent diverges."
    )
    whole += f" Seed {config.seed}, {config.epochs:,} epochs, computed from scratch."
    return whole + " The settings below have changed: they count from the next sweep." * changed


def _rows(history: SweepHistory) -> list[dict[str, Any]]:
    rows = []
    for cell in history.cells.values():
        row: dict[str, Any] = {"run": cell.racer, "learning rate": format_value(cell.lr)}
        if cell.value is not None:
            row[_second(history.config)] = cell.value
        match cell.outcome:
            case Reached(loss):
                rows.append(row | {"loss (½ MSE)": loss, "end": "finished"})
            case DivergedAt(step):
                rows.append(row | {"loss (½ MSE)": None, "end": f"diverged at step {step:,}"})
    return rows


def _add_racer(history: SweepHistory, racing: int) -> None:
    """Choose a run of the sweep, here or by a click on the picture, and have it race."""
    cells = sorted(history.cells.values(), key=_rank)
    if not cells:
        return
    clicked = st.session_state.get(CHART, {}).get("selection", {}).get(PICK, [])
    picked = [cell for cell in cells if any(_is_clicked(cell, each) for each in clicked)]
    with st.container(width=420):
        cell = st.selectbox(
            "Run",
            cells,
            cells.index(picked[0]) if picked else 0,
            format_func=lambda each: _cell_words(each, history.config),
            key=f"sweep run:{id(history)}:{clicked}",
            help="One of those swept, the best one first; or click on one in the picture.",
        )
    [racer] = [each for each in history.config.racers if each.name == cell.racer]
    run = history.config.run(racer, cell.lr, cell.value)
    st.button(
        "Add as a racer",
        icon=":material/add:",
        on_click=show_racer,
        args=(Racer(run.optimizer), {"batch_size": run.batch_size}),
        disabled=racing >= MAX_RACERS,
        help=f"It joins the racers below; up to {MAX_RACERS} race side by side. From a grid over "
        "batch sizes it brings its batch size along, for all.",
    )


def _rank(cell: CellMeasured) -> tuple[float, float]:
    """The smallest loss first, what diverged at last."""
    return cell.outcome.loss if isinstance(cell.outcome, Reached) else inf, cell.lr


def _is_clicked(cell: CellMeasured, clicked: dict[str, Any]) -> bool:
    """Whether a chart's selection, of the fields that its rows have, is this run."""
    if "value" in clicked:
        texts = {"lr": format_value(cell.lr), "value": format_value(cell.value)}
        return texts == clicked
    return {"racer": cell.racer, "lr": cell.lr} == clicked


def _cell_words(cell: CellMeasured, config: SweepConfig) -> str:
    second = "" if cell.value is None else f", {_second(config)} {format_value(cell.value)}"
    end = (
        f"loss {cell.outcome.loss:.6g}"
        if isinstance(cell.outcome, Reached)
        else f"✕ step {cell.outcome.step:,}"
    )
    return f"{cell.racer}, lr {cell.lr:g}{second}: {end}"


def _second(config: SweepConfig) -> str:
    """What the second setting of a grid is called."""
    return config.against.replace("_", " ")
