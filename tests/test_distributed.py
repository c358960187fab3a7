"""Training on real processes: the same run as in one, whatever the shards.

Processes are dear, so each run is done once, and many tests look at it.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 (the name that everybody knows it by)

from labcore import classification
from labcore.classification import ClassificationConfig, train_classifier
from labcore.classification_history import ClassificationHistory
from labcore.config import ConfigError
from labcore.datasets import fashion_mnist
from labcore.events import (
    Checkpointed,
    ClassificationEvent,
    ClassifierTrained,
    EpochEvaluated,
    Learnt,
    MinibatchTrained,
    ProcessesAwaited,
    Resumed,
    ShardDone,
    Started,
    StepTaken,
)
from labcore.models import LeNet, initialise
from labcore.replicas import PHASES, Replicas

# The step is small, so that no unit ends on two sides of its ReLU's kink; see test_replicas.
UNEVEN = ClassificationConfig(
    engine="processes", replicas=2, images=1_000, batch_size=101, epochs=2, lr=0.01
)
"""20 steps on shards of 51 and 50 images, the last of 46 and 45."""
CHECKED = replace(UNEVEN, equivalence="on")
EMPTY = ClassificationConfig(
    engine="processes",
    replicas=3,
    images=101,
    batch_size=20,
    epochs=4,
    lr=0.002,
    momentum=0.9,
    warmup_epochs=1.0,
)
"""24 steps, every sixth of which has one image for three processes; the first six warm up."""
RESIDUAL = ClassificationConfig(
    engine="processes",
    model="resnet18_quarter",
    replicas=2,
    images=100,
    batch_size=50,
    epochs=1,
    lr=0.01,
)
RUNS = pytest.mark.parametrize("config", [CHECKED, EMPTY], ids=["uneven", "empty"])
BATCH_NORM = pytest.mark.parametrize("config", [CHECKED, RESIDUAL], ids=["lenet", "residual"])


@dataclass(frozen=True)
class Run:
    """What a run reported, and the replica's state at its end."""

    events: list[ClassificationEvent]
    replica: dict[str, list[Tensor]]

    def of(self, kind: type) -> list[ClassificationEvent]:
        return [event for event in self.events if isinstance(event, kind)]


