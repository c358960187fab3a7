"""The notes' two LeNets from several seeds: runs are the lab's, sums are numpy's."""

from dataclasses import replace

import numpy as np
import pytest

from labcore.classification import train_classifier
from labcore.config import ConfigError
from labcore.datasets import fashion_mnist
from labcore.datasets.errors import DataError
from labcore.events import EpochEvaluated
from labcore.findings import standard_deviations
from labcore.reported import FASHION_MNIST_RUNS
from labcore.seeds import (
    SAMPLES,
    SeedDiverged,
    SeedEvaluated,
    SeedsConfig,
    SeedsHistory,
    notes_pair,
    over_seeds,
)

CONFIG = SeedsConfig(epochs=2, seeds=3)
ACCURACIES = {
    (1, 0): [0.5, 0.7],
    (2, 0): [0.5, 0.71],
    (1, 1): [0.4, 0.8],
    (2, 1): [0.41, 0.78],
    (1, 2): [0.1, 0.6],
}


@pytest.fixture
def history():
    kept = SeedsHistory(CONFIG)
    for (devices, seed), curve in ACCURACIES.items():
        for epoch, accuracy in enumerate(curve, start=1):
            kept.add(SeedEvaluated(devices, seed, epoch, accuracy))
    return kept


def test_the_pair_differs_in_the_devices_alone():
    few, many = notes_pair()
    assert replace(few, devices=2, accuracy=0.83, seconds_per_epoch=5.0) == many
    assert {few, many} <= set(FASHION_MNIST_RUNS)


@pytest.mark.parametrize("sample", SAMPLES)
@pytest.mark.parametrize("devices", [1, 2])
def test_runs_have_the_notes_batch_and_learning_rate(sample, devices):
    run = SeedsConfig(sample=sample, start="normal").run(devices, seed=7)
    notes = notes_pair()[devices - 1]
    settings = (run.model, run.replicas, run.global_batch, run.global_lr, run.epochs, run.seed)
    assert settings == (notes.model, devices, notes.batch_size, notes.lr, 10, 7)
    assert (run.images, run.initialisation) == (SAMPLES[sample], "normal")


def test_both_numbers_of_devices_train_from_every_seed():
    small = fashion_mnist.load(fashion_mnist.EMBEDDED)
    config = SeedsConfig(epochs=1, seeds=2, seed=5)
    told = [each for each in over_seeds(config, small) if isinstance(each, SeedEvaluated)]
    assert [(each.devices, each.seed, each.epoch) for each in told] == [
        (1, 5, 1),
        (2, 5, 1),
        (1, 6, 1),
        (2, 6, 1),
    ]
    for each in told:
        alone = train_classifier(config.run(each.devices, each.seed), small)
        [evaluated] = [event for event in alone if isinstance(event, EpochEvaluated)]
        assert each.accuracy == evaluated.accuracy


def test_images_that_are_not_there_are_refused_with_what_to_do():
    small = fashion_mnist.load(fashion_mnist.EMBEDDED)
    with pytest.raises(DataError, match="from 1 to 6,000; received 60,000"):
        list(over_seeds(SeedsConfig(sample="all"), small))


def test_spreads_are_those_of_numpy(history):
    for each in history.spreads():
        values = [
            curve[each.epoch - 1]
            for (devices, _), curve in ACCURACIES.items()
            if devices == each.devices
        ]
        assert (each.low, each.high, each.runs) == (np.min(values), np.max(values), len(values))
        assert each.middle == pytest.approx(np.median(values))
    assert len(history.spreads()) == 4


def test_the_verdict_has_the_ranges_and_the_change_from_the_same_seed(history):
    words = history.verdict()
    assert "6,000 images, 2 seeds: after 2 epochs" in words
    assert "0.700 to 0.800 on 1 device and 0.710 to 0.780 on 2 devices" in words
    assert "changed -0.020 to +0.010" in words


def test_the_gap_of_the_notes_is_measured_by_the_spread_here(history):
    groups = [[0.7, 0.8], [0.71, 0.78]]
    variance = np.mean([np.var(group, ddof=1) for group in groups])
    away = (0.83 - 0.76) / np.sqrt(2 * variance)
    assert standard_deviations(0.07, groups) == pytest.approx(away)
    assert f"The notes' gap of 0.07 is {away:.1f} standard deviations" in history.verdict()


def test_nothing_is_concluded_from_one_seed_or_none():
    kept = SeedsHistory(CONFIG)
    assert "No pair of runs" in kept.verdict()
    for devices in (1, 2):
        for epoch in (1, 2):
            kept.add(SeedEvaluated(devices, 0, epoch, 0.5))
    assert "1 seed: after 2 epochs" in kept.verdict()
    assert "standard deviations" not in kept.verdict()


def test_seeds_that_end_alike_are_no_error():
    kept = SeedsHistory(CONFIG)
    for devices in (1, 2):
        for seed in (0, 1):
            for epoch in (1, 2):
                kept.add(SeedEvaluated(devices, seed, epoch, 0.5))
    assert kept.verdict().endswith("All seeds end alike, so nothing can be said of the notes' gap.")


def test_progress_counts_epochs_of_all_runs(history):
    assert history.progress() == (10 / 12, "run 5 of 6, epoch 2 done")
    assert SeedsHistory(CONFIG).progress() == (0.0, "run 1 of 6")
    history.add(SeedDiverged(2, 2))
    assert history.progress()[0] == 1.0


def test_a_run_that_diverged_has_no_part_in_the_verdict():
    kept = SeedsHistory(CONFIG)
    for epoch in (1, 2):
        kept.add(SeedEvaluated(1, 0, epoch, 0.5))
    kept.add(SeedEvaluated(2, 0, 1, 0.4))
    kept.add(SeedDiverged(2, 0))
    assert kept.finals() == {1: {0: 0.5}, 2: {}}
    assert "No pair of runs" in kept.verdict()


@pytest.mark.parametrize(
    ("wrong", "rule"),
    [
        ({"seeds": 1}, "seeds must be a whole number from 2 to 20"),
        ({"seeds": 21}, "seeds must be a whole number from 2 to 20"),
        ({"epochs": 0}, "epochs must be a whole number from 1 to 100"),
        ({"sample": "some"}, "sample must be one of embedded, all"),
        ({"start": "zero"}, "start must be one of"),
        ({"seed": -1}, "seed must be a whole number from 0"),
    ],
)
def test_settings_out_of_range_are_refused(wrong, rule):
    with pytest.raises(ConfigError, match=rule):
        SeedsConfig(**wrong)
