"""Charts of classification runs: rows that say what was computed, axes that stand still."""

import math
from dataclasses import replace
from typing import Any

import altair as alt
import pytest

from labcore.charts import FONT_SIZE, Columns
from labcore.classification import ClassificationConfig, train_classifier
from labcore.classification_charts import (
    CHANCE,
    HERE,
    NOTES,
    accuracy_columns,
    accuracy_spec,
    confusion_columns,
    confusion_spec,
    loss_columns,
    loss_spec,
    phase_columns,
    phase_spec,
    seeds_columns,
    seeds_spec,
)
from labcore.classification_history import ClassificationHistory
from labcore.datasets.fashion_mnist import CLASSES
from labcore.events import Diverged
from labcore.replicas import PHASES
from labcore.reported import FASHION_MNIST_RUNS
from labcore.seeds import SeedEvaluated, SeedsConfig, SeedsHistory

CONFIG = ClassificationConfig(images=100, batch_size=10, replicas=2, epochs=3)
NAMES = ("#1 LeNet, k=2", "#2 LeNet, k=1")
Runs = dict[str, ClassificationHistory]

SPECS = {
    "loss": loss_spec(NAMES, 3),
    "accuracy": accuracy_spec(NAMES, 3, False),
    "accuracy with reported": accuracy_spec(NAMES, 3, True),
    "seeds": seeds_spec(NAMES, 3),
    "phases": phase_spec(),
    "confusion": confusion_spec(),
}
every_spec = pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
over_epochs = pytest.mark.parametrize(
    "spec", [SPECS[name] for name in SPECS if name not in ("phases", "confusion")]
)
every_reported = pytest.mark.parametrize("run", FASHION_MNIST_RUNS, ids=str)


def trained(config: ClassificationConfig) -> ClassificationHistory:
    history = ClassificationHistory(config, "here")
    for event in train_classifier(config):
        history.add(event)
    return history


@pytest.fixture(scope="module")
def runs() -> Runs:
    return {NAMES[0]: trained(CONFIG), NAMES[1]: trained(replace(CONFIG, replicas=1, epochs=2))}


def rows(columns: Columns) -> list[dict[str, Any]]:
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def of(columns: Columns, origin: str) -> list[dict[str, Any]]:
    return [row for row in rows(columns) if row["origin"] == origin]


def encodings(spec: dict[str, Any], channel: str) -> list[dict[str, Any]]:
    return [layer["encoding"][channel] for layer in spec["layer"] if channel in layer["encoding"]]


def domains(spec: dict[str, Any], channel: str) -> list[list[float]]:
    return [
        each["scale"]["domain"]
        for each in encodings(spec, channel)
        if "domain" in each.get("scale", {})
    ]


# --- specifications -------------------------------------------------------------------------------


@every_spec
def test_a_specification_has_no_data_of_its_own(spec: dict[str, Any]) -> None:
    assert not {"data", "datasets"} & set(spec)
    assert not [layer for layer in spec["layer"] if "data" in layer]


@every_spec
def test_a_specification_with_data_is_valid_vega_lite(spec: dict[str, Any]) -> None:
    alt.LayerChart.from_dict(spec | {"data": {"values": []}}, validate=True)


@every_spec
def test_a_description_is_one_sentence(spec: dict[str, Any]) -> None:
    assert spec["description"].endswith(".")
    assert "\n" not in spec["description"]


@over_epochs
def test_the_description_names_every_run(spec: dict[str, Any]) -> None:
    assert all(name in spec["description"] for name in NAMES)


@pytest.mark.parametrize("name", ["accuracy", "accuracy with reported"])
def test_the_description_says_whether_there_are_reported_values(name: str) -> None:
    assert ("reported" in SPECS[name]["description"]) == ("reported" in name)


@pytest.mark.parametrize(
    ("spec", "channel", "extent"),
    [
        (SPECS["loss"], "x", [0, 3]),
        (SPECS["loss"], "y", [0, 2.8]),
        (SPECS["accuracy"], "x", [0, 3]),
        (SPECS["accuracy"], "y", [0, 1]),
    ],
)
def test_an_axis_has_its_extent_before_there_are_rows(
    spec: dict[str, Any], channel: str, extent: list[float]
) -> None:
    assert domains(spec, channel)
    assert all(each == extent for each in domains(spec, channel))


