"""Devices of unequal speed on the Scaling page: equal and best shares, who waits, a real run."""

from collections.abc import Mapping, Sequence

import streamlit as st

from labcore.calibration import MeasureConfig
from labcore.config import ConfigError
from labcore.exercises import ONE_MACHINE
from labcore.models import MODELS, gradient_bytes
from labcore.scaling_charts import sharing_columns, sharing_spec
from labcore.timed_steps import Compared, SlowedConfig
from labcore.uneven import (
    Sharing,
    UnevenConfig,
    Worker,
    best_sharing,
    equal_sharing,
    slowest_helps,
    sum_up,
)
from labcore.units import in_seconds
from labui import scaling_form
from labui.draft import accepted, setting_widget
from labui.exports import chart_exports
from labui.page import ink, plain
from labui.scaling_form import UNEVEN_PRESETS, ScalingDraft, show_uneven
from labui.trial_panel import SLOWED, Trial, start_trial, trial_panel

SHOWN = "uneven:shown"


def draw_uneven(draft: ScalingDraft) -> None:
    """The shares first; below them the devices, and the run that puts them to the test."""
    figure = st.container()
    _widgets(draft)
    try:
        st.session_state[SHOWN] = (*draft.uneven(), draft.values["share_model"])
    except ConfigError as error:
        figure.error(plain(str(error)))
    if SHOWN in st.session_state:
        with figure:
            _draw(*st.session_state[SHOWN])
        _run_here(*st.session_state[SHOWN])


def _draw(config: UnevenConfig, labels: Sequence[str], model: str) -> None:
    """Both sharings as bars, in a sentence and as a table."""
    sharings = {
        "equal": equal_sharing(config.batch_size, config.devices),
        "best": best_sharing(config.batch_size, config.devices),
    }
    st.markdown(plain(sum_up(config)))
    columns = sharing_columns(sharings, labels)
    slowest = max(each.last for each in sharings.values())
    bars = 2 * len(labels)
    left, right = st.columns([13, 7])
    with left:
        st.vega_lite_chart(columns, sharing_spec(bars, slowest, "modelled", ink()), key="shares")
    with right:
        _slowest(config, labels, model)
        with st.container(horizontal=True):
            for name in UNEVEN_PRESETS:
                st.button(name, on_click=show_uneven, args=(name,), help="Show this example.")
    _table(sharings, labels, "modelled")
    spec = sharing_spec(bars, slowest, "modelled")
    chart_exports("uneven", {"modelled shares": lambda: (spec, columns)})


def _slowest(config: UnevenConfig, labels: Sequence[str], model: str) -> None:
    """Whether the slowest device should take part; of equals the last."""
    verdict = slowest_helps(config, ONE_MACHINE, gradient_bytes(model))
    if verdict is None:
        st.markdown("A single device shares with nobody, and waits for nobody.")
        return
    speeds = [worker.speed for worker in config.workers]
    label = labels[len(speeds) - 1 - speeds[::-1].index(min(speeds))]
    st.markdown(
        f"**Does {plain(label)} pay?** {plain(str(verdict))} Modelled, with the gradients "
        f"of {MODELS[model].label} in a ring over PCIe 3.0."
    )


def _table(sharings: Mapping[str, Sharing], labels: Sequence[str], origin: str) -> None:
    with st.expander(f"The bars as a table, {origin}", icon=":material/table:"):
        st.dataframe(_rows(sharings, labels, origin), hide_index=True)


def _rows(
    sharings: Mapping[str, Sharing], labels: Sequence[str], origin: str
) -> list[dict[str, object]]:
    """The bars as a table."""
    return [
        {
            "shares": name,
            "device": label,
            "images": own,
            f"works, {origin}": in_seconds(works),
            f"waits, {origin}": in_seconds(waits),
        }
        for name, each in sharings.items()
        for label, own, works, waits in zip(
            labels, each.rows, each.seconds, each.waiting, strict=True
        )
    ]


