"""Classification runs: their events, their arithmetic, what is refused, and their isolation."""

import math
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import FrozenInstanceError, fields, replace

import numpy as np
import pytest
import torch
from torch import nn

from labcore import classification
from labcore.classification import ClassificationConfig, train_classifier
from labcore.collectives import ALLREDUCE
from labcore.config import ConfigError, ruled_fields
from labcore.datasets import fashion_mnist
from labcore.datasets.errors import DataError
from labcore.events import (
    ClassifierTrained,
    Diverged,
    EpochEvaluated,
    ImagesTested,
    Learnt,
    MinibatchTrained,
    ShardDone,
    Started,
    StepTaken,
)
from labcore.models import INITIALISATIONS, MODELS
from labcore.replicas import PHASES, Replicas
from labcore.splitting import PARTITIONS

RULES = {each.name: rule for each, rule in ruled_fields(ClassificationConfig)}
SMALL = {"images": 100, "batch_size": 40, "epochs": 2, "replicas": 3}
"""Minibatches of 40, 40 and 20 images on three devices, and 17 test images."""
RESNET = {"model": "resnet18_quarter", "images": 100, "batch_size": 50, "epochs": 1, "replicas": 2}
DIVERGING = {"model": "resnet18_quarter", "images": 100, "batch_size": 10, "lr": 100.0}
KINDS = pytest.mark.parametrize("settings", [SMALL, RESNET], ids=["lenet", "residual"])

needs_full_set = pytest.mark.skipif(
    not fashion_mnist.DEBIAN.exists(),
    reason="the full set (dataset-fashion-mnist) is not on this machine",
)


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    """Several threads gain nothing on tensors this small, and stall on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def _on_the_cpu(monkeypatch):
    """Where the same seed gives the same bits."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)


def sample():
    return fashion_mnist.load(fashion_mnist.EMBEDDED)


def start(**settings):
    return train_classifier(ClassificationConfig(**{**SMALL, **settings}), sample())


def run(**settings):
    return list(start(**settings))


def of_kind(kind, events):
    return [event for event in events if isinstance(event, kind)]


def losses(events):
    return [each.loss for each in of_kind(MinibatchTrained, events)]


def recorded(events):
    """All that a run reports, bit for bit, without the times, which differ from run to run."""
    seen = []
    for event in events:
        values = []
        for each in fields(event):
            value = getattr(event, each.name)
            if "second" not in each.name and each.name != "phases":
                values.append(value.tolist() if isinstance(value, torch.Tensor) else value)
        seen.append((type(event), values))
    return seen


@pytest.fixture
def watched(monkeypatch):
    """A list that fills with every `Replicas` that a run makes; each keeps its steps' arguments."""
    made = []

    class Watched(Replicas):
        def __init__(self, *args):
            super().__init__(*args)
            self.minibatches, self.rates = [], []
            made.append(self)

        def step(self, images, labels, **settings):
            self.minibatches.append((images.clone(), labels.clone()))
            self.rates.append(settings["lr"])
            return super().step(images, labels, **settings)

    monkeypatch.setattr(classification, "Replicas", Watched)
    return made


# --- events ---------------------------------------------------------------------------------


def test_events_come_in_this_order():
    step = [ShardDone] * 6 + [MinibatchTrained, StepTaken]
    epoch = step * 3 + [ImagesTested, EpochEvaluated, Learnt]
    assert [*map(type, run())] == [Started, *epoch, *epoch, ClassifierTrained]


def test_shards_of_the_run_on_one_device_come_after_the_others():
    step = [ShardDone] * 8 + [MinibatchTrained, StepTaken]
    epoch = step * 3 + [ImagesTested, EpochEvaluated, Learnt]
    events = run(equivalence="on", epochs=1)
    assert [*map(type, events)] == [Started, *epoch, ClassifierTrained]
    assert [each.world_size for each in of_kind(ShardDone, events)[:8]] == [3] * 6 + [1] * 2


def test_every_shard_is_done_forward_then_backward():
    done = of_kind(ShardDone, run(epochs=1))[:6]
    assert [(each.phase, each.rank) for each in done] == [
        ("forward", 0), ("forward", 1), ("forward", 2),
        ("backward", 0), ("backward", 1), ("backward", 2),
    ]  # fmt: skip


def test_evaluation_can_be_left_after_every_250_images():
    tested = of_kind(ImagesTested, run(images=1_600, batch_size=800, epochs=1))
    assert [(each.done, each.images) for each in tested] == [(250, 267), (267, 267)]


