"""Modelled GPUs: the work against torch's own counter, speeds against their formula."""

import math

import pytest
import torch
from torch.nn import functional as F  # noqa: N812 (the name that everybody knows it by)
from torch.utils.flop_counter import FlopCounterMode

from labcore.config import ConfigError
from labcore.hardware import (
    GPUS,
    LAUNCH,
    UTILISATION,
    Device,
    utilisation_in_the_notes,
    work,
)
from labcore.models import MODELS
from labcore.reported import FASHION_MNIST_RUNS

every_gpu = pytest.mark.parametrize("gpu", GPUS.values(), ids=GPUS.keys())


@pytest.mark.parametrize("model", MODELS)
def test_the_work_is_what_torch_counts(model):
    with torch.device("meta"):
        module = MODELS[model].build()
        pixels, labels = torch.empty(3, 1, 28, 28), torch.empty(3, dtype=torch.int64)
    with FlopCounterMode(display=False) as counter:
        F.cross_entropy(module(pixels), labels).backward()
    assert work(model).flops == counter.get_total_flops() / 3


def test_a_pass_of_lenet_is_worked_out_by_hand():
    forward = 2 * (26**2 * 20 * 9 + 9**2 * 50 * 20 * 25 + 800 * 128 + 128 * 10)
    first = 2 * 26**2 * 20 * 9  # whose input, the image, needs no gradient
    assert work("lenet").flops == 3 * forward - first


def test_a_deeper_model_launches_more():
    assert work("lenet").operations < work("resnet18").operations
    assert work("resnet18").operations < work("resnet18_deeper").operations
    assert work("resnet18_quarter").operations == work("resnet18").operations


@every_gpu
@pytest.mark.parametrize("model", MODELS)
def test_a_gpu_reaches_its_share_of_its_peak(gpu, model):
    device = gpu.device(model)
    assert device.speed * work(model).flops == pytest.approx(gpu.utilisation * gpu.peak)
    assert device.fixed == LAUNCH * work(model).operations


@every_gpu
def test_a_gpu_says_where_its_peak_is_from(gpu):
    assert f"{gpu.peak / 1e12:g} TFLOP/s" in gpu.source
    assert gpu.source.startswith("Nvidia, ")


def test_the_utilisation_is_that_of_the_notes_run():
    assert round(utilisation_in_the_notes(), 1) == UTILISATION


def test_a_modelled_epoch_on_a_v100_takes_about_what_the_notes_report():
    [run] = [run for run in FASHION_MNIST_RUNS if run.model == "resnet18"]
    device = GPUS["v100"].device("resnet18")
    seconds = 60_000 / device.speed + math.ceil(60_000 / run.batch_size) * device.fixed
    assert seconds == pytest.approx(run.seconds_per_epoch, rel=0.06)


# Devices


def test_a_pass_takes_a_and_b_over_s():
    assert Device(0.5, 100).seconds(50) == 1.0
    assert Device(0.0, 100).seconds(50) == 0.5
    assert Device(0.5, math.inf).seconds(50) == 0.5


def test_without_rows_there_is_no_pass():
    assert Device(0.5, 100).seconds(0) == 0.0


def test_slowed_down_everything_takes_longer():
    assert Device(0.5, 100).slowed(3).seconds(50) == pytest.approx(3 * 1.0)


@pytest.mark.parametrize("fixed", [-1.0, math.nan, math.inf])
def test_impossible_fixed_costs_are_refused(fixed):
    with pytest.raises(ConfigError, match="fixed cost of a device must be a finite time from 0 s"):
        Device(fixed, 1.0)


@pytest.mark.parametrize("speed", [0.0, -1.0, math.nan])
def test_impossible_speeds_are_refused(speed):
    with pytest.raises(ConfigError, match="speed of a device must be above 0 images/s; received"):
        Device(0.0, speed)
