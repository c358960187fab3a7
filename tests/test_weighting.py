"""Weightings: against losses that say the same in torch's own words, and against numpy."""

import math

import numpy as np
import pytest
import torch
from torch.nn import functional as F  # noqa: N812 (the name that everybody knows it by)
from torch.utils.data import DistributedSampler

from labcore.config import ConfigError
from labcore.splitting import PARTITIONS, balanced, chunk, sampler, weighted
from labcore.weighting import (
    WEIGHTINGS,
    compare,
    draw_minibatch,
    draw_parameters,
    gradient,
)

EXACT = 1e-12
CASES = [(10, 4), (5, 4), (12, 4), (1, 3), (7, 7), (3, 5), (33, 8), (6, 1)]
RIGHT = [name for name, weighting in WEIGHTINGS.items() if weighting.right]
WRONG = [name for name in WEIGHTINGS if name not in RIGHT]

every_case = pytest.mark.parametrize(("rows", "world_size"), CASES)
every_weighting = pytest.mark.parametrize("name", WEIGHTINGS)
every_wrong_weighting = pytest.mark.parametrize("name", WRONG)


def cross_entropy(parameters, inputs, labels):
    return F.cross_entropy(inputs @ parameters[:-1] + parameters[-1], labels)


def chunked_means(parameters, inputs, labels, world_size):
    shards = zip(inputs.chunk(world_size), labels.chunk(world_size), strict=True)
    return torch.stack([cross_entropy(parameters, *shard) for shard in shards])


def padded_means(parameters, inputs, labels, world_size):
    rows = [
        list(DistributedSampler(inputs, world_size, r, shuffle=False)) for r in range(world_size)
    ]
    return torch.stack([cross_entropy(parameters, inputs[some], labels[some]) for some in rows])


# The loss whose gradient each weighting gives, with the split `chunk`.
LOSSES = {
    "sum_over_batch": lambda *batch, ranks: cross_entropy(*batch),
    "mean_of_means": lambda *batch, ranks: chunked_means(*batch, ranks).mean(),
    "mean_of_padded_means": lambda *batch, ranks: padded_means(*batch, ranks).mean(),
    "sum_of_means": lambda *batch, ranks: chunked_means(*batch, ranks).sum(),
    "times_world_size": lambda *batch, ranks: ranks * cross_entropy(*batch),
}


def backward(name, rows, world_size):
    """The gradient of the loss of this name, by autograd, as a numpy vector."""
    inputs, labels = draw_minibatch(rows, seed=0)
    parameters = draw_parameters(inputs.shape[1], seed=0).requires_grad_()
    LOSSES[name](parameters, inputs, labels, ranks=world_size).backward()
    return parameters.grad.numpy().ravel()


def compared(shards, rows=None, seed=0):
    """Comparisons by name; the minibatch has as many rows as the shards unless told otherwise."""
    rows = rows or sum(map(len, shards))
    return {each.weighting: each for each in compare(shards, *draw_minibatch(rows, seed), seed)}


# --- the gradient ---------------------------------------------------------------------------


@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_gradient_is_that_of_softmax_regression(reduction):
    inputs, labels = draw_minibatch(9, seed=3)
    parameters = draw_parameters(inputs.shape[1], seed=3)
    x = np.hstack([inputs.numpy(), np.ones((9, 1))])
    odds = np.exp(x @ parameters.numpy())
    errors = odds / odds.sum(axis=1, keepdims=True) - np.eye(10)[labels]
    expected = x.T @ errors / (9 if reduction == "mean" else 1)
    ours = gradient(parameters, inputs, labels, reduction)
    np.testing.assert_allclose(ours, expected, rtol=0, atol=EXACT)


def test_gradient_is_that_of_finite_differences():
    inputs, labels = draw_minibatch(9, seed=3)
    parameters = draw_parameters(inputs.shape[1], seed=3)
    ours = gradient(parameters, inputs, labels, "mean")
    for row, column in [(0, 0), (7, 3), (20, 9)]:
        step = torch.zeros_like(parameters)
        step[row, column] = 1e-5
        ahead, behind = (cross_entropy(parameters + s, inputs, labels) for s in (step, -step))
        assert ours[row, column].item() == pytest.approx((ahead - behind).item() / 2e-5, abs=1e-9)


