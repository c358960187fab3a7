"""Optimisers: each rule against its twin in torch.optim, and against numbers worked by hand."""

import inspect
import math
import random
from dataclasses import fields

import pytest
import torch

from labcore.config import ruled_fields
from labcore.optimizers import (
    OPTIMIZERS,
    SGD,
    Adadelta,
    Adagrad,
    Adam,
    AdamW,
    Momentum,
    Nesterov,
    Optimizer,
    RMSprop,
)

STEPS = 50
SHAPE = (3, 4)

every_optimizer = pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS.keys())
every_dtype = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)


def draw(rule, draws):
    """A random value that the rule accepts, in the rule's own scale."""
    if rule.log:
        return math.exp(draws.uniform(math.log(rule.low), math.log(rule.high)))
    return draws.uniform(rule.low, rule.high)


def variants(optimizer):
    """The default; each field alone at its lowest, highest and a middle value; random mixtures."""
    yield optimizer()
    rules = {each.name: rule for each, rule in ruled_fields(optimizer)}
    for name, rule in rules.items():
        middle = math.sqrt(rule.low * rule.high) if rule.log else (rule.low + rule.high) / 2
        for value in (rule.low, middle, rule.high):
            yield optimizer(**{name: value})
    draws = random.Random(optimizer.name)
    for _ in range(8):
        yield optimizer(**{name: draw(rule, draws) for name, rule in rules.items()})


VARIANTS = [
    pytest.param(variant, id=f"{each.name}-{number}")
    for each in OPTIMIZERS.values()
    for number, variant in enumerate(variants(each))
]
every_variant = pytest.mark.parametrize("optimizer", VARIANTS)


def numbers(seed, dtype=torch.float64, shape=SHAPE):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def gradients(dtype=torch.float64):
    """A gradient per step, of sizes from a hundredth to ten."""
    return [numbers(100 + i, dtype) * 10 ** ((i % 4) - 2.0) for i in range(STEPS)]


def by_rule(optimizer, dtype):
    """The parameter after every step of our rule."""
    parameter = numbers(0, dtype)
    state = optimizer.initial_state(parameter)
    trace = []
    for step, gradient in enumerate(gradients(dtype), start=1):
        parameter, state = optimizer.update(parameter, gradient, state, step)
        trace.append(parameter)
    return torch.stack(trace)


def by_twin(optimizer, dtype):
    """The parameter after every step of torch.optim."""
    parameter = torch.nn.Parameter(numbers(0, dtype))
    twin = optimizer.twin([parameter])
    trace = []
    for gradient in gradients(dtype):
        parameter.grad = gradient.clone()
        twin.step()
        trace.append(parameter.detach().clone())
    return torch.stack(trace)


def arguments(optimizer, step=7):
    """Arguments for `update` in the middle of a run: the state is not zero any more."""
    parameter = numbers(0)
    state = optimizer.initial_state(parameter)
    for i in range(1, step):
        parameter, state = optimizer.update(parameter, numbers(i), state, i)
    return parameter, numbers(step), state, step


@every_dtype
@every_variant
def test_rule_follows_its_twin(optimizer, dtype):
    ours, theirs = by_rule(optimizer, dtype), by_twin(optimizer, dtype)
    # A large learning rate moves far: 1e-6 of the distance then, and 1e-6 itself near the start.
    scale = theirs.abs().max().clamp(min=1)
    assert theirs.isfinite().all()
    assert float((ours - theirs).abs().max() / scale) <= 1e-6


@every_optimizer
def test_every_hyperparameter_matters(optimizer):
    # Otherwise agreement with the twin would say nothing about that field.
    usual = by_rule(optimizer(), torch.float64)
    for each, rule in ruled_fields(optimizer):
        other = optimizer(**{each.name: rule.high})
        assert not torch.allclose(by_rule(other, torch.float64), usual, rtol=0, atol=1e-9)


@every_optimizer
def test_twin_is_an_optimizer_of_torch(optimizer):
    twin = optimizer().twin([torch.nn.Parameter(torch.zeros(2))])
    assert type(twin).__module__.startswith("torch.optim")


@every_optimizer
def test_rule_is_elementwise(optimizer):
    parameter, gradient, state, step = arguments(optimizer())
    whole, whole_state = optimizer().update(parameter, gradient, state, step)
    for row in range(len(parameter)):
        one, one_state = optimizer().update(
            parameter[row], gradient[row], tuple(each[row] for each in state), step
        )
        assert torch.equal(one, whole[row])
        for mine, all_rows in zip(one_state, whole_state, strict=True):
            assert torch.equal(mine, all_rows[row])


@every_optimizer
def test_rule_leaves_its_arguments_alone(optimizer):
    parameter, gradient, state, step = arguments(optimizer())
    before = [each.clone() for each in (parameter, gradient, *state)]
    optimizer().update(parameter, gradient, state, step)
    for kept, now in zip(before, (parameter, gradient, *state), strict=True):
        assert torch.equal(kept, now)


@every_optimizer
def test_rule_gives_the_same_twice(optimizer):
    one = optimizer()
    first, second = one.update(*arguments(one)), one.update(*arguments(one))
    assert torch.equal(first[0], second[0])


@every_optimizer
def test_update_moves_the_parameter(optimizer):
    parameter, gradient, state, step = arguments(optimizer())
    assert not torch.equal(optimizer().update(parameter, gradient, state, step)[0], parameter)


@every_dtype
@every_optimizer
def test_update_keeps_shape_and_dtype(optimizer, dtype):
    parameter = numbers(0, dtype)
    state = optimizer().initial_state(parameter)
    updated, new_state = optimizer().update(parameter, numbers(1, dtype), state, 1)
    for each in (updated, *new_state):
        assert (each.shape, each.dtype) == (parameter.shape, dtype)


