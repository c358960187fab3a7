"""How fast known GPUs train the lab's models: modelled from their peak rate, never measured here.

A pass over b images takes a + b / s. The speed s is the peak rate times its utilisation over the
model's floating-point operations per image; the fixed cost a is a launch per operation of torch.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any

import torch
from torch.nn import functional as F  # noqa: N812 (the name that everybody knows it by)

from labcore.config import refusal
from labcore.models import MODELS
from labcore.reported import FASHION_MNIST_RUNS

LAUNCH = 10e-6
"""Seconds that an operation of eager torch keeps its CPU busy before a GPU can begin. Assumed: 5 to
25 µs are usual."""


@dataclass(frozen=True, slots=True)
class Work:
    """What one training pass, forward and backward, asks of a device.

    Attributes:
        flops: floating-point operations per image in convolutions and matrix products.
        operations: calls of torch that compute something, whatever the number of images.
    """

    flops: float
    operations: int


@cache
def work(model: str) -> Work:
    """Count what a training pass of a model does, from its name in `MODELS`.

    Read off the graph that autograd keeps of a forward pass: per node one operation forward and one
    backward, and one per parameter's gradient.
    """
    images = 2
    with torch.device("meta"):
        module = MODELS[model].build()
    # Whatever the memory holds: only shapes matter.
    logits = module.to_empty(device="cpu")(torch.zeros(images, 1, 28, 28))
    loss = F.cross_entropy(logits, torch.zeros(images, dtype=torch.int64), reduction="sum")
    nodes = _graph(loss.grad_fn)
    parameters = sum(node.name().endswith("AccumulateGrad") for node in nodes)
    flops = sum(map(_flops, nodes))
    return Work(flops / images, 2 * (len(nodes) - parameters) + parameters)


def _graph(end: Any) -> list[Any]:
    """The node that a graph ends in, and all before it."""
    nodes, waiting = {id(end): end}, [end]
    while waiting:
        for node, _ in waiting.pop().next_functions:
            if node is not None and id(node) not in nodes:
                nodes[id(node)] = node
                waiting.append(node)
    return list(nodes.values())


def _flops(node: Any) -> int:
    """Of a node forward, and as many again for each of its two factors that needs a gradient."""
    match node.name():
        case "ConvolutionBackward0":
            images, _, *sides = node._saved_input.shape
            channels, *kernel = node._saved_weight.shape
            pads, strides = node._saved_padding, node._saved_stride
            size = math.prod(
                (side + 2 * pad - width) // stride + 1
                for side, pad, width, stride in zip(sides, pads, kernel[1:], strides, strict=True)
            )
            forward = 2 * images * channels * size * math.prod(kernel)
            factors = [each for each, _ in node.next_functions[:2] if each is not None]
        case "AddmmBackward0":
            rows, inner = node._saved_mat1_sym_sizes
            forward = 2 * rows * inner * node._saved_mat2_sym_sizes[1]
            factors = [each for each, _ in node.next_functions[1:] if each is not None]
        case _:
            return 0
    return int(forward) * (1 + len(factors))


@dataclass(frozen=True)
class Device:
    """What computes: a pass over b images, forward and backward, takes fixed + b / speed.

    Attributes:
        fixed: seconds, however few the images: a.
        speed: images per second beyond that: s.

    Raises:
        ConfigError: the fixed cost is negative or not finite, or the speed not above 0.
    """

    fixed: float
    speed: float

    def __post_init__(self) -> None:
        if not 0 <= self.fixed < float("inf"):
            raise refusal("fixed cost of a device", self.fixed, "a finite time from 0 s", 0.001)
        if not self.speed > 0:
            raise refusal("speed of a device", self.speed, "above 0 images/s", 1000)

    def seconds(self, rows: float) -> float:
        """Time of a pass over so many images; without any there is no pass."""
        return self.fixed + rows / self.speed if rows else 0.0

    def slowed(self, factor: float) -> "Device":
        """The same device when everything takes so many times as long."""
        return Device(self.fixed * factor, self.speed / factor)


@dataclass(frozen=True)
class GPU:
    """A known GPU in single precision, without tensor cores.

    Attributes:
        label: what it is called.
        peak: floating-point operations per second that its maker states.
        utilisation: share of the peak that training reaches; see `UTILISATION`.
        source: of the peak.
    """

    label: str
    peak: float
    utilisation: float
    source: str

    def device(self, model: str) -> Device:
        """What it makes of a model, from its name in `MODELS`."""
        needs = work(model)
        return Device(LAUNCH * needs.operations, self.utilisation * self.peak / needs.flops)


V100_PEAK = 15.7e12


def utilisation_in_the_notes() -> float:
    """Share of a V100's peak that the notes' ResNet-18 reached, from its seconds per epoch.

    The launches count as time of their own, so that the modelled epoch takes what they report.
    """
    run = next(run for run in FASHION_MNIST_RUNS if run.model == "resnet18")
    needs = work(run.model)
    steps = -(-60_000 // run.batch_size)
    computing = run.seconds_per_epoch - steps * LAUNCH * needs.operations
    return 60_000 * needs.flops / computing / V100_PEAK


UTILISATION = 0.8
"""What the notes' V100 reached with ResNet-18, to one digit; for all other GPUs it is assumed."""

GPUS: Mapping[str, GPU] = MappingProxyType(
    {
        "t4": GPU("T4", 8.1e12, UTILISATION, "Nvidia, T4 datasheet, 2018: 8.1 TFLOP/s"),
        "v100": GPU(
            "V100", V100_PEAK, UTILISATION, "Nvidia, Tesla V100 whitepaper, 2017: 15.7 TFLOP/s"
        ),
        "a100": GPU("A100", 19.5e12, UTILISATION, "Nvidia, A100 whitepaper, 2020: 19.5 TFLOP/s"),
        "h100": GPU(
            "H100 SXM", 66.9e12, UTILISATION, "Nvidia, H100 whitepaper, 2022: 66.9 TFLOP/s"
        ),
    }
)
"""FP32, as the notes' training; tensor cores would be faster, and what is here for most is assumed:
a modelled time, to compare with another, not to rely on."""
