"""The standings of a race as a table: beside the chart, and with fewer columns on a phone."""

from collections.abc import Sequence
from html import escape
from itertools import cycle

from labcore.charts import DASHES
from labcore.events import Diverged, Finished
from labcore.race import CLOSE, Lane, RaceHistory
from labcore.regression import lr_limit

_STYLE = """
<style>
.standings { border-collapse: collapse; width: 100%; font-size: 0.875rem;
  font-variant-numeric: tabular-nums; }
.standings caption { caption-side: bottom; text-align: left; padding-top: 0.5rem; opacity: 0.75; }
.standings th, .standings td { padding: 0.3rem 0.4rem; text-align: right; vertical-align: top;
  border-bottom: 1px solid rgba(128, 128, 128, 0.3); white-space: nowrap; }
.standings th { font-weight: 600; white-space: normal; vertical-align: bottom; }
.standings th:first-child { text-align: left; white-space: nowrap; }
.standings th[scope=row] { max-width: 10rem; overflow: hidden; text-overflow: ellipsis; }
.standings caption { overflow-wrap: anywhere; }
.standings small { display: block; font-weight: 400; opacity: 0.75; font-size: 0.8125rem; }
.standings i { display: inline-block; width: 1.6rem; height: 3px; margin-right: 0.4rem;
  vertical-align: middle; }
@media (max-width: 640px) { .standings .wide { display: none; } }
</style>
"""


def standings(history: RaceHistory, colors: Sequence[str]) -> str:
    """The table as HTML, the smallest loss first, diverged racers last.

    Args:
        history: the race so far; before its start, one without events.
        colors: the chart's category palette, one per racer in the race's order.
    """
    lanes = list(history.lanes.values())
    order = {lane.racer.name: place for place, lane in enumerate(lanes)}
    rows = []
    for lane in sorted(lanes, key=_rank):
        place = order[lane.racer.name]
        rows.append(_row(lane, history, _swatch(colors[place], place)))
    return f"{_STYLE}<table class='standings'>{_head(history)}{''.join(rows)}</table>"


def _rank(lane: Lane) -> tuple[bool, float]:
    loss = lane.latest.loss if lane.latest else 0.0
    return isinstance(lane.outcome, Diverged), loss


def _head(history: RaceHistory) -> str:
    known = history.floor is not None
    above = "above minimum" if known else "above minimum (unknown)"
    sentences = [
        f"Loss is ½ MSE over all {history.rows:,} rows. The limit is the learning rate beyond "
        "which full-batch descent diverges, where one is known. Times are measured, without "
        "evaluation."
    ]
    sentences += [
        f"<strong>⚠ {escape(lane.racer.name)}:</strong> {lane.outcome}"
        for lane in history.lanes.values()
        if isinstance(lane.outcome, Diverged)
    ]
    return (
        f"<caption>{'<br>'.join(sentences)}</caption><thead><tr>"
        "<th scope='col'>run</th><th scope='col'>loss now</th>"
        f"<th scope='col'>{above}</th>"
        f"<th scope='col' class='wide'>within {CLOSE:.0%} since step</th>"
        "<th scope='col' class='wide'>lr ÷ limit</th>"
        "<th scope='col' class='wide'>s / epoch</th></tr></thead>"
    )


def _row(lane: Lane, history: RaceHistory, swatch: str) -> str:
    cells = [
        ("", _loss(lane)),
        ("", _gap(lane)),
        ("wide", "–" if lane.arrived is None else f"{lane.arrived:,}"),
        ("wide", _share_of_limit(lane, history)),
        ("wide", _seconds_per_epoch(lane)),
    ]
    name = escape(lane.racer.name)
    state = f"lr {lane.racer.optimizer.lr:g} · {_state(lane)}"
    return (
        f"<tr><th scope='row'>{swatch}{name}<small>{state}</small></th>"
        + "".join(f"<td class='{style}'>{text}</td>" for style, text in cells)
        + "</tr>"
    )


def _loss(lane: Lane) -> str:
    if isinstance(lane.outcome, Diverged):
        return "∞"
    if lane.latest is None:
        return "–"
    return f"{lane.latest.loss:.4f}" if lane.latest.loss < 1_000 else f"{lane.latest.loss:.1e}"


def _gap(lane: Lane) -> str:
    if isinstance(lane.outcome, Diverged):
        return "∞"
    return "–" if lane.gap is None else f"{lane.gap:.1e}"


def _state(lane: Lane) -> str:
    match lane.outcome:
        case Diverged(step=step):
            return f"✕ step {step:,}"
        case Finished():
            return "finished"
    return "ready" if lane.latest is None else f"epoch {lane.latest.epochs:.2f}"


def _share_of_limit(lane: Lane, history: RaceHistory) -> str:
    """The learning rate as a multiple of its stability limit; adaptive rules have none."""
    run = history.config.run_of(lane.racer)
    limit = lane.started.lr_limit if lane.started else lr_limit(run, history.data)
    if limit is None:
        return "–"
    share = lane.racer.optimizer.lr / limit
    return f"{share:.2g} ×" + (" ⚠" if share > 1 else "")


def _seconds_per_epoch(lane: Lane) -> str:
    if isinstance(lane.outcome, Finished):
        return f"{lane.outcome.seconds_per_epoch:.3f}"
    if lane.latest is None or lane.latest.epochs == 0:
        return "–"
    return f"{lane.latest.seconds / lane.latest.epochs:.3f}"


def _swatch(color: str, place: int) -> str:
    """A short piece of the racer's line, in its colour and dash pattern."""
    stops, end = [], 0
    for length, ink in zip(DASHES[place], cycle((color, "transparent")), strict=False):
        stops.append(f"{ink} {end}px {end + length}px")
        end += length
    gradient = f"repeating-linear-gradient(90deg, {', '.join(stops)})"
    return f"<i aria-hidden='true' style='background: {gradient}'></i>"
