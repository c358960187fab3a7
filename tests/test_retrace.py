"""A run repeated to look inside: its steps are those of the run, and of torch up to rounding."""

import math

import pytest
import torch

from labcore.config import ConfigError
from labcore.events import Diverged, WeightsRecorded, WeightsUpdated
from labcore.optimizers import OPTIMIZERS, SGD, Adam, AdamW, Momentum
from labcore.regression import RegressionConfig, Stage, train_regression
from labcore.retrace import Retrace, optimizer_at, rule_code

every_optimizer = pytest.mark.parametrize("kind", OPTIMIZERS.values(), ids=OPTIMIZERS.keys())
STEPS = 75


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def run_of(optimizer, engine="from scratch", **settings):
    return RegressionConfig(
        optimizer=optimizer, engine=engine, batch_size=20, epochs=1, seed=3, **settings
    )


def inside(run, step):
    retrace = Retrace(run)
    assert retrace.go_to(step)
    return retrace.latest


@every_optimizer
def test_last_step_ends_at_the_weights_of_the_run(kind):
    run = run_of(kind())
    places = [e for e in train_regression(run, weights=True) if isinstance(e, WeightsRecorded)]
    assert torch.equal(inside(run, STEPS).after, places[-1].weights)


@every_optimizer
def test_steps_are_those_of_torch_up_to_rounding(kind):
    run = run_of(kind(), engine="torch")
    for place in train_regression(run, weights=True):
        if isinstance(place, WeightsRecorded) and place.step:
            updated = inside(run, place.step)
            torch.testing.assert_close(updated.after, place.weights, rtol=1e-4, atol=1e-5)


@every_optimizer
def test_each_step_begins_where_the_one_before_ended(kind):
    third, fourth = inside(run_of(kind()), 3), inside(run_of(kind()), 4)
    assert torch.equal(third.after, fourth.before)
    assert all(map(torch.equal, third.state, fourth.state_before))


def test_sgd_moves_by_its_rate_times_the_gradient():
    run = run_of(SGD(lr=0.1))
    updated = inside(run, 5)
    torch.testing.assert_close(
        updated.after, updated.before - torch.tensor(0.1) * updated.gradient, rtol=0, atol=1e-8
    )


def test_it_goes_on_and_back():
    retrace = Retrace(run_of(Adam()))
    seen = []
    for step in (2, 9, 4):
        assert retrace.go_to(step)
        seen.append((retrace.latest.step, retrace.latest.count))
    assert seen == [(2, 2), (9, 9), (4, 4)]


def test_beyond_the_end_it_stays_at_the_last_step():
    assert inside(run_of(SGD()), STEPS + 10).step == STEPS


def test_without_time_it_says_that_it_is_not_there():
    retrace = Retrace(run_of(SGD()))
    assert not retrace.go_to(STEPS, seconds=-1.0)
    assert retrace.go_to(STEPS)


def test_diverged_run_is_seen_to_its_last_step():
    run = run_of(SGD(lr=5.0))
    *_, end = train_regression(run)
    assert isinstance(end, Diverged)
    assert inside(run, end.step).step == end.step


def test_fork_shows_the_optimizer_of_each_step():
    run = run_of(Adam(), before=(Stage(Momentum(), 10),))
    assert [optimizer_at(run, step) for step in (1, 10, 11)] == [Momentum(), Momentum(), Adam()]
    tenth, eleventh = inside(run, 10), inside(run, 11)
    assert (tenth.count, len(tenth.state)) == (10, 1)
    assert (eleventh.count, len(eleventh.state)) == (1, 2)


def test_updates_are_reported_on_request_only():
    kinds = {type(event) for event in train_regression(run_of(SGD()))}
    assert WeightsUpdated not in kinds


def test_torch_cannot_be_looked_into():
    with pytest.raises(ConfigError, match="engine must be from scratch, to report"):
        next(train_regression(run_of(SGD(), engine="torch"), updates=True))


@every_optimizer
def test_rule_code_is_what_runs(kind):
    """The text, executed as the method of a fresh class, computes the same."""
    code = rule_code(kind).split("\n# ")[0]
    names = {"Tensor": torch.Tensor, "State": tuple}
    exec(code.replace("super()", "super(type(self), self)"), names)
    x, g = torch.tensor([1.0, -2.0]), torch.tensor([0.5, 0.25])
    state = kind().initial_state(x)
    after, _ = names["update"](kind(), x, g, state, 1)
    assert torch.equal(after, kind().update(x, g, state, 1)[0])


def test_rule_code_of_an_extended_rule_has_both():
    assert [line for line in rule_code(AdamW).splitlines() if line.startswith("#")] == [
        "# AdamW",
        "# Adam",
    ]


@every_optimizer
def test_words_name_what_each_state_became(kind):
    updated = inside(run_of(kind()), 7)
    for place in range(len(updated.after)):
        before = tuple(float(each[place]) for each in updated.state_before)
        after = tuple(float(each[place]) for each in updated.state)
        words = kind().explain(float(updated.gradient[place]), before, after, updated.count)
        assert len(words) == len(kind.state_names)
        for sentence, value in zip(words, after, strict=True):
            assert f"now {value:.4g}." in sentence


@every_optimizer
@pytest.mark.parametrize("value", [0.0, 1e38, math.inf, math.nan])
def test_words_survive_any_number(kind, value):
    states = (abs(value),) * len(kind.state_names)
    assert len(kind().explain(value, states, states, 1)) == len(states)


def test_velocity_is_told_as_worked_by_hand():
    # 0.9 · 2 + 0.5
    [words] = Momentum(momentum=0.9).explain(0.5, (2.0,), (2.3,), 4)
    assert words.startswith("0.9 of 2 was kept and g = 0.5 added: now 2.3.")
    assert "gathers speed" in words
    [words] = Momentum(momentum=0.9).explain(-0.5, (2.0,), (1.3,), 4)
    assert "brakes" in words


def test_adam_is_told_as_worked_by_hand():
    # m = 0.1 · 0.5 over 1 − 0.9; v = 0.001 · 0.25 over 1 − 0.999
    mean, square = Adam().explain(0.5, (0.0, 0.0), (0.05, 0.00025), 1)
    assert mean.endswith("(1 − 0.9^1): 0.5, the step's direction.")
    assert square.endswith("(1 − 0.999^1): 0.25; its root 0.5 divides the step.")
