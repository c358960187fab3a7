"""What the Scaling page is asked: which part, devices and links, and devices of unequal speed."""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import TypeVar

import streamlit as st

from labcore.config import Config, ConfigError, choice, format_value, number, parse_fields, refusal
from labcore.costs import LINKS
from labcore.exercises import CPU_SPEED, EXERCISES
from labcore.hardware import GPUS
from labcore.links import Query
from labcore.models import MODELS
from labcore.scaling_config import PRESETS, ScalingConfig
from labcore.seeds import SeedsConfig
from labcore.uneven import MOST_ROWS, UnevenConfig, Worker
from labui.draft import Draft, keep_draft, open_draft, setting_widget, values_of
from labui.page import plain

C = TypeVar("C", bound=Config)

FORM = "scaling"
FEWEST, MOST = 2, 8
"""Devices with sliders of their own."""
LONGEST_LABEL = 24
TITLES = {"lenet": "LeNet", "resnet": "ResNet", "gpu and cpu": "GPU and CPU"}
"""Of exercises whose names do not just begin with a capital."""


@dataclass(frozen=True, kw_only=True)
class Look(Config):
    """Which part of the page is shown; only that is computed."""

    name = "look"

    part: str = choice(
        "look at",
        "what_if",
        {
            "what_if": "What if",
            "uneven": "Uneven devices",
            "reported": "The notes' table",
            "exercises": "Exercises",
        },
        help="What if and uneven devices are modelled, the table is reported by the notes; what is "
        "measured on this machine says so.",
    )
    exercise: str = choice(
        "exercise",
        "lenet",
        {
            name: f"{number}. {TITLES.get(name, name.capitalize())}"
            for number, name in enumerate(EXERCISES, start=1)
        },
        help="One question at a time, in any order.",
    )


@dataclass(frozen=True, kw_only=True)
class Sharing(Config):
    """What devices of unequal speed share."""

    name = "uneven"

    share_model: str = choice(
        "model",
        "lenet",
        {name: model.label for name, model in MODELS.items()},
        help="Decides the gradient that is summed after each step, and what is trained when it is "
        "run here.",
    )
    share_batch: int = number(
        "batch size", 128, 1, MOST_ROWS, log=True, help="Images per step, over all devices."
    )
    share_devices: int = number(
        "devices", 3, FEWEST, MOST, help="How many have a slider; each may be left out."
    )


SETTINGS: tuple[type[Config], ...] = (Look, ScalingConfig, Sharing, SeedsConfig)
SPEEDS = tuple(float(n * 10**power) for power in range(5) for n in range(1, 10))
"""Images per second at which a slider stops, beside those that a link or an example has."""


@dataclass
class Listed:
    """A device of the list.

    Attributes:
        label: what it is called.
        speed: images per second beyond the fixed cost.
        fixed_ms: what a step costs it however few its images.
        used: whether it takes part.
    """

    label: str
    speed: float
    fixed_ms: float = 1.0
    used: bool = True

    def __str__(self) -> str:
        numbers = (format_value(self.speed), format_value(self.fixed_ms))
        return ",".join([*numbers, "in" if self.used else "out", self.label])


def parse_listed(text: str, rank: int) -> Listed:
    """The inverse of `str(Listed)`; what is missing at the end is as by default.

    Raises:
        ConfigError: a figure is not one, or not allowed.
    """
    speed, fixed, used, label = [*text.split(",", 3), "", "", ""][:4]
    texts = {"speed": speed} | ({"fixed_ms": fixed} if fixed else {})
    worker = Worker(**parse_fields(Worker, texts))
    if used not in ("", "in", "out"):
        raise refusal("device: part", used, "in or out", "in")
    return Listed(
        label[:LONGEST_LABEL] or f"device {rank}",
        worker.speed,
        worker.fixed_ms,
        used != "out",
    )


def _three() -> list[Listed]:
    return [Listed("device 0", 1000.0), Listed("device 1", 1000.0), Listed("device 2", 300.0)]


def _gpu_and_cpu() -> list[Listed]:
    gpu = GPUS["v100"].device("resnet18")
    return [
        Listed("V100", float(round(gpu.speed)), round(gpu.fixed * 1e3, 2)),
        Listed("CPU", CPU_SPEED, 0.0),
    ]


UNEVEN_PRESETS = {
    "GPU + CPU": ({"share_model": "resnet18", "share_batch": 256}, _gpu_and_cpu),
    "One of three is slow": ({"share_model": "lenet", "share_batch": 128}, _three),
    "Eight, each slower": (
        {"share_model": "lenet", "share_batch": 512},
        lambda: [Listed(f"device {n}", float(1000 - 100 * n)) for n in range(8)],
    ),
}
"""By what a button calls it: settings, and the devices."""