@pytest.mark.parametrize(("batch_size", "steps"), [(33, 4), (40, 3), (50, 2), (99, 2), (100, 1)])
def test_started_announces_the_number_of_steps(batch_size, steps):
    events = run(batch_size=batch_size)
    assert (events[0].steps_per_epoch, events[0].steps) == (steps, 2 * steps)
    assert len(of_kind(StepTaken, events)) == 2 * steps


@pytest.mark.parametrize("kind", [MinibatchTrained, StepTaken])
def test_steps_are_counted_from_1_without_a_gap(kind):
    assert [each.step for each in of_kind(kind, run())] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("kind", [MinibatchTrained, StepTaken])
def test_x_is_the_true_fraction_of_epochs(kind):
    epochs = [each.epochs for each in of_kind(kind, run())]
    assert epochs == pytest.approx([0.4, 0.8, 1.0, 1.4, 1.8, 2.0], abs=1e-12)


def test_last_minibatch_has_what_is_left():
    events = of_kind(MinibatchTrained, run())
    assert [sum(each.rows) for each in events] == [40, 40, 20] * 2


@pytest.mark.parametrize("kind", [EpochEvaluated, Learnt])
def test_epochs_are_counted_from_1(kind):
    assert [each.epoch for each in of_kind(kind, run())] == [1, 2]


def test_evaluation_says_after_which_step_it_is():
    assert [each.step for each in of_kind(EpochEvaluated, run())] == [3, 6]


def test_last_event_counts_all_steps_and_epochs():
    trained = run()[-1]
    assert (trained.step, trained.epochs) == (6, 2)


def test_last_event_repeats_the_last_accuracy():
    events = run()
    assert events[-1].accuracy == of_kind(EpochEvaluated, events)[-1].accuracy


def test_summary_is_the_notes_line():
    trained = replace(run()[-1], accuracy=0.8312, seconds_per_epoch=4.94)
    assert str(trained).startswith("test accuracy 0.831, 4.9 s/epoch, on 3 replicas on the CPU")


def test_seconds_per_epoch_are_the_training_seconds_over_the_epochs():
    events = run()
    total = of_kind(MinibatchTrained, events)[-1].seconds
    assert events[-1].seconds_per_epoch == pytest.approx(total / 2)
    assert of_kind(EpochEvaluated, events)[-1].seconds_per_epoch == pytest.approx(total / 2)


def test_seconds_are_those_of_all_phases_so_far():
    events = of_kind(MinibatchTrained, run())
    assert [each.seconds for each in events] == pytest.approx(
        np.cumsum([sum(each.phases.values()) for each in events]).tolist()
    )


def test_phases_are_named_in_order():
    assert all(tuple(each.phases) == PHASES for each in of_kind(MinibatchTrained, run()))


def test_images_per_second_are_the_images_over_the_seconds():
    for each in of_kind(EpochEvaluated, run()):
        assert each.images_per_second * each.seconds_per_epoch == pytest.approx(100)


def test_loss_is_the_mean_over_the_replicas_rows():
    for each in of_kind(MinibatchTrained, run()):
        assert each.loss == pytest.approx(np.average(each.losses, weights=each.rows), rel=1e-6)


def test_an_empty_shard_has_no_loss():
    # chunk gives 13 devices 20 rows as 2 each for the first ten.
    last = of_kind(MinibatchTrained, run(replicas=13, epochs=1))[-1]
    assert last.rows == (2,) * 10 + (0,) * 3
    assert last.losses[10:] == (None,) * 3


@KINDS
def test_drift_is_exactly_0(settings):
    assert {each.drift for each in of_kind(MinibatchTrained, run(**settings))} == {0.0}


def test_difference_is_left_open_without_the_run_on_one_device():
    assert {each.difference for each in of_kind(MinibatchTrained, run())} == {None}


def test_events_cannot_be_changed():
    for event in run(epochs=1):
        with pytest.raises(FrozenInstanceError):
            setattr(event, fields(event)[0].name, 5)


# --- evaluation -----------------------------------------------------------------------------


def test_test_images_are_a_sixth_of_the_training_images():
    counts = [ClassificationConfig(images=n).test_images for n in (100, 6_000, 59_999, 60_000)]
    assert counts == [17, 1_000, 10_000, 10_000]


def evaluated_and_learnt(**settings):
    events = run(images=600, epochs=1, batch_size=60, **settings)
    return of_kind(EpochEvaluated, events)[-1], of_kind(Learnt, events)[-1]


