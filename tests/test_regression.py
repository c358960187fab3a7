"""Regression runs: the order and timing of their events, their arithmetic, and their isolation."""

import math
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import FrozenInstanceError, dataclass, fields
from itertools import pairwise
from statistics import mean
from time import perf_counter

import numpy as np
import pytest
import torch

from labcore import regression
from labcore.config import ConfigError, ruled_fields
from labcore.datasets import airfoil
from labcore.datasets.errors import DataError
from labcore.events import Diverged, Finished, LossRecorded, Started, StepTaken
from labcore.least_squares import with_bias
from labcore.optimizers import OPTIMIZERS, SGD, Adagrad, Adam, Momentum, Nesterov, RMSprop
from labcore.regression import ENGINES, RegressionConfig, train_regression
from labcore.regression_models import HiddenLayer, Linear
from labcore.reported import AIRFOIL_PRESETS

MODELS = {"linear": Linear(5), "hidden": HiddenLayer(5, 16), "one unit": HiddenLayer(5, 1)}
BATCH_SIZES = [1, 7, 10, 64, 199, 200, 201, 256, 999, 1499, 1500]

every_engine = pytest.mark.parametrize("engine", ENGINES)
every_model = pytest.mark.parametrize("model", MODELS.values(), ids=MODELS.keys())
every_optimizer = pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS.keys())
every_batch_size = pytest.mark.parametrize("batch_size", BATCH_SIZES)

