"""What the page on splits shows beside and below the film: warnings, torch's own, gradients."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import streamlit as st
import torch
from streamlit.delta_generator import DeltaGenerator
from torch import Tensor
from torch.utils.data import DistributedSampler

from labcore.exports import split_csv, split_json
from labcore.models import MODELS
from labcore.splitting import Shard, missing, ranks_with, repeated
from labcore.weighting import WEIGHTINGS, Comparison, compare
from labui.draft import write_query
from labui.player.mount import Film, player
from labui.player.split import listed, split_film
from labui.split_form import FORM, SplitDraft, SplitSettings, caption, minibatch_of

EXACT = 1e-9
"""Relative error below which two gradients are the same: float64 rounds at 1e-16."""


@dataclass(frozen=True)
class Shown:
    """A split that is on the page.

    Attributes:
        settings: what it was made from.
        shards: which rows each device gets.
        minibatch: the rows; see `minibatch_of`.
        inputs: of the small model.
        labels: of the small model.
    """

    settings: SplitSettings
    shards: Sequence[Shard]
    minibatch: Tensor
    inputs: Tensor
    labels: Tensor


def shown_split(draft: SplitDraft) -> Shown:
    """What the draft describes.

    Raises:
        ConfigError: it describes nothing, with the reason.
        DataError: the images cannot be read.
    """
    if draft.refused:
        raise draft.refused
    return Shown(draft.settings(), draft.shards(), *minibatch_of(draft.settings()))


def draw_split(figure: DeltaGenerator, draft: SplitDraft, shown: Shown) -> None:
    """The film of a split, and below what it does to the gradient.

    Args:
        figure: where the film is drawn.
        draft: says where the student is.
        shown: the split.
    """
    torchs = torch_split(shown)
    first = caption(shown.settings.split).partition(" Source:")[0]
    label = shown.settings.split.replace("_", " ")
    film = split_film(label, first, shown.minibatch, shown.shards, torchs.calls)
    with figure:
        left, right = st.columns([13, 7])
        with left:
            _film(draft, film)
        with right:
            if len(shown.shards) == 1:
                st.info("One device gets every row: there is nothing to split, or to add up.")
            for text in warnings(shown):
                st.warning(text)
            _torch_panel(shown, torchs)
            _files(shown)
    _gradients(shown)


@st.fragment
def _film(draft: SplitDraft, film: Film) -> None:
    """The film; only this runs again when the student has come to rest."""
    draft.values["at"] = player(FORM, film, draft.values["at"])
    write_query(FORM, draft)


def warnings(shown: Shown) -> list[str]:
    """What training on these shards suffers from, a sentence or two each."""
    shards, rows = shown.shards, shown.settings.rows
    found = []
    if idle := ranks_with(0, shards):
        gets = "gets nothing and waits" if len(idle) == 1 else "get nothing and wait"
        found.append(f"{_titled('device', idle)} {gets} for the others in every step.")
    if single := ranks_with(1, shards):
        gets = "gets a single row" if len(single) == 1 else "get a single row each"
        found.append(f"{_titled('device', single)} {gets}. {_batch_norm(shown)}")
    if twice := repeated(shards):
        most = max(twice.values())
        uses = f"{most} times" if min(twice.values()) == most else f"up to {most} times"
        used = "is used" if len(twice) == 1 else "are used"
        found.append(
            f"{_titled('row', list(twice))} {used} {uses}: more weight than the others have."
        )
    if lost := missing(shards, rows):
        dropped = "is dropped" if len(lost) == 1 else "are dropped"
        found.append(f"{_titled('row', lost)} {dropped}: not in this step's gradient at all.")
    return found


def _titled(kind: str, numbers: Sequence[int]) -> str:
    text = listed(kind, numbers)
    return text[0].upper() + text[1:]


def _batch_norm(shown: Shown) -> str:
    if shown.settings.kind == "numbers":
        return (
            "Batch norm refuses to train on it, for there is nothing to average over: torch says "
            "“Expected more than 1 value per channel when training”."
        )
    models = ", ".join(model.label for model in MODELS.values() if model.smallest_shard > 1)
    return (
        "Batch norm refuses to train on one image where the feature maps have shrunk to one pixel, "
        f"as in {models}: torch says “Expected more than 1 value per channel when training”."
    )


# --- torch's own ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class TorchSplit:
    """What torch makes of the same minibatch.

    Attributes:
        setup: the expression whose value `returned` are the shapes of.
        returned: what torch gives; may be fewer than there are devices.
        calls: for each device the expression that gives its shard.
    """

    setup: str
    returned: Sequence[Tensor]
    calls: Sequence[str]


def torch_split(shown: Shown) -> TorchSplit:
    """Split the minibatch with torch itself, by the function that the split's docstring names."""
    x, devices = shown.minibatch, shown.settings.devices
    match shown.settings.split:
        case "chunk":
            return _pieces(f"x.chunk({devices})", x.chunk(devices), devices)
        case "balanced":
            return _pieces(f"x.tensor_split({devices})", x.tensor_split(devices), devices)
        case "weighted":
            sizes = [len(shard) for shard in shown.shards]
            return _pieces(f"x.split({sizes})", torch.split(x, sizes), devices)
        case "sampler":
            return _sampled(x, devices, shown.settings.left_over == "drop")
    indices = [list(shard) for shard in shown.shards]
    calls = [f"x[{each}]" for each in indices]
    return TorchSplit(f"[{', '.join(calls)}]", [x[each] for each in indices], calls)


def _pieces(call: str, returned: Sequence[Tensor], devices: int) -> TorchSplit:
    calls = [f"{call}[{rank}]" for rank in range(len(returned))]
    none = f"len({call}) == {len(returned)}  # none is left for device "
    calls += [f"{none}{rank}" for rank in range(len(returned), devices)]
    return TorchSplit(call, returned, calls)