def test_accuracy_is_the_share_of_the_largest_probabilities_that_are_right():
    evaluated, learnt = evaluated_and_learnt()
    predicted = learnt.probabilities.numpy().argmax(axis=1)
    labels = sample().test_labels.numpy()[learnt.images.numpy()]
    assert evaluated.accuracy == np.mean(predicted == labels)


def test_confusion_counts_true_and_predicted_classes():
    evaluated, learnt = evaluated_and_learnt()
    predicted = learnt.probabilities.numpy().argmax(axis=1)
    labels = sample().test_labels.numpy()[learnt.images.numpy()]
    expected = np.zeros((10, 10), dtype=int)
    np.add.at(expected, (labels, predicted), 1)
    assert np.array_equal(evaluated.confusion, expected)


def test_class_accuracies_are_those_of_each_true_class():
    evaluated, learnt = evaluated_and_learnt()
    predicted = learnt.probabilities.numpy().argmax(axis=1)
    labels = sample().test_labels.numpy()[learnt.images.numpy()]
    expected = [np.mean(predicted[labels == each] == each) for each in range(10)]
    assert evaluated.class_accuracies == pytest.approx(expected, abs=1e-12)


def test_probabilities_are_those_of_torchs_modules(watched):
    _, learnt = evaluated_and_learnt()
    # fmt: off
    net = nn.Sequential(
        nn.Conv2d(1, 20, 3), nn.ReLU(), nn.AvgPool2d(2),
        nn.Conv2d(20, 50, 5), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(),
        nn.Linear(800, 128), nn.ReLU(), nn.Linear(128, 10), nn.Softmax(dim=1),
    )
    # fmt: on
    with torch.no_grad():
        for theirs, ours in zip(
            net.parameters(), watched[0].ranks[0].module.parameters(), strict=True
        ):
            theirs.copy_(ours)
        expected = net(sample().test_images[learnt.images].unsqueeze(1) / 255)
    torch.testing.assert_close(learnt.probabilities, expected, rtol=1e-4, atol=1e-5)


def test_evaluation_uses_the_running_statistics_of_replica_0(watched):
    learnt = of_kind(Learnt, run(**RESNET))[-1]
    module = watched[0].ranks[0].module.eval()
    with torch.no_grad():
        logits = module(sample().test_images[learnt.images].unsqueeze(1) / 255)
    torch.testing.assert_close(learnt.probabilities, logits.softmax(dim=1), rtol=1e-4, atol=1e-5)


def test_replicas_have_running_statistics_of_their_own(watched):
    run(**RESNET)
    one, other = (each.module.stem_norm.running_mean for each in watched[0].ranks)
    assert not torch.equal(one, other)


def test_evaluation_changes_no_running_statistics(watched):
    run(**RESNET)
    # Two steps, and an evaluation.
    assert int(watched[0].ranks[0].module.stem_norm.num_batches_tracked) == 2


def test_filters_are_the_first_convolutions(watched):
    learnt = of_kind(Learnt, run())[-1]
    weight = next(watched[0].ranks[0].module.parameters())
    assert torch.equal(learnt.filters, weight[:, 0])


def test_what_was_learnt_is_not_changed_by_later_steps():
    events = start()
    learnt = next(each for each in events if isinstance(each, Learnt))
    before = learnt.filters.clone()
    list(events)
    assert torch.equal(learnt.filters, before)


# --- arithmetic -----------------------------------------------------------------------------


def test_four_devices_record_the_losses_of_one():
    settings = {"images": 640, "batch_size": 64, "lr": 0.02}
    one, four = (losses(run(replicas=k, **settings)) for k in (1, 4))
    assert four == pytest.approx(one, abs=1e-5)


@pytest.mark.parametrize("split", RULES["split"].options)
@pytest.mark.parametrize("allreduce", ALLREDUCE)
def test_ways_to_split_and_sum_record_the_same_losses(split, allreduce):
    expected = losses(run(replicas=1, lr=0.02))
    assert losses(run(split=split, allreduce=allreduce, lr=0.02)) == pytest.approx(
        expected, abs=1e-5
    )


def test_losses_of_residual_networks_on_one_and_two_devices_differ():
    one, two = (losses(run(**{**RESNET, "replicas": k})) for k in (1, 2))
    assert abs(one[0] - two[0]) > 1e-4


@KINDS
def test_one_device_differs_from_itself_by_exactly_0(settings):
    events = run(**{**settings, "replicas": 1, "equivalence": "on"})
    assert {each.difference for each in of_kind(MinibatchTrained, events)} == {0.0}