@dataclass
class ScalingDraft(Draft):
    """The settings of all parts, and the list of uneven devices.

    Attributes:
        listed: the devices; those beyond their number are kept in case it rises again.
        stops: of the sliders; they stay as they are while the widgets do.
    """

    listed: list[Listed] = field(default_factory=_three)
    stops: list[float] = field(init=False)

    def __post_init__(self) -> None:
        self.stops = sorted({*SPEEDS, *(each.speed for each in self.listed)})

    def query(self) -> dict[str, list[str]]:
        return super().query() | {"worker": [str(each) for each in self.shown()]}

    def shown(self) -> list[Listed]:
        """The devices that have a slider."""
        wanted = self.values["share_devices"]
        for rank in range(len(self.listed), wanted):
            self.listed.append(Listed(f"device {rank}", Worker().speed))
        return self.listed[:wanted]

    def config_of(self, kind: type[C]) -> C:
        """What a config's fields are set to.

        Raises:
            ConfigError: the settings do not go together, or one of them is refused.
        """
        if self.refused:
            raise self.refused
        return kind(**self.fields_of(kind))

    def uneven(self) -> tuple[UnevenConfig, list[str]]:
        """The unequal devices that take part, and their labels.

        Raises:
            ConfigError: there are none, or a setting is refused.
        """
        if self.refused:
            raise self.refused
        used = [each for each in self.shown() if each.used]
        if not used:
            allowed = "at least one; all of them are left out"
            raise refusal("uneven: devices", 0, allowed, "to let one take part again")
        workers = tuple(Worker(speed=each.speed, fixed_ms=each.fixed_ms) for each in used)
        config = UnevenConfig(batch_size=self.values["share_batch"], workers=workers)
        return config, [each.label for each in used]


def open_scaling() -> ScalingDraft:
    """The session's settings."""
    return open_draft(FORM, _parse)


def _parse(query: Query) -> ScalingDraft:
    values, problems = values_of(query, SETTINGS, others=("worker",))
    texts = query.get("worker", [])
    listed = []
    for rank, text in enumerate(texts[:MOST]):
        try:
            listed.append(parse_listed(text, rank))
        except ConfigError as error:
            problems.append(f"{error} That device is as by default.")
            listed.append(Listed(f"device {rank}", Worker().speed))
    if len(texts) > MOST:
        problems.append(f"At most {MOST} devices have sliders; the link has {len(texts)}.")
    return ScalingDraft(values, problems, listed=listed or _three())


def _change(values: dict[str, object], listed: Sequence[Listed] | None = None) -> None:
    """Other values in place of some of the session's; its widgets take them."""
    kept: ScalingDraft = st.session_state[f"draft:{FORM}"]
    keep_draft(FORM, ScalingDraft(kept.values | values, listed=list(listed or kept.listed)))


def show_preset(name: str) -> None:
    """Make one of `PRESETS` what is asked; for a button's `on_click`."""
    config = PRESETS[name][1]
    _change({each.name: getattr(config, each.name) for each in fields(config)})


def show_uneven(name: str) -> None:
    """Make one of `UNEVEN_PRESETS` the devices; for a button's `on_click`."""
    settings, make = UNEVEN_PRESETS[name]
    listed = make()
    _change({**settings, "share_devices": len(listed)}, listed)


def use_measured(model: str, fixed: float, speed: float) -> None:
    """Let the devices compute as was measured here, in seconds and images per second."""
    figures = {"fixed_ms": float(f"{fixed * 1e3:.4g}"), "speed": float(f"{speed:.4g}")}
    _change({"model": model, "device": "measured", **figures})


def show_exercise(name: str) -> None:
    """Turn to an exercise; for a button's `on_click`."""
    _change({"exercise": name})


def _row(draft: ScalingDraft, *names: str) -> None:
    for column, name in zip(st.columns(4), names, strict=False):
        with column:
            setting_widget(draft, ScalingConfig, name)


def what_if_widgets(draft: ScalingDraft) -> None:
    """Model, devices, growth and links; what a listed device or link decides is not asked."""
    st.subheader("Work and devices")
    with st.container(horizontal=True):
        setting_widget(draft, ScalingConfig, "model")
        setting_widget(draft, ScalingConfig, "device")
    if draft.values["device"] not in GPUS:
        _row(draft, "fixed_ms", "speed")
    with st.container(horizontal=True):
        setting_widget(draft, ScalingConfig, "growth")
        setting_widget(draft, ScalingConfig, "overlap")
    _row(draft, "devices", "batch_size", "images")
    st.subheader("Links and allreduce")
    setting_widget(draft, ScalingConfig, "algorithm")
    _row(draft, "inside", "between", "per_machine")
    for where in ("inside", "between"):
        _link(draft, where)
    if draft.values["overlap"] == "on":
        _row(draft, "first_bucket", "bucket")


def _link(draft: ScalingDraft, where: str) -> None:
    """Figures and source of a listed link, or fields for those of another one."""
    link = LINKS.get(draft.values[where])
    if link is None:
        _row(draft, f"{where}_latency", f"{where}_bandwidth")
        return
    words = f"{link.label}: {link.alpha * 1e6:g} µs, {link.bandwidth / 1e9:.4g} GB/s each way."
    st.caption(f"{where.capitalize()}: {words} Source: {plain(link.source)}")
