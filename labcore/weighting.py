"""How to sum the gradients of shards: the right way, and the usual wrong ones.

Each rank r of k has the gradient G_r of the sum of its n_r rows' losses. Whatever the partition,
the gradient of the mean loss of a minibatch of B rows is Σ G_r / B. Every other way gives rows
different weights, or all of them the wrong one: a step elsewhere, or of another length.

Source: S. Li et al., PyTorch distributed: experiences on accelerating data parallel training, 2020.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 (the name that everybody knows it by)

from labcore.config import refusal
from labcore.splitting import Shard, sampler, take

CLASSES = 10
FEATURES = 20
"""Of the minibatches that `draw_minibatch` makes; `compare` takes any number."""


@dataclass(frozen=True)
class Weighting:
    """A way to sum the gradients of shards.

    Attributes:
        label: what tables call it.
        formula: LaTeX, with G_r, n_r, B and k as above, and a tilde over what is of padded shards.
        why: a sentence for students: when it is right, or what goes wrong.
        right: whether it gives the minibatch's gradient for every partition.
        factors: each rank's factor in Σ f_r G_r, from the shards' sizes and B; for a rank without
            rows it does not matter.
        padded: whether its shards are not the split's but those of `sampler`.
    """

    label: str
    formula: str
    why: str
    right: bool
    factors: Callable[[Sequence[int], int], list[float]]
    padded: bool = False

    def combine(self, sums: Sequence[Tensor], sizes: Sequence[int], batch_size: int) -> Tensor:
        """Σ f_r G_r, element by element.

        Args:
            sums: per rank the gradient of the sum of its shard's losses, of any one shape.
            sizes: rows in each shard.
            batch_size: rows in the minibatch, from 1.
        """
        factors = self.factors(sizes, batch_size)
        return torch.stack([f * g for f, g in zip(factors, sums, strict=True)]).sum(dim=0)


def _of_sums(sizes: Sequence[int], batch_size: int) -> list[float]:
    return [1 / batch_size for _ in sizes]


def _times_ranks(sizes: Sequence[int], batch_size: int) -> list[float]:
    return [len(sizes) / batch_size for _ in sizes]


def _of_means(sizes: Sequence[int], batch_size: int) -> list[float]:
    return [1 / rows if rows else 0.0 for rows in sizes]


def _mean_of_means(sizes: Sequence[int], batch_size: int) -> list[float]:
    filled = sum(rows > 0 for rows in sizes)
    return [factor / max(filled, 1) for factor in _of_means(sizes, batch_size)]


WEIGHTINGS = {
    "sum_over_batch": Weighting(
        "sums / batch size",
        r"g = \frac{1}{B} \sum_r G_r",
        "Every row counts 1/B whatever the shards, so k devices take the step of one.",
        True,
        _of_sums,
    ),
    "mean_of_means": Weighting(
        "mean of shard means",
        r"g = \frac{1}{|\{r : n_r > 0\}|} \sum_{n_r > 0} \frac{G_r}{n_r}",
        "Rows of a small shard count more than others: right only where all shards that have rows "
        "have as many.",
        False,
        _mean_of_means,
    ),
    "mean_of_padded_means": Weighting(
        "mean of padded shards' means",
        r"g = \frac{1}{k} \sum_r \frac{\tilde G_r}{\lceil B / k \rceil}",
        "Padding as DistributedSampler's makes all shards equally long, but the rows that fill "
        "them up are used, and count, more than once: right only where there is nothing to fill.",
        False,
        _mean_of_means,
        padded=True,
    ),
    "sum_of_means": Weighting(
        "sum of shard means",
        r"g = \sum_{n_r > 0} \frac{G_r}{n_r}",
        "Adds what it should average: about as many times too long as there are shards with rows, "
        "and rows of a small shard count more.",
        False,
        _of_means,
    ),
    "times_world_size": Weighting(
        "devices · sums / batch size",
        r"g = \frac{k}{B} \sum_r G_r",
        "Right for a library that then averages over the ranks, as DistributedDataParallel does; "
        "where the allreduce sums, k times too long.",
        False,
        _times_ranks,
    ),
}


@dataclass(frozen=True)
class Comparison:
    """What a weighting makes of one minibatch, beside the minibatch's own gradient g*.

    Attributes:
        weighting: its name in `WEIGHTINGS`.
        norm: ‖g‖.
        error: ‖g − g*‖ / ‖g*‖.
        cosine: of the angle between g and g*; NaN where g is 0.
        lr_factor: g·g* / ‖g*‖²: along g*, the step is as with so many times the learning rate.
    """

    weighting: str
    norm: float
    error: float
    cosine: float
    lr_factor: float


def compare(
    shards: Sequence[Shard], inputs: Tensor, labels: Tensor, seed: int = 0
) -> list[Comparison]:
    """All weightings on one minibatch and its shards, with a random linear softmax classifier.

    Args:
        shards: which rows each rank gets, from any split. If that is no partition, no weighting
            gives the minibatch's gradient, for rows are missing or used twice.
        inputs: (B, …), of any dtype and about the size of 1; calculated with in float64.
        labels: (B,), whole numbers from 0 to 9.
        seed: decides the classifier.

    Returns:
        One comparison per weighting, in the order of `WEIGHTINGS`.

    Raises:
        ConfigError: the minibatch has no rows.
    """
    if len(labels) == 0:
        raise refusal("rows", 0, "a whole number from 1", 10)
    inputs, labels = inputs.flatten(1).double(), labels.long()
    parameters = draw_parameters(inputs.shape[1], seed)
    whole = gradient(parameters, inputs, labels, "mean")
    compared = []
    for name, weighting in WEIGHTINGS.items():
        own = sampler(len(labels), len(shards)) if weighting.padded else shards
        sums = [gradient(parameters, take(inputs, s), take(labels, s), "sum") for s in own]
        combined = weighting.combine(sums, [len(shard) for shard in own], len(labels))
        compared.append(_compared(name, combined.flatten(), whole.flatten()))
    return compared


def _compared(name: str, combined: Tensor, whole: Tensor) -> Comparison:
    norm, length = combined.norm(), whole.norm()
    along = combined @ whole
    return Comparison(
        weighting=name,
        norm=norm.item(),
        error=((combined - whole).norm() / length).item(),
        cosine=(along / (norm * length)).item(),
        lr_factor=(along / length**2).item(),
    )


def gradient(parameters: Tensor, inputs: Tensor, labels: Tensor, reduction: str) -> Tensor:
    """Gradient of the cross-entropy of logits = inputs · weights + bias, by autograd.

    Args:
        parameters: (features + 1, classes), the bias in the last row.
        inputs: (n, features), of the same dtype; n may be 0 if the losses are summed.
        labels: (n,), int64.
        reduction: "sum" or "mean" over the rows.

    Returns:
        Like `parameters`.
    """
    leaf = parameters.detach().requires_grad_()
    loss = F.cross_entropy(inputs @ leaf[:-1] + leaf[-1], labels, reduction=reduction)
    return torch.autograd.grad(loss, leaf)[0]


def draw_parameters(features: int, seed: int) -> Tensor:
    """A classifier for `gradient`: weights from N(0, 1 / features), bias 0; float64."""
    generator = torch.Generator().manual_seed(2 * seed)
    weights = torch.randn(features, CLASSES, generator=generator, dtype=torch.float64)
    return torch.cat([weights / features**0.5, weights.new_zeros(1, CLASSES)])


def draw_minibatch(rows: int, seed: int) -> tuple[Tensor, Tensor]:
    """Inputs (rows, 20) from N(0, 1), float64, and labels (rows,), each class as likely."""
    generator = torch.Generator().manual_seed(2 * seed + 1)
    inputs = torch.randn(rows, FEATURES, generator=generator, dtype=torch.float64)
    return inputs, torch.randint(CLASSES, (rows,), generator=generator)
