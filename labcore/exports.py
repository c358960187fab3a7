"""What a run can be taken home as: its points as CSV, everything about it as JSON.

Both take the history of whatever the lab runs, finished or not. Numbers are written so that they
read back as the same numbers.
"""

import csv
import io
import json
import platform
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from labcore.classification_history import ClassificationHistory
from labcore.datasets import airfoil
from labcore.datasets.table import Table
from labcore.events import CellMeasured, Event, MinibatchTrained
from labcore.facts import event_facts, facts
from labcore.fair_race import FairRaceHistory
from labcore.race import RaceHistory
from labcore.schedules import Phase, Round, Schedule
from labcore.splitting import Shard, missing, repeated
from labcore.sweep import SweepHistory

Tuned = SweepHistory | FairRaceHistory
History = RaceHistory | ClassificationHistory | Tuned
PROJECT = Path(__file__).parent.parent / "pyproject.toml"


def points_csv(history: RaceHistory | ClassificationHistory | FairRaceHistory) -> str:
    """The points kept of a run, one a row: of a race its losses, of a classification its steps.

    A fair race has the smallest, the middle and the largest loss over its seeds.

    A classification has columns of its own for each phase and for each replica, numbered by rank,
    and for each phase of each process where replicas are processes.
    An empty cell is a value that does not exist, as the loss of an empty shard, or is not finite.
    """
    if isinstance(history, RaceHistory):
        return _table(
            {"racer": name, "optimizer": lane.racer.optimizer.name, **facts(point)}
            for name, lane in history.lanes.items()
            for point in lane.points
        )
    if isinstance(history, FairRaceHistory):
        return _table(facts(point) for band in history.bands.values() for point in band)
    return _table(map(_minibatch_row, history.minibatches))


def cells_csv(history: Tuned) -> str:
    """The runs of a sweep, or those that chose the rates of a fair race, one a row.

    `value` is that of a grid's second setting. A run has a loss, or the step at which it diverged.
    """
    return _table(map(_cell_row, _cells(history)))


def _cells(history: Tuned) -> list[CellMeasured]:
    if isinstance(history, SweepHistory):
        return list(history.cells.values())
    return [cell for rates in history.tried.values() for cells in rates.values() for cell in cells]


def _cell_row(cell: CellMeasured) -> dict[str, Any]:
    row: dict[str, Any] = facts(cell)
    end: dict[str, Any] = row.pop("outcome")
    return row | {"loss": None, "step": None} | end


def _minibatch_row(point: MinibatchTrained) -> dict[str, Any]:
    row: dict[str, Any] = facts(point)
    per_rank = {"rows": row.pop("rows"), "loss": row.pop("losses"), "norm": row.pop("norms")}
    row |= {f"{phase}_seconds": seconds for phase, seconds in row.pop("phases").items()}
    for rank, phases in enumerate(row.pop("rank_phases")):
        row |= {f"{phase}_seconds_{rank}": seconds for phase, seconds in phases.items()}
    for rank in range(len(point.rows)):
        row |= {f"{name}_{rank}": values[rank] for name, values in per_rank.items()}
    return row


def epochs_csv(history: ClassificationHistory) -> str:
    """The evaluations of a classification, one a row, with the accuracy of each class by number."""
    rows = []
    for epoch in history.epochs:
        row = facts(epoch)
        del row["confusion"]
        row |= {f"accuracy_{label}": each for label, each in enumerate(epoch.class_accuracies)}
        rows.append(row)
    return _table(rows)


def schedule_csv(schedule: Schedule) -> str:
    """Every send of a schedule, one a row: round from 1, phase, source, destination, chunk, op."""
    return _table(
        {"round": number, "phase": phase.name, **facts(send)}
        for number, (phase, sends) in enumerate(_phased(schedule), start=1)
        for send in sends
    )


def schedule_json(schedule: Schedule) -> str:
    """A whole schedule: ranks, chunks, and its phases with the sends of each round."""
    parts = {name: facts(getattr(schedule, name)) for name in ("world_size", "chunks", "phases")}
    return json.dumps(parts)


