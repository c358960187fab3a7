"""A step on p devices: its parts by hand, DDP's buckets by torch, and laws at their edges."""

import itertools
import math
from dataclasses import replace

import pytest
import torch
from torch import distributed as dist

from labcore.config import ConfigError, ruled_fields
from labcore.models import MODELS, gradient_bytes, tensor_bytes
from labcore.network import MOST_DEVICES
from labcore.scaling import (
    BACKWARD,
    COUNTS,
    MIB,
    amdahl,
    buckets,
    counts,
    curve,
    exposed,
    gustafson,
    half_used,
    step_time,
    summary,
    sweet_spot,
)
from labcore.scaling_config import PRESETS, ScalingConfig

TYPED = {
    "device": "typed",
    "inside": "typed",
    "between": "typed",
    "inside_latency": 5.7,
    "inside_bandwidth": 12.0,
    "per_machine": 16,
}
every_preset = pytest.mark.parametrize("name", PRESETS)


def config(**settings):
    """A device of 2 ms and 1,000 images/s on the link of the hand-worked figures."""
    given = TYPED | {"fixed_ms": 2.0, "speed": 1000.0, "overlap": "off", "algorithm": "ring"}
    return ScalingConfig(**(given | settings))


# The parts of a step


def test_a_step_by_hand():
    step = step_time(config(devices=16, batch_size=256))
    assert (step.devices, step.rows) == (16, 16)
    assert step.fixed == pytest.approx(2e-3)
    assert step.forward + step.backward == pytest.approx(16e-3)
    assert step.backward == pytest.approx(BACKWARD * 16e-3)
    assert step.allreduce == step.exposed == pytest.approx(7.156e-3, rel=1e-3)
    assert step.seconds == pytest.approx(25.156e-3, rel=1e-3)


def test_the_fullest_device_decides():
    assert step_time(config(devices=3, batch_size=256)).rows == 86


def test_in_weak_scaling_every_device_has_the_whole_batch():
    assert {step_time(config(growth="weak", devices=p)).rows for p in (1, 5, 16)} == {256}


@pytest.mark.parametrize("overlap", ["on", "off"])
@pytest.mark.parametrize("model", MODELS)
def test_one_device_only_computes(model, overlap):
    step = step_time(config(model=model, devices=1, overlap=overlap))
    assert step.seconds == pytest.approx(2e-3 + 0.256)
    assert step.allreduce == step.exposed == 0


def test_without_a_fixed_cost_there_is_none():
    assert step_time(config(fixed_ms=0.0)).fixed == 0


def test_on_free_links_only_computing_takes_time():
    step = step_time(config(inside_latency=0.0, inside_bandwidth=1e6))
    assert step.exposed < 1e-6 * gradient_bytes("resnet18") / 1e3
    assert step.seconds == pytest.approx(18e-3, rel=0.01)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("devices", [2, 8, 64])
def test_overlap_hides_a_part_and_never_more_than_the_backward_pass(model, devices):
    step = step_time(config(model=model, devices=devices, overlap="on"))
    assert 0 <= step.exposed <= step.allreduce
    assert step.hidden <= step.backward * (1 + 1e-12)


def test_buckets_cost_messages_and_no_bytes():
    whole, cut = (step_time(config(overlap=overlap)) for overlap in ("off", "on"))
    extra = len(buckets(tensor_bytes("resnet18"), MIB, 25 * MIB)) - 1
    assert cut.allreduce - whole.allreduce == pytest.approx(extra * 30 * 5.7e-6)