DIVERGING = RegressionConfig(optimizer=SGD(lr=1.0), engine="from scratch")


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    """Several threads gain nothing on tensors this small, and stall on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def run(**settings):
    """All events of a run, from scratch unless said otherwise."""
    return list(train_regression(RegressionConfig(**{"engine": "from scratch", **settings})))


def of_kind(kind, events):
    return [event for event in events if isinstance(event, kind)]


def curve(events):
    """What is recorded, without the times, which differ from run to run."""
    return [(each.step, each.epochs, each.loss) for each in of_kind(LossRecorded, events)]


def timeless(events):
    """All events, without the times."""
    return [
        (type(each), each.step, each.epochs, getattr(each, "loss", None))
        for each in events
        if not isinstance(each, Started)
    ]


def recorded_steps(batch_size, epochs):
    """Step 0, and of each epoch the first step at or past every 200 examples, and its last."""
    per_epoch = math.ceil(1500 / batch_size)
    ends = {math.ceil(examples / batch_size) for examples in range(200, 1500, 200)} | {per_epoch}
    return [0, *(epoch * per_epoch + end for epoch in range(epochs) for end in sorted(ends))]


# --- events ---------------------------------------------------------------------------------


@every_engine
def test_run_starts_with_its_size_and_the_loss_at_step_0(engine):
    first, second = run(engine=engine, epochs=1)[:2]
    assert isinstance(first, Started)
    assert (type(second), second.step, second.epochs) == (LossRecorded, 0, 0.0)


@every_engine
def test_run_ends_with_finished_and_has_one(engine):
    events = run(engine=engine, epochs=1)
    assert isinstance(events[-1], Finished)
    assert len(of_kind(Finished, events)) == len(of_kind(Started, events)) == 1


@every_engine
def test_no_other_kinds_of_events_appear(engine):
    kinds = {type(event) for event in run(engine=engine, epochs=1)}
    assert kinds == {Started, LossRecorded, StepTaken, Finished}


@every_batch_size
def test_steps_are_counted_from_1_without_a_gap(batch_size):
    taken = of_kind(StepTaken, run(batch_size=batch_size, epochs=2))
    assert [each.step for each in taken] == list(range(1, 2 * math.ceil(1500 / batch_size) + 1))


@every_batch_size
def test_started_announces_the_number_of_steps(batch_size):
    events = run(batch_size=batch_size, epochs=2)
    assert events[0].steps_per_epoch == math.ceil(1500 / batch_size)
    assert events[0].steps == len(of_kind(StepTaken, events))


@every_engine
@every_batch_size
def test_loss_of_a_step_comes_just_before_its_step_taken(batch_size, engine):
    events = run(batch_size=batch_size, epochs=1, engine=engine)
    after = {a.step: b for a, b in pairwise(events[2:]) if isinstance(a, LossRecorded)}
    assert all(isinstance(b, StepTaken) and b.step == step for step, b in after.items())


@pytest.mark.parametrize("epochs", [1, 3])
@every_batch_size
def test_losses_are_recorded_by_the_rule(batch_size, epochs):
    events = run(batch_size=batch_size, epochs=epochs)
    assert [step for step, _, _ in curve(events)] == recorded_steps(batch_size, epochs)


@every_batch_size
def test_curve_has_at_least_two_points(batch_size):
    assert len(curve(run(batch_size=batch_size, epochs=1))) >= 2


@every_batch_size
def test_x_is_the_true_fraction_of_epochs(batch_size):
    per_epoch = math.ceil(1500 / batch_size)
    for event in run(batch_size=batch_size, epochs=2)[1:-1]:
        epoch, step = divmod(event.step, per_epoch)
        examples = epoch * 1500 + min(step * batch_size, 1500)
        assert event.epochs == pytest.approx(examples / 1500, abs=1e-12)


def test_notes_settings_record_33_points():
    # Steps 20, 40, …, 140 and 150 of each of 4 epochs, and step 0.
    assert len(curve(run())) == 33


def test_floor_and_limit_are_announced_for_the_linear_model():
    started = run(epochs=1)[0]
    assert started.floor == pytest.approx(0.241688, abs=5e-7)
    assert started.lr_limit == pytest.approx(0.4765, abs=5e-5)


def test_nothing_is_claimed_about_the_network():
    started = run(epochs=1, model="hidden")[0]
    assert (started.floor, started.lr_limit) == (None, None)


@every_engine
def test_finished_repeats_the_last_recorded_loss(engine):
    events = run(engine=engine, epochs=2)
    assert events[-1].loss == of_kind(LossRecorded, events)[-1].loss


def test_finished_counts_all_steps_and_epochs():
    finished = run(epochs=3, batch_size=64)[-1]
    assert (finished.step, finished.epochs) == (72, 3.0)


@every_engine
def test_seconds_per_epoch_are_the_training_seconds_over_the_epochs(engine):
    events = run(engine=engine, epochs=3)
    total = of_kind(LossRecorded, events)[-1].seconds
    assert events[-1].seconds_per_epoch == pytest.approx(total / 3)


@every_engine
def test_training_and_evaluation_fit_into_the_time_that_passed(engine):
    started = perf_counter()
    finished = run(engine=engine, epochs=2)[-1]
    passed = perf_counter() - started
    assert 0 < 2 * finished.seconds_per_epoch + finished.evaluation_seconds <= passed


@every_engine
def test_seconds_never_decrease(engine):
    seconds = [each.seconds for each in of_kind(LossRecorded, run(engine=engine))]
    assert seconds[0] == 0
    assert all(before < after for before, after in pairwise(seconds))


def test_time_between_events_does_not_count_as_training():
    # The clock jumps by an hour whenever the run waits for its consumer.
    jump, events = 0.0, []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(regression, "perf_counter", lambda: perf_counter() + jump)
        for event in train_regression(RegressionConfig(engine="from scratch", epochs=2)):
            events.append(event)
            jump += 3600
    assert events[-1].seconds_per_epoch < 3600
    assert events[-1].evaluation_seconds < 3600


def test_events_cannot_be_changed():
    for event in [*run(epochs=1), *train_regression(DIVERGING)]:
        name = fields(event)[0].name
        with pytest.raises(FrozenInstanceError):
            setattr(event, name, 5)


@every_engine
def test_recorded_loss_is_half_the_mean_squared_error_of_the_weights(engine, monkeypatch):
    kept = []

    class Keeping(ENGINES[engine]):
        def weights(self):
            kept.append(super().weights().double().numpy().copy())
            return super().weights()

    monkeypatch.setitem(ENGINES, engine, Keeping)
    losses = [loss for _, _, loss in curve(run(engine=engine, epochs=1))]
    data = airfoil.load()
    inputs = np.column_stack([data.features.numpy(), np.ones(1500)])
    expected = [np.mean((inputs @ weights - data.labels.numpy()) ** 2) / 2 for weights in kept]
    assert losses == pytest.approx(expected, rel=1e-12)


# --- divergence -----------------------------------------------------------------------------


@every_engine
def test_diverging_run_ends_with_diverged(engine):
    events = run(optimizer=SGD(lr=1.0), engine=engine)
    assert isinstance(events[-1], Diverged)
    assert len(of_kind(Diverged, events)) == 1
    assert not of_kind(Finished, events)


def test_both_engines_diverge_at_the_same_step():
    ends = [run(optimizer=SGD(lr=1.0), engine=engine)[-1] for engine in ENGINES]
    assert ends[0] == ends[1]


def test_diverged_follows_the_step_before():
    *_, before, diverged = train_regression(DIVERGING)
    assert isinstance(before, StepTaken)
    assert diverged.step == before.step + 1
    assert diverged.epochs == pytest.approx(diverged.step * 10 / 1500)


def test_points_before_the_divergence_stay():
    events = list(train_regression(DIVERGING))
    steps = [step for step, _, _ in curve(events)]
    wanted = [step for step in recorded_steps(10, 4) if step < events[-1].step]
    assert set(wanted) <= set(steps)


def test_explosion_is_recorded_step_by_step():
    events = list(train_regression(DIVERGING))
    losses = {step: loss for step, _, loss in curve(events)}
    exploding = [step for step, loss in losses.items() if loss > 1e31]
    assert exploding == list(range(exploding[0], events[-1].step))


@pytest.mark.parametrize("engine", ["torch", "from scratch"])
@pytest.mark.parametrize("kind", [SGD, Momentum, Nesterov])
def test_run_that_diverges_at_once_has_two_points(kind, engine):
    config = RegressionConfig(optimizer=kind(lr=10.0), engine=engine)
    assert len(curve(train_regression(config))) >= 2


def test_recorded_losses_of_a_diverging_run_are_finite():
    assert all(math.isfinite(loss) for _, _, loss in curve(train_regression(DIVERGING)))


def test_diverged_carries_the_learning_rate_and_its_limit():
    *_, diverged = train_regression(DIVERGING)
    assert diverged.lr == 1.0
    assert diverged.lr_limit == pytest.approx(0.4765, abs=5e-5)


def test_diverged_message_names_step_learning_rate_and_limit():
    *_, diverged = train_regression(DIVERGING)
    assert str(diverged) == (
        f"The loss stopped being finite at step {diverged.step}, at learning rate 1. "
        "Full-batch descent is stable only below 0.4765."
    )


@every_engine
def test_divergence_below_the_limit_is_explained_otherwise(engine):
    diverged = run(optimizer=SGD(lr=0.4), batch_size=1, engine=engine)[-1]
    assert str(diverged) == (
        f"The loss stopped being finite at step {diverged.step}, at learning rate 0.4. "
        "That is below the full-batch limit 0.4765: "
        "a minibatch can be steeper than the whole data set."
    )


@every_engine
def test_divergence_of_the_network_claims_no_limit(engine):
    diverged = run(optimizer=SGD(lr=2.0), model="hidden", engine=engine)[-1]
    assert str(diverged) == (
        f"The loss stopped being finite at step {diverged.step}, at learning rate 2."
    )


@dataclass(frozen=True)
class Breaking(SGD):
    """SGD whose every step leads to no number."""

    def update(self, parameter, gradient, state, step):
        return parameter * math.nan, state

    def twin(self, parameters):
        return torch.optim.SGD(parameters, lr=math.nan)


@pytest.mark.parametrize("batch_size", [10, 1500])
@every_engine
def test_weights_that_are_no_numbers_are_a_divergence(engine, batch_size):
    events = run(optimizer=Breaking(), engine=engine, batch_size=batch_size)
    assert isinstance(events[-1], Diverged)
    assert [step for step, _, _ in curve(events)] == [0]


@every_engine
def test_divergence_is_noticed_between_recorded_losses(engine):
    # After the first update no weight is a number: the second minibatch must show it.
    assert run(optimizer=Breaking(), engine=engine, batch_size=10)[-1].step == 2


# --- arithmetic -----------------------------------------------------------------------------


@pytest.mark.parametrize("objective", ["mse", "half_mse"])
@pytest.mark.parametrize("model", ["linear", "hidden"])
@every_optimizer
def test_engines_draw_the_same_curve(optimizer, model, objective):
    settings = {"optimizer": optimizer(), "model": model, "objective": objective, "epochs": 2}
    ours, theirs = (curve(run(engine=engine, **settings)) for engine in ENGINES)
    assert [each[:2] for each in ours] == [each[:2] for each in theirs]
    assert [each[2] for each in ours] == pytest.approx([each[2] for each in theirs], abs=1e-5)


@every_engine
def test_half_mse_with_the_double_learning_rate_is_mse(engine):
    mse = run(engine=engine, objective="mse", optimizer=SGD(lr=0.01))
    half = run(engine=engine, objective="half_mse", optimizer=SGD(lr=0.02))
    assert curve(half) == curve(mse)


@every_engine
def test_objectives_differ_at_the_same_learning_rate(engine):
    mse, half = (run(engine=engine, objective=each, epochs=1) for each in ("mse", "half_mse"))
    assert mse[-1].loss < half[-1].loss


def numpy_predictions(model, weights, inputs):
    """The model's formula once more, in numpy; `inputs` has its last column of ones."""
    if isinstance(model, Linear):
        return inputs @ weights
    units = model.units
    inner, outer = weights[: 6 * units].reshape(6, units), weights[6 * units :]
    return np.maximum(inputs @ inner, 0) @ outer[:-1] + outer[-1]