def test_gradient_of_no_rows_is_0():
    inputs, labels = draw_minibatch(0, seed=0)
    assert gradient(draw_parameters(20, seed=0), inputs, labels, "sum").count_nonzero() == 0


def test_gradient_leaves_the_parameters_without_one():
    parameters = draw_parameters(20, seed=0)
    gradient(parameters, *draw_minibatch(4, seed=0), "sum")
    assert parameters.grad is None
    assert not parameters.requires_grad


# --- weightings -----------------------------------------------------------------------------


def test_one_weighting_is_right():
    assert RIGHT == ["sum_over_batch"]


@pytest.mark.parametrize("split", PARTITIONS)
@every_case
def test_the_right_weighting_gives_the_gradient_of_the_minibatch(split, rows, world_size):
    right = compared(PARTITIONS[split](rows, world_size))["sum_over_batch"]
    assert right.error < EXACT
    assert right.cosine == pytest.approx(1, abs=EXACT)
    assert right.lr_factor == pytest.approx(1, abs=EXACT)


def test_the_right_weighting_is_right_at_unequal_speeds_too():
    shards = weighted(17, 4, [5, 1, 0.01, 2])
    assert compared(shards)["sum_over_batch"].error < EXACT


@every_weighting
@every_case
def test_comparisons_are_those_of_the_loss_that_says_the_same(name, rows, world_size):
    ours = compared(chunk(rows, world_size))[name]
    g, whole = backward(name, rows, world_size), backward("sum_over_batch", rows, world_size)
    length = np.linalg.norm(whole)
    assert ours.norm == pytest.approx(np.linalg.norm(g), rel=EXACT)
    assert ours.error == pytest.approx(np.linalg.norm(g - whole) / length, abs=EXACT)
    assert ours.cosine == pytest.approx(np.dot(g, whole) / np.linalg.norm(g) / length, abs=EXACT)
    assert ours.lr_factor == pytest.approx(np.dot(g, whole) / length**2, abs=10 * EXACT)


@pytest.mark.parametrize("seed", range(20))
@every_wrong_weighting
def test_wrong_weightings_err_visibly_on_shards_of_3_3_3_and_1(name, seed):
    assert compared(chunk(10, 4), seed=seed)[name].error > 0.2


def test_mean_of_means_misses_the_gradient_of_ten_rows_on_four_ranks_by_about_0_7():
    errors = [each.error * each.norm for each in (
        compared(chunk(10, 4), seed=seed)["mean_of_means"] for seed in range(20)
    )]  # fmt: skip
    assert np.median(errors) == pytest.approx(0.75, abs=0.15)


@pytest.mark.parametrize("name", ["mean_of_means", "mean_of_padded_means"])
@pytest.mark.parametrize("split", PARTITIONS)
@pytest.mark.parametrize(("rows", "world_size"), [(12, 4), (7, 7), (6, 1), (16, 2)])
def test_means_of_even_shards_are_exact(name, split, rows, world_size):
    assert compared(PARTITIONS[split](rows, world_size))[name].error < EXACT


@pytest.mark.parametrize("name", ["sum_of_means", "times_world_size"])
def test_on_even_shards_the_others_act_as_that_many_times_the_learning_rate(name):
    ours = compared(balanced(12, 4))[name]
    assert ours.cosine == pytest.approx(1, abs=EXACT)
    assert ours.lr_factor == pytest.approx(4, abs=10 * EXACT)
    assert ours.error == pytest.approx(3, abs=10 * EXACT)


def test_times_world_size_keeps_the_direction_on_uneven_shards():
    ours = compared(chunk(10, 4))["times_world_size"]
    assert ours.cosine == pytest.approx(1, abs=EXACT)
    assert ours.lr_factor == pytest.approx(4, abs=10 * EXACT)