def test_four_devices_differ_from_one_by_rounding_only():
    events = run(replicas=4, equivalence="on", images=640, batch_size=64, lr=0.02)
    assert max(each.difference for each in of_kind(MinibatchTrained, events)) <= 1e-6


def test_residual_network_on_two_devices_differs_from_one():
    first, *_ = of_kind(MinibatchTrained, run(**RESNET, equivalence="on"))
    assert first.difference > 1e-4


def test_difference_is_that_to_the_parameters_of_the_run_on_one_device(watched):
    last = of_kind(MinibatchTrained, run(**RESNET, equivalence="on"))[-1]
    two, one = (
        np.concatenate([p.detach().numpy().ravel() for p in each.ranks[0].module.parameters()])
        for each in watched
    )
    assert last.difference == np.abs(two - one).max()


def test_the_run_on_one_device_changes_nothing_of_the_other():
    with_check, without = (run(equivalence=each) for each in ("on", "off"))
    assert losses(with_check) == losses(without)


def test_scaled_run_is_the_fixed_run_with_both_times_the_devices():
    scaled = run(batch_size=10, lr=0.05, replicas=4, scaling="scaled")
    fixed = run(batch_size=40, lr=0.2, replicas=4)
    assert recorded(scaled) == recorded(fixed)


def test_scaled_minibatches_are_as_many_times_larger(watched):
    run(batch_size=10, replicas=4, scaling="scaled", epochs=1)
    assert [len(labels) for _, labels in watched[0].minibatches] == [40, 40, 20]


def test_scaled_learning_rate_is_as_many_times_higher(watched):
    run(batch_size=10, lr=0.05, replicas=4, scaling="scaled", epochs=1)
    assert watched[0].rates == pytest.approx([0.2] * 3)


def test_momentum_acts_from_the_second_step_on():
    plain, heavy = (losses(run(momentum=momentum)) for momentum in (0.0, 0.9))
    assert plain[:2] == heavy[:2]
    assert plain[2] != heavy[2]


@pytest.mark.parametrize("initialisation", INITIALISATIONS)
def test_first_loss_is_that_of_the_initialisation(initialisation):
    # Tiny weights make all classes equally likely.
    first = losses(run(initialisation=initialisation, batch_size=100))[0]
    assert (abs(first - math.log(10)) < 1e-4) == (initialisation == "normal")


def test_lenet_on_four_devices_learns_the_embedded_sample():
    """0.79 after three epochs for seeds 0, 1 and 2."""
    config = ClassificationConfig(
        replicas=4, images=6_000, batch_size=32, lr=0.05, momentum=0.9, epochs=3
    )
    *_, trained = train_classifier(config, sample())
    assert trained.accuracy >= 0.74


def test_loss_of_a_residual_network_falls():
    events = run(**{**RESNET, "batch_size": 100, "epochs": 4, "initialisation": "he"})
    fallen = losses(events)
    assert len(fallen) == 4
    assert fallen[-1] < 0.9 * fallen[0]


# --- divergence -----------------------------------------------------------------------------


def test_diverging_run_ends_with_diverged():
    events = run(**DIVERGING)
    assert isinstance(events[-1], Diverged)
    assert not of_kind(ClassifierTrained, events)


def test_points_before_the_divergence_stay():
    events = run(**DIVERGING)
    assert len(losses(events)) == events[-1].step - 1 > 0
    assert all(map(math.isfinite, losses(events)))


def test_divergence_says_where():
    events = run(**DIVERGING)
    step, loss = events[-1].step, events[-1].loss
    assert loss > 1e4
    assert str(events[-1]) == f"The loss grew to {loss:.2g} at step {step}, at learning rate 100."
    assert events[-1].epochs == pytest.approx(step * 10 / 100)


def test_lenet_at_learning_rate_100_is_said_to_diverge():
    """Its units die and its loss comes down again, but it stays at chance."""
    assert isinstance(run(lr=100.0, epochs=4)[-1], Diverged)


def test_diverged_carries_the_scaled_learning_rate():
    events = run(lr=100.0, replicas=16, batch_size=6, scaling="scaled", epochs=20)
    assert isinstance(events[-1], Diverged)
    assert events[-1].lr == 1_600


# --- isolation ------------------------------------------------------------------------------


@KINDS
def test_run_is_repeatable_bit_for_bit(settings):
    assert recorded(run(**settings)) == recorded(run(**settings))


@KINDS
def test_other_seeds_give_other_runs(settings):
    assert len({tuple(losses(run(**settings, seed=seed))) for seed in range(3)}) == 3


