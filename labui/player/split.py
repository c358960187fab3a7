"""A split minibatch as a film: a frame for every device, in which its rows move to it."""

import base64
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from labcore.splitting import Shard, missing, repeated
from labui.player.mount import Film

TOTALS = ("rows placed", "largest shard", "smallest shard", "repeated rows", "dropped rows")
MOST_PICTURES = 64
"""Images in a minibatch whose pixels are shown."""
MOST_VALUES = 16
"""Rows of numbers whose values are shown."""


def split_film(
    name: str, caption: str, minibatch: Tensor, shards: Sequence[Shard], calls: Sequence[str]
) -> Film:
    """The film of a split.

    Args:
        name: of the split.
        caption: what it does, in a sentence.
        minibatch: its rows along the first axis; numbers (n, m), or images (n, 1, h, w) in uint8.
        shards: which rows each device gets.
        calls: for each device how torch gives it these rows.
    """
    rows = len(minibatch)
    shapes = [_shape(minibatch, len(shard)) for shard in shards]
    frames = [_start(rows, _shape(minibatch, rows), len(shards), caption)]
    for rank, (shard, shape, call) in enumerate(zip(shards, shapes, calls, strict=True)):
        frames.append(
            {
                "phase": f"Device {rank}",
                "why": f"{len(shard)} of {rows} rows.",
                "sentence": _sentence(rank, shards, shape, rows),
                "code": call,
                "totals": _totals(shards[: rank + 1], rows, over=rank + 1 == len(shards)),
                "question": {
                    "text": f"{in_rows(rows)}, {name}, over {in_devices(len(shards))}. How many "
                    f"rows does device {rank} get?",
                    "label": "Rows:",
                    "answer": len(shard),
                },
            }
        )
    return Film(
        figure="split",
        description=f"{in_rows(rows)} split over {in_devices(len(shards))}, {name}: the minibatch "
        "on the left, a box for each device on the right.",
        unit="Step",
        file=f"split-{name}-{rows}-{len(shards)}".replace(" ", "-"),
        totals=TOTALS,
        scene={
            "shape": _shape(minibatch, rows),
            "rows": rows,
            "shards": [list(shard) for shard in shards],
            "shapes": shapes,
            "missing": missing(shards, rows),
            "values": _values(minibatch),
            "pixels": _pixels(minibatch),
        },
        frames=frames,
    )


def in_rows(count: int) -> str:
    """A number of rows in words."""
    return f"{count} row" if count == 1 else f"{count} rows"


def in_devices(count: int) -> str:
    """A number of devices in words."""
    return f"{count} device" if count == 1 else f"{count} devices"


def listed(kind: str, numbers: Sequence[int]) -> str:
    """The numbers of some rows or devices in words: "rows 0–3", "row 7", "devices 2, 3"."""
    few = len(numbers) <= 3
    if len(numbers) == 1:
        return f"{kind} {numbers[0]}"
    if (
        not few
        and numbers[-1] - numbers[0] == len(numbers) - 1
        and list(numbers) == sorted(numbers)
    ):
        return f"{kind}s {numbers[0]}–{numbers[-1]}"
    shown = [str(number) for number in numbers]
    if len(shown) > 8:
        shown = [*shown[:4], "…", shown[-1]]
    return f"{kind}s {', '.join(shown)}"


def _start(rows: int, shape: str, devices: int, caption: str) -> dict[str, Any]:
    sentence = f"{in_rows(rows)}, shape {shape}, for {in_devices(devices)}. {caption}"
    if devices == 1:
        sentence = (
            f"There is one device, so it gets the whole minibatch of {in_rows(rows)}, shape "
            f"{shape}: nothing needs to be split, and nothing to be summed."
        )
    return {
        "phase": "Start",
        "sentence": sentence,
        "code": "",
        "totals": _totals([], rows, over=False),
    }


def _sentence(rank: int, shards: Sequence[Shard], shape: str, rows: int) -> str:
    shard = shards[rank]
    parts = [f"Device {rank} gets nothing: shape {shape}."]
    if shard:
        which = listed("row", shard)
        parts = [f"{which[0].upper()}{which[1:]} → device {rank}: shape {shape}."]
    again = [row for row in repeated(shards[: rank + 1]) if row in shard]
    if again:
        parts.append(f"Used before: {listed('row', again)}.")
    lost = missing(shards, rows)
    if lost and rank + 1 == len(shards):
        parts.append(f"Dropped: {listed('row', lost)}; no device gets {_them(lost)}.")
    return " ".join(parts)


def _them(rows: Sequence[int]) -> str:
    return "it" if len(rows) == 1 else "them"


def _totals(placed: Sequence[Shard], rows: int, *, over: bool) -> list[str]:
    """The figures below the picture once these shards are placed; how many are lost only then."""
    sizes = [len(shard) for shard in placed]
    lost = len(missing(placed, rows))
    return [
        f"{rows - lost} of {rows}",
        str(max(sizes)) if sizes else "–",
        str(min(sizes)) if sizes else "–",
        str(len(repeated(placed))),
        str(lost) if over else "–",
    ]


def _shape(minibatch: Tensor, rows: int) -> str:
    return str((rows, *minibatch.shape[1:]))


def _values(minibatch: Tensor) -> list[list[float]]:
    if minibatch.dim() != 2 or len(minibatch) > MOST_VALUES:
        return []
    return [[float(value) for value in row] for row in minibatch]


def _pixels(minibatch: Tensor) -> list[str]:
    """The pixels of each image, row by row, a byte each, in base64."""
    if minibatch.dim() != 4 or len(minibatch) > MOST_PICTURES:
        return []
    return [base64.b64encode(image.numpy().tobytes()).decode() for image in minibatch]
