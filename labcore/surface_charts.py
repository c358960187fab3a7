"""The loss surface seen from above: bands of the exact loss, and the runs' paths across it.

As in `charts`, a specification is built once and drawn again and again with new rows.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import altair as alt
import torch

from labcore.charts import DASHES, FONT_SIZE, Columns, specification
from labcore.events import Diverged
from labcore.race import Lane, RaceHistory
from labcore.surface import Surface, frame

HEIGHT = 440
WIDEST = 3.0
"""How many times as wide as high a picture may become; bands reach as far."""
STAR = (
    "M0,-1L0.235,-0.324L0.951,-0.309L0.38,0.124L0.588,0.809L0,0.4"
    "L-0.588,0.809L-0.38,0.124L-0.951,-0.309L-0.235,-0.324Z"
)
FORESHORTENED = 0.1
"""Share of a direction's length that must lie in the plane for it to be drawn."""
COLUMNS = ("part", "racer", "label", "order", "x", "y", "step", "loss", "gap")


@dataclass(frozen=True)
class Extent:
    """What a surface chart shows: `half` to every side of the centre at least, and the axes' names.

    One unit is as long across as up, whatever the shape of the picture.
    """

    x: float
    y: float
    half: float
    names: tuple[str, str]


def surface_extent(surface: Surface, history: RaceHistory) -> Extent:
    """The extent that shows all paths, but of a diverged run, or one on its way there, no more
    than what is no higher than its start.
    """
    paths = []
    for lane in history.lanes.values():
        places = list(lane.path)
        kept = [each.weights for each in places if each.loss <= places[0].loss]
        if isinstance(lane.outcome, Diverged):
            kept = kept[:1]
        if kept:
            paths.append(surface.project(torch.stack(kept)))
    (x, y), half = frame(surface, paths)
    return Extent(x, y, half, surface.names)


def surface_columns(surface: Surface, history: RaceHistory, extent: Extent) -> Columns:
    """The rows of a surface chart, column by column.

    The columns are those of `COLUMNS`. `part` says what a row is: a corner of a "band" with its
    "mark", the plane's lowest point ("star"), a place on a "path" or, if the run diverged, on one
    that is "faded", the "start", the "head", or the "end" of a path within the picture that has
    left it. The "steep" line leads through the lowest point in the direction of largest curvature,
    with a "name". `gap` is a band's distance to the plane's lowest loss.
    """
    rows = _bands(surface, extent)
    rows.append(
        _row("star", label=f"minimum {surface.lowest:.6f}", x=extent.x, y=extent.y)
        | {"loss": surface.lowest, "gap": 0.0}
    )
    rows += _steepest(surface, history, extent)
    for name, lane in history.lanes.items():
        rows += _path(surface, name, lane, extent)
    return {name: [row[name] for row in rows] for name in COLUMNS}


def _row(part: str, **values: Any) -> dict[str, Any]:
    return dict.fromkeys(COLUMNS) | {"part": part} | values


def _bands(surface: Surface, extent: Extent) -> list[dict[str, Any]]:
    """Ellipses from the largest to the smallest, and at whole decades a mark with their gap."""
    rows = []
    for gap in surface.gaps(WIDEST * extent.half, (extent.x, extent.y)):
        ring = surface.ellipse(gap).tolist()
        rows += [
            _row("band", label=f"{gap:.3g}", order=i, x=x, y=y, gap=gap)
            for i, (x, y) in enumerate(ring)
        ]
        top = max(ring, key=lambda corner: corner[1])
        whole = abs(math.log10(gap) - round(math.log10(gap))) < 1e-9
        inside = abs(top[0] - extent.x) < extent.half and top[1] - extent.y < 0.93 * extent.half
        if whole and inside and top[1] - extent.y > 0.12 * extent.half:
            rows.append(_row("mark", label=f"+{gap:g}", x=top[0], y=top[1], gap=gap))
    return rows


