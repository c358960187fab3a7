"""One training step: its moves are one device's step, and what is shown is what was computed."""

import json
import math
from dataclasses import asdict
from functools import cache

import pytest
import torch
from torch.nn import functional as F  # noqa: N812 (the name that everybody knows it by)

from labcore.bugs import BUGS
from labcore.collectives import ALLREDUCE
from labcore.config import ConfigError, ruled_fields
from labcore.datasets import fashion_mnist
from labcore.models import LENET_NAMES, LENET_SHAPES, lenet
from labcore.step_curves import CurvePoint, RunDiverged, loss_curves
from labcore.step_record import COLUMNS, MOVES, ROWS, Window, view
from labcore.training_step import Trainer, TrainingStepConfig

SMALL = {"batch_size": 12, "replicas": 3}
every_allreduce = pytest.mark.parametrize("allreduce", ALLREDUCE)
every_parameter = pytest.mark.parametrize("parameter", LENET_NAMES)
every_split = pytest.mark.parametrize("split", ["chunk", "balanced"])


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    """Several threads gain nothing on tensors this small, and stall on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def sample():
    return fashion_mnist.load(fashion_mnist.EMBEDDED)


def trainer(**settings):
    return Trainer(TrainingStepConfig(**{**SMALL, **settings}), sample())


def steps(number, **settings):
    them = trainer(**settings)
    return [them.step() for _ in range(number)]


@cache
def first(**settings):
    return steps(1, **settings)[0]


def parameters(replica):
    return [each.detach().clone() for each in replica.module.parameters()]


def moves(record):
    return {move.name: move for move in record.moves}


# --- the step is one device's ---------------------------------------------------------------


@every_split
@every_allreduce
@pytest.mark.parametrize(("rows", "world_size"), [(12, 1), (12, 4), (10, 3), (5, 4)])
def test_a_step_is_plain_torchs_on_one_device(split, allreduce, rows, world_size):
    settings = {"split": split, "allreduce": allreduce, "batch_size": rows, "replicas": world_size}
    them = trainer(**settings)
    start = [each.requires_grad_() for each in parameters(them.replicas.ranks[0])]
    order = torch.randperm(6_000, generator=torch.Generator().manual_seed(1))
    chosen = sample().train_rows(6_000)[order[:rows]]
    images = sample().train_images[chosen].unsqueeze(1).float() / 255
    F.cross_entropy(lenet(images, *start), sample().train_labels[chosen]).backward()
    torch.optim.SGD(start, lr=0.1).step()
    them.step()
    for replica in them.replicas.ranks:
        for ours, theirs in zip(parameters(replica), start, strict=True):
            torch.testing.assert_close(ours, theirs.detach(), rtol=0, atol=1e-6)


@every_allreduce
@pytest.mark.parametrize(("rows", "world_size"), [(12, 4), (10, 3), (5, 4)])
def test_replicas_stay_bitwise_equal(allreduce, rows, world_size):
    them = trainer(allreduce=allreduce, batch_size=rows, replicas=world_size)
    drifts = [them.advance().drift for _ in range(3)]
    assert drifts == [0.0] * 3
    first = them.replicas.ranks[0].flat
    assert all(torch.equal(other.flat, first) for other in them.replicas.ranks[1:])


def test_replicas_stay_within_rounding_of_the_one_device():
    facts = steps(3)[-1].facts
    assert max(facts.differences) < 1e-6
    assert facts.ratios == pytest.approx([1.0] * 3, rel=1e-5)


def test_the_one_device_is_not_one_of_the_replicas():
    them = trainer(bug="divided_twice")
    them.advance()
    assert not torch.equal(them.reference.ranks[0].flat, them.replicas.ranks[0].flat)


def test_the_next_step_goes_on_with_the_same_replicas_on_other_rows():
    one, two = steps(2)
    assert one.states[-1] == two.states[0]
    assert one.facts.passed != two.facts.passed


@pytest.mark.parametrize("bug", ["none", *BUGS])
def test_the_same_config_gives_the_same_numbers(bug):
    once, again = (steps(2, bug=bug)[-1] for _ in range(2))
    assert once.states == again.states
    assert [move.sentence for move in once.moves] == [move.sentence for move in again.moves]


def test_another_seed_gives_another_start_and_other_rows():
    assert first(seed=1, parameter="w1").states[1] != first(parameter="w1").states[1]
    assert first(seed=1).facts.passed != first().facts.passed


def test_a_step_that_is_only_counted_is_the_same_as_one_that_is_shown():
    shown, counted = trainer(), trainer()
    shown.step()
    counted.advance()
    assert shown.step().states == counted.step().states


def test_a_trainer_leaves_the_global_random_generator_alone():
    before = torch.get_rng_state()
    steps(1)
    assert torch.equal(torch.get_rng_state(), before)


# --- what is shown --------------------------------------------------------------------------


def test_a_step_has_six_moves_in_order():
    assert tuple(move.name for move in first().moves) == MOVES


def test_each_move_finds_what_the_one_before_left():
    record = first()
    found = [move.before for move in record.moves[1:]]
    assert found == [move.after for move in record.moves[:-1]]


def test_before_the_first_step_there_is_nothing():
    state = first().states[0]
    assert state.parameters == state.gradients == (None,) * 3


def test_b1_starts_as_twenty_zeros_on_every_rank():
    for shown in moves(first())["replicate"].after.parameters:
        assert shown.values == ((0.0,) * 20,)


def test_gradients_are_none_before_the_first_backward_pass():
    record = first()
    for state in record.states[:4]:
        assert state.gradients == (None,) * 3
    assert None not in record.states[4].gradients


def test_gradients_of_later_steps_are_cleared_by_the_forward_pass():
    second = moves(steps(2)[1])
    assert all(each.norm > 0 for each in second["forward"].before.gradients)
    assert all(each.norm == 0 for each in second["forward"].after.gradients)


def test_an_empty_shard_has_no_loss_and_a_gradient_of_zeros():
    record = first(batch_size=5, replicas=4)
    assert record.facts.rows == [2, 2, 1, 0]
    assert record.facts.losses[3] is None
    assert moves(record)["backward"].after.gradients[3].norm == 0.0


@every_parameter
def test_shown_values_are_those_of_the_parameter(parameter):
    them = trainer(parameter=parameter)
    record = them.step()
    shape = LENET_SHAPES[LENET_NAMES.index(parameter)]
    assert record.shape == shape
    for rank, replica in enumerate(them.replicas.ranks):
        tensor = parameters(replica)[LENET_NAMES.index(parameter)]
        assert tensor.shape == shape
        matrix = tensor.reshape(1 if len(shape) == 1 else shape[0], -1)
        shown = record.states[-1].parameters[rank]
        assert torch.equal(torch.tensor(shown.values), matrix[:ROWS, :COLUMNS])
        assert shown.minimum == pytest.approx(float(tensor.min()), rel=1e-8)
        assert shown.maximum == pytest.approx(float(tensor.max()), rel=1e-8)
        assert shown.norm == pytest.approx(float(tensor.double().norm()), rel=1e-5)


@every_parameter
def test_gradients_after_the_allreduce_are_the_sum_of_those_before(parameter):
    move = moves(first(parameter=parameter))["allreduce"]
    before, after = (
        torch.tensor([each.values for each in state.gradients])
        for state in (move.before, move.after)
    )
    torch.testing.assert_close(after, before.sum(0).expand_as(after), rtol=1e-4, atol=1e-6)


def test_the_update_is_the_summed_gradient_over_the_batch_size_times_the_learning_rate():
    move = moves(first(parameter="b4"))["update"]
    old, new, gradient = (
        torch.tensor(each[0].values)
        for each in (move.before.parameters, move.after.parameters, move.before.gradients)
    )
    torch.testing.assert_close(new, old - 0.1 * gradient / 12, rtol=0, atol=1e-7)


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ((1, 20), "all 1 × 20 values"),
        ((1, 50), "columns 0–24 of 50"),
        ((20, 9), "rows 0–15 of 20, columns 0–8 of 9"),
        ((128, 800), "rows 0–15 of 128, columns 0–24 of 800"),
        ((10, 128), "rows 0–9 of 10, columns 0–24 of 128"),
    ],
)
def test_a_window_says_what_it_shows(shape, words):
    assert str(Window(*shape)) == words


def test_what_is_no_finite_number_is_shown_as_none():
    shown = view(torch.tensor([1.0, math.nan, math.inf]))
    assert shown.values == ((1.0, None, None),)
    assert (shown.minimum, shown.maximum, shown.norm) == (None, None, None)


@pytest.mark.parametrize("bug", ["none", *BUGS])
def test_the_states_of_a_step_on_16_ranks_are_less_than_2_mb_of_json(bug):
    record = steps(2, replicas=16, batch_size=16, parameter="w3", bug=bug)[1]
    text = json.dumps([asdict(state) for state in record.states], allow_nan=False)
    assert len(text) < 2_000_000


def test_seconds_are_those_of_the_moves():
    facts = first().facts
    assert tuple(facts.seconds) == MOVES
    assert all(seconds > 0 for seconds in facts.seconds.values())


@every_allreduce
def test_rounds_can_be_opened_and_end_with_the_sum(allreduce):
    move = moves(first(allreduce=allreduce, parameter="b2"))["allreduce"]
    *_, last = rounds = list(move.rounds())
    assert len(rounds) == len(move.schedule.rounds)
    torch.testing.assert_close(last, move.vectors.sum(0).expand(3, -1), rtol=1e-4, atol=1e-6)
    assert move.memory == (0, 1, 2)


def test_opening_the_rounds_leaves_the_record_alone():
    move = moves(steps(1)[0])["allreduce"]
    kept = move.vectors.clone()
    list(move.rounds())
    assert torch.equal(move.vectors, kept)


# --- words and code -------------------------------------------------------------------------


def test_one_replica_needs_to_send_nothing():
    record = first(replicas=1)
    assert "nothing needs to be sent" in moves(record)["allreduce"].sentence
    assert moves(record)["allreduce"].schedule.rounds == ()


def test_the_forward_pass_is_told_with_the_rows_and_losses_of_a_rank():
    record = first()
    loss = record.facts.losses[1]
    expected = f"Rank 1 has 4 of 12 rows; its loss, the sum over them, is {4 * loss:.4g}"
    assert moves(record)["forward"].sentence.startswith(expected)


def test_a_rank_without_rows_is_told_to_have_none():
    assert "Rank 3 has no rows." in moves(first(batch_size=5, replicas=4))["forward"].sentence


@pytest.mark.parametrize("bug", ["none", *BUGS])
@pytest.mark.parametrize("world_size", [1, 3])
def test_every_move_is_told_in_sentences(bug, world_size):
    for record in steps(2, bug=bug, replicas=world_size):
        for move in record.moves:
            assert move.sentence.endswith(".")
            assert "nan" not in move.sentence


@every_allreduce
@every_split
def test_code_is_python_without_docstrings(allreduce, split):
    for move in first(allreduce=allreduce, split=split).moves:
        compile(move.code, move.name, "exec")
        assert '"""' not in move.code
        assert len(move.code.splitlines()) <= 60


