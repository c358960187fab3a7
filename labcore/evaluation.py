"""What a model makes of the test images: probabilities, accuracy, mistakes."""

from collections.abc import Generator

import torch
from torch import Tensor

from labcore.datasets.fashion_mnist import FashionMNIST
from labcore.events import EpochEvaluated, ImagesTested, Learnt
from labcore.models import CLASSES
from labcore.replicas import Replica

EVALUATED_AT_ONCE = 250
"""Test images per forward pass: small enough to pause a slow model in between."""


def evaluate(
    replica: Replica, data: FashionMNIST, images: int, epoch: int
) -> Generator[ImagesTested, None, Learnt]:
    """Classify test images, with running statistics in the batch norms.

    Args:
        replica: whose model classifies.
        data: where the images are.
        images: how many test images.
        epoch: epochs trained.

    Yields:
        An `ImagesTested` after every `EVALUATED_AT_ONCE` images.

    Returns:
        The probabilities of all classes for all of these images, and the first filters.
    """
    rows = data.test_rows(images)
    parts: list[Tensor] = []
    for some in torch.split(rows, EVALUATED_AT_ONCE):
        parts.append(predict(replica, data.test_images[some]).softmax(dim=1))
        yield ImagesTested(sum(map(len, parts)), images)
    return Learnt(epoch, rows, torch.cat(parts), filters(replica))


def predict(replica: Replica, images: Tensor) -> Tensor:
    """Logits, float32 (n, 10) on the CPU, for images (n, 28, 28), uint8."""
    replica.module.eval()
    try:
        with torch.no_grad():
            logits: Tensor = replica.module(replica.prepare(images))
    finally:
        replica.module.train()
    return logits.float().cpu()


def filters(replica: Replica) -> Tensor:
    """A copy of the first convolution's weights, float32 (channels, 3, 3) on the CPU."""
    return next(replica.module.parameters()).detach().squeeze(1).float().cpu().clone()


def judge(learnt: Learnt, labels: Tensor, step: int, seconds: float, images: int) -> EpochEvaluated:
    """How many of the test images are right.

    Args:
        learnt: the probabilities.
        labels: the true classes of the same images, int64 (m,).
        step: steps done.
        seconds: spent on training so far.
        images: training images of one epoch.
    """
    pairs = labels * CLASSES + learnt.probabilities.argmax(dim=1)
    confusion = torch.bincount(pairs, minlength=CLASSES**2).view(CLASSES, CLASSES)
    return EpochEvaluated(
        epoch=learnt.epoch,
        step=step,
        accuracy=float(confusion.diagonal().sum()) / len(labels),
        confusion=tuple(tuple(row) for row in confusion.tolist()),
        seconds_per_epoch=seconds / learnt.epoch,
        images_per_second=learnt.epoch * images / seconds,
    )
