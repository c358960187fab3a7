"""How long a classification run will take here, from a short trial of its model."""

from dataclasses import dataclass
from functools import cache
from time import perf_counter

import torch

from labcore.classification import ClassificationConfig
from labcore.models import initialise
from labcore.replicas import Replica, place

SHARDS = (8, 32)
"""Images in the two trial shards; two, to tell the fixed cost from the cost per image."""
EVALUATION = 1 / 3
"""An evaluation's share of the work: a forward pass, while a backward pass costs about two."""


@dataclass(frozen=True)
class Speed:
    """Seconds of one forward and backward pass: `fixed` + `per_image` × images."""

    fixed: float
    per_image: float


@cache
def calibrate(model: str, cores: int) -> Speed:
    """Time a model on this machine as busy as it is now; once per process.

    Args:
        model: a name in `MODELS`.
        cores: for its operations.
    """
    torch.set_num_threads(cores)
    replica = Replica(model, place(1).devices[0], torch.float32)
    initialise(replica.module, "he", torch.Generator().manual_seed(0))
    small, large = (_seconds(replica, images) for images in SHARDS)
    per_image = max(0.0, large - small) / (SHARDS[1] - SHARDS[0])
    return Speed(max(0.0, small - SHARDS[0] * per_image), per_image)


def _seconds(replica: Replica, images: int) -> float:
    """The shorter of two passes, after one to warm up."""
    pixels = torch.zeros(images, 28, 28, dtype=torch.uint8)
    labels = torch.zeros(images, dtype=torch.int64)
    times = []
    for _ in range(3):
        started = perf_counter()
        replica.backward(replica.forward(pixels, labels))
        if replica.device.type == "cuda":
            torch.cuda.synchronize(replica.device)
        times.append(perf_counter() - started)
    return min(times[1:])


def estimate(config: ClassificationConfig, speed: Speed) -> float:
    """Seconds that a run will take, evaluation included.

    Replicas on one device take turns, so their fixed costs add up; what they share is the images.
    """
    passes = config.steps_per_epoch * config.replicas * speed.fixed
    work = config.images + EVALUATION * config.test_images
    twice = 2 if config.equivalence == "on" else 1
    return config.epochs * twice * (passes + work * speed.per_image)