# --- curves ---------------------------------------------------------------------------------


def curves(number=5, **settings):
    return list(loss_curves(TrainingStepConfig(**{**SMALL, **settings}), number, sample()))


def test_curves_have_a_point_per_step():
    assert [point.step for point in curves()] == [1, 2, 3, 4, 5]


def test_curves_without_a_bug_coincide():
    for point in curves():
        assert point.loss == pytest.approx(point.reference_loss, rel=1e-5)
        assert point.drift == 0.0
        assert point.ratios == pytest.approx((1.0,) * 3, rel=1e-3)


def test_training_without_a_bug_learns_within_50_steps():
    points = curves(50, batch_size=32, replicas=2)
    assert points[-1].loss < 2.2 < points[0].loss


def test_a_run_that_diverges_says_so_once_and_the_other_goes_on():
    events = curves(30, bug="not_cleared")
    said = [each for each in events if isinstance(each, RunDiverged)]
    assert [each.run for each in said] == ["replicas"]
    points = [each for each in events if isinstance(each, CurvePoint)]
    assert len(points) == 30
    for point in points[said[0].event.step - 1 :]:
        assert (point.loss, point.drift, point.difference, point.ratios) == (None,) * 4
        assert point.reference_loss is not None


def test_curves_end_when_both_runs_have_diverged():
    events = curves(30, lr=100.0)
    assert {each.run for each in events if isinstance(each, RunDiverged)} == {
        "replicas",
        "one device",
    }
    assert events[-1].step < 30