def test_the_same_runs_have_the_same_specification() -> None:
    assert loss_spec(NAMES, 3) is loss_spec(NAMES, 3)


@pytest.mark.parametrize("name", ["loss", "accuracy", "accuracy with reported"])
def test_every_run_has_its_colour_from_the_start(name: str) -> None:
    assert domains(SPECS[name], "color")
    assert all(each == list(NAMES) for each in domains(SPECS[name], "color"))


@pytest.mark.parametrize("build", [loss_spec, lambda n, e: accuracy_spec(n, e, False)])
def test_a_single_run_needs_no_legend(build: Any) -> None:
    legends = [each["legend"] for each in encodings(build(NAMES[:1], 3), "color")]
    assert set(legends) == {None}


def test_a_phase_has_its_place_in_the_legend_from_the_start() -> None:
    assert domains(SPECS["phases"], "color") == [list(PHASES)]


def test_shades_of_the_confusion_matrix_stand_still() -> None:
    assert domains(SPECS["confusion"], "color") == [[0, 1]]


@pytest.mark.parametrize("channel", ["x", "y"])
def test_the_confusion_matrix_has_the_classes_in_their_order(channel: str) -> None:
    assert [each["sort"] for each in encodings(SPECS["confusion"], channel)] == [list(CLASSES)] * 2


def font_sizes(part: Any) -> list[float]:
    """All font sizes that a specification names."""
    if isinstance(part, list):
        return [size for each in part for size in font_sizes(each)]
    if not isinstance(part, dict):
        return []
    own = [value for key, value in part.items() if key.lower().endswith("fontsize")]
    return own + [size for each in part.values() for size in font_sizes(each)]


@every_spec
def test_text_can_be_read_from_the_back_row(spec: dict[str, Any]) -> None:
    assert min(font_sizes(spec)) >= FONT_SIZE


# --- training loss --------------------------------------------------------------------------------


def test_every_kept_minibatch_is_a_row(runs: Runs) -> None:
    plotted = [(r["run"], r["step"], r["epochs"], r["loss"]) for r in of(loss_columns(runs), HERE)]
    assert plotted == [
        (name, each.step, each.epochs, each.loss)
        for name, history in runs.items()
        for each in history.minibatches
    ]


def test_chance_is_the_loss_of_a_guess_among_ten() -> None:
    (row,) = of(loss_columns({}), CHANCE)
    assert row["loss"] == math.log(10)


def test_chance_says_its_loss_in_words() -> None:
    (row,) = of(loss_columns({}), CHANCE)
    assert row["run"] == "chance: ln 10 = 2.30"


def test_an_untrained_run_has_no_row() -> None:
    assert of(loss_columns({"next": ClassificationHistory(CONFIG, "")}), HERE) == []


def test_a_diverged_run_keeps_its_rows(runs: Runs) -> None:
    history = runs[NAMES[0]].copy()
    history.add(Diverged(31, 3.1, 0.1, None))
    assert loss_columns({NAMES[0]: history}) == loss_columns({NAMES[0]: runs[NAMES[0]]})


def test_a_loss_above_the_axis_does_not_leave_the_plot() -> None:
    lines = [each["mark"] for each in SPECS["loss"]["layer"] if each["mark"]["type"] == "line"]
    assert [each["clip"] for each in lines] == [True]


# --- test accuracy --------------------------------------------------------------------------------


def test_every_evaluation_is_a_row(runs: Runs) -> None:
    plotted = [
        (r["run"], r["epochs"], r["accuracy"]) for r in of(accuracy_columns(runs, None), HERE)
    ]
    assert plotted == [
        (name, each.epoch, each.accuracy)
        for name, history in runs.items()
        for each in history.epochs
    ]


def test_chance_is_right_once_in_ten() -> None:
    (row,) = of(accuracy_columns({}, None), CHANCE)
    assert row["accuracy"] == 0.1


def test_nothing_is_reported_unless_it_is_given(runs: Runs) -> None:
    assert of(accuracy_columns(runs, None), NOTES) == []


