"""The allreduce that a student looks at: algorithm, ranks, vectors, and the price of a link."""

from dataclasses import dataclass, field

import pandas as pd  # type: ignore[import-untyped]
import streamlit as st
from torch import Tensor

from labcore.collectives import ALLREDUCE
from labcore.config import Config, ConfigError, choice, number
from labcore.costs import LINKS
from labcore.datasets.fashion_mnist import FashionMNIST
from labcore.links import Query
from labcore.models import LENET_NAMES, MODELS, gradient_bytes
from labcore.schedules import Schedule
from labcore.trace import MAX_TRACED
from labcore.vectors import lenet_gradient, rank_plus_one, standard_normal, typed
from labui.draft import Draft, keep_draft, open_draft, setting_widget, values_of
from labui.page import plain

FORM = "allreduce"
OWN = "own"
"""The link whose figures are typed in."""
MAX_TYPED = 256
"""Cells of the table that one can type into."""


@dataclass(frozen=True, kw_only=True)
class AllreduceSettings(Config):
    """What is reduced, and how."""

    name = "allreduce"

    algorithm: str = choice(
        "algorithm",
        "ring",
        {name: name.replace("_", " ") for name in ALLREDUCE},
        help="Who sends what to whom. All end with the same sum; they differ in rounds and bytes.",
    )
    ranks: int = number(
        "ranks", 4, 1, MAX_TRACED, help="Processes that take part, each with a vector of its own."
    )
    values: str = choice(
        "vectors",
        "rank",
        {
            "rank": "rank + 1",
            "random": "random",
            "typed": "typed",
            "gradient": "a gradient of LeNet",
        },
        help="What the ranks begin with. The gradient is real: each rank's, on its own images.",
    )
    length: int = number(
        "length",
        8,
        0,
        4_096,
        log=True,
        help="Numbers in each rank's vector, float32; may be shorter than there are ranks.",
    )
    tensor: str = choice(
        "tensor",
        "b1",
        {name: name for name in LENET_NAMES},
        help="Whose gradient: w1 and b1 are the first convolution's, w4 and b4 the last layer's.",
    )
    seed: int = number("seed", 0, 0, 2**31 - 1, help="Of the random numbers: same seed, same ones.")


@dataclass(frozen=True, kw_only=True)
class PriceSettings(Config):
    """What a message costs in the model of time."""

    name = "price"

    size: str = choice(
        "message size",
        "vector",
        {"vector": "the vector shown"}
        | {name: f"gradient of {model.label}" for name, model in MODELS.items()},
        help="How large the vector is that the modelled times are for.",
    )
    link: str = choice(
        "link",
        "pcie3",
        {name: link.label for name, link in LINKS.items()} | {OWN: "own figures"},
        help="What connects the ranks. Each preset names its source below.",
    )
    alpha: float = number(
        "latency α in µs", 5.7, 0.0, 1e6, log=True, help="What every message costs, however small."
    )
    bandwidth: float = number(
        "bandwidth 1/β in GB/s",
        12.0,
        1e-6,
        1e6,
        log=True,
        help="Bytes per second in each direction, both at once.",
    )
    gamma: float = number(
        "adding γ in ns per byte",
        0.0,
        0.0,
        1e6,
        help="What adding a received byte costs a rank; 0 leaves it out, as GPUs nearly do.",
    )


@dataclass(frozen=True)
class Position(Config):
    """Where the student is in the film."""

    name = "position"

    at: int = number("round", 0, 0, 10_000, help="Rounds done.")


SETTINGS: tuple[type[Config], ...] = (AllreduceSettings, PriceSettings, Position)


@dataclass
class AllreduceDraft(Draft):
    """The settings, and the table that a student has typed.

    Attributes:
        rows: texts of the table, a row per rank.
    """

    rows: list[list[str]] = field(default_factory=list)

    def query(self) -> dict[str, list[str]]:
        typed_rows = self.rows if self.values["values"] == "typed" else []
        table = {"rows": [" ".join(row) for row in typed_rows]} if typed_rows else {}
        return super().query() | table

    def settings(self) -> AllreduceSettings:
        """What the draft describes."""
        return AllreduceSettings(**self.fields_of(AllreduceSettings))

    def price(self) -> tuple[float, float, float]:
        """α in s, β and γ in s per byte."""
        values = PriceSettings(**self.fields_of(PriceSettings))
        gamma = values.gamma * 1e-9
        if values.link == OWN:
            return values.alpha * 1e-6, 1e-9 / values.bandwidth, gamma
        link = LINKS[values.link]
        return link.alpha, 1 / link.bandwidth, gamma

    def n_bytes(self, vectors: Tensor) -> float:
        """Size of the vector in the model of time."""
        size = self.values["size"]
        return vectors[0].nbytes if size == "vector" else gradient_bytes(size)