def _sampled(x: Tensor, devices: int, drop_last: bool) -> TorchSplit:
    more = ", drop_last=True" if drop_last else ""

    def call(rank: object) -> str:
        return f"x[list(DistributedSampler(x, {devices}, {rank}, shuffle=False{more}))]"

    returned = []
    for rank in range(devices):
        # A sampler takes anything that has a length and can be indexed.
        dealt: DistributedSampler[Tensor] = DistributedSampler(
            x,  # type: ignore[arg-type]
            devices,
            rank,
            shuffle=False,
            drop_last=drop_last,
        )
        returned.append(x[list(dealt)])
    calls = [call(rank) for rank in range(devices)]
    return TorchSplit(f"[{call('r')} for r in range({devices})]", returned, calls)


def _torch_panel(shown: Shown, torchs: TorchSplit) -> None:
    """The same done by torch, just now, as one would type it."""
    st.markdown("**What torch returns** · executed")
    shape = tuple(shown.minibatch.shape)
    shapes = [str(tuple(shard.shape)) for shard in torchs.returned]
    made = f"x = torch.arange({shown.minibatch.numel()}).view{shape}"
    if shown.settings.kind == "images":
        made = f"x  # {shown.settings.rows} images, {shape}"
    lines = [made, f"shards = {torchs.setup}", "[tuple(shard.shape) for shard in shards]"]
    st.code("\n".join([*lines, f"# {', '.join(shapes)}"]), language="python", wrap_lines=True)
    if len(shapes) < shown.settings.devices:
        pieces = "1 chunk" if len(shapes) == 1 else f"{len(shapes)} chunks"
        st.caption(
            f"Asked for {shown.settings.devices} chunks, torch returns {pieces}: whoever indexes "
            "by rank gets an IndexError, and nn.parallel.scatter uses fewer devices."
        )


# --- files ----------------------------------------------------------------------------------------


def _files(shown: Shown) -> None:
    each = shown.settings
    files: dict[str, Callable[[], str]] = {
        "csv": lambda: split_csv(shown.shards),
        "json": lambda: split_json(each.split, each.rows, shown.shards),
    }
    with st.container(horizontal=True):
        for ending, make in files.items():
            st.download_button(
                f"Split, {ending.upper()}",
                make,
                file_name=f"split-{each.split}-{each.rows}-{each.devices}.{ending}",
                on_click="ignore",
                help="Which device gets which rows.",
            )


# --- gradients ------------------------------------------------------------------------------------


def _gradients(shown: Shown) -> None:
    """The minibatch's gradient as one device has it, and as each weighting makes it of shards."""
    st.subheader("Adding up the shards' gradients")
    compared = compare(shown.shards, shown.inputs, shown.labels)
    [whole, *_] = compare([range(shown.settings.rows)], shown.inputs, shown.labels)
    rows = [("full batch, on one device", "the goal", "0", "1", f"{whole.norm:.4g}")]
    rows += [
        (
            WEIGHTINGS[each.weighting].label,
            verdict(each, shown.shards, shown.settings.rows),
            "0" if each.error < EXACT else f"{each.error:.3g}",
            f"{each.lr_factor:.4g}",
            f"{each.norm:.4g}",
        )
        for each in compared
    ]
    names = ("weighting", "right?", "relative error", "learning rate ×", "gradient's length")
    right = {name: st.column_config.TextColumn(alignment="right") for name in names[2:]}
    st.dataframe(
        {name: list(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)},
        hide_index=True,
        column_config=right,
    )
    kind = "images" if shown.settings.kind == "images" else "numbers, scaled to 0…1"
    labels = "their own labels" if shown.settings.kind == "images" else "random labels"
    st.caption(
        f"Computed just now in float64 for the shards above: the {kind}, {labels}, and a linear "
        f"softmax classifier with random weights. {conclusion(compared, shown.shards)}"
    )
    with st.expander("The formulas, and what goes wrong", icon=":material/function:"):
        for weighting in WEIGHTINGS.values():
            st.markdown(f"**{weighting.label}**: ${weighting.formula}$. {weighting.why}")


def verdict(each: Comparison, shards: Sequence[Shard], rows: int) -> str:
    """Whether a weighting gives the minibatch's gradient, by sign and word."""
    if not each.error < EXACT:
        return "✗ wrong"
    partition = not repeated(shards) and not missing(shards, rows)
    always = WEIGHTINGS[each.weighting].right and partition
    return "✓ right" if always else "✓ right here only"


def conclusion(compared: Sequence[Comparison], shards: Sequence[Shard]) -> str:
    """What the largest of the errors does to training, in words."""
    worst = max(compared, key=lambda each: each.error)
    if worst.error < EXACT:
        if len(shards) == 1:
            return "With one device there is nothing to weigh: all of them are right."
        return "With these shards all of them are right."
    label = WEIGHTINGS[worst.weighting].label
    length = "along the right gradient, a step with learning rate 0.1 is as one with "
    parts = [f"The worst is “{label}”: {length}{0.1 * worst.lr_factor:.3g}."]
    if worst.lr_factor > 1:
        parts.append("A rate that was just stable now diverges.")
    askew = min(compared, key=lambda each: each.cosine)
    if askew.cosine < 1 - EXACT:
        degrees = math.degrees(math.acos(askew.cosine))
        label = WEIGHTINGS[askew.weighting].label
        parts.append(f"“{label}” points {degrees:.2g}° aside, which no learning rate repairs.")
    if all(each.error >= EXACT for each in compared):
        parts.append("With rows that are used twice or dropped, no weighting is right.")
    return " ".join(parts)