def _steepest(surface: Surface, history: RaceHistory, extent: Extent) -> list[dict[str, Any]]:
    """Two ends of a line, and its name where the paths do not begin; none if seen from its end."""
    plane = torch.stack([surface.u, surface.v], dim=1)
    across, up = (surface.data.exact.eigenvectors[:, -1] @ plane).tolist()
    length = math.hypot(across, up)
    if length < FORESHORTENED:
        return []
    starts = [next(iter(lane.path)) for lane in history.lanes.values() if lane.path]
    [(x, y)] = surface.project(starts[0].weights[None]).tolist() if starts else [(0.0, 0.0)]
    away = -1 if (x - extent.x) * across + (y - extent.y) * up > 0 else 1

    def at(share: float) -> dict[str, float]:
        step = share * extent.half / length
        return {"x": extent.x + step * across, "y": extent.y + step * up}

    ends = [_row("steep", order=i, **at(sign * WIDEST)) for i, sign in enumerate((-1, 1))]
    return [*ends, _row("name", label="steepest", **at(0.75 * away))]


def _path(surface: Surface, name: str, lane: Lane, extent: Extent) -> list[dict[str, Any]]:
    points = list(lane.path)
    if not points:
        return []
    places = surface.project(torch.stack([each.weights for each in points])).tolist()
    reach = 2 * WIDEST * extent.half
    rows = [
        _row("path", racer=name, order=i, x=x, y=y, step=point.step, loss=point.loss, label=name)
        for i, (point, (x, y)) in enumerate(zip(points, places, strict=True))
        if abs(x - extent.x) < reach and abs(y - extent.y) < reach
    ]
    if not rows:
        return []
    ends = [rows[0] | {"part": "start"}]
    seen = [
        row
        for row in rows
        if max(abs(row["x"] - extent.x), abs(row["y"] - extent.y)) <= 0.95 * extent.half
    ]
    last = (seen or rows)[-1]
    if isinstance(lane.outcome, Diverged):
        rows = [row | {"part": "faded"} for row in rows]
        label = f"✕ step {lane.outcome.step:,} {name}"
        ends.append(last | {"part": "end", "label": label})
    elif (
        max(abs(a - b) for a, b in zip(places[-1], (extent.x, extent.y), strict=True)) > extent.half
    ):
        ends.append(last | {"part": "end", "label": f"left after step {last['step']:,} {name}"})
    else:
        ends.append(rows[-1] | {"part": "head"})
    return rows + ends


@lru_cache(maxsize=64)
def surface_spec(names: tuple[str, ...], extent: Extent, ground: str = "white") -> dict[str, Any]:
    """The Vega-Lite specification of a surface chart without its rows; shared, so read-only.

    Args:
        names: of the racers.
        extent: what is shown.
        ground: the colour around the picture, that of the paths' halos.
    """
    x, y = _encodings(extent)
    base = alt.Chart().encode(x=x, y=y)
    color = alt.Color("racer:N", scale=alt.Scale(domain=list(names)), legend=None)
    dash = alt.StrokeDash(
        "racer:N", scale=alt.Scale(domain=list(names), range=list(DASHES[: len(names)])),
        legend=None,
    )  # fmt: skip
    layers = [*_ground(base), *_runs(base, color, dash, ground), _star(base)]
    description = (
        f"The loss over {extent.names[0]} and {extent.names[1]} seen from above, in logarithmic "
        f"bands around its minimum, with the paths of {', '.join(names)}."
    )
    chart = alt.LayerChart(layer=layers, width="container", height=HEIGHT, description=description)
    return specification(chart)


