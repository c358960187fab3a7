"""Questions on scaling to predict before looking; what is right is computed, not written down.

The first ones are the notes' own: other epochs, batches and learning rates, 16 GPUs; devices of
different speed. `LARGE_BATCHES` are runs with which a class checks the advice by training.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from labcore.classification import ClassificationConfig
from labcore.costs import Link
from labcore.findings import SEEDS, STUDENT, only_devices_differ, standard_deviations
from labcore.hardware import GPUS, Device
from labcore.models import gradient_bytes
from labcore.network import Network
from labcore.reported import FASHION_MNIST_RUNS
from labcore.scaling import curve
from labcore.scaling_config import PRESETS, ScalingConfig
from labcore.uneven import best_sharing, equal_sharing, one_more
from labcore.units import in_bytes, in_seconds

PCIE = Link("PCIe", 5.7e-6, 12e9, "bandwidth as programs reach it on PCIe 3.0 ×16; latency: NCCL")
ONE_MACHINE = Network("ring", PCIE, PCIE, 16)
CPU_SPEED = 40.0
"""Images per second of ResNet-18 on two CPU cores, as measured by this lab."""

NOTES_BATCH = ClassificationConfig(
    model="lenet", replicas=2, images=60_000, batch_size=256, lr=0.1, scaling="scaled", epochs=10
)
SIXTEEN = replace(NOTES_BATCH, replicas=16)
_SAMPLE: dict[str, Any] = {"images": 6_000, "initialisation": "he", "epochs": 100}


@dataclass(frozen=True)
class LargeBatch:
    """A run that puts the advice on large batches to the test.

    Attributes:
        config: the run.
        found: how it ended here, from seed 0.
    """

    config: ClassificationConfig
    found: str


LARGE_BATCHES: dict[str, LargeBatch] = {
    "2 devices, batch 512, lr 0.2": LargeBatch(
        replace(NOTES_BATCH, **_SAMPLE), "test accuracy 0.85"
    ),
    "16 devices, batch 4,096, lr 0.1": LargeBatch(
        replace(SIXTEEN, batch_size=4096, scaling="fixed", **_SAMPLE), "test accuracy 0.78"
    ),
    "16 devices, batch 4,096, lr 1.6": LargeBatch(
        replace(SIXTEEN, **_SAMPLE), "diverges within ten steps"
    ),
    "16 devices, batch 4,096, lr 1.6, warm-up": LargeBatch(
        replace(SIXTEEN, warmup_epochs=50.0, **_SAMPLE), "diverges at lr 0.85, on the way"
    ),
    "16 devices, batch 4,096, lr 0.8, warm-up": LargeBatch(
        replace(SIXTEEN, lr=0.05, warmup_epochs=50.0, **_SAMPLE), "test accuracy 0.78"
    ),
}
"""Linear scaling of the learning rate and warm-up to try, on replicas that may be logical: their
accuracy is that of as many GPUs. A hundred epochs of the 6,000 embedded images have about as many
steps as ten of all 60,000, where this lab found 0.79, 0.72, chance, chance and 0.76. The rule has
limits: its authors trained a network with batch norm, which LeNet has not."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What is right, and why.

    Attributes:
        right: number of the choice, from 0.
        words: with the figures that the lab computed.
    """

    right: int
    words: str


@dataclass(frozen=True)
class Exercise:
    """A question with choices.

    Attributes:
        question: in words.
        choices: what may be predicted.
        solve: computes the answer.
    """

    question: str
    choices: tuple[str, ...]
    solve: Callable[[], Answer]


def nearest(value: float, choices: Sequence[float]) -> int:
    """Number of the choice that is nearest in ratio."""
    return min(range(len(choices)), key=lambda n: abs(math.log(value / choices[n])))


TIMES = (16.0, 6.0, 1.0, 0.25)
TIMES_WORDS = ("about 16 times", "about 6 times", "about as fast as one", "slower than one")


def _speed_up(config: ScalingConfig) -> Answer:
    point = next(each for each in curve(config) if each.step.devices == config.devices)
    step = point.step
    words = (
        f"{point.speed_up:.3g} times, modelled: {in_seconds(step.seconds)} per step, of which "
        f"{in_seconds(step.fixed)} are fixed cost, {in_seconds(step.forward + step.backward)} "
        f"computing and {in_seconds(step.exposed)} waiting for the allreduce."
    )
    return Answer(nearest(point.speed_up, TIMES), words)


def _lenet_on_16() -> Answer:
    return _speed_up(PRESETS["LeNet on 16"][1])


def _resnet_on_16() -> Answer:
    return _speed_up(PRESETS["ResNet-18 on 16"][1])


def _large_batch() -> Answer:
    return _speed_up(PRESETS["ResNet-18 on 16, batch 4,096"][1])


def _central() -> Answer:
    n_bytes = gradient_bytes("resnet18")
    ring = ONE_MACHINE.seconds(16, n_bytes)
    central = replace(ONE_MACHINE, algorithm="central").seconds(16, n_bytes)
    words = (
        f"{in_seconds(central)} against {in_seconds(ring)} for {in_bytes(n_bytes)}: all of it "
        "passes one device's link 30 times, where in the ring 30 sixteenths pass every link."
    )
    return Answer(nearest(central / ring, (1, 4, 16, 64)), words)


def _learning_rate() -> Answer:
    words = (
        f"{SIXTEEN.global_lr:g} at batch {SIXTEEN.global_batch:,}: k times the batch, k times the "
        "learning rate (Goyal et al., 2017), rising to it from "
        f"{replace(SIXTEEN, warmup_epochs=5.0).lr_at(1):g} in the first epochs."
    )
    return Answer(nearest(SIXTEEN.global_lr, (0.1, 0.4, 1.6, 25.6)), words)


def _steps() -> Answer:
    one, other = (replace(NOTES_BATCH, scaling="fixed", batch_size=batch) for batch in (256, 1024))
    counts = [10 * config.steps_per_epoch for config in (one, other)]
    words = (
        f"{counts[0]:,} steps became {counts[1]:,}, each as long as before: the notes report 0.90 "
        "at batch 256 and 0.69 at 1,024 after as many epochs."
    )
    return Answer(nearest(counts[0] / counts[1], (1 / 4, 1, 4, 16)), words)


def _third_as_fast() -> Answer:
    devices = [Device(0.0, 300.0), Device(0.0, 100.0)]
    best, equal = best_sharing(120, devices), equal_sharing(120, devices)
    words = (
        f"{best.rows[0]} and {best.rows[1]}: both take {in_seconds(best.last)}. With 60 each, the "
        f"slow one takes {in_seconds(equal.last)}, and the fast one waits for "
        f"{in_seconds(equal.waiting[0])} of it."
    )
    return Answer((60, 40, 30, 0).index(best.rows[1]), words)


def _gpu_and_cpu() -> Answer:
    gpu, cpu = GPUS["v100"].device("resnet18"), Device(0.0, CPU_SPEED)
    verdict = one_more(256, [gpu], cpu, ONE_MACHINE, gradient_bytes("resnet18"))
    rows = f"{verdict.rows} row{'s' * (verdict.rows != 1)}"
    return Answer(0 if verdict.pays else 1, f"The CPU would get {rows} of 256. {verdict}")


def _better_with_two() -> Answer:
    [(one, two)] = only_devices_differ(FASHION_MNIST_RUNS)
    away = standard_deviations(two.accuracy - one.accuracy, list(SEEDS.values()))
    words = (
        f"{away:.1f} standard deviations apart, where six runs leave {STUDENT:.1f} to chance; and "
        "from the same seed, k devices take the steps of one."
    )
    return Answer(0 if away > STUDENT else 1, words)


EXERCISES: Mapping[str, Exercise] = {
    "lenet": Exercise(
        "LeNet, batch 256, on 16 V100s connected by PCIe instead of one. How much faster?",
        TIMES_WORDS,
        _lenet_on_16,
    ),
    "resnet": Exercise(
        "ResNet-18 on the same 16 GPUs, batch 256 as before. How much faster?",
        TIMES_WORDS,
        _resnet_on_16,
    ),
    "large batch": Exercise(
        "ResNet-18 on the same 16 GPUs, now 256 images on each. How many more images per second?",
        TIMES_WORDS,
        _large_batch,
    ),
    "central": Exercise(
        "16 GPUs sum ResNet-18's gradients. How long does the notes' central allreduce take, "
        "compared with a ring?",
        ("as long", "about 4 times", "about 16 times", "about 64 times"),
        _central,
    ),
    "learning rate": Exercise(
        "One GPU trains well with batch 256 and learning rate 0.1. Which one should 16 GPUs with "
        "batch 4,096 try?",
        ("0.1", "0.4", "1.6", "25.6"),
        _learning_rate,
    ),
    "epochs": Exercise(
        "From batch 256 to 1,024, learning rate and ten epochs unchanged: how many steps are "
        "taken?",
        ("4 times as many", "as many", "a quarter", "a sixteenth"),
        _steps,
    ),
    "speeds": Exercise(
        "One device is three times as fast as the other. How many of 120 rows for the slow one?",
        ("60", "40", "30", "0"),
        _third_as_fast,
    ),
    "gpu and cpu": Exercise(
        "A V100 trains ResNet-18, batch 256. Should the CPU beside it, with 40 images/s, help?",
        ("yes, every bit helps", "no, it costs more than it saves"),
        _gpu_and_cpu,
    ),
    "accuracy": Exercise(
        "The notes report accuracy 0.76 on one GPU and 0.83 on two. Is that due to the second GPU?",
        ("yes", "no: it may as well be the seed"),
        _better_with_two,
    ),
}
"""By a short name."""