def _phased(schedule: Schedule) -> list[tuple[Phase, Round]]:
    return [(phase, sends) for phase in schedule.phases for sends in phase.rounds]


def split_csv(shards: Sequence[Shard]) -> str:
    """A split, a use of a row in each line: device, place in its shard, row."""
    return _table(
        {"device": rank, "place": place, "row": row}
        for rank, shard in enumerate(shards)
        for place, row in enumerate(shard)
    )


def split_json(split: str, rows: int, shards: Sequence[Shard]) -> str:
    """A split: its name, the number of rows, each device's, and those used wrongly."""
    return json.dumps(
        {
            "split": split,
            "rows": rows,
            "devices": len(shards),
            "shards": [list(shard) for shard in shards],
            "repeated": repeated(shards),
            "missing": missing(shards, rows),
        }
    )


def columns_csv(columns: Mapping[str, Sequence[Any]]) -> str:
    """The rows of a chart, given as columns of one length."""
    rows = zip(*columns.values(), strict=True)
    return _table(dict(zip(columns, row, strict=True)) for row in rows)


def _table(rows: Iterable[Mapping[str, Any]]) -> str:
    """Rows of equal columns as CSV with a header; nothing without rows."""
    text = io.StringIO()
    writer: csv.DictWriter[str] | None = None
    for row in rows:
        if writer is None:
            writer = csv.DictWriter(text, row, lineterminator="\n")
            writer.writerow({name: _defused(name) for name in row})
        writer.writerow({name: _defused(value) for name, value in row.items()})
    return text.getvalue()


def _defused(value: object) -> object:
    """Text that a spreadsheet would take for a formula, with an apostrophe before it."""
    # Source: OWASP, "CSV injection".
    if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r", "\n")):
        return f"'{value}"
    return value


def run_json(history: History) -> str:
    """All that is kept of a run: what it was, on what it ran, its points and how it ended.

    Strict JSON: a number that is not finite is null.
    """
    about = {"config": facts(history.config), "versions": _versions()}
    return json.dumps(about | _course(history), allow_nan=False)


def _course(history: History) -> dict[str, Any]:
    match history:
        case RaceHistory():
            return _race(history)
        case SweepHistory():
            return {"data": _data(history.data), "cells": facts(_cells(history))}
        case FairRaceHistory():
            return {
                "data": _data(history.data),
                "budget": history.budget,
                "cells": facts(_cells(history)),
                "chosen": facts(history.chosen),
                "bands": {name: facts(list(band)) for name, band in history.bands.items()},
            }
    return _classification(history)


def _data(data: Table | None) -> dict[str, Any]:
    """On what a regression ran; the rows themselves are not in an export."""
    table = airfoil.load() if data is None else data
    return {
        "title": table.title,
        "rows": len(table.labels),
        "features": list(table.feature_names),
        "label": table.label_name,
    }


def _versions() -> dict[str, str]:
    project = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]
    return {
        project["name"]: project["version"],
        "python": platform.python_version(),
        "torch": torch.__version__,
        "machine": f"{platform.system()} {platform.machine()}",
    }


def _race(history: RaceHistory) -> dict[str, Any]:
    return {
        "data": _data(history.data),
        "steps": history.steps,
        "taken": facts(history.taken),
        "racers": [
            {
                "name": name,
                "started": facts(lane.started),
                "points": facts(list(lane.points)),
                "arrived": lane.arrived,
                **_end(lane.outcome),
            }
            for name, lane in history.lanes.items()
        ],
    }


def _classification(history: ClassificationHistory) -> dict[str, Any]:
    return {
        "source": history.source,
        "started": facts(history.started),
        "taken": facts(history.taken),
        "minibatches": facts(list(history.minibatches)),
        "phases": facts(history.phases),
        "epochs": facts(history.epochs),
        **_end(history.outcome),
    }


def _end(outcome: Event | None) -> dict[str, Any]:
    """How a run ended, also in words; both null while it goes on."""
    if outcome is None:
        return {"outcome": None, "summary": None}
    return {"outcome": event_facts(outcome), "summary": str(outcome)}