def test_largest_seed_works():
    assert isinstance(run(seed=2**31 - 1)[-1], ClassifierTrained)


@KINDS
def test_run_does_not_depend_on_the_global_seed(settings):
    with torch.random.fork_rng(devices=[]):
        runs = []
        for seed in (1, 2):
            torch.manual_seed(seed)
            runs.append(recorded(run(**settings)))
    assert runs[0] == runs[1]


@KINDS
def test_run_leaves_the_global_random_generator_alone(settings):
    before = torch.get_rng_state()
    run(**settings)
    assert torch.equal(torch.get_rng_state(), before)


@KINDS
def test_run_is_the_same_under_another_default_dtype(settings):
    expected = recorded(run(**settings))
    torch.set_default_dtype(torch.float64)
    try:
        assert recorded(run(**settings)) == expected
    finally:
        torch.set_default_dtype(torch.float32)


def test_run_is_the_same_while_another_thread_draws_random_numbers():
    alone = recorded(run())
    stop, drawn = threading.Event(), []

    def draw():
        while not stop.is_set():
            drawn.append(float(torch.randn(100).sum()))

    thread = threading.Thread(target=draw)
    thread.start()
    try:
        together = recorded(run())
    finally:
        stop.set()
        thread.join()
    assert drawn
    assert together == alone


def test_run_is_the_same_while_other_runs_go_on():
    alone = [recorded(run(seed=seed)) for seed in range(3)]
    with ThreadPoolExecutor(3) as pool:
        runs = [pool.submit(run, seed=seed) for seed in range(3)]
        assert [recorded(each.result()) for each in runs] == alone


@KINDS
def test_threads_may_take_turns_on_one_run(settings):
    expected, events, taken = recorded(run(**settings)), start(**settings), []
    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as other:
        while (event := one.submit(next, events, None).result()) is not None:
            taken.append(event)
            one, other = other, one
    assert recorded(taken) == expected


@KINDS
def test_run_never_yields_inside_another_mode(settings):
    for event in start(**settings, equivalence="on"):
        assert torch.is_grad_enabled(), event
        assert not torch.is_inference_mode_enabled(), event
        assert torch.empty(0).device.type == "cpu", event


def test_grad_mode_of_whoever_runs_it_stays(watched):
    events = start()
    with torch.enable_grad():
        list(events)
        assert torch.is_grad_enabled()
    assert watched[0].ranks[0].module.training


@pytest.mark.parametrize("shards", [1, 2, 3])
def test_run_can_be_left_in_the_middle_of_a_residual_networks_step(shards):
    events = start(**RESNET)
    next(events)
    for _ in range(shards):
        assert isinstance(next(events), ShardDone)
    events.close()
    assert next(events, None) is None


def test_run_can_be_left_in_the_middle_of_an_evaluation():
    events = start(images=1_600, batch_size=800, epochs=1)
    next(each for each in events if isinstance(each, ImagesTested))
    events.close()
    assert next(events, None) is None


def test_run_leaves_the_shared_images_alone():
    data = sample()
    tensors = [data.train_images, data.train_labels, data.test_images, data.test_labels]
    before = [each.clone() for each in tensors]
    run()
    assert all(torch.equal(each, old) for each, old in zip(tensors, before, strict=True))


def minibatches_of(watched, **settings):
    """The images and labels of every step, as lists."""
    watched.clear()
    run(**settings)
    return [(images.tolist(), labels.tolist()) for images, labels in watched[0].minibatches]


@pytest.mark.parametrize(
    "settings",
    [{"replicas": 1}, {"replicas": 5}, {"model": "resnet18_quarter"}, {"initialisation": "he"},
     {"split": "balanced"}, {"allreduce": "ring"}, {"lr": 0.01}, {"equivalence": "on"}],
    ids=str,
)  # fmt: skip
def test_minibatches_depend_on_none_of_these(settings, watched):
    expected = minibatches_of(watched, epochs=1)
    assert minibatches_of(watched, epochs=1, **settings) == expected


def test_the_run_on_one_device_sees_the_same_minibatches(watched):
    run(equivalence="on")
    ours, theirs = (each.minibatches for each in watched)
    assert [x.tolist() for pair in ours for x in pair] == [
        x.tolist() for pair in theirs for x in pair
    ]


