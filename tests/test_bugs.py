"""The classic bugs: each has the signature that it is known by, and changes nothing else."""

from functools import cache

import pytest
import torch
from torch.nn import functional as F  # noqa: N812 (the name that everybody knows it by)

from labcore.bugs import BUGS
from labcore.datasets import fashion_mnist
from labcore.models import lenet
from labcore.replicas import Replicas
from labcore.step_words import code
from labcore.training_step import Trainer, TrainingStepConfig

every_bug = pytest.mark.parametrize("bug", BUGS)


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
    return Trainer(TrainingStepConfig(**{"batch_size": 12, "replicas": 3, **settings}), sample())


def first_step(**settings):
    return trainer(**settings).advance()


# --- each bug's signature -------------------------------------------------------------------


def test_a_sum_that_is_not_copied_back_makes_the_replicas_drift():
    facts = first_step(bug="not_copied_back")
    assert facts.drift > 1e-4


@pytest.mark.parametrize("allreduce", ["central", "ring"])
def test_a_sum_that_is_not_copied_back_leaves_rank_0s_first_step_right(allreduce):
    facts = first_step(bug="not_copied_back", allreduce=allreduce)
    assert facts.differences[0] < 1e-6
    assert min(facts.differences[1:]) > 1e-4


def test_a_sum_that_is_not_copied_back_leaves_the_others_with_their_own_gradients():
    facts = first_step(bug="not_copied_back")
    assert facts.sums[1:] == facts.norms[1:]
    assert facts.sums[0] != facts.norms[0]


@pytest.mark.parametrize("world_size", [2, 3, 4, 5])
def test_replicas_that_share_memory_step_2_to_the_k_minus_1_times_too_far(world_size):
    facts = first_step(bug="aliased", replicas=world_size, batch_size=60)
    assert facts.ratios == pytest.approx([2 ** (world_size - 1)] * world_size, rel=1e-6)


def notes_step(world_size, batch_size, lr):
    """How far the notes' step moves k aliases of one set of parameters, in plain torch."""
    them = trainer(replicas=1, batch_size=batch_size)
    images, labels = minibatch(batch_size)
    start = [each.detach().clone() for each in them.replicas.ranks[0].module.parameters()]
    devices = [[each.to("cpu") for each in start] for _ in range(world_size)]
    for each in start:
        each.requires_grad_()
    shards = list(zip(images.chunk(world_size), labels.chunk(world_size), strict=True))
    before = [each.detach().clone() for each in start]
    losses = [
        F.cross_entropy(lenet(x, *parameters), y, reduction="sum")
        for (x, y), parameters in zip(shards, devices, strict=True)
    ]
    for loss in losses:
        loss.backward()
    with torch.no_grad():
        for i in range(len(start)):
            gradients = [parameters[i].grad for parameters in devices]
            for other in gradients[1:]:
                gradients[0][:] += other.to("cpu")
            for other in gradients[1:]:
                other[:] = gradients[0].to("cpu")
        for parameters in devices:
            for each in parameters:
                each -= lr * each.grad / batch_size
                each.grad.zero_()
    moved = zip(start, before, strict=True)
    return torch.cat([(each.detach() - old).flatten() for each, old in moved])


def minibatch(batch_size):
    """The first minibatch of seed 0, as images in [0, 1] and labels."""
    data = sample()
    order = torch.randperm(6_000, generator=torch.Generator().manual_seed(1))
    rows = data.train_rows(6_000)[order[:batch_size]]
    return data.train_images[rows].unsqueeze(1).float() / 255, data.train_labels[rows]


@pytest.mark.parametrize("world_size", [2, 5])
def test_replicas_that_share_memory_step_as_the_notes_code_does_on_a_cpu(world_size):
    them = trainer(bug="aliased", replicas=world_size, batch_size=20)
    parameters = list(them.replicas.ranks[-1].module.parameters())
    before = torch.cat([each.detach().flatten() for each in parameters])
    them.advance()
    moved = torch.cat([each.detach().flatten() for each in parameters]) - before
    torch.testing.assert_close(moved, notes_step(world_size, 20, 0.1), rtol=0, atol=1e-6)


def test_replicas_that_share_memory_really_do():
    them = trainer(bug="aliased")
    assert {replica.flat.data_ptr() for replica in them.replicas.ranks} == {
        them.replicas.ranks[0].flat.data_ptr()
    }
    assert {replica.gradient.data_ptr() for replica in them.replicas.ranks} == {
        them.replicas.ranks[0].gradient.data_ptr()
    }
    assert them.memory == (0, 0, 0)


def test_replicas_that_share_memory_do_not_drift():
    assert first_step(bug="aliased").drift == 0.0


