"""A classification run as figures: progress, curves, and one of several details below them."""

from collections.abc import Callable
from typing import Any

import streamlit as st
from torch import Tensor

from labcore import classification_charts as charts
from labcore.classification import ClassificationConfig
from labcore.classification_history import ClassificationHistory
from labcore.datasets.fashion_mnist import CLASSES, FashionMNIST
from labcore.events import (
    Diverged,
    ImagesTested,
    Learnt,
    MinibatchTrained,
    ProcessesAwaited,
    ShardDone,
)
from labcore.jobs import Job
from labcore.models import has_batch_norm
from labcore.replicas import PHASES, place
from labui.classification_form import FORM, Detail, in_words, reported_for
from labui.draft import Draft, setting_widget, write_query
from labui.exports import classification_exports
from labui.page import plain
from labui.process_run import resumable, waiting_words
from labui.run_list import Run, run_table
from labui.run_panel import status

_WHY_RESNETS_DIFFER = (
    "Not zero, and rightly so: batch norm averages over each replica's own shard, so k replicas of "
    "a residual network do not compute what one device would."
)
_TAKE_TURNS = (
    "Logical replicas share this CPU and take turns: they do the arithmetic of k devices, so "
    "the sums, the splits and the equality are real, but forward and backward do not get "
    "faster. What k GPUs would gain, and what their allreduce over real links would cost, "
    "cannot be seen here. Pin runs with other numbers of devices to compare."
)
_SIDE_BY_SIDE = (
    "Processes run side by side, as far as there are cores for them; these are the times of rank "
    "0's, those of all are under Replicas. The gradients are summed while the backward pass goes "
    "on: the allreduce is what that takes beyond it, the wait for slower processes included."
)
_WHY_SUMS_DIFFER = (
    "The same sums in another order: they differ by rounding, at first in the eighth digit. Where "
    "rounding makes a ReLU open that was shut, the difference grows from there; in exact "
    "arithmetic it would be zero."
)
GALLERY = 24
IMAGE_WIDTH = 84


def draw_run(
    job: Job[ClassificationHistory] | None,
    config: ClassificationConfig | None,
    runs: list[Run],
    data: FashionMNIST,
    draft: Draft,
) -> None:
    """Draw the session's run as it stands, the pinned runs beside it.

    Args:
        job: the run, None before the first start.
        config: the run that the form describes, None if it describes none.
        runs: all runs of the session.
        data: the images.
        draft: the form, which also says what to show below the curves.
    """
    name = "next run"
    if job is None:
        history = ClassificationHistory(config or ClassificationConfig(), data.source)
    else:
        with job.reading() as reading:
            history = reading.copy()
        name = next((run.name for run in runs if run.history is reading), "this run")
    over = job is not None and not job.live
    status(job, *_progress(history, over))
    pinned = {run.name: run.history for run in runs if run.pinned and run.name != name}
    shown = {name: history} | pinned
    _curves(history, shown)
    st.caption(_sentence(history, changed=job is not None and history.config != config))
    if job is not None and job.error:
        st.error(plain(job.error))
    _kept(history, over)
    setting_widget(draft, Detail, "detail")
    write_query(FORM, draft)
    details: dict[str, Callable[[], None]] = {
        "replicas": lambda: _replicas(history),
        "time": lambda: _time(shown),
        "learnt": lambda: _learnt(history, data),
        "numbers": lambda: _numbers(history),
        "runs": lambda: run_table(runs),
    }
    details[draft.values["detail"]]()
    if history.started:
        classification_exports(history)


def _progress(history: ClassificationHistory, over: bool) -> tuple[float, str]:
    """Share that is done, and where the run is in words, or was when it ended."""
    if history.started is None:
        return (0.0, "before its first step") if over else _start_up(history.starting)
    taken = history.taken
    step, epochs = (taken.step, taken.epochs) if taken else (0, 0.0)
    words = [
        f"epoch {epochs:.2f} of {history.config.epochs}",
        f"step {step:,} of {history.started.steps:,}",
    ]
    match None if over else history.within:
        case ShardDone(phase, rank, world_size):
            words.append(f"{phase} on device {rank + 1} of {world_size}")
        case ImagesTested(done, images):
            words.append(f"tested {done:,} of {images:,}")
    if not over and history.outcome is None and history.seconds_left is not None:
        words.append(f"{in_words(history.seconds_left)} of training left")
    if history.images_per_second:
        words.append(f"{history.images_per_second:,.0f} images/s")
    return step / history.started.steps, " · ".join(words)