def test_every_epoch_shows_every_image_once(watched):
    run()
    data = sample()
    chosen = [int(row) for c in range(10) for row in (data.train_labels == c).nonzero()[:10]]
    expected = sorted(
        (int(data.train_labels[row]), data.train_images[row].numpy().tobytes()) for row in chosen
    )
    for epoch in (watched[0].minibatches[:3], watched[0].minibatches[3:]):
        shown = [
            (int(label), image.numpy().tobytes())
            for images, labels in epoch
            for image, label in zip(images, labels, strict=True)
        ]
        assert sorted(shown) == expected


def test_order_of_the_images_changes_from_epoch_to_epoch(watched):
    seen = minibatches_of(watched)
    assert seen[:3] != seen[3:]


# --- data -----------------------------------------------------------------------------------


def test_more_images_than_the_sample_has_are_refused_before_the_first_event():
    with pytest.raises(DataError) as caught:
        next(start(images=59_999))
    message = str(caught.value)
    assert "from 1 to 6,000; received 59,999" in message
    assert "Try 6,000" in message
    assert "python -m labcore data --download" in message


@needs_full_set
@pytest.mark.parametrize("images", [59_999, 60_000])
def test_full_set_takes_as_many_images(images):
    full = fashion_mnist.load(fashion_mnist.DEBIAN)
    events = train_classifier(ClassificationConfig(images=images, batch_size=64), full)
    assert next(events).steps_per_epoch == 938
    assert any(isinstance(event, StepTaken) for event in events)


@needs_full_set
def test_a_small_run_is_the_same_on_the_full_set_as_on_the_sample():
    full = fashion_mnist.load(fashion_mnist.DEBIAN)
    theirs = train_classifier(ClassificationConfig(**SMALL), full)
    assert losses(theirs) == losses(run())


def test_images_are_looked_for_when_none_are_given(monkeypatch):
    expected, data = losses(run()), sample()
    monkeypatch.setattr(fashion_mnist, "load", lambda: data)
    assert losses(train_classifier(ClassificationConfig(**SMALL))) == expected


def test_damaged_data_stops_a_run_before_its_first_event(monkeypatch):
    def damaged():
        raise DataError("The data file is damaged.")

    monkeypatch.setattr(fashion_mnist, "load", damaged)
    with pytest.raises(DataError):
        next(train_classifier(ClassificationConfig()))


# --- settings that are refused --------------------------------------------------------------

REFUSED = [
    ({"replicas": 0}, r"replicas must be a whole number from 1 to 16; received 0\."),
    ({"replicas": 17}, r"replicas must be .* to 16; received 17\."),
    ({"batch_size": 0}, r"batch_size must be a whole number from 1 to 60000; received 0\."),
    ({"batch_size": -1}, r"batch_size must be .*; received -1\."),
    ({"batch_size": 64.5}, r"batch_size must be .*; received 64\.5\."),
    ({"images": 60_001}, r"images must be .* to 60000; received 60001\."),
    ({"images": 99}, r"images must be a whole number from 100 .*; received 99\."),
    ({"lr": math.nan}, r"lr must be a number from 1e-06 to 100; received nan\."),
    ({"lr": 0}, r"lr must be .*; received 0\."),
    ({"lr": 101.0}, r"lr must be .* to 100; received 101\.0\."),
    ({"lr": math.inf}, r"lr must be .*; received inf\."),
    ({"momentum": 1.0}, r"momentum must be .* to 0\.9999; received 1\.0\."),
    ({"epochs": 0}, r"epochs must be .* from 1 to 100; received 0\."),
    ({"seed": -1}, r"seed must be .* from 0 .*; received -1\."),
    ({"model": "vgg"}, r"model must be one of lenet, .*; received 'vgg'\."),
    ({"split": "even"}, r"split must be one of chunk, balanced; received 'even'\."),
    ({"allreduce": "star"}, r"allreduce must be one of central, tree, .*; received 'star'\."),
    ({"initialisation": None}, r"initialisation must be one of normal, .*; received None\."),
    ({"scaling": True}, r"scaling must be one of fixed, scaled; received True\."),
    ({"equivalence": 1}, r"equivalence must be one of off, on; received 1\."),
]
UNFITTING = [
    ({"replicas": 5, "batch_size": 4}, r"every device must get a row .* received 5 devices for 4 "),
    ({"replicas": 16, "batch_size": 1}, r"every device must get a row .* 16 devices for 1 rows"),
    ({"batch_size": 6_001}, r"a minibatch must fit into .* received 6001 of 6000\."),
    ({"images": 100, "batch_size": 101}, r"a minibatch must fit into .* received 101 of 100\."),
    (
        {"batch_size": 2_000, "scaling": "scaled"},
        r"a minibatch must fit into .* received 8000 of 6000\.",
    ),
    (
        {"images": 100, "batch_size": 60_000, "replicas": 16, "scaling": "scaled"},
        r"a minibatch must fit into .* received 960000 of 100\.",
    ),
]
DEEPER = {"model": "resnet18_deeper"}
LONE = [
    # The settings, and the rows that leave one image alone.
    (DEEPER | {"batch_size": 1, "replicas": 1}, 1),
    (DEEPER | {"batch_size": 16, "replicas": 16}, 16),
    (DEEPER | {"batch_size": 5, "images": 100, "replicas": 2, "split": "chunk"}, None),
    (DEEPER | {"batch_size": 5, "images": 100, "replicas": 3, "split": "chunk"}, 5),
    (DEEPER | {"batch_size": 5, "images": 100, "replicas": 3, "split": "balanced"}, 5),
    (DEEPER | {"batch_size": 64, "images": 129, "replicas": 1}, 1),
    (DEEPER | {"batch_size": 64, "images": 131, "replicas": 4}, 3),
    (DEEPER | {"batch_size": 48, "images": 105, "replicas": 4, "split": "chunk"}, None),
    (DEEPER | {"batch_size": 49, "images": 107, "replicas": 4, "split": "balanced"}, None),
    (DEEPER | {"batch_size": 49, "images": 107, "replicas": 4, "split": "chunk"}, None),
    (DEEPER | {"batch_size": 49, "images": 107, "replicas": 8, "split": "balanced"}, 9),
    (DEEPER | {"batch_size": 1, "replicas": 15, "images": 100, "scaling": "scaled"}, 15),
]