def _widgets(draft: ScalingDraft) -> None:
    """What is shared, and a line for each device: whether it takes part, how fast, at what cost."""
    st.subheader("Devices")
    setting_widget(draft, scaling_form.Sharing, "share_model")
    for column, name in zip(st.columns(4), ("share_batch", "share_devices"), strict=False):
        with column:
            setting_widget(draft, scaling_form.Sharing, name)
    for rank, each in enumerate(draft.shown()):
        key = f"{draft.number}:{rank}"
        part, slider, cost = st.columns([2, 5, 3], vertical_alignment="center")
        each.used = part.toggle(
            plain(each.label),
            each.used,
            key=f"used:{key}",
            help="Off: it gets no images and has no part in the allreduce.",
        )
        each.speed = slider.select_slider(
            f"Speed of {plain(each.label)} (images/s)",
            draft.stops,
            each.speed,
            format_func=lambda images: f"{images:,.6g}",
            key=f"speed:{key}",
            help="Images per second, forward and backward, beyond the fixed cost.",
        )
        with cost:
            each.fixed_ms = accepted(draft, Worker, "fixed_ms", f"fixed:{key}", each.fixed_ms)


# --- for real -------------------------------------------------------------------------------------


def _run_here(config: UnevenConfig, labels: Sequence[str], model: str) -> None:
    """The same on logical replicas, slowed as much: predicted beside measured."""
    st.subheader("Run it here")
    fastest = max(worker.speed for worker in config.workers)
    factors = tuple(fastest / worker.speed for worker in config.workers)
    slowed = None
    try:
        slowed = SlowedConfig(model=model, batch_size=config.batch_size, factors=factors)
    except ConfigError as error:
        st.info(f"These devices cannot be run here. {plain(str(error))}")
    st.caption(
        f"Trains {MODELS[model].label} on {len(factors)} logical replicas of this machine, each "
        "slowed by as much as its device is slower than the fastest; fixed costs are those of this "
        "machine. Its speed is measured first; what that predicts then stands beside what is "
        "measured."
    )

    trial_panel(
        SLOWED,
        "Run it",
        "Measures this machine, then trains twice ten steps: with equal and with best shares.",
        lambda: start_trial(SLOWED, MeasureConfig(model=model), slowed),
        _compared,
        ready=slowed is not None,
    )


def _compared(trial: Trial) -> None:
    if trial.compared is None or trial.slowed is None:
        return
    each, factors = trial.compared, trial.slowed.factors
    labels = [
        f"replica {rank}" + f", {factor:.3g} × the time" * (factor > 1)
        for rank, factor in enumerate(factors)
    ]
    slowest = max(s.last for part in (each.predicted, each.measured) for s in part.values())
    for column, (origin, part) in zip(
        st.columns(2),
        (("predicted from the speed here", each.predicted), ("measured here", each.measured)),
        strict=True,
    ):
        with column:
            st.markdown(f"**{origin[0].upper()}{origin[1:]}**")
            spec = sharing_spec(2 * len(labels), slowest, origin, ink())
            st.vega_lite_chart(sharing_columns(part, labels), spec, key=f"shares {origin}")
            _table(part, labels, origin)
    st.markdown(plain(_verdict(each, trial.slowed)))


def _verdict(each: Compared, config: SlowedConfig) -> str:
    words = []
    for name, predicted in each.predicted.items():
        # Plus zero, or nothing would be less than nothing.
        off = round(each.error(name), 2) + 0.0
        words.append(
            f"With {name} shares a step was predicted to take {in_seconds(predicted.last)} and "
            f"took {in_seconds(each.last[name])}, measured ({off:+.0%})."
        )
    gain = each.last["equal"] / each.last["best"]
    why = "batch norm sees other shards" if "resnet" in config.model else "rounding"
    return (
        f"{MODELS[config.model].label}, batch {config.batch_size:,}. {' '.join(words)} Measured, "
        f"best shares are {gain:.3g} times as fast, and the parameters at the end differ by "
        f"{each.difference:.1g} at most: {why}. Bars are medians of each replica's own times; "
        "a step lasts as long as its slowest replica, which on a busy machine is now this one, now "
        "that one."
    )