@pytest.mark.parametrize("bug", ["none", *BUGS])
@pytest.mark.parametrize(("lr", "batch_size"), [(100.0, 1), (100.0, 5), (1e-6, 1)])
def test_extreme_settings_give_numbers_or_none(bug, lr, batch_size):
    settings = {"bug": bug, "lr": lr, "batch_size": batch_size, "replicas": min(2, batch_size)}
    for event in curves(12, **settings):
        json.dumps(asdict(event), allow_nan=False)


def test_a_diverged_trainer_takes_no_more_steps():
    them = trainer(bug="not_cleared")
    while not them.diverged:
        last = them.step()
    assert last.facts.diverged.step == them.steps
    with pytest.raises(ValueError, match=f"have not diverged; these did by step {them.steps}"):
        them.step()


# --- configs --------------------------------------------------------------------------------


def test_more_devices_than_rows_are_refused_with_what_works():
    with pytest.raises(ConfigError, match=r"5 devices for 3 rows\. Try batch size 5 or 3 devices"):
        TrainingStepConfig(replicas=5, batch_size=3)


@pytest.mark.parametrize("name", ["split", "allreduce", "initialisation", "parameter", "bug"])
def test_names_that_are_not_there_are_refused(name):
    with pytest.raises(ConfigError, match=name):
        TrainingStepConfig(**{name: "nothing"})


def test_every_field_has_a_help_text():
    assert all(each.metadata["help"] for each, _ in ruled_fields(TrainingStepConfig))


def test_the_menu_of_bugs_has_them_all_and_none():
    rules = {each.name: rule for each, rule in ruled_fields(TrainingStepConfig)}
    assert list(rules["bug"].options) == ["none", *BUGS]
    assert list(rules["parameter"].options) == list(LENET_NAMES)