def _start_up(starting: ProcessesAwaited | None) -> tuple[float, str]:
    if starting is None:
        return 0.0, ""
    if starting.missing:
        return 0.0, waiting_words(starting.missing)
    count = starting.world_size
    words = f"starting {count} process{'es' * (count > 1)}: {starting.ready} of {count} ready"
    return starting.ready / count, f"{words}, {starting.seconds:.0f} s"


def _curves(history: ClassificationHistory, shown: dict[str, ClassificationHistory]) -> None:
    names = tuple(shown)
    epochs = max(each.config.epochs for each in shown.values())
    reported = reported_for(history.config)
    left, right = st.columns(2)
    left.vega_lite_chart(
        charts.loss_columns(shown), charts.loss_spec(names, epochs), key="loss chart"
    )
    right.vega_lite_chart(
        charts.accuracy_columns(shown, reported),
        charts.accuracy_spec(names, epochs, reported is not None),
        key="accuracy chart",
    )


def _sentence(history: ClassificationHistory, *, changed: bool) -> str:
    config = history.config
    words = [f"{_placement(config)}."]
    if isinstance(history.outcome, Diverged):
        words.insert(0, f"**{history.outcome}**")
    elif history.outcome:
        summary = str(history.outcome)
        words = [f"**{summary[0].upper()}{summary[1:]}.**"]
    words.append(f"Images: {history.source}.")
    if reported := reported_for(config):
        words.append(
            f"Dotted: the notes report {reported.accuracy:.2f} at "
            f"{reported.seconds_per_epoch} s/epoch."
        )
    if changed:
        words.append("The settings below have changed: they count from the next start.")
    return " ".join(words)


def _placement(config: ClassificationConfig) -> str:
    count = config.replicas
    if config.engine == "logical":
        return place(count).words
    if config.engine == "dataparallel":
        return f"{count} GPU{'s' * (count > 1)} of this machine, if it has them"
    return f"{count} process{'es' * (count > 1)} on this machine, one per replica"


def _kept(history: ClassificationHistory, over: bool) -> None:
    """From which step the run went on, and where it was last written down, or why not."""
    if history.resumed is not None:
        st.caption(f"Resumed after step {history.resumed:,}.")
    if over and resumable() is not None:
        # What it writes at its very end is no longer reported.
        st.caption("It is kept as it was written down last, for as long as this session lasts.")
    elif kept := history.checkpoint:
        (st.caption if kept.problem is None else st.warning)(plain(str(kept)))


def _replicas(history: ClassificationHistory) -> None:
    """Every replica's share of the last step, and whether they are still equal."""
    step = history.latest
    devices = [str(device) for device in place(history.config.replicas).devices]
    missing: list[float | None] = [None] * len(devices)
    four = st.column_config.NumberColumn(format="%.4f")
    st.dataframe(
        {
            "rank": list(range(len(devices))),
            "device": devices,
            "rows": list(step.rows) if step else missing,
            "mean loss": list(step.losses) if step else missing,
            "gradient norm before": list(step.norms) if step else missing,
            "after the allreduce": [step.norm] * len(devices) if step else missing,
            **_milliseconds(step),
        },
        column_config=dict.fromkeys(
            ("mean loss", "gradient norm before", "after the allreduce"), four
        )
        | dict.fromkeys(map(_in_ms, PHASES), st.column_config.NumberColumn(format="%.1f")),
        hide_index=True,
        width="stretch",
    )
    if step is None:
        return
    equal = "bitwise equal" if step.drift == 0 else "they should be equal"
    st.markdown(f"Largest difference between replicas: **{step.drift:g}** ({equal}).")
    if step.difference is not None:
        st.markdown(f"Largest difference to the same run on one device: **{step.difference:.2g}**.")
        if history.config.replicas > 1:
            config = history.config
            own = has_batch_norm(config.model) and config.batch_norm == "local"
            st.info(_WHY_RESNETS_DIFFER if own else _WHY_SUMS_DIFFER)


