"""Exports, tested by using them: read back, opened as by a spreadsheet, compared with the run."""

import csv
import io
import json
import sys
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
import torch

from labcore.classification import ClassificationConfig, train_classifier
from labcore.classification_history import ClassificationHistory
from labcore.datasets import fashion_mnist
from labcore.events import (
    ClassificationEvent,
    Diverged,
    EpochEvaluated,
    MinibatchTrained,
    StepTaken,
)
from labcore.exports import epochs_csv, points_csv, run_json
from labcore.facts import facts
from labcore.optimizers import SGD, Adam
from labcore.race import RaceConfig, RaceHistory, Racer, race
from labcore.replicas import PHASES

CONFIG = ClassificationConfig(images=100, batch_size=13, replicas=8, epochs=2, allreduce="ring")


def followed(
    config: ClassificationConfig, events: Iterable[ClassificationEvent]
) -> ClassificationHistory:
    history = ClassificationHistory(config, fashion_mnist.load().source)
    for event in events:
        history.add(event)
    return history


def raced(*racers: Racer) -> RaceHistory:
    config = RaceConfig(racers=racers, epochs=1, batch_size=300)
    history = RaceHistory(config)
    for event in race(config):
        history.add(event)
    return history


@pytest.fixture(scope="module")
def events() -> list[ClassificationEvent]:
    return list(train_classifier(CONFIG))


@pytest.fixture(scope="module")
def history(events: list[ClassificationEvent]) -> ClassificationHistory:
    return followed(CONFIG, events)


@pytest.fixture(scope="module")
def broken(events: list[ClassificationEvent]) -> ClassificationHistory:
    """A run whose last gradient was not finite any more."""
    first = next(event for event in events if isinstance(event, MinibatchTrained))
    last = replace(first, step=2, norm=float("inf"), drift=float("nan"))
    return followed(CONFIG, [first, last, Diverged(3, 0.39, 0.1, None)])


