"""What is odd in the notes' table: found where it is, and not where it is not."""

from dataclasses import replace
from statistics import stdev

import pytest

from labcore.findings import (
    SEEDS,
    STUDENT,
    fell_with_batch,
    findings,
    only_devices_differ,
    same_seed_gaps,
    slower_with_more,
    standard_deviations,
    unrepeated,
    up_and_down,
)
from labcore.reported import FASHION_MNIST_RUNS, ReportedRun


def run(devices, batch_size, *, lr=0.1, accuracy=0.9, seconds=8.0, model="lenet"):
    return ReportedRun(model, devices, batch_size, lr, accuracy, seconds)


def short(pairs):
    return [[(each.devices, each.batch_size) for each in pair] for pair in pairs]


def test_two_gpus_at_512_were_slower_than_one_at_256_and_than_one_at_512():
    deeper = [run for run in FASHION_MNIST_RUNS if run.model == "resnet18_deeper"]
    assert short(slower_with_more(deeper)) == [
        [(1, 256), (2, 512)],
        [(1, 512), (2, 512)],
        [(1, 512), (2, 1024)],
        [(1, 1024), (2, 1024)],
    ]


def test_a_second_gpu_did_not_speed_up_lenet():
    lenet = [run for run in FASHION_MNIST_RUNS if run.model == "lenet"]
    assert short(slower_with_more(lenet)) == [[(1, 256), (2, 256)]]


def test_more_devices_that_are_faster_are_nothing_odd():
    assert slower_with_more([run(1, 64, seconds=8), run(2, 64, seconds=5)]) == []


def test_other_work_or_another_model_is_no_comparison():
    assert slower_with_more([run(1, 64, seconds=5), run(2, 96, seconds=8)]) == []
    other = run(2, 64, seconds=8, model="resnet18")
    assert slower_with_more([run(1, 64, seconds=5), other]) == []


def test_accuracy_fell_with_the_batch_on_one_gpu_at_a_fixed_learning_rate():
    [group] = fell_with_batch(FASHION_MNIST_RUNS)
    assert [(run.batch_size, run.accuracy) for run in group] == [
        (256, 0.90),
        (512, 0.87),
        (1024, 0.69),
    ]
    assert {(run.devices, run.lr) for run in group} == {(1, 0.1)}


def test_accuracy_that_rises_or_stays_does_not_fall():
    assert fell_with_batch([run(1, 64, accuracy=0.8), run(1, 128, accuracy=0.9)]) == []
    assert fell_with_batch([run(1, 64, accuracy=0.8), run(1, 128, accuracy=0.8)]) == []
    assert fell_with_batch([run(1, 64, accuracy=0.8), run(1, 128, lr=0.2, accuracy=0.7)]) == []


def test_on_two_gpus_it_went_up_and_down():
    [group] = up_and_down(FASHION_MNIST_RUNS)
    assert [run.accuracy for run in group] == [0.75, 0.90, 0.79]
    assert group[0].devices == 2


def test_no_setting_was_run_twice():
    assert unrepeated(FASHION_MNIST_RUNS) == list(FASHION_MNIST_RUNS)
    twice = [run(1, 64), run(1, 64, accuracy=0.8), run(2, 64)]
    assert unrepeated(twice) == [run(2, 64)]


def test_only_lenet_was_run_on_one_and_two_gpus_with_all_else_the_same():
    [(one, two)] = only_devices_differ(
        [replace(each) for each in FASHION_MNIST_RUNS if each.model == "lenet"]
    )
    assert (one.accuracy, two.accuracy) == (0.76, 0.83)


# What the seed does


def test_standard_deviations_are_those_of_a_difference_of_two_runs():
    group = [1.0, 2.0, 4.0]
    assert standard_deviations(3.0, [group]) == pytest.approx(3.0 / (2**0.5 * stdev(group)))
    # Two groups of like spread around different means are as good as one of that spread.
    assert standard_deviations(3.0, [group, [11.0, 12.0, 14.0]]) == pytest.approx(
        standard_deviations(3.0, [group])
    )


def test_the_gap_of_the_notes_is_within_what_the_seed_does():
    away = standard_deviations(0.83 - 0.76, list(SEEDS.values()))
    assert away == pytest.approx(2.2, abs=0.05)
    assert away < STUDENT


def test_from_the_same_seed_the_second_device_changes_much_less():
    assert max(map(abs, same_seed_gaps())) < (0.83 - 0.76) / 4


# In words


def test_every_oddity_has_its_words_and_rows():
    found = findings()
    assert {each.title for each in found} == {
        "More GPUs, and slower",
        "Accuracy falls with the batch",
        "Up and down with the batch",
        "0.76 and 0.83 may be one and the same",
        "Repeated runs are missing",
    }
    assert all(each.runs and each.words.endswith(".") for each in found)


def test_words_are_made_of_the_numbers():
    words = [each.words for each in findings()]
    deeper = "ResNet-18 with two more stages"
    assert (
        f"{deeper} on 1 GPU at batch 256 took 7.9 s per epoch, {deeper} on 2 GPUs at batch 512 "
        "13.8 s: 2 times the devices on as many images per device gave 0.57 times the speed."
    ) in words
    assert any("batch 256 → 512 → 1,024, accuracy 0.90 → 0.87 → 0.69" in each for each in words)
    assert any("within what six runs leave to chance" in each for each in words)


def test_an_ordinary_table_has_no_findings():
    runs = [run(1, 64, seconds=8), run(2, 64, seconds=4, accuracy=0.9)]
    assert findings([*runs, *runs]) == []