def sample(seed=0, rows=20):
    """Rows of the airfoil data, float64, as a model takes them, and their labels."""
    data = airfoil.load()
    chosen = torch.randperm(1500, generator=torch.Generator().manual_seed(seed))[:rows]
    return with_bias(data.features[chosen]), data.labels[chosen]


def start(model, seed=0):
    """A model's initial weights in float64, moved off the zero biases."""
    generator = torch.Generator().manual_seed(seed)
    weights = model.initial_weights(generator).double()
    return weights + 0.1 * torch.randn(len(weights), generator=generator, dtype=torch.float64)


@every_model
def test_predictions_agree_with_numpy(model):
    (inputs, _), weights = sample(), start(model)
    expected = numpy_predictions(model, weights.numpy(), inputs.numpy())
    np.testing.assert_allclose(model.predict(weights, inputs).numpy(), expected, rtol=1e-12)


@every_model
def test_squares_agree_with_numpy(model):
    (inputs, labels), weights = sample(), start(model)
    expected = numpy_predictions(model, weights.numpy(), inputs.numpy()) - labels.numpy()
    squares, _ = model.gradient(weights, inputs, labels)
    assert float(squares) == pytest.approx(np.sum(expected**2), rel=1e-12)


@pytest.mark.parametrize("rows", [1, 20])
@every_model
def test_gradient_agrees_with_finite_differences(model, rows):
    (inputs, labels), weights = sample(rows=rows), start(model)

    def half_squares(moved):
        return np.sum((numpy_predictions(model, moved, inputs.numpy()) - labels.numpy()) ** 2) / 2

    small = 1e-6
    expected = [
        (half_squares(weights.numpy() + move) - half_squares(weights.numpy() - move)) / (2 * small)
        for move in small * np.eye(len(weights))
    ]
    _, gradient = model.gradient(weights, inputs, labels)
    np.testing.assert_allclose(gradient.numpy(), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("seed", range(3))
@every_model
def test_gradient_agrees_with_autograd(model, seed):
    (inputs, labels), weights = sample(seed), start(model, seed).requires_grad_()
    half_squares = (model.predict(weights, inputs) - labels).square().sum() / 2
    (expected,) = torch.autograd.grad(half_squares, weights)
    _, gradient = model.gradient(weights.detach(), inputs, labels)
    torch.testing.assert_close(gradient, expected, rtol=1e-10, atol=1e-12)


@every_model
def test_module_computes_the_same_model(model):
    (inputs, _), weights = sample(), start(model).float()
    predictions = model.module(weights)(inputs[:, :-1].float()).squeeze(1)
    expected = model.predict(weights, inputs.float())
    torch.testing.assert_close(predictions.detach(), expected, rtol=1e-5, atol=1e-6)


@every_model
def test_weights_survive_the_way_through_the_module(model):
    weights = start(model).float()
    assert torch.equal(model.weights_of(model.module(weights)), weights)


@every_model
def test_module_does_not_share_memory_with_the_weights(model):
    weights = start(model).float()
    before = weights.clone()
    with torch.no_grad():
        for parameter in model.module(weights).parameters():
            parameter.add_(1)
    assert torch.equal(weights, before)


def test_linear_weights_start_with_a_deviation_of_a_hundredth():
    weights = Linear(50_000).initial_weights(torch.Generator().manual_seed(0)).numpy()
    assert weights[:-1].std() == pytest.approx(0.01, rel=0.02)
    assert abs(weights[:-1].mean()) < 2e-4


def test_hidden_weights_start_as_he_et_al_and_by_the_number_of_units():
    model = HiddenLayer(200, 5000)
    weights = model.initial_weights(torch.Generator().manual_seed(0)).numpy()
    inner = weights[: 201 * 5000].reshape(201, 5000)
    assert inner[:-1].std() == pytest.approx(math.sqrt(2 / 200), rel=0.02)
    assert weights[201 * 5000 : -1].std() == pytest.approx(math.sqrt(1 / 5000), rel=0.05)


def test_biases_start_at_zero():
    generator = torch.Generator().manual_seed(0)
    assert Linear(5).initial_weights(generator)[-1] == 0
    weights = HiddenLayer(5, 16).initial_weights(generator)
    assert torch.equal(weights[5 * 16 : 6 * 16], torch.zeros(16))
    assert weights[-1] == 0


def test_initial_weights_are_float32():
    for model in MODELS.values():
        assert model.initial_weights(torch.Generator().manual_seed(0)).dtype == torch.float32


BANDS = {
    SGD: (0.2415, 0.2440),
    Adagrad: (0.2415, 0.2440),
    RMSprop: (0.2415, 0.2460),
    Adam: (0.2415, 0.2460),
    Momentum: (0.2425, 0.2560),
}


def test_presets_are_the_five_of_the_notes():
    of_the_notes = (
        SGD(lr=0.01),
        Momentum(lr=0.005, momentum=0.9),
        Adagrad(lr=0.1),
        RMSprop(lr=0.01, alpha=0.9),
        Adam(lr=0.01),
    )
    assert of_the_notes == AIRFOIL_PRESETS


@every_engine
@pytest.mark.parametrize("preset", AIRFOIL_PRESETS, ids=lambda preset: preset.label)
def test_preset_reaches_the_mean_loss_of_the_notes(preset, engine):
    losses = [run(optimizer=preset, engine=engine, seed=seed)[-1].loss for seed in range(5)]
    low, high = BANDS[type(preset)]
    assert low <= mean(losses) <= high


def test_default_config_is_the_run_of_the_notes():
    config = RegressionConfig()
    assert (config.batch_size, config.epochs, config.objective) == (10, 4, "mse")
    assert (config.model, config.optimizer) == ("linear", SGD(lr=0.01))


# --- isolation ------------------------------------------------------------------------------


@pytest.fixture
def minibatches(monkeypatch):
    """A list that fills with the labels of every minibatch that an engine is given."""
    seen = []
    for name, engine in list(ENGINES.items()):

        class Watched(engine):
            def step(self, inputs, labels):
                seen.append((inputs[:, :5].tolist(), labels.tolist()))
                return super().step(inputs, labels)

        monkeypatch.setitem(ENGINES, name, Watched)
    return seen


def minibatches_of(seen, **settings):
    seen.clear()
    run(epochs=2, **settings)
    return list(seen)


@every_engine
@pytest.mark.parametrize("model", ["linear", "hidden"])
def test_run_is_repeatable_bit_for_bit(model, engine):
    settings = {"engine": engine, "model": model, "optimizer": Adam(), "epochs": 2}
    assert curve(run(**settings)) == curve(run(**settings))


@every_engine
def test_run_does_not_depend_on_the_global_seed(engine):
    state = torch.get_rng_state()
    curves = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        curves.append(curve(run(engine=engine, epochs=1)))
    torch.set_rng_state(state)
    assert curves[0] == curves[1]


@pytest.mark.parametrize("model", ["linear", "hidden"])
@every_engine
def test_run_leaves_the_global_random_generator_alone(engine, model):
    before = torch.get_rng_state()
    run(engine=engine, model=model, epochs=1)
    assert torch.equal(torch.get_rng_state(), before)


@every_engine
def test_run_is_the_same_while_another_thread_draws_random_numbers(engine):
    alone = curve(run(engine=engine))
    stop, drawn = threading.Event(), []

    def draw():
        while not stop.is_set():
            drawn.append(float(torch.randn(100).sum()))

    thread = threading.Thread(target=draw)
    thread.start()
    try:
        together = curve(run(engine=engine))
    finally:
        stop.set()
        thread.join()
    assert drawn
    assert together == alone


@every_engine
def test_run_is_the_same_while_other_runs_go_on(engine):
    alone = [curve(run(engine=engine, seed=seed, epochs=2)) for seed in range(3)]
    with ThreadPoolExecutor(3) as pool:
        runs = [pool.submit(run, engine=engine, seed=seed, epochs=2) for seed in range(3)]
        assert [curve(each.result()) for each in runs] == alone


@every_engine
def test_threads_may_take_turns_on_one_run(engine):
    expected = timeless(run(engine=engine, epochs=1, model="hidden"))
    events = train_regression(RegressionConfig(engine=engine, epochs=1, model="hidden"))
    taken = []
    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as other:
        while (event := one.submit(next, events, None).result()) is not None:
            taken.append(event)
            one, other = other, one
    assert timeless(taken) == expected


@every_engine
def test_run_never_yields_inside_another_grad_mode(engine):
    for event in train_regression(RegressionConfig(engine=engine, epochs=1)):
        assert torch.is_grad_enabled(), event
        assert not torch.is_inference_mode_enabled(), event


@pytest.mark.parametrize("model", ["linear", "hidden"])
@every_engine
def test_run_is_the_same_under_another_default_dtype(engine, model):
    expected = curve(run(engine=engine, model=model, epochs=1))
    torch.set_default_dtype(torch.float64)
    try:
        assert curve(run(engine=engine, model=model, epochs=1)) == expected
    finally:
        torch.set_default_dtype(torch.float32)


@every_engine
def test_run_leaves_the_shared_data_alone(engine):
    data = airfoil.load()
    before = data.features.clone(), data.labels.clone()
    run(engine=engine, epochs=1)
    assert torch.equal(data.features, before[0])
    assert torch.equal(data.labels, before[1])


@every_engine
def test_run_can_be_left_in_the_middle(engine):
    events = train_regression(RegressionConfig(engine=engine))
    for _ in range(10):
        next(events)
    events.close()
    assert next(events, None) is None


@pytest.mark.parametrize("model", ["linear", "hidden"])
def test_every_optimizer_and_engine_starts_from_the_same_loss(model):
    starts = {
        next(iter(of_kind(LossRecorded, run(epochs=1, engine=e, model=model, optimizer=o())))).loss
        for o in OPTIMIZERS.values()
        for e in ENGINES
    }
    assert len(starts) == 1


def test_every_optimizer_sees_the_same_minibatches(minibatches):
    expected = minibatches_of(minibatches, optimizer=SGD())
    for optimizer in OPTIMIZERS.values():
        assert minibatches_of(minibatches, optimizer=optimizer()) == expected


def test_both_engines_and_models_see_the_same_minibatches(minibatches):
    expected = minibatches_of(minibatches)
    assert minibatches_of(minibatches, engine="torch") == expected
    assert minibatches_of(minibatches, model="hidden") == expected


@every_batch_size
def test_every_epoch_shows_every_row_once(batch_size, minibatches):
    seen = minibatches_of(minibatches, batch_size=batch_size)
    rows = sorted((*x, y) for xs, ys in seen for x, y in zip(xs, ys, strict=True))
    data = airfoil.load()
    table = torch.cat([data.features, data.labels.view(-1, 1)], dim=1).float()
    assert rows == sorted(tuple(row) for row in table.tolist() for _ in range(2))


def test_minibatches_have_the_size_asked_for(minibatches):
    sizes = [len(labels) for _, labels in minibatches_of(minibatches, batch_size=400)]
    assert sizes == [400, 400, 400, 300] * 2


def test_order_of_the_rows_changes_from_epoch_to_epoch(minibatches):
    seen = minibatches_of(minibatches)
    assert seen[:150] != seen[150:]


def test_other_seeds_see_other_minibatches(minibatches):
    orders = [minibatches_of(minibatches, seed=seed) for seed in range(3)]
    assert orders[0] != orders[1] != orders[2] != orders[0]


def test_other_seeds_start_elsewhere():
    starts = {curve(run(seed=seed, epochs=1))[0][2] for seed in range(20)}
    assert len(starts) == 20


def test_largest_seed_works():
    assert isinstance(run(seed=2**31 - 1, epochs=1)[-1], Finished)


@every_engine
def test_numpy_learning_rate_acts_as_the_same_float(engine):
    as_numpy = run(engine=engine, epochs=1, optimizer=SGD(lr=np.float64(0.02)))
    assert curve(as_numpy) == curve(run(engine=engine, epochs=1, optimizer=SGD(lr=0.02)))


def test_damaged_data_file_stops_a_run_before_its_first_event(monkeypatch):
    def damaged():
        raise DataError("The data file is damaged.")

    monkeypatch.setattr(airfoil, "load", damaged)
    with pytest.raises(DataError):
        next(train_regression(RegressionConfig()))


# --- settings that are refused --------------------------------------------------------------


@pytest.mark.parametrize("lr", [0, -1, math.nan, 1e9])
@every_optimizer
def test_bad_learning_rate_is_refused(optimizer, lr):
    with pytest.raises(ConfigError, match=rf"{optimizer.name}: lr must be .*received {lr!r}"):
        optimizer(lr=lr)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"batch_size": 0},
            r"^regression: batch_size must be a whole number from 1 to 1500; received 0\. Try 10",
        ),
        (
            {"batch_size": 1501},
            r"^regression: batch_size must be .* to 1500; received 1501\. Try 10\.$",
        ),
        (
            {"batch_size": "abc"},
            r"^regression: batch_size must be .*; received 'abc'\. Try 10\.$",
        ),
        (
            {"epochs": 0},
            r"^regression: epochs must be a whole number from 1 to 10000; received 0\. Try 4\.$",
        ),
        (
            {"epochs": 10_001},
            r"^regression: epochs must be .* to 10000; received 10001\. Try 4\.$",
        ),
        ({"epochs": 2.5}, r"^regression: epochs must be .*; received 2\.5\. Try 4\.$"),
        ({"seed": -1}, r"^regression: seed must be .* from 0 .*; received -1\. Try 0\.$"),
        (
            {"engine": "foo"},
            r"^regression: engine must be one of torch, from scratch; received 'foo'\. Try torch",
        ),
        (
            {"objective": "mae"},
            r"^regression: objective must be one of mse, half_mse; received 'mae'\. Try mse\.$",
        ),
        (
            {"model": None},
            r"^regression: model must be one of linear, hidden; received None\. Try linear\.$",
        ),
    ],
    ids=str,
)
def test_bad_setting_is_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        RegressionConfig(**settings)


def test_bad_momentum_is_refused():
    with pytest.raises(
        ConfigError,
        match=r"^momentum: momentum must be .* from 0 to 0\.9999; received 1\.5\. Try 0\.9\.$",
    ):
        Momentum(momentum=1.5)


@pytest.mark.parametrize("optimizer", ["foo", None, SGD, 0.01])
def test_what_is_no_optimizer_is_refused(optimizer):
    with pytest.raises(ConfigError) as caught:
        RegressionConfig(optimizer=optimizer)
    message = str(caught.value)
    assert message.startswith("regression: optimizer must be an optimiser object: ")
    assert f"received {optimizer!r}" in message
    assert all(each.__name__ in message for each in OPTIMIZERS.values())


def test_suggested_optimizer_works():
    with pytest.raises(ConfigError, match=r"Try SGD\(lr=0\.01\)\.$"):
        RegressionConfig(optimizer="foo")
    assert RegressionConfig(optimizer=SGD(lr=0.01)).optimizer.lr == 0.01


def test_engines_are_those_of_the_setting():
    rules = {each.name: rule for each, rule in ruled_fields(RegressionConfig)}
    assert set(ENGINES) == set(rules["engine"].options)