def open_allreduce() -> AllreduceDraft:
    """The session's allreduce."""
    return open_draft(FORM, _parse)


def _parse(query: Query) -> AllreduceDraft:
    values, problems = values_of(query, SETTINGS, others=("rows",))
    rows = [text.split() for text in query.get("rows", [])][:MAX_TRACED]
    return AllreduceDraft(values, problems, rows=rows)


def show_example() -> None:
    """The notes' example: [[1, 1]] and [[2, 2]], added into rank 0; for a button's `on_click`."""
    kept: AllreduceDraft = st.session_state[f"draft:{FORM}"]
    example = {"algorithm": "central", "ranks": 2, "length": 2, "values": "rank", "at": 0}
    keep_draft(FORM, AllreduceDraft(kept.values | example))


def allreduce_widgets(draft: AllreduceDraft) -> None:
    """Algorithm, ranks and vectors."""
    setting_widget(draft, AllreduceSettings, "algorithm")
    with st.container(horizontal=True):
        setting_widget(draft, AllreduceSettings, "values")
        if draft.values["values"] == "gradient":
            setting_widget(draft, AllreduceSettings, "tensor")
    for column, name in zip(st.columns(4), ("ranks", "length", "seed"), strict=False):
        idle = {
            "length": draft.values["values"] == "gradient",
            "seed": draft.values["values"] not in ("random", "gradient"),
        }
        with column:
            setting_widget(draft, AllreduceSettings, name, disabled=idle.get(name, False))
    if draft.values["values"] == "typed":
        _table(draft)


def _table(draft: AllreduceDraft) -> None:
    """The table to type into; what was typed stays where the shape changes."""
    ranks, length = draft.values["ranks"], draft.values["length"]
    if ranks * length > MAX_TYPED:
        return
    old = [row[:length] + ["1"] * (length - len(row)) for row in draft.rows[:ranks]]
    rows = old + [["1"] * length] * (ranks - len(old))
    frame = pd.DataFrame(rows, [f"R{r}" for r in range(ranks)], [str(c) for c in range(length)])
    key = f"table:{draft.number}:{ranks}:{length}"
    if key not in st.session_state:
        # Edits count from what the table was given first; a return to the page begins anew.
        st.session_state[f"{key}:shown"] = frame
    edited = st.data_editor(st.session_state[f"{key}:shown"], key=key)
    draft.rows = [[str(text).strip() or "nothing" for text in row] for row in edited.to_numpy()]


def price_widgets(draft: AllreduceDraft) -> None:
    """Message size and link."""
    setting_widget(draft, PriceSettings, "size")
    own = draft.values["link"] == OWN
    names = ("link", "gamma", *(("alpha", "bandwidth") if own else ()))
    for column, name in zip(st.columns(4), names, strict=False):
        with column:
            setting_widget(draft, PriceSettings, name)
    if own:
        return
    link = LINKS[draft.values["link"]]
    words = f"{link.label}: {link.alpha * 1e6:g} µs, {link.bandwidth / 1e9:g} GB/s each way."
    st.caption(f"{words} Source: {plain(link.source)}")


def schedule_and_vectors(draft: AllreduceDraft, data: FashionMNIST) -> tuple[str, Schedule, Tensor]:
    """What the draft describes: the algorithm's name, its schedule, and the ranks' vectors.

    Raises:
        ConfigError: it describes nothing, with the reason.
    """
    if draft.refused:
        raise draft.refused
    settings = draft.settings()
    vectors = _vectors(settings, draft.rows, data)
    return settings.algorithm, ALLREDUCE[settings.algorithm](settings.ranks), vectors


def _vectors(settings: AllreduceSettings, rows: list[list[str]], data: FashionMNIST) -> Tensor:
    match settings.values:
        case "rank":
            return rank_plus_one(settings.ranks, settings.length)
        case "random":
            return standard_normal(settings.ranks, settings.length, settings.seed)
        case "gradient":
            return lenet_gradient(settings.ranks, settings.tensor, settings.seed, data)
    if settings.ranks * settings.length > MAX_TYPED:
        raise ConfigError(
            f"A typed table has at most {MAX_TYPED} numbers; received {settings.ranks} ranks × "
            f"{settings.length}. Try 4 ranks and length 8."
        )
    return typed(rows)