@pytest.mark.parametrize(("settings", "message"), REFUSED + UNFITTING, ids=str)
def test_bad_setting_is_refused(settings, message):
    with pytest.raises(ConfigError, match=f"^classify: {message}"):
        ClassificationConfig(**settings)


@pytest.mark.parametrize(("settings", "rows"), LONE, ids=str)
def test_a_shard_of_one_image_is_refused_just_where_batch_norm_would(settings, rows):
    batch, images = settings["batch_size"], settings.get("images", 6_000)
    batch *= settings["replicas"] if "scaling" in settings else 1
    sizes = (batch, images % batch)
    cut = torch.chunk if settings.get("split", "chunk") == "chunk" else torch.tensor_split
    alone = [each for each in sizes if 1 in map(len, cut(torch.arange(each), settings["replicas"]))]
    assert alone[:1] == ([] if rows is None else [rows])
    if rows is None:
        ClassificationConfig(**settings)
    else:
        with pytest.raises(ConfigError, match=f"received rows {rows}, devices"):
            ClassificationConfig(**settings)


@pytest.mark.parametrize("model", [name for name in MODELS if name != "resnet18_deeper"])
def test_other_models_take_shards_of_one_image(model):
    assert ClassificationConfig(model=model, batch_size=16, replicas=16).global_batch == 16


def test_refusal_of_a_shard_says_why_and_what_to_change():
    with pytest.raises(ConfigError) as caught:
        ClassificationConfig(model="resnet18_deeper", batch_size=16, replicas=16)
    assert str(caught.value) == (
        "classify: ResNet-18 with two more stages needs shards of at least 2 images, because its "
        "feature maps shrink to one pixel and batch norm cannot average over that of one image; "
        "received rows 16, devices 16, split chunk. Try batch size 20 or 15 devices."
    )


@pytest.mark.parametrize(
    "settings", [each for each, _ in UNFITTING] + [each for each, rows in LONE if rows], ids=str
)
def test_every_suggestion_about_batch_and_devices_works(settings):
    with pytest.raises(ConfigError) as caught:
        ClassificationConfig(**settings)
    tried = str(caught.value).split("Try ")[1]
    sizes = [{"batch_size": int(n)} for n in re.findall(r"batch size (\d+)", tried)]
    devices = [{"replicas": int(n)} for n in re.findall(r"(\d+) device", tried)]
    works = [sizes[0] | devices[0]] if " and " in tried else sizes + devices
    assert works
    for each in works:
        ClassificationConfig(**{**settings, **each})


@pytest.mark.parametrize("settings", [each for each, _ in REFUSED], ids=str)
def test_every_suggestion_about_one_setting_works(settings):
    (name,) = settings
    with pytest.raises(ConfigError) as caught:
        ClassificationConfig(**settings)
    text = str(caught.value).split("Try ")[1].removesuffix(".")
    rules = {each.name: rule for each, rule in ruled_fields(ClassificationConfig)}
    ClassificationConfig(**{name: rules[name].parse(text)})