# Buckets


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("limits", [(MIB, 25 * MIB), (MIB // 10, MIB), (2**40, 1)])
def test_buckets_are_those_of_ddp(model, limits):
    backwards = [torch.empty(n // 4) for n in reversed(tensor_bytes(model))]
    groups, _ = dist._compute_bucket_assignment_by_size(backwards, list(limits))
    expected = [sum(backwards[n].nbytes for n in group) for group in groups]
    assert buckets(tensor_bytes(model), *limits) == expected


@pytest.mark.parametrize("sizes", [(4, 8, 8, 4), (8, 4), (4, 4, 4, 4), (4,)])
def test_a_bucket_that_is_exactly_full_is_closed(sizes):
    backwards = [torch.empty(n // 4) for n in reversed(sizes)]
    groups, _ = dist._compute_bucket_assignment_by_size(backwards, [4, 8])
    assert buckets(sizes, 4, 8) == [sum(backwards[n].nbytes for n in group) for group in groups]


def test_a_bucket_goes_when_it_is_ready_and_the_one_before_has_arrived():
    # Ready after 1, 2 and 4 s. From 1 to 1.5, 2 to 2.5, 4 to 5: one second after the end.
    assert exposed([1, 1, 2], (0.0, 0.5), 4.0) == pytest.approx(1.0)
    # Twice the time: 1 to 2, 2 to 3, 4 to 6.
    assert exposed([1, 1, 2], (0.0, 1.0), 4.0) == pytest.approx(2.0)
    # 1 to 4, 4 to 7, 7 to 13: now they queue.
    assert exposed([1, 1, 2], (0.0, 3.0), 4.0) == pytest.approx(9.0)
    # A start-up each: 1 to 2.5, 2.5 to 4, 4 to 6.
    assert exposed([1, 1, 2], (1.0, 0.5), 4.0) == pytest.approx(2.0)


def test_all_in_one_bucket_hides_nothing():
    assert exposed([8.0], (1.0, 0.5), 100.0) == pytest.approx(5.0)


def test_a_free_allreduce_leaves_nothing():
    assert exposed([1.0, 2.0], (0.0, 0.0), 4.0) == 0.0


# Curves and laws


@pytest.mark.parametrize("law", [amdahl, gustafson])
def test_one_device_is_as_fast_as_one(law):
    assert [law(f, 1) for f in (0.0, 0.3, 1.0)] == pytest.approx([1, 1, 1])


@pytest.mark.parametrize("law", [amdahl, gustafson])
def test_without_a_serial_part_a_law_is_the_ideal_and_with_nothing_else_a_standstill(law):
    assert law(0.0, 64) == 64
    assert law(1.0, 64) == 1


def test_the_laws_by_hand():
    # Amdahl 1967 and Gustafson 1988, at 5 % serial work and 20 devices.
    assert amdahl(0.05, 20) == pytest.approx(1 / (0.05 + 0.95 / 20))
    assert gustafson(0.05, 20) == pytest.approx(20 - 0.05 * 19)


def test_with_free_links_strong_scaling_is_amdahls_law():
    free = config(inside_latency=0.0, inside_bandwidth=1e6, per_machine=256)
    for point in curve(free):
        if 256 % point.step.devices == 0:
            assert point.speed_up == pytest.approx(point.amdahl, rel=0.02)


def test_curves_begin_with_one_device_at_speed_one():
    for growth in ("strong", "weak"):
        first = curve(config(growth=growth))[0]
        assert (first.step.devices, first.speed_up, first.efficiency) == (1, 1, 1)


def test_an_epoch_is_its_steps():
    point = curve(config(devices=16, batch_size=256))[15]
    assert point.seconds_per_epoch == pytest.approx(235 * point.step.seconds)  # 60,000 / 256
    assert point.images_per_second == pytest.approx(256 / point.step.seconds)


@pytest.mark.parametrize("growth", ["strong", "weak"])
def test_a_curve_goes_as_far_as_there_is_work_to_share(growth):
    last = counts(config(growth=growth, batch_size=100, images=6_000, devices=10))[-1]
    assert last == {"strong": 96, "weak": 60}[growth]


def test_a_curve_reaches_1024_devices():
    far = ScalingConfig(growth="weak", batch_size=32, devices=1024)
    assert [point.step.devices for point in curve(far)] == list(COUNTS)
    assert COUNTS[-1] == MOST_DEVICES
    assert sorted(set(COUNTS)) == list(COUNTS)


def test_the_number_on_the_page_is_on_the_curve():
    assert 77 in [point.step.devices for point in curve(config(devices=77))]


def test_beyond_the_sweet_spot_more_devices_are_no_faster():
    points = curve(config(model="lenet", speed=1e5, algorithm="central", per_machine=256))
    best = sweet_spot(points)
    assert all(point.images_per_second <= best.images_per_second for point in points)
    # 2 (p − 1) messages cost 11.4 µs a device: T(p) = 2.56 / p ms + 97.4 (p − 1) µs, least at 5.
    assert best.step.devices == round(math.sqrt(2.56 / (2 * (5.7e-3 + 0.516272 / 12))))


def test_half_used_is_the_last_with_half_the_efficiency():
    points = curve(config())
    found = half_used(points)
    assert found.efficiency >= 0.5
    assert all(p.efficiency < 0.5 for p in points if p.step.devices > found.step.devices)


# Sixteen GPUs


def efficiency(name):
    chosen = PRESETS[name][1]
    return next(p.efficiency for p in curve(chosen) if p.step.devices == chosen.devices)


def test_lenet_on_16_gpus_is_hopeless_and_resnet_is_not():
    assert 16 * efficiency("LeNet on 16") < 1.5
    assert 16 * efficiency("ResNet-18 on 16") > 5
    assert efficiency("ResNet-18 on 16, batch 4,096") > 0.95


def test_with_the_notes_allreduce_16_gpus_are_slower_than_one():
    assert 16 * efficiency("The notes' way") < 1


@every_preset
def test_a_preset_has_words_and_can_be_summed_up(name):
    words, chosen = PRESETS[name]
    assert words.endswith(".")
    sentence = summary(chosen, curve(chosen))
    assert sentence.startswith(f"Modelled: {chosen.devices:,} × V100 train ")
    assert sentence.endswith(".")
    assert sentence.count(". ") == 0


def test_a_summary_holds_the_figures():
    sentence = summary(config(), curve(config()))
    assert "16 × device as typed in train ResNet-18 10.3 times as fast as one" in sentence
    assert "(64% efficiency), 25.2 ms per step of 16 images per device, 28% of it" in sentence


def test_what_is_measured_here_is_not_called_typed_in():
    measured = config(device="measured")
    assert "device as measured here" in summary(measured, curve(measured))


# What is refused


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"devices": 0}, "devices must be a whole number from 1 to 1024; received 0"),
        ({"devices": 1025}, "devices must be a whole number from 1 to 1024; received 1025"),
        ({"devices": 16, "batch_size": 8}, "every device must get a row .* 16 devices for 8 rows"),
        ({"inside_latency": -1.0}, "inside_latency must be a number from 0 to"),
        ({"inside_bandwidth": 0.0}, "inside_bandwidth must be a number from"),
        ({"speed": 0.0}, "speed must be a number from 0.001"),
        ({"fixed_ms": -1.0}, "fixed_ms must be a number from 0"),
        ({"bucket": 0.0}, "bucket must be a number from 0.001"),
        ({"batch_size": 10**9}, "batch_size must be a whole number from 1 to 1000000"),
        ({"growth": "weak", "batch_size": 4000}, "must fit into the training images; .* 64000 of"),
    ],
    ids=str,
)
def test_impossible_settings_are_refused(settings, message):
    with pytest.raises(ConfigError, match=rf"^scaling: .*{message}"):
        config(**settings)


@pytest.mark.parametrize("growth", ["strong", "weak"])
def test_what_is_suggested_works(growth):
    with pytest.raises(ConfigError, match="Try"):
        config(growth=growth, devices=1000, batch_size=900, images=60_000)
    better = {"batch_size": 1000} if growth == "strong" else {"images": 900_000}
    assert config(**({"growth": growth, "devices": 1000, "batch_size": 900} | better))


def test_every_combination_of_choices_has_a_time():
    options = {
        each.name: list(rule.options)
        for each, rule in ruled_fields(ScalingConfig)
        if each.name in ("model", "device", "algorithm", "overlap", "growth")
    }
    for values in itertools.product(*options.values()):
        chosen = replace(ScalingConfig(), **dict(zip(options, values, strict=True)))
        assert 0 < step_time(chosen).seconds < 1e3