def _encodings(extent: Extent) -> tuple[alt.X, alt.Y]:
    """Equal scales: the shorter side of the picture shows `half` to both sides of the centre."""

    def axis(name: str, middle: float, longer: str, title: str) -> dict[str, Any]:
        reach = f"{extent.half!r} * max(1, {longer})"
        domain = [alt.ExprRef(f"{middle!r} {sign} {reach}") for sign in "-+"]
        text: dict[str, Any] = {"labelFontSize": FONT_SIZE, "titleFontSize": FONT_SIZE}
        return {
            "shorthand": f"{name}:Q",
            "scale": alt.Scale(domain=domain, nice=False, zero=False),
            "axis": alt.Axis(
                title=title, grid=False, tickCount=6, format="~g", labelFlush=16, **text
            ),
        }

    x = axis("x", extent.x, "width / height", extent.names[0])
    y = axis("y", extent.y, "height / width", extent.names[1])
    return alt.X(**x), alt.Y(**y)


def _ground(base: alt.Chart) -> list[alt.Chart]:
    """Pale bands, darker towards the minimum, since each lies on all larger ones."""
    bands = base.transform_filter("datum.part == 'band'")
    marks = base.transform_filter("datum.part == 'mark'")
    steep = base.transform_filter("datum.part == 'steep'").encode(order=alt.Order("order:Q"))
    name = base.transform_filter("datum.part == 'name'").encode(text="label:N")
    return [
        bands.mark_line(
            interpolate="linear",
            fill="#808080",
            fillOpacity=0.07,
            stroke="#808080",
            strokeOpacity=0.3,
            strokeWidth=1,
            clip=True,
        ).encode(detail=alt.Detail("label:N"), order=alt.Order("order:Q")),
        marks.mark_text(baseline="bottom", dy=-2, fontSize=FONT_SIZE, color="#707070").encode(
            text="label:N"
        ),
        steep.mark_line(strokeDash=[6, 4], strokeWidth=1.5, color="#808080", clip=True),
        name.mark_text(baseline="bottom", dy=-5, fontSize=FONT_SIZE, color="#707070"),
    ]


def _star(base: alt.Chart) -> alt.Chart:
    """The lowest loss of the plane, above all paths that lead there."""
    star: alt.Chart = (
        base.transform_filter("datum.part == 'star'")
        .mark_point(shape=STAR, size=240, fill="#F0C000", stroke="black", strokeWidth=1)
        .encode(tooltip=[alt.Tooltip("label:N", title="lowest loss of the plane")])
    )
    return star


def _runs(base: alt.Chart, color: alt.Color, dash: alt.StrokeDash, ground: str) -> list[alt.Chart]:
    paths = base.transform_filter("datum.part == 'path'").encode(
        detail=alt.Detail("racer:N"), order=alt.Order("order:Q")
    )
    faded = base.transform_filter("datum.part == 'faded'").encode(order=alt.Order("order:Q"))
    tooltip = [
        alt.Tooltip("racer:N", title="run"),
        alt.Tooltip("step:Q", title="step", format=","),
        alt.Tooltip("loss:Q", title="loss (½ MSE)", format=".6f"),
    ]
    starts = base.transform_filter("datum.part == 'start'")
    heads = base.transform_filter("datum.part == 'head'")
    ends = base.transform_filter("datum.part == 'end'")
    return [
        faded.mark_line(strokeWidth=1.5, opacity=0.45, clip=True).encode(
            color=color, strokeDash=dash
        ),
        paths.mark_line(strokeWidth=5, color=ground, opacity=0.9, clip=True),
        paths.mark_line(strokeWidth=2, clip=True).encode(color=color, strokeDash=dash),
        paths.mark_point(filled=True, size=60, opacity=0, clip=True).encode(
            color=color, tooltip=tooltip
        ),
        starts.mark_point(size=90, strokeWidth=2, opacity=1, color="#808080", fill="white"),
        heads.mark_point(filled=True, size=90, opacity=1, stroke="white", clip=True).encode(
            color=color, tooltip=tooltip
        ),
        ends.mark_text(align="left", dx=4, fontSize=FONT_SIZE).encode(color=color, text="label:N"),
    ]


def racer_names(history: RaceHistory) -> tuple[str, ...]:
    """The racers' names, as `surface_spec` takes them."""
    names: Sequence[str] = list(history.lanes)
    return tuple(names)