@every_optimizer
def test_state_starts_with_zeros_one_tensor_per_name(optimizer):
    state = optimizer().initial_state(numbers(0))
    assert len(state) == len(optimizer.state_names)
    assert all(torch.equal(each, torch.zeros(SHAPE, dtype=torch.float64)) for each in state)


@every_optimizer
def test_update_returns_one_state_tensor_per_name(optimizer):
    _, state = optimizer().update(*arguments(optimizer()))
    assert len(state) == len(optimizer.state_names)


@every_optimizer
def test_state_names_are_unique(optimizer):
    assert len(set(optimizer.state_names)) == len(optimizer.state_names)


@every_optimizer
def test_formula_is_present_and_its_braces_match(optimizer):
    assert r"\leftarrow" in optimizer.formula
    assert optimizer.formula.count("{") == optimizer.formula.count("}")


@every_optimizer
def test_source_is_present_and_dated(optimizer):
    assert any(text.strip(".,").isdigit() for text in optimizer.source.split())


@every_optimizer
def test_class_explains_itself(optimizer):
    assert len(inspect.getdoc(optimizer).split()) >= 5
    assert optimizer.__doc__ is not Optimizer.__doc__


@every_optimizer
def test_every_hyperparameter_has_a_rule_and_a_help(optimizer):
    ruled = {each.name: each.metadata["help"] for each, _ in ruled_fields(optimizer)}
    assert list(ruled) == [each.name for each in fields(optimizer)]
    assert all(ruled.values())


@every_optimizer
def test_labels_of_hyperparameters_are_unique(optimizer):
    labels = [rule.label for _, rule in ruled_fields(optimizer)]
    assert len(set(labels)) == len(labels)


@every_optimizer
def test_every_optimizer_has_a_learning_rate_on_a_logarithmic_scale(optimizer):
    rules = {each.name: rule for each, rule in ruled_fields(optimizer)}
    assert rules["lr"].log


@every_optimizer
def test_equal_hyperparameters_make_equal_optimizers(optimizer):
    assert optimizer(lr=0.03) == optimizer(lr=0.03) != optimizer(lr=0.04)


def test_registry_names_are_those_of_the_classes():
    assert list(OPTIMIZERS) == [each.name for each in OPTIMIZERS.values()]


def test_registry_has_the_optimizers_of_the_notes():
    assert {"sgd", "momentum", "adagrad", "rmsprop", "adam"} <= OPTIMIZERS.keys()


def test_labels_are_unique():
    labels = [each.label for each in OPTIMIZERS.values()]
    assert len(set(labels)) == len(labels)


def test_optimizers_of_different_classes_are_never_equal():
    assert SGD(lr=0.01) != Momentum(lr=0.01, momentum=0.0)


ONE_STEP = [
    # x = 1, g = 0.5, worked out from the formula with pencil and paper.
    (SGD(lr=0.1), 0.95),
    (Momentum(lr=0.1, momentum=0.9), 0.95),
    (Nesterov(lr=0.1, momentum=0.9), 0.905),  # 1 − 0.1 (0.5 + 0.9 · 0.5)
    (Adagrad(lr=0.1, eps=0.1), 1 - 0.05 / 0.6),  # s = 0.25
    (RMSprop(lr=0.1, alpha=0.96, eps=0.1), 0.75),  # s = 0.04 · 0.25 = 0.01
    (Adadelta(lr=1.0, rho=0.96, eps=0.0225), 1 - 0.5 * math.sqrt(0.0225 / 0.0325)),  # s = 0.01
    (Adam(lr=0.1, eps=0.1), 1 - 0.1 * 0.5 / 0.6),  # corrected m = 0.5, v = 0.25
    (AdamW(lr=0.1, eps=0.1, weight_decay=0.5), 0.95 - 0.1 * 0.5 / 0.6),
]

TWO_STEPS = [
    # x = 1, g = 0.5 and then g = −0.2.
    (SGD(lr=0.1), 0.97),
    (Momentum(lr=0.1, momentum=0.9), 0.925),  # v = 0.5, then 0.25
    (Nesterov(lr=0.1, momentum=0.9), 0.9025),  # 0.905 − 0.1 (−0.2 + 0.9 · 0.25)
    (Adagrad(lr=0.1, eps=1e-12), 0.9 + 0.02 / math.sqrt(0.29)),  # s = 0.25, then 0.29
    # m = 0.05, then 0.025, over 0.19; v = 0.0025, then 0.002875, over 0.0199
    (
        Adam(lr=0.1, beta1=0.9, beta2=0.99, eps=1e-12),
        0.9 - 0.1 * (0.025 / 0.19) / math.sqrt(0.002875 / 0.0199),
    ),
]


@pytest.mark.parametrize(("optimizer", "expected"), ONE_STEP, ids=repr)
def test_first_step_by_hand(optimizer, expected):
    x, g = (torch.tensor([value], dtype=torch.float64) for value in (1.0, 0.5))
    after, _ = optimizer.update(x, g, optimizer.initial_state(x), 1)
    assert after.item() == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(("optimizer", "expected"), TWO_STEPS, ids=repr)
def test_second_step_by_hand(optimizer, expected):
    x, g1, g2 = (torch.tensor([value], dtype=torch.float64) for value in (1.0, 0.5, -0.2))
    after, state = optimizer.update(x, g1, optimizer.initial_state(x), 1)
    after, _ = optimizer.update(after, g2, state, 2)
    assert after.item() == pytest.approx(expected, abs=1e-9)