@cache
def gradients_of_shards(batch_size, world_size):
    """Per shard of chunk: its rows, and the gradient of its mean loss, by plain torch."""
    them = trainer(replicas=1, batch_size=batch_size)
    parameters = [each.detach().clone() for each in them.replicas.ranks[0].module.parameters()]
    for each in parameters:
        each.requires_grad_()
    images, labels = minibatch(batch_size)
    found = []
    for x, y in zip(images.chunk(world_size), labels.chunk(world_size), strict=True):
        loss = F.cross_entropy(lenet(x, *parameters), y)
        gradients = torch.autograd.grad(loss, parameters)
        found.append((len(y), torch.cat([each.flatten() for each in gradients])))
    return found


def test_mean_of_means_is_the_right_step_on_even_shards():
    facts = first_step(bug="mean_of_means", batch_size=12)
    assert max(facts.differences) < 1e-6


def test_mean_of_means_is_another_step_on_uneven_shards():
    facts = first_step(bug="mean_of_means", batch_size=10)
    assert facts.rows == [4, 4, 2]
    assert min(facts.differences) > 1e-4
    assert facts.drift == 0.0


def test_mean_of_means_steps_along_the_mean_of_the_shards_mean_gradients():
    means = [mean for _, mean in gradients_of_shards(10, 3)]
    expected = float(torch.stack(means).mean(dim=0).norm()) * 0.1
    facts = first_step(bug="mean_of_means", batch_size=10)
    assert facts.lengths == pytest.approx([expected] * 3, rel=1e-5)


def test_mean_of_means_reports_the_mean_over_the_rows_as_its_loss():
    facts = first_step(bug="mean_of_means", batch_size=10)
    assert facts.loss == pytest.approx(facts.reference_loss, rel=1e-6)


def test_gradients_that_are_not_cleared_leave_the_first_step_right():
    facts = first_step(bug="not_cleared")
    assert max(facts.differences) < 1e-6


def test_gradients_that_are_not_cleared_come_back_k_fold_in_the_second_step():
    right, wrong = trainer(), trainer(bug="not_cleared")
    for them in (right, wrong):
        them.advance()
    first = right.replicas.ranks[0].gradient.clone()
    right.advance()
    facts = wrong.advance()
    expected = right.replicas.ranks[0].gradient + 3 * first
    torch.testing.assert_close(wrong.replicas.ranks[2].gradient, expected, rtol=1e-3, atol=1e-4)
    assert min(facts.ratios) > 2
    assert facts.drift == 0.0


def test_a_step_without_division_is_too_long_by_the_batch_size():
    facts = first_step(bug="not_divided")
    assert facts.ratios == pytest.approx([12.0] * 3, rel=1e-5)
    assert facts.drift == 0.0


def test_a_step_that_is_divided_twice_is_too_short_by_the_batch_size():
    facts = first_step(bug="divided_twice")
    assert facts.ratios == pytest.approx([1 / 12] * 3, rel=1e-5)
    assert facts.drift == 0.0


# --- all of them ----------------------------------------------------------------------------


@every_bug
@pytest.mark.parametrize(("batch_size", "world_size"), [(12, 1), (12, 3), (10, 3)])
def test_a_bug_is_harmless_exactly_where_two_steps_are_one_devices(bug, batch_size, world_size):
    them = trainer(bug=bug, batch_size=batch_size, replicas=world_size)
    apart = max(max(them.advance().differences) for _ in range(2))
    assert them.config.harmless == (apart < 1e-6)


@every_bug
def test_a_bug_is_told_in_whole_sentences_and_its_fix_in_code(bug):
    entry = BUGS[bug]
    assert entry.what.endswith(".")
    assert entry.giveaway.endswith(".")
    compile(entry.fix, "fix", "eval" if "=" not in entry.fix.split("(")[0] else "exec")


@every_bug
def test_the_code_of_a_bug_differs_from_the_right_code_in_one_or_two_moves(bug):
    right = code(Replicas, "chunk", "central")
    wrong = code(BUGS[bug].replicas, "chunk", "central")
    changed = [move for move in right if right[move] != wrong[move]]
    limit = {"aliased": 3, "mean_of_means": 2}.get(bug, 1)
    assert 1 <= len(changed) <= limit


def test_the_code_of_a_bug_includes_what_it_overrides_only_if_that_is_called():
    lines = {bug: code(entry.replicas, "chunk", "central") for bug, entry in BUGS.items()}
    own = "for replica in self.ranks:\n        replica.update(lr, momentum, batch_size)"
    assert own in lines["mean_of_means"]["update"]
    assert "replica.clear()" in lines["aliased"]["update"]
    assert lines["aliased"]["update"].count(own) == 1
    assert "clear()" not in lines["not_cleared"]["forward"]


@pytest.mark.parametrize("bug", ["not_copied_back", "aliased"])
def test_opened_rounds_end_with_what_the_bug_makes_of_the_gradients(bug):
    them = trainer(bug=bug)
    move = them.step().moves[4]
    *_, last = move.rounds()
    expected = torch.tensor([each.values[0] for each in move.after.gradients])
    torch.testing.assert_close(last, expected, rtol=1e-5, atol=1e-7)