def _milliseconds(step: MinibatchTrained | None) -> dict[str, list[float]]:
    """A column per phase with the time of every process; none where replicas share one."""
    if step is None or not step.rank_phases:
        return {}
    return {
        _in_ms(phase): [1000 * phases[phase] for phases in step.rank_phases] for phase in PHASES
    }


def _in_ms(phase: str) -> str:
    return f"{phase}, ms"


def _time(shown: dict[str, ClassificationHistory]) -> None:
    """A mean step by phase, one bar per run."""
    st.vega_lite_chart(charts.phase_columns(shown), charts.phase_spec(), key="time chart")
    engines = {each.config.engine for each in shown.values()}
    if "logical" in engines:
        st.caption(_TAKE_TURNS)
    if "processes" in engines:
        st.caption(_SIDE_BY_SIDE)


def _numbers(history: ClassificationHistory) -> None:
    """The curves as tables."""
    left, right = st.columns(2)
    steps = list(history.minibatches)
    left.dataframe(
        {
            "step": [each.step for each in steps],
            "epochs": [each.epochs for each in steps],
            "training loss": [each.loss for each in steps],
        },
        hide_index=True,
    )
    right.dataframe(
        {
            "epoch": [each.epoch for each in history.epochs],
            "test accuracy": [each.accuracy for each in history.epochs],
            "s/epoch": [each.seconds_per_epoch for each in history.epochs],
        },
        hide_index=True,
    )


def _learnt(history: ClassificationHistory, data: FashionMNIST) -> None:
    """Confusion matrix, accuracy per class, wrong images first, filters."""
    learnt = history.learnt
    if learnt is None or not history.epochs:
        st.caption("After the first epoch: what it gets right and wrong.")
        return
    evaluated = history.epochs[-1]
    left, right = st.columns([3, 2])
    left.vega_lite_chart(
        charts.confusion_columns(evaluated.confusion), charts.confusion_spec(), key="confusion"
    )
    percent = st.column_config.ProgressColumn(format="percent", min_value=0, max_value=1)
    right.dataframe(
        {"class": list(CLASSES), "accuracy": list(evaluated.class_accuracies)},
        column_config={"accuracy": percent},
        hide_index=True,
    )
    _gallery(learnt, data)
    st.markdown("**Filters of the first convolution**")
    with st.container(horizontal=True):
        for each in learnt.filters:
            st.image(_as_image(each), width=54)


def _gallery(learnt: Learnt, data: FashionMNIST) -> None:
    """Test images with prediction and probability, the surest mistakes first."""
    labels = data.test_labels[learnt.images]
    sure, predicted = learnt.probabilities.max(dim=1)
    wrong = predicted != labels
    order = (wrong.float() + sure / 2).argsort(descending=True)[:GALLERY]
    st.markdown(f"**Wrong first** ({int(wrong.sum()):,} of {len(labels):,} test images are wrong)")
    st.image(
        [(255 - data.test_images[learnt.images[i]]).numpy() for i in order],
        caption=[
            f"{'✗' if wrong[i] else '✓'} {CLASSES[predicted[i]]} {sure[i]:.0%}"
            + (f", is {CLASSES[labels[i]]}" if wrong[i] else "")
            for i in order
        ],
        width=IMAGE_WIDTH,
    )


def _as_image(weights: Tensor) -> Any:
    """A filter as grey squares: its smallest weight black, its largest white."""
    low, high = weights.min(), weights.max()
    grey = (weights - low) / (high - low).clamp_min(1e-12) * 255
    return grey.byte().repeat_interleave(18, 0).repeat_interleave(18, 1).numpy()
