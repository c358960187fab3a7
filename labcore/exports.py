"""What a run can be taken home as: its points as CSV, everything about it as JSON.

Both take the history of a race or of a classification, finished or not. Numbers are written so
that they read back as the same numbers.
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
from labcore.events import Event, MinibatchTrained
from labcore.facts import event_facts, facts
from labcore.race import RaceHistory
from labcore.schedules import Phase, Round, Schedule
from labcore.splitting import Shard, missing, repeated

History = RaceHistory | ClassificationHistory
PROJECT = Path(__file__).parent.parent / "pyproject.toml"


def points_csv(history: History) -> str:
    """The points kept of a run, one a row: of a race its losses, of a classification its steps.

    A classification has columns of its own for each phase and for each replica, numbered by rank.
    An empty cell is a value that does not exist, as the loss of an empty shard, or is not finite.
    """
    if isinstance(history, RaceHistory):
        return _table(
            {"racer": name, "optimizer": lane.racer.optimizer.name, **facts(point)}
            for name, lane in history.lanes.items()
            for point in lane.points
        )
    return _table(map(_minibatch_row, history.minibatches))


def _minibatch_row(point: MinibatchTrained) -> dict[str, Any]:
    row: dict[str, Any] = facts(point)
    per_rank = {"rows": row.pop("rows"), "loss": row.pop("losses"), "norm": row.pop("norms")}
    row |= {f"{phase}_seconds": seconds for phase, seconds in row.pop("phases").items()}
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


def _table(rows: Iterable[Mapping[str, Any]]) -> str:
    """Rows of equal columns as CSV with a header; nothing without rows."""
    text = io.StringIO()
    writer: csv.DictWriter[str] | None = None
    for row in rows:
        if writer is None:
            writer = csv.DictWriter(text, row, lineterminator="\n")
            writer.writeheader()
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
    course = _race(history) if isinstance(history, RaceHistory) else _classification(history)
    about = {"config": facts(history.config), "versions": _versions()}
    return json.dumps(about | course, allow_nan=False)


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
