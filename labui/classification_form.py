"""A classification run as the user edits it: presets, settings, and how long it will take."""

import random
from dataclasses import dataclass, replace
from typing import Any

import streamlit as st
import torch

from labcore.calibration import calibrate, estimate
from labcore.classification import ClassificationConfig, check_machine
from labcore.config import Config, ConfigError, choice, ruled_fields
from labcore.datasets.errors import DataError
from labcore.datasets.fashion_mnist import FashionMNIST
from labcore.jobs import pool
from labcore.links import Query
from labcore.models import MODELS, has_batch_norm
from labcore.places import MOST_PROCESSES
from labcore.reported import FASHION_MNIST_RUNS, ReportedRun
from labui.draft import Draft, keep_draft, numbers, open_draft, setting_widget, values_of

FORM = "classify"

Refusal = ConfigError | DataError

CHOICES = (
    ("model",),
    ("initialisation", "scaling"),
    ("split", "allreduce", "equivalence"),
    ("engine", "batch_norm"),
)
NUMBERS = (
    ("replicas", "batch_size", "lr", "momentum"),
    ("images", "epochs", "warmup_epochs", "seed"),
)
"""The settings as they stand on the page, row by row."""

ENGINE_WORDS = {
    "logical": "One process does the work of all devices in turn.",
    "processes": "Each device is a process, which takes seconds to start. "
    f"At most {MOST_PROCESSES} run on this machine at once, of all who use it; others wait.",
    "dataparallel": "nn.DataParallel works on GPUs only: on a CPU it would run a single copy and "
    "not say so.",
}


@dataclass(frozen=True, kw_only=True)
class Detail(Config):
    """What of a run is shown below its curves."""

    name = "view"

    detail: str = choice(
        "look at",
        "replicas",
        {
            "replicas": "Replicas",
            "time": "Where the time goes",
            "learnt": "What it learnt",
            "numbers": "The numbers",
            "runs": "All runs",
        },
        help="Every replica's share of the last step; the time by phase; mistakes, accuracy per "
        "class and filters; the curves as tables; all runs of this session, to compare.",
    )


@dataclass(frozen=True)
class Preset:
    """Settings under a name, with a word on what to expect."""

    label: str
    settings: dict[str, Any]
    help: str


CLASSROOM = (
    Preset(
        "LeNet, a minute",
        {"model": "lenet", "initialisation": "he", "epochs": 20},
        "LeNet on 4 devices and 6,000 images: learns from the first epoch.",
    ),
    Preset(
        "ResNet, quarter width",
        {"model": "resnet18_quarter", "initialisation": "he", "replicas": 2, "epochs": 5},
        "A residual network small enough to watch on a CPU.",
    ),
    Preset(
        "ResNet-18, some minutes",
        {
            "model": "resnet18",
            "initialisation": "he",
            "replicas": 2,
            "images": 3_000,
            "batch_size": 32,
            "epochs": 3,
        },
        "The full ResNet-18 on half of the sample.",
    ),
    Preset(
        "Why the notes' start is slow",
        {"model": "lenet", "initialisation": "normal", "batch_size": 256, "lr": 0.2, "epochs": 4},
        "LeNet as in the notes, but on 6,000 images: still at chance when it ends.",
    ),
)


def preset_of(run: ReportedRun) -> Preset:
    """The notes' settings of a run that they report."""
    model = MODELS[run.model].label
    settings = {
        "model": run.model,
        "initialisation": "normal",
        "replicas": run.devices,
        "batch_size": run.batch_size,
        "lr": run.lr,
        "images": 60_000,
        "epochs": 10,
    }
    return Preset(
        f"{model} · {run.devices} GPU{'s' * (run.devices > 1)} · {run.batch_size:,}",
        settings,
        f"The notes report test accuracy {run.accuracy:.2f} at {run.seconds_per_epoch} s/epoch. "
        "It trains on all 60,000 images.",
    )


def reported_for(config: ClassificationConfig) -> ReportedRun | None:
    """What the notes report for these settings, None where they report nothing."""
    for run in FASHION_MNIST_RUNS:
        settings = preset_of(run).settings
        same_batch = settings.pop("batch_size") == config.global_batch
        same_lr = abs(settings.pop("lr") - config.global_lr) < 1e-9
        plain = config.momentum == 0 and config.warmup_epochs == 0
        if (
            plain
            and same_batch
            and same_lr
            and all(getattr(config, n) == v for n, v in settings.items())
        ):
            return run
    return None


