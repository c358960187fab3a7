"""The split that a student looks at: the rows, the devices, and who gets which."""

import inspect
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import streamlit as st
import torch
from torch import Tensor

from labcore.config import Config, ConfigError, choice, number, refusal
from labcore.datasets import fashion_mnist
from labcore.links import Query
from labcore.splitting import SPLITS, Shard, sampler, weighted
from labcore.weighting import draw_minibatch
from labui.draft import Draft, keep_draft, open_draft, setting_widget, values_of
from labui.page import plain

FORM = "split"
COLUMNS = 3
"""Numbers in each row of the notes' matrix."""

SPEEDS_HELP = (
    "One number per device, in any unit, such as rows per second; empty: all equally fast. "
    "Allowed: positive numbers, separated by spaces or commas."
)


@dataclass(frozen=True, kw_only=True)
class SplitSettings(Config):
    """What is split, and how."""

    name = "split"

    kind: str = choice(
        "rows",
        "numbers",
        {"numbers": "numbers 0, 1, 2, …", "images": "Fashion-MNIST images"},
        help="What a row of the minibatch is: three numbers as in the notes, or a real image.",
    )
    rows: int = number("number of rows", 4, 1, 512, help="Rows in the minibatch.")
    devices: int = number(
        "devices", 2, 1, 16, help="Who shares the rows; may be more than there are rows."
    )
    split: str = choice(
        "split",
        "chunk",
        {name: name.replace("_", " ") for name in SPLITS},
        help="Which device gets which rows.",
    )
    left_over: str = choice(
        "rows that would not go round",
        "pad",
        {"pad": "go on from row 0", "drop": "drop them (drop_last)"},
        help="What the sampler does so that all devices get equally many rows.",
    )


@dataclass(frozen=True)
class Position(Config):
    """Where the student is in the film."""

    name = "position"

    at: int = number("step", 0, 0, 16, help="Devices that have their rows.")


PRESETS: dict[str, dict[str, Any]] = {
    "The notes' example: 4 × 3": {"rows": 4, "devices": 2, "split": "chunk"},
    "5 rows on 4 devices": {"rows": 5, "devices": 4, "split": "chunk"},
    "10 rows on 4 devices": {"rows": 10, "devices": 4, "split": "chunk"},
    "10 rows, speeds 3 1 1": {"rows": 10, "devices": 3, "split": "weighted"},
    "5 rows on 4, sampler": {"rows": 5, "devices": 4, "split": "sampler", "left_over": "pad"},
    "16 images on 4 devices": {"kind": "images", "rows": 16, "devices": 4, "split": "balanced"},
}
"""Examples; each changes the defaults' rows of numbers."""
PRESET_SPEEDS = {"10 rows, speeds 3 1 1": "3 1 1"}


@dataclass
class SplitDraft(Draft):
    """The settings, and the devices' speeds.

    Attributes:
        speeds: as typed; empty where all devices are equally fast.
    """

    speeds: str = ""

    def query(self) -> dict[str, list[str]]:
        return super().query() | ({"speeds": [self.speeds]} if self.speeds else {})

    def settings(self) -> SplitSettings:
        """What the draft describes, but for the speeds."""
        return SplitSettings(**self.fields_of(SplitSettings))

    def shards(self) -> Sequence[Shard]:
        """Which rows each device gets.

        Raises:
            ConfigError: the speeds are not one positive number per device.
        """
        each = self.settings()
        match each.split:
            case "weighted":
                return weighted(each.rows, each.devices, parse_speeds(self.speeds, each.devices))
            case "sampler":
                return sampler(each.rows, each.devices, drop_last=each.left_over == "drop")
        return SPLITS[each.split](each.rows, each.devices)


def parse_speeds(text: str, devices: int) -> list[float] | None:
    """The devices' speeds; None where none are given.

    Raises:
        ConfigError: there is not one positive number per device; it names the device.
    """
    words = text.replace(",", " ").split()
    if not words:
        return None
    speeds = []
    for rank, word in enumerate(words):
        try:
            speeds.append(float(word))
        except ValueError:
            speeds.append(math.nan)
        if not 0 < speeds[rank] < math.inf:
            raise refusal(f"split: speed of device {rank}", word, "a positive number", 1)
    if len(speeds) != devices:
        works = " ".join([*words, *["1"] * devices][:devices])
        what = "1 number" if devices == 1 else f"{devices} numbers, one per device"
        raise refusal("split: speeds", text, what, works)
    return speeds


def open_split() -> SplitDraft:
    """The session's split."""
    return open_draft(FORM, _parse)


def _parse(query: Query) -> SplitDraft:
    values, problems = values_of(query, (SplitSettings, Position), others=("speeds",))
    speeds = " ".join(query.get("speeds", [""])[0].split())
    try:
        parse_speeds(speeds, values["devices"])
    except ConfigError as error:
        problems.append(f"{error} Equal speeds are used instead.")
        speeds = ""
    return SplitDraft(values, problems, speeds=speeds)


def show_preset(name: str) -> None:
    """Make one of `PRESETS` the session's split; for a button's `on_click`."""
    values = _parse({}).values | PRESETS[name]
    keep_draft(FORM, SplitDraft(values, speeds=PRESET_SPEEDS.get(name, "")))


def split_widgets(draft: SplitDraft) -> None:
    """Rows, devices, and the split with what it needs."""
    with st.container(horizontal=True):
        setting_widget(draft, SplitSettings, "kind")
        setting_widget(draft, SplitSettings, "split")
    for column, name in zip(st.columns(4), ("rows", "devices"), strict=False):
        with column:
            setting_widget(draft, SplitSettings, name)
    match draft.values["split"]:
        case "weighted":
            _speeds(draft)
        case "sampler":
            setting_widget(draft, SplitSettings, "left_over")
    st.caption(caption(draft.values["split"]))


def _speeds(draft: SplitDraft) -> None:
    """The text field of the speeds; what was there stays where the new ones are refused."""
    devices = draft.values["devices"]
    text = st.text_input(
        "Speeds",
        draft.speeds,
        key=f"speeds:{draft.number}",
        placeholder=" ".join(["1"] * devices),
        help=SPEEDS_HELP,
    )
    try:
        parse_speeds(text, devices)
    except ConfigError as error:
        st.error(plain(str(error)))
        draft.refused = error
    else:
        draft.speeds = " ".join(text.replace(",", " ").split())


def caption(split: str) -> str:
    """What a split does, in a sentence, and where that comes from."""
    first, *_, source = (inspect.getdoc(SPLITS[split]) or "").split("\n\n")
    return f"{first} {' '.join(source.split())}."


def minibatch_of(settings: SplitSettings) -> tuple[Tensor, Tensor, Tensor]:
    """The rows as they are split, and the inputs and labels that a model is trained on with them.

    Returns:
        Numbers (rows, 3), int64, or images (rows, 1, 28, 28), uint8; the same scaled to 0…1,
        float64; and labels (rows,), of images their own, of numbers drawn at random.

    Raises:
        DataError: the images cannot be read.
    """
    if settings.kind == "images":
        data = fashion_mnist.load()
        rows = data.train_rows(settings.rows)
        images = data.train_images[rows].unsqueeze(1)
        return images, images.double() / 255, data.train_labels[rows]
    numbers = torch.arange(settings.rows * COLUMNS).view(settings.rows, COLUMNS)
    return numbers, numbers.double() / numbers.max(), draw_minibatch(settings.rows, 0)[1]