def test_learning_rate_of_100_is_allowed():
    assert ClassificationConfig(lr=100.0).global_lr == 100


def test_menus_are_the_registries():
    for name, registry in [
        ("model", MODELS),
        ("allreduce", ALLREDUCE),
        ("initialisation", INITIALISATIONS),
    ]:
        assert list(RULES[name].options) == list(registry)


def test_the_menu_of_splits_has_every_partition_once():
    offered = [PARTITIONS[name] for name in RULES["split"].options]
    cuts = [[split(rows, 4) for rows in range(20)] for split in offered]
    assert all(cuts.count(each) == 1 for each in cuts)
    assert all([split(rows, 4) for rows in range(20)] in cuts for split in PARTITIONS.values())


def test_a_last_minibatch_smaller_than_the_devices_is_allowed():
    events = run(images=101, batch_size=20, replicas=8, epochs=1)
    assert of_kind(MinibatchTrained, events)[-1].rows == (1, 0, 0, 0, 0, 0, 0, 0)


# --- the warm-up ----------------------------------------------------------------------------


def of_warmup(**settings):
    """Four devices and 10 steps per epoch, of which the first 20 warm up from 0.1 to 0.4."""
    given = {"images": 400, "batch_size": 10, "lr": 0.1, "scaling": "scaled", "epochs": 5}
    return ClassificationConfig(**(given | {"replicas": 4, "warmup_epochs": 2.0} | settings))


@pytest.mark.parametrize(
    ("step", "lr"), [(1, 0.1), (2, 0.115), (11, 0.25), (20, 0.385), (21, 0.4), (50, 0.4)]
)
def test_the_learning_rate_rises_by_as_much_in_every_step_of_the_warmup(step, lr):
    assert of_warmup().lr_at(step) == pytest.approx(lr)


def test_without_a_warmup_the_learning_rate_is_always_the_same():
    config = of_warmup(warmup_epochs=0.0)
    assert {config.lr_at(step) for step in range(1, 51)} == {config.global_lr}


def test_a_warmup_may_be_a_part_of_an_epoch():
    config = of_warmup(warmup_epochs=0.25)
    assert [config.lr_at(step) for step in (1, 2, 3, 4)] == pytest.approx([0.1, 0.22, 0.34, 0.4])


def test_one_device_has_nothing_to_warm_up():
    config = of_warmup(replicas=1, batch_size=40, lr=0.4)
    assert {config.lr_at(step) for step in range(1, 51)} == {0.4}


def test_a_batch_and_learning_rate_as_given_warm_up_from_a_devices_share():
    config = of_warmup(scaling="fixed", batch_size=40, lr=0.4)
    assert [config.lr_at(step) for step in (1, 11, 21)] == pytest.approx([0.1, 0.25, 0.4])


def test_sixteen_devices_at_4096_and_two_at_512_are_the_same_scaling():
    two = ClassificationConfig(
        replicas=2, batch_size=256, lr=0.1, scaling="scaled", images=60_000, epochs=10
    )
    sixteen = replace(two, replicas=16, warmup_epochs=5.0)
    assert (two.global_batch, two.global_lr) == (512, 0.2)
    assert (sixteen.global_batch, sixteen.global_lr) == (4096, 1.6)
    assert sixteen.lr_at(1) == pytest.approx(0.1)


def test_a_run_takes_the_steps_of_its_warmup():
    config = of_warmup(epochs=2, warmup_epochs=2.0)
    run = classification._Run(config, fashion_mnist.load(fashion_mnist.EMBEDDED))
    flat, learnt = run.replicas.ranks[0].flat.clone(), []
    for event in run.train_epoch(1):
        if isinstance(event, StepTaken):
            now, gradient = run.replicas.ranks[0].flat.clone(), run.replicas.ranks[0].gradient
            learnt.append(((flat - now).norm() / gradient.norm() * 40).item())
            flat = now
    assert learnt == pytest.approx([config.lr_at(step) for step in range(1, 11)], rel=1e-3)


def test_the_one_device_of_the_check_warms_up_in_step():
    config = of_warmup(images=200, epochs=1, warmup_epochs=1.0, equivalence="on")
    apart = [e.difference for e in train_classifier(config) if isinstance(e, MinibatchTrained)]
    assert max(apart) < 1e-6


def test_a_warmup_ends_within_the_run():
    with pytest.raises(ConfigError, match="warmup_epochs must be at most the epochs, 5; received"):
        of_warmup(warmup_epochs=6.0)