@pytest.fixture(autouse=True, scope="module")
def _alone() -> Iterator[None]:
    """One thread and no GPU, where the same seed gives the same bits."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "device_count", lambda: 0)
        patch.setenv("CUDA_VISIBLE_DEVICES", "")
        yield
    torch.set_num_threads(threads)


def data() -> fashion_mnist.FashionMNIST:
    return fashion_mnist.load(fashion_mnist.EMBEDDED)


@cache
def on_processes(config: ClassificationConfig) -> Run:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "run.ckpt"
        events = list(train_classifier(config, data(), checkpoint=path))
        assert list(Path(folder).iterdir()) == [path]
        return Run(events, torch.load(path, weights_only=True)["replica"])


@cache
def in_one(config: ClassificationConfig) -> Run:
    """The same run on logical replicas."""
    made: list[Replicas] = []

    class Watched(Replicas):
        def __init__(self, *args: object) -> None:
            super().__init__(*args)  # type: ignore[arg-type]
            made.append(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(classification, "Replicas", Watched)
        events = list(train_classifier(replace(config, engine="logical"), data()))
    return Run(events, made[0].ranks[0].state())


def apart(one: list[Tensor], other: list[Tensor]) -> float:
    """Largest difference between tensors."""
    return max(float((a - b).abs().max()) for a, b in zip(one, other, strict=True))


# The same run


@RUNS
def test_parameters_are_those_of_logical_replicas(config: ClassificationConfig) -> None:
    run = on_processes(config)
    assert len(run.of(StepTaken)) >= 20
    assert apart(run.replica["parameters"], in_one(config).replica["parameters"]) <= 1e-6


@RUNS
def test_parameters_are_those_of_torchs_optimiser_on_whole_minibatches(
    config: ClassificationConfig,
) -> None:
    """And not those of a mean loss per rank, whose steps are others where shards are uneven."""
    net = LeNet()
    initialise(net, config.initialisation, torch.Generator().manual_seed(2 * config.seed))
    optimiser = torch.optim.SGD(net.parameters(), config.lr, config.momentum)
    order = torch.Generator().manual_seed(2 * config.seed + 1)
    rows, step = data().train_rows(config.images), 0
    for _ in range(config.epochs):
        shuffled = rows[torch.randperm(len(rows), generator=order)]
        for some in shuffled.split(config.batch_size):
            optimiser.zero_grad()
            logits = net(data().train_images[some].unsqueeze(1) / 255)
            F.cross_entropy(logits, data().train_labels[some]).backward()
            step += 1
            optimiser.param_groups[0]["lr"] = config.lr_at(step)
            optimiser.step()
    laid_out = [each.permute(0, 2, 3, 1) if each.dim() == 4 else each for each in net.parameters()]
    expected = torch.cat([each.detach().flatten() for each in laid_out])
    assert apart(on_processes(config).replica["parameters"], [expected]) <= 1e-6


@RUNS
def test_ranks_are_bitwise_equal_after_every_step(config: ClassificationConfig) -> None:
    assert {each.drift for each in on_processes(config).of(MinibatchTrained)} == {0.0}


def test_the_check_against_one_device_finds_no_difference() -> None:
    found = [each.difference for each in on_processes(CHECKED).of(MinibatchTrained)]
    assert max(found) <= 1e-6


@RUNS
def test_losses_and_norms_are_those_of_logical_replicas(config: ClassificationConfig) -> None:
    pairs = zip(
        on_processes(config).of(MinibatchTrained), in_one(config).of(MinibatchTrained), strict=True
    )
    for ours, theirs in pairs:
        assert (ours.step, ours.epochs) == (theirs.step, theirs.epochs)
        assert ours.rows == theirs.rows
        assert ours.loss == pytest.approx(theirs.loss, rel=1e-4)
        assert ours.norm == pytest.approx(theirs.norm, rel=1e-3)
        assert ours.norms == pytest.approx(theirs.norms, rel=1e-3, abs=1e-7)
        assert [loss is None for loss in ours.losses] == [loss is None for loss in theirs.losses]


def test_an_empty_shard_has_no_loss_and_brings_no_gradient() -> None:
    last = on_processes(EMPTY).of(MinibatchTrained)[5]
    assert last.rows == (1, 0, 0)
    assert last.losses[1:] == (None, None)
    assert last.norms[1:] == (0, 0)
    assert last.norms[0] > 0


# Batch norm


def test_batch_norms_average_over_the_shard_of_each_rank() -> None:
    ours, theirs = on_processes(RESIDUAL).replica, in_one(RESIDUAL).replica
    floating = [each.is_floating_point() for each in ours["buffers"]]
    assert any(floating)
    for mine, other in zip(ours["buffers"], theirs["buffers"], strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(ours["parameters"], theirs["parameters"], rtol=1e-3, atol=1e-4)


def test_synchronised_batch_norm_is_refused_on_a_cpu() -> None:
    config = replace(RESIDUAL, batch_norm="synchronised")
    with pytest.raises(ConfigError, match="local on a CPU, which SyncBatchNorm refuses"):
        train_classifier(config, data())


@pytest.mark.parametrize("engine", ["logical", "dataparallel"])
def test_synchronised_batch_norm_is_for_processes(engine: str) -> None:
    with pytest.raises(ConfigError, match="local unless the engine is processes"):
        ClassificationConfig(engine=engine, batch_norm="synchronised")


# Evaluation


@BATCH_NORM
def test_every_test_image_counts_once(config: ClassificationConfig) -> None:
    run = on_processes(config)
    for evaluated, learnt in zip(run.of(EpochEvaluated), run.of(Learnt), strict=True):
        labels = data().test_labels[learnt.images].numpy()
        assert np.array_equal(np.sum(evaluated.confusion, axis=1), np.bincount(labels))
        assert torch.equal(learnt.images, data().test_rows(config.test_images))
        assert learnt.probabilities.sum(dim=1).numpy() == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("config", [CHECKED, EMPTY, RESIDUAL], ids=["two", "three", "residual"])
def test_what_was_learnt_is_what_logical_replicas_learn(config: ClassificationConfig) -> None:
    ours, theirs = on_processes(config).of(Learnt)[-1], in_one(config).of(Learnt)[-1]
    torch.testing.assert_close(ours.probabilities, theirs.probabilities, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(ours.filters, theirs.filters, rtol=1e-3, atol=1e-4)


# Events


def test_events_are_those_of_logical_replicas() -> None:
    own = (ProcessesAwaited, Checkpointed, ShardDone)
    ours = [type(each) for each in on_processes(CHECKED).events if not isinstance(each, own)]
    others = [type(each) for each in in_one(CHECKED).events if not isinstance(each, own)]
    once: list[type] = []
    for each in others:  # logical replicas may test in other parts
        once += [each] if not once or each is not once[-1] else []
    assert [each for n, each in enumerate(ours) if n == 0 or each is not ours[n - 1]] == once


def test_a_start_is_followed_process_by_process() -> None:
    events = on_processes(CHECKED).events
    before = events[: next(n for n, each in enumerate(events) if isinstance(each, Started))]
    ready = [each.ready for each in before if isinstance(each, ProcessesAwaited)]
    assert len(ready) == len(before)
    assert ready == sorted(ready)
    assert (ready[0], ready[-1]) == (0, 2)


def test_passes_belong_to_the_step_in_hand() -> None:
    """Each rank has a pipe of its own, so what comes too late must not be shown."""
    within: list[tuple[str, int]] = []
    for event in on_processes(EMPTY).events:
        if isinstance(event, ShardDone):
            within.append((event.phase, event.rank))
        if isinstance(event, MinibatchTrained):
            assert {("forward", 0), ("backward", 0)} <= set(within)
            assert len(set(within)) == len(within)
            within = []
        if isinstance(event, StepTaken):
            assert within == []


def test_every_ranks_time_is_told_by_phase() -> None:
    for each in on_processes(CHECKED).of(MinibatchTrained):
        assert [tuple(phases) for phases in each.rank_phases] == [PHASES] * 2
        assert each.rank_phases[0] == each.phases
        assert all(seconds >= 0 for phases in each.rank_phases for seconds in phases.values())


def test_seconds_are_those_of_rank_0s_phases_so_far() -> None:
    events = on_processes(CHECKED).of(MinibatchTrained)
    assert [each.seconds for each in events] == pytest.approx(
        np.cumsum([sum(each.phases.values()) for each in events]).tolist()
    )


def test_the_end_says_what_the_replicas_were() -> None:
    trained = on_processes(CHECKED).events[-1]
    assert isinstance(trained, ClassifierTrained)
    assert (trained.step, trained.epochs) == (20, 2)
    assert trained.placement == "2 processes on the CPU, 1 thread each (gloo)"


def test_a_history_takes_it_in() -> None:
    history = ClassificationHistory(CHECKED, "")
    run = on_processes(CHECKED)
    for event in run.events:
        history.add(event)
        if isinstance(event, ProcessesAwaited):
            assert (history.starting == event) == (history.started is None)
    assert list(history.minibatches) == run.of(MinibatchTrained)
    assert history.outcome == run.events[-1]
    assert history.starting is None


# Checkpoints


def test_every_epoch_is_kept() -> None:
    kept = on_processes(CHECKED).of(Checkpointed)
    assert [(each.step, each.epochs, each.problem) for each in kept] == [
        (10, 1.0, None),
        (20, 2.0, None),
    ]


@pytest.fixture(scope="module")
def stopped_and_resumed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Run]:
    """The run of CHECKED, stopped after its 13th step, and the rest of it."""
    path = tmp_path_factory.mktemp("resumed") / "run.ckpt"
    parts = []
    for steps in (13, 100):
        events = train_classifier(CHECKED, data(), checkpoint=path)
        seen = []
        for event in events:
            seen.append(event)
            if isinstance(event, StepTaken) and event.step == steps:
                break
        events.close()
        parts.append(Run(seen, torch.load(path, weights_only=True)["replica"]))
    assert list(path.parent.iterdir()) == [path]
    return parts[0], parts[1]


def test_a_resumed_run_ends_where_one_without_a_break_does(
    stopped_and_resumed: tuple[Run, Run],
) -> None:
    whole = on_processes(CHECKED)
    rest = stopped_and_resumed[1]
    assert apart(rest.replica["parameters"], whole.replica["parameters"]) <= 1e-6
    assert rest.of(EpochEvaluated)[-1].confusion == whole.of(EpochEvaluated)[-1].confusion
    assert max(each.difference for each in rest.of(MinibatchTrained)) <= 1e-6


def test_a_resumed_run_begins_after_the_step_at_which_it_was_stopped(
    stopped_and_resumed: tuple[Run, Run],
) -> None:
    first, rest = stopped_and_resumed
    [resumed] = rest.of(Resumed)
    # Processes may be a few steps ahead of whoever listens to them.
    assert 13 <= resumed.step < 20
    assert [each.step for each in rest.of(StepTaken)] == list(range(resumed.step + 1, 21))
    assert len(first.of(StepTaken)) == 13


def test_a_resumed_run_continues_the_curve(stopped_and_resumed: tuple[Run, Run]) -> None:
    history = ClassificationHistory(CHECKED, "")
    for event in stopped_and_resumed[1].events:
        history.add(event)
    whole = on_processes(CHECKED)
    assert [each.step for each in history.minibatches] == list(range(1, 21))
    assert [each.loss for each in history.minibatches] == pytest.approx(
        [each.loss for each in whole.of(MinibatchTrained)], rel=1e-5
    )
    assert [each.accuracy for each in history.epochs] == [
        each.accuracy for each in whole.of(EpochEvaluated)
    ]
    assert history.seconds == pytest.approx(sum(history.phases.values()))


# DataParallel


def test_data_parallel_is_refused_without_gpus() -> None:
    config = ClassificationConfig(engine="dataparallel", replicas=2)
    with pytest.raises(ConfigError, match="runs a single copy and does not say so"):
        train_classifier(config, data())


def test_data_parallel_cuts_only_in_its_own_way() -> None:
    with pytest.raises(ConfigError, match=r"split must be chunk with nn\.DataParallel"):
        ClassificationConfig(engine="dataparallel", split="balanced")


# Bad world sizes


@pytest.mark.parametrize("replicas", [0, -1, 17, 1_000])
def test_an_impossible_number_of_processes_is_refused(replicas: int) -> None:
    with pytest.raises(ConfigError, match="replicas must be a whole number from 1 to 16"):
        ClassificationConfig(engine="processes", replicas=replicas)


def test_more_processes_than_rows_are_refused() -> None:
    with pytest.raises(ConfigError, match="received 8 devices for 4 rows"):
        ClassificationConfig(engine="processes", replicas=8, batch_size=4)