@every_reported
def test_reported_values_are_marked_as_reported(run: Any) -> None:
    marked = of(accuracy_columns({}, run), NOTES)
    assert [row["accuracy"] for row in marked] == list(run.curve or [run.accuracy] * 10)


@every_reported
def test_a_reported_run_has_the_notes_ten_epochs(run: Any) -> None:
    marked = of(accuracy_columns({}, run), NOTES)
    assert [row["epochs"] for row in marked] == list(range(1, 11))


@every_reported
def test_reported_values_change_nothing_measured(run: Any, runs: Runs) -> None:
    assert of(accuracy_columns(runs, run), HERE) == of(accuracy_columns(runs, None), HERE)


def reported_layers(spec: dict[str, Any]) -> list[dict[str, Any]]:
    return [layer for layer in spec["layer"] if NOTES in str(layer.get("transform"))]


def test_reported_values_are_drawn_dotted() -> None:
    lines = [
        layer["mark"]
        for layer in reported_layers(SPECS["accuracy with reported"])
        if layer["mark"]["type"] == "line"
    ]
    assert [bool(each["strokeDash"]) for each in lines] == [True]


def test_measured_values_are_not_dotted() -> None:
    measured = [each for each in SPECS["accuracy"]["layer"] if HERE in str(each.get("transform"))]
    assert measured
    assert not [each for each in measured if each["mark"].get("strokeDash")]


# --- time by phase --------------------------------------------------------------------------------


def test_phases_sum_to_the_training_time(runs: Runs) -> None:
    columns = phase_columns(runs)
    for name, history in runs.items():
        assert history.latest
        mean = sum(row["milliseconds"] for row in rows(columns) if row["run"] == name)
        assert mean * history.latest.step == pytest.approx(1e3 * history.seconds)


def test_every_run_has_every_phase_in_order(runs: Runs) -> None:
    parts = [(row["run"], row["phase"], row["place"]) for row in rows(phase_columns(runs))]
    assert parts == [(name, phase, n) for name in NAMES for n, phase in enumerate(PHASES)]


def test_a_run_without_a_step_has_no_bar() -> None:
    assert rows(phase_columns({"next": ClassificationHistory(CONFIG, "")})) == []


# --- confusion matrix -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def confusion(runs: Runs) -> tuple[tuple[int, ...], ...]:
    return runs[NAMES[0]].epochs[-1].confusion


def test_every_pair_of_classes_is_a_row(confusion: tuple[tuple[int, ...], ...]) -> None:
    cells = {(r["true"], r["predicted"]): r["images"] for r in rows(confusion_columns(confusion))}
    assert cells == {
        (CLASSES[true], CLASSES[predicted]): confusion[true][predicted]
        for true in range(10)
        for predicted in range(10)
    }


def test_shares_are_of_the_true_class() -> None:
    confusion = [[0] * 10 for _ in range(10)]
    confusion[3][3], confusion[3][5] = 3, 1
    shares = {
        (row["true"], row["predicted"]): row["share"]
        for row in rows(confusion_columns(confusion))
        if row["share"]
    }
    assert shares == {("Dress", "Dress"): 0.75, ("Dress", "Sandal"): 0.25}


def test_a_class_without_images_has_no_share() -> None:
    confusion = [[0] * 10 for _ in range(10)]
    assert {row["share"] for row in rows(confusion_columns(confusion))} == {0}


def test_seeds_have_a_range_and_the_notes_a_value() -> None:
    history = SeedsHistory(SeedsConfig(epochs=3, seeds=2))
    for seed, accuracy in ((0, 0.25), (1, 0.75)):
        history.add(SeedEvaluated(1, seed, 1, accuracy))
    columns = seeds_columns(history)
    drawn = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    here, *notes, chance = drawn
    assert (here["origin"], here["run"], here["epochs"], here["runs"]) == (HERE, "1 device", 1, 2)
    assert (here["low"], here["accuracy"], here["high"]) == (0.25, 0.5, 0.75)
    told = [(each["origin"], each["run"], each["epochs"], each["accuracy"]) for each in notes]
    assert told == [(NOTES, "1 device", 10, 0.76), (NOTES, "2 devices", 10, 0.83)]
    assert (chance["origin"], chance["accuracy"]) == (CHANCE, 0.1)