@pytest.mark.parametrize(
    ("name", "sizes", "expected"),
    [
        ("sum_over_batch", [3, 3, 3, 1], [1 / 10] * 4),
        ("mean_of_means", [3, 3, 3, 1], [1 / 12, 1 / 12, 1 / 12, 1 / 4]),
        ("mean_of_means", [2, 2, 1, 0], [1 / 6, 1 / 6, 1 / 3, 0]),
        ("mean_of_padded_means", [3, 3, 3, 3], [1 / 12] * 4),
        ("sum_of_means", [2, 2, 1, 0], [1 / 2, 1 / 2, 1, 0]),
        ("times_world_size", [3, 3, 3, 1], [4 / 10] * 4),
    ],
)
def test_factors_worked_by_hand(name, sizes, expected):
    batch_size = 5 if 0 in sizes else 10
    assert WEIGHTINGS[name].factors(sizes, batch_size) == pytest.approx(expected)


@every_weighting
def test_combining_is_element_by_element_and_leaves_the_sums_alone(name):
    sums = list(torch.randn(4, 3, 2, generator=torch.Generator().manual_seed(0)))
    before = [each.clone() for each in sums]
    sizes, combine = [3, 3, 3, 1], WEIGHTINGS[name].combine
    whole = combine(sums, sizes, 10)
    assert whole.shape == (3, 2)
    assert whole.dtype == torch.float32
    for place in np.ndindex(3, 2):
        assert combine([each[place] for each in sums], sizes, 10) == whole[place]
    assert all(map(torch.equal, sums, before))


# --- splits that are no partition -----------------------------------------------------------


@every_weighting
def test_no_weighting_makes_up_for_repeated_rows(name):
    assert compared(sampler(10, 4), rows=10)[name].error > 0.1


@every_weighting
def test_no_weighting_makes_up_for_dropped_rows(name):
    assert compared(sampler(11, 4, drop_last=True), rows=11)[name].error > 0.1


def test_padded_means_are_the_means_of_the_sampler():
    ours = compared(sampler(10, 4), rows=10)
    assert ours["mean_of_padded_means"].error == ours["mean_of_means"].error


def test_without_any_rows_the_gradient_is_0_and_has_no_direction():
    ours = compared(sampler(3, 4, drop_last=True), rows=3)["mean_of_means"]
    assert (ours.norm, ours.error, ours.lr_factor) == (0, 1, 0)
    assert math.isnan(ours.cosine)


# --- the minibatch --------------------------------------------------------------------------


def test_images_are_taken_as_their_flat_pixels():
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(10, 28, 28, generator=generator)
    labels = torch.arange(10, dtype=torch.uint8)
    flat = images.reshape(10, 784).double()
    assert compare(chunk(10, 4), images, labels) == compare(chunk(10, 4), flat, labels.long())


def test_the_same_seed_gives_the_same_comparison_and_another_seed_another():
    minibatch = draw_minibatch(10, seed=0)
    first, same, other = (compare(chunk(10, 4), *minibatch, seed) for seed in (0, 0, 1))
    assert first == same
    assert first[1].error != other[1].error


def test_every_seed_draws_a_minibatch_of_its_own():
    first, same, other = (draw_minibatch(10, seed) for seed in (0, 0, 1))
    assert all(map(torch.equal, first, same))
    assert not any(map(torch.equal, first, other))


def test_torchs_own_random_generator_is_left_alone():
    before = torch.get_rng_state()
    compared(chunk(10, 4))
    assert torch.equal(torch.get_rng_state(), before)


def test_drawn_inputs_and_weights_are_standardised():
    inputs, labels = draw_minibatch(20_000, seed=0)
    parameters = draw_parameters(10_000, seed=0)
    assert inputs.std().item() == pytest.approx(1, rel=0.01)
    assert parameters[:-1].std().item() == pytest.approx(0.01, rel=0.01)
    assert parameters[-1].count_nonzero() == 0
    assert labels.bincount(minlength=10).tolist() == pytest.approx([2_000] * 10, rel=0.1)


def test_a_minibatch_without_rows_is_refused():
    with pytest.raises(ConfigError, match=r"rows must be a whole number from 1; .* Try 10\."):
        compare(chunk(0, 4), *draw_minibatch(0, seed=0))


# --- what pages show ------------------------------------------------------------------------


def test_comparisons_come_in_the_order_of_the_registry():
    assert list(compared(chunk(10, 4))) == list(WEIGHTINGS)


@every_weighting
def test_every_weighting_has_a_formula_and_a_sentence(name):
    assert WEIGHTINGS[name].formula.startswith("g = ")
    assert WEIGHTINGS[name].why.endswith(".")
