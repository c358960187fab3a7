"""A traced allreduce as a film."""

from typing import Any

from labcore.costs import Cost
from labcore.schedules import Schedule
from labcore.trace import Cell, Frame, Trace
from labcore.units import in_bytes, in_seconds
from labui.player.mount import Film

TOTALS = (
    "finished cells",
    "messages this round",
    "busiest rank sent",
    "all links",
    "modelled time",
)


def allreduce_film(name: str, trace: Trace, costs: list[Cost], n_bytes: float) -> Film:
    """The film of a trace.

    Args:
        name: of the algorithm.
        trace: what happens.
        costs: the running total after each round.
        n_bytes: size of a rank's vector in the model of time.
    """
    ranks, chunks = trace.schedule.world_size, trace.schedule.chunks
    counts = {(cell.rank, cell.chunk): cell.count for cell in trace.start}
    frames = [_start(trace, sum(count == ranks for count in counts.values()))]
    for frame, cost in zip(trace.frames, costs, strict=True):
        counts |= {(cell.rank, cell.chunk): cell.count for cell in frame.cells}
        finished = sum(count == ranks for count in counts.values())
        frames.append(_frame(frame, cost, finished, trace.schedule, n_bytes))
    shown = [cell for frame in trace.frames for cell in frame.cells]
    return Film(
        figure="allreduce",
        description=f"{name} allreduce of {ranks} ranks: a cell per rank and chunk.",
        unit="Round",
        file=f"allreduce-{name}-{ranks}".replace(" ", "-"),
        totals=TOTALS,
        scene={
            "ranks": ranks,
            "chunks": chunks,
            "longest": max(map(_width, (*trace.start, *shown)), default=0),
            "start": [_cell(cell) for cell in trace.start],
        },
        frames=frames,
    )


def _start(trace: Trace, finished: int) -> dict[str, Any]:
    ranks = trace.schedule.world_size
    sentence = "Every rank holds its own vector. All of them shall end with the sum."
    if ranks == 1:
        sentence = "There is one rank, so its vector is the sum already: nothing needs to be sent."
    return {
        "phase": "Start",
        "sentence": sentence,
        "code": "",
        "totals": _totals(finished, len(trace.start), 0, 0.0, 0.0, 0.0),
        "messages": [],
        "cells": [],
    }


def _frame(
    frame: Frame, cost: Cost, finished: int, schedule: Schedule, n_bytes: float
) -> dict[str, Any]:
    ranks, chunks = schedule.world_size, schedule.chunks
    messages = [
        [m.src, m.dst, list(m.chunks), m.op, in_bytes(len(m.chunks) * n_bytes / chunks)]
        for m in frame.messages
    ]
    first = frame.messages[0]
    target = next(c for c in frame.cells if (c.rank, c.chunk) == (first.dst, first.chunks[0]))
    where = f"chunk {first.chunks[0]}" if chunks > 1 else "the vector"
    verb = "adds" if first.op == "reduce" else "copies"
    return {
        "phase": frame.phase[0].upper() + frame.phase[1:],
        "why": frame.why,
        "sentence": frame.sentence,
        "code": frame.code,
        "totals": _totals(
            finished,
            ranks * chunks,
            len(messages),
            cost.busiest_bytes,
            cost.total_bytes,
            cost.seconds,
        ),
        "messages": messages,
        "cells": [_cell(cell) for cell in frame.cells],
        "question": {
            "text": f"Rank {first.src} sends to rank {first.dst}, which {verb}. How many of the "
            f"{ranks} ranks’ parts will {where} on rank {first.dst} hold then?",
            "label": "Ranks’ parts:",
            "answer": target.count,
        },
    }


def _totals(
    finished: int, cells: int, messages: int, busiest: float, links: float, seconds: float
) -> list[str]:
    return [
        f"{finished} of {cells}",
        str(messages),
        in_bytes(busiest),
        in_bytes(links),
        in_seconds(seconds),
    ]


def _cell(cell: Cell) -> list[Any]:
    return [cell.rank, cell.chunk, cell.count, f"{cell.parts:x}", list(cell.values)]


def _width(cell: Cell) -> int:
    """Characters that a cell's values take, as the browser writes them."""
    return sum(len(f"{value:.4g}") + 2 for value in cell.values)
