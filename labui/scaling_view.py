"""What the Scaling page shows of like devices: one step's time, the curves, a sentence."""

from collections.abc import Sequence

import streamlit as st

from labcore.calibration import MeasureConfig
from labcore.config import ConfigError
from labcore.hardware import GPUS
from labcore.models import MODELS
from labcore.scaling import Point, StepTime, curve, half_used, summary, sweet_spot
from labcore.scaling_charts import speed_columns, speed_spec, step_columns, step_spec
from labcore.scaling_config import PRESETS, ScalingConfig
from labcore.units import in_seconds
from labui.exports import chart_exports
from labui.page import ink, plain
from labui.scaling_form import (
    ScalingDraft,
    show_preset,
    use_measured,
    what_if_widgets,
)
from labui.trial_panel import MEASURE, Trial, start_trial, trial_panel

SHOWN = "scaling:shown"
CUSTOM = (
    "All times are modelled: a fixed cost, forward and backward pass over the fullest device's "
    "images, and what is left of the allreduce when they are done."
)


def draw_what_if(draft: ScalingDraft) -> None:
    """The picture first; below it what it is asked, and a measurement of this machine."""
    figure = st.container()
    what_if_widgets(draft)
    try:
        config = draft.config_of(ScalingConfig)
        st.session_state[SHOWN] = (config, points_of(config))
    except ConfigError as error:
        figure.error(plain(str(error)))
    if SHOWN in st.session_state:
        with figure:
            _draw(*st.session_state[SHOWN])
    _measure_here(draft)


@st.cache_data(max_entries=64, show_spinner=False)
def points_of(config: ScalingConfig) -> list[Point]:
    """The curves of a config, once for all who ask the same."""
    return curve(config)


def _draw(config: ScalingConfig, points: Sequence[Point]) -> None:
    st.markdown(plain(summary(config, points)))
    left, right = st.columns(2)
    with left:
        st.vega_lite_chart(step_columns(points, config.devices), step_spec(), key="step")
        with st.container(horizontal=True):
            for name, (text, _) in PRESETS.items():
                st.button(name, on_click=show_preset, args=(name,), help=text)
        st.caption(_why(config))
    most = max(2, points[-1].step.devices)
    columns = speed_columns(points, config.devices)
    with right:
        for name in ("speed_up", "efficiency"):
            st.vega_lite_chart(columns, speed_spec(name, most, ink()), key=f"curve {name}")
    _sweet(config, points)
    _table(points)
    chart_exports(
        "scaling",
        {
            "modelled step": lambda: (step_spec(), step_columns(points, config.devices)),
            "speed-up": lambda: (speed_spec("speed_up", most), columns),
            "efficiency": lambda: (speed_spec("efficiency", most), columns),
        },
    )


def _why(config: ScalingConfig) -> str:
    """What an example shows, where it is one; else what the picture consists of."""
    return next((text for text, preset in PRESETS.values() if preset == config), CUSTOM)


def _sweet(config: ScalingConfig, points: Sequence[Point]) -> None:
    """Where more devices stop paying, in figures, all modelled."""
    best, half = sweet_spot(points), half_used(points)
    here = next(point for point in points if point.step.devices == config.devices)
    figures = {
        "devices for most images/s, modelled": f"{best.step.devices:,}",
        "devices at least half used, modelled": f"up to {half.step.devices:,}",
        f"epoch on {config.devices:,}, modelled": in_seconds(here.seconds_per_epoch),
        "allreduce hidden, modelled": _hidden(here.step),
    }
    for column, (label, value) in zip(st.columns(4), figures.items(), strict=True):
        column.metric(label, value)
    gpu = GPUS.get(config.device)
    speed = (
        f"{gpu.label}: {gpu.utilisation:.0%} of its peak. Source: {gpu.source}"
        if gpu
        else f"The {config.device_words}: {config.computing.speed:,.4g} images/s"
    )
    st.caption(
        f"{plain(speed)}. Amdahl's law takes the fixed cost as what cannot be shared, Gustafson's "
        "lets the rest grow with the devices; neither knows of the allreduce."
    )


def _hidden(step: StepTime) -> str:
    """Which part of the allreduce the backward pass covers."""
    return f"{step.hidden / step.allreduce:.0%}" if step.allreduce else "there is none"


def _table(points: Sequence[Point]) -> None:
    """The curves as numbers."""
    with st.expander("The curves as a table, modelled", icon=":material/table:"):
        st.dataframe(
            {
                "devices": [point.step.devices for point in points],
                "images per device": [point.step.rows for point in points],
                "step": [in_seconds(point.step.seconds) for point in points],
                "waiting for the allreduce": [in_seconds(point.step.exposed) for point in points],
                "images/s": [round(point.images_per_second) for point in points],
                "epoch": [in_seconds(point.seconds_per_epoch) for point in points],
                "speed-up": [round(point.speed_up, 3) for point in points],
                "efficiency": [f"{point.efficiency:.0%}" for point in points],
            },
            hide_index=True,
        )


# --- this machine ---------------------------------------------------------------------------------


def _measure_here(draft: ScalingDraft) -> None:
    """A trial of the model on this machine, whose figures may take a listed GPU's place."""
    st.subheader("Measure this machine")
    config = MeasureConfig(model=draft.values["model"])
    st.caption(
        f"Times {2 * config.repeats} steps of {MODELS[config.model].label} here, with "
        f"{config.small} and {config.large} images in turn."
    )
    trial_panel(
        MEASURE,
        "Measure here",
        "Fixed cost and speed of one replica on this machine, as busy as it is.",
        lambda: start_trial(MEASURE, config),
        _measured,
    )


def _measured(trial: Trial) -> None:
    if trial.measured is None:
        return
    each = trial.measured
    fixed, speeds = each.fixed_range, each.speed_range
    st.markdown(
        f"Measured here, {MODELS[trial.config.model].label}: fixed cost "
        f"**{in_seconds(each.device.fixed)}** ({in_seconds(fixed[0])} to {in_seconds(fixed[1])}), "
        f"**{each.device.speed:,.0f} images/s** ({speeds[0]:,.0f} to {speeds[1]:,.0f})."
    )
    if st.button(
        "Use it for the picture",
        help="The devices above compute as this machine does; links stay modelled.",
    ):
        use_measured(trial.config.model, each.device.fixed, each.device.speed)
        # The whole page, of which this is a part that runs on its own.
        st.rerun()