def table(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def parsed(text: str) -> Any:
    """JSON, read strictly."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)


# CSV


def test_every_kept_minibatch_is_a_row(history: ClassificationHistory) -> None:
    rows = table(points_csv(history))
    assert [int(row["step"]) for row in rows] == [each.step for each in history.minibatches]


@pytest.mark.parametrize("name", ["epochs", "seconds", "loss", "norm", "drift"])
def test_a_number_reads_back_as_the_same(name: str, history: ClassificationHistory) -> None:
    values = [float(row[name]) for row in table(points_csv(history))]
    assert values == [getattr(each, name) for each in history.minibatches]


@pytest.mark.parametrize("phase", PHASES)
def test_every_phase_has_its_column(phase: str, history: ClassificationHistory) -> None:
    values = [float(row[f"{phase}_seconds"]) for row in table(points_csv(history))]
    assert values == [each.phases[phase] for each in history.minibatches]


@pytest.mark.parametrize(("column", "name"), [("rows", "rows"), ("norm", "norms")])
def test_every_replica_has_its_columns(
    column: str, name: str, history: ClassificationHistory
) -> None:
    ranks = range(CONFIG.replicas)
    values = [[float(row[f"{column}_{n}"]) for n in ranks] for row in table(points_csv(history))]
    assert values == [list(getattr(each, name)) for each in history.minibatches]


def test_the_loss_of_an_empty_shard_is_an_empty_cell(history: ClassificationHistory) -> None:
    first = next(iter(history.minibatches))
    assert first.rows[-1] == 0
    assert table(points_csv(history))[0][f"loss_{CONFIG.replicas - 1}"] == ""


def test_a_number_that_is_not_finite_is_an_empty_cell(broken: ClassificationHistory) -> None:
    assert table(points_csv(broken))[-1]["norm"] == ""


def test_every_epoch_is_a_row_of_epochs(history: ClassificationHistory) -> None:
    rows = table(epochs_csv(history))
    assert [float(row["accuracy"]) for row in rows] == [each.accuracy for each in history.epochs]


def test_every_class_has_its_accuracy(history: ClassificationHistory) -> None:
    rows = table(epochs_csv(history))
    values = [[float(row[f"accuracy_{label}"]) for label in range(10)] for row in rows]
    assert values == [list(each.class_accuracies) for each in history.epochs]


@pytest.mark.parametrize("export", [points_csv, epochs_csv])
def test_before_the_first_point_there_is_nothing(export: Any) -> None:
    assert export(ClassificationHistory(CONFIG, "")) == ""


def test_every_recorded_loss_of_every_racer_is_a_row() -> None:
    history = raced(Racer(SGD()), Racer(Adam()))
    rows = [(row["racer"], float(row["loss"])) for row in table(points_csv(history))]
    assert rows == [(n, each.loss) for n, lane in history.lanes.items() for each in lane.points]


@pytest.mark.parametrize("start", ["=", "+", "-", "@"])
def test_a_name_that_is_a_formula_is_defused(start: str) -> None:
    name = f"{start}HYPERLINK(1)"
    rows = table(points_csv(raced(Racer(SGD(), name))))
    assert {row["racer"] for row in rows} == {f"'{name}"}


def test_a_name_with_commas_quotes_and_accents_stays_one_cell() -> None:
    rows = table(points_csv(raced(Racer(SGD(), 'é, "x"; y'))))
    assert {row["racer"] for row in rows} == {'é, "x"; y'}


def test_a_negative_number_stays_a_number(broken: ClassificationHistory) -> None:
    point = replace(next(iter(broken.minibatches)), loss=-1.5)
    assert table(points_csv(followed(CONFIG, [point])))[0]["loss"] == "-1.5"


# JSON


def test_json_has_the_config_as_it_is_made(history: ClassificationHistory) -> None:
    config = parsed(run_json(history))["config"]
    assert config.pop("name") == "classify"
    assert ClassificationConfig(**config) == CONFIG


def test_json_says_what_it_ran_on(history: ClassificationHistory) -> None:
    versions = parsed(run_json(history))["versions"]
    python = ".".join(map(str, sys.version_info[:3]))
    assert (versions["python"], versions["torch"]) == (python, torch.__version__)


def test_json_says_where_the_images_came_from(history: ClassificationHistory) -> None:
    assert parsed(run_json(history))["source"] == fashion_mnist.load().source


def test_json_has_every_kept_minibatch(history: ClassificationHistory) -> None:
    points = parsed(run_json(history))["minibatches"]
    tuples = ("rows", "losses", "norms", "rank_phases")
    back = [
        MinibatchTrained(**point | {name: tuple(point[name]) for name in tuples})
        for point in points
    ]
    assert back == list(history.minibatches)


def test_json_has_every_evaluation(history: ClassificationHistory) -> None:
    epochs = parsed(run_json(history))["epochs"]
    back = [
        EpochEvaluated(**epoch | {"confusion": tuple(map(tuple, epoch["confusion"]))})
        for epoch in epochs
    ]
    assert back == history.epochs


def test_json_has_the_time_by_phase(history: ClassificationHistory) -> None:
    assert parsed(run_json(history))["phases"] == history.phases


def test_json_ends_with_the_outcome_also_in_words(history: ClassificationHistory) -> None:
    run = parsed(run_json(history))
    assert run["outcome"] == {"event": "classifier_trained", **facts(history.outcome)}
    assert run["summary"] == str(history.outcome)


def test_json_of_a_run_that_goes_on_has_no_outcome(events: list[ClassificationEvent]) -> None:
    run = parsed(run_json(followed(CONFIG, events[:30])))
    assert (run["outcome"], run["summary"]) == (None, None)
    assert run["taken"] == facts([each for each in events[:30] if isinstance(each, StepTaken)][-1])


def test_json_of_a_diverged_run_is_strict(broken: ClassificationHistory) -> None:
    run = parsed(run_json(broken))
    assert run["outcome"]["event"] == "diverged"
    assert (run["minibatches"][-1]["norm"], run["minibatches"][-1]["drift"]) == (None, None)


def test_json_of_a_race_has_every_racer_and_its_losses() -> None:
    history = raced(Racer(SGD(lr=0.02)), Racer(Adam(), "=mine"))
    run = parsed(run_json(history))
    losses = {each["name"]: [point["loss"] for point in each["points"]] for each in run["racers"]}
    assert losses == {n: [p.loss for p in lane.points] for n, lane in history.lanes.items()}


def test_json_of_a_race_has_its_config() -> None:
    config = parsed(run_json(raced(Racer(SGD(lr=0.02)))))["config"]
    sgd = {"name": "sgd", "lr": 0.02}
    assert config["racers"] == [{"optimizer": sgd, "name": "SGD", "before": []}]
    assert (config["name"], config["epochs"], config["batch_size"]) == ("race", 1, 300)


def test_csv_has_each_process_time_by_phase(history: ClassificationHistory) -> None:
    times = ({"split": 0.5}, {"split": 0.25})
    one = ClassificationHistory(CONFIG, "")
    one.add(replace(next(iter(history.minibatches)), rank_phases=times))
    [row] = csv.DictReader(io.StringIO(points_csv(one)))
    assert (row["split_seconds_0"], row["split_seconds_1"]) == ("0.5", "0.25")