def open_classification() -> Draft:
    """The session's run in the making."""
    return open_draft(FORM, _parse)


def _parse(query: Query) -> Draft:
    return Draft(*values_of(query, (ClassificationConfig, Detail)))


def classification(
    draft: Draft, data: FashionMNIST
) -> tuple[ClassificationConfig | None, Refusal | None]:
    """The run that a draft describes, None if it describes none, and why it cannot start."""
    try:
        config = ClassificationConfig(**draft.fields_of(ClassificationConfig))
    except ConfigError as error:
        return None, error
    try:
        check_machine(config)
        if config.images > len(data.train_labels):
            data.train_rows(config.images)  # says what there is and how to get more
    except (ConfigError, DataError) as error:
        return config, error
    return config, draft.refused


def show_preset(preset: Preset) -> None:
    """Bring in a preset's settings; the others take their defaults. For a button's `on_click`."""
    kept: Draft = st.session_state[f"draft:{FORM}"]
    defaults = {each.name: rule.default for each, rule in ruled_fields(ClassificationConfig)}
    keep_draft(FORM, Draft(kept.values | defaults | preset.settings))


def show_new_seed() -> None:
    """Draw another seed."""
    kept: Draft = st.session_state[f"draft:{FORM}"]
    values = kept.values | {"seed": random.randrange(10_000)}
    keep_draft(FORM, replace(kept, values=values, number=next(numbers)))


def preset_buttons() -> None:
    """Classroom settings, and the rows of the notes' tables."""
    st.caption("Classroom settings, for a laptop's CPU")
    with st.container(horizontal=True):
        for preset in CLASSROOM:
            _preset_button(preset)
    with st.expander("The notes' settings, row by row of their tables"):
        st.caption("Made for GPUs: on a CPU the residual networks take hours. See the estimate.")
        with st.container(horizontal=True):
            for run in FASHION_MNIST_RUNS:
                _preset_button(preset_of(run))


def _preset_button(preset: Preset) -> None:
    st.button(
        preset.label,
        key=f"preset:{preset.label}",
        help=preset.help,
        on_click=show_preset,
        args=(preset,),
    )


def settings_widgets(draft: Draft) -> None:
    """Every setting of the run."""
    for choices in CHOICES:
        with st.container(horizontal=True):
            for name in choices:
                useless = name == "batch_norm" and _batch_norm_is_settled(draft)
                setting_widget(draft, ClassificationConfig, name, disabled=useless)
        if "engine" in choices:
            st.caption(_engine_words(draft))
    for row in NUMBERS:
        for column, name in zip(st.columns(4), row, strict=False):
            with column:
                setting_widget(draft, ClassificationConfig, name)


def _batch_norm_is_settled(draft: Draft) -> bool:
    """Whether batch norm has no other setting here; one that a link brings can be taken back."""
    return draft.values["batch_norm"] == "local" and _why_local(draft) is not None


def _why_local(draft: Draft) -> str | None:
    """Why batch norm can only average over each shard, None if it can do otherwise."""
    if not has_batch_norm(draft.values["model"]):
        return f"{MODELS[draft.values['model']].label} has no batch norm."
    if torch.cuda.device_count() == 0:
        return "Batch norm over the whole minibatch needs a GPU."
    if draft.values["engine"] != "processes":
        return "Batch norm over the whole minibatch needs a process per device."
    return None


def _engine_words(draft: Draft) -> str:
    """What the engine that is chosen is about, and why there is no choice for batch norm."""
    words = ENGINE_WORDS[draft.values["engine"]]
    return " ".join(filter(None, [words, _why_local(draft)]))


def estimate_in_words(config: ClassificationConfig) -> str:
    """How long the run will take on this machine, from a short trial of the model."""
    seconds = estimate(config, calibrate(config.model, pool().cores))
    words = f"about {in_words(seconds)} on this machine, as busy as it was when it was tried"
    if config.engine == "processes":
        return f"{words}, if logical replicas run them; processes share the work, but start slowly"
    return words


def in_words(seconds: float) -> str:
    """A duration in the unit that suits it."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
