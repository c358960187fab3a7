"""A run on processes that goes wrong or is left: the error names the rank, and nothing is left."""

import os
import resource
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from labcore import checkpoints
from labcore.classification import ClassificationConfig, patience, train_classifier
from labcore.classification_history import ClassificationHistory
from labcore.config import format_fields
from labcore.datasets import fashion_mnist
from labcore.events import (
    Checkpointed,
    ClassificationEvent,
    EpochEvaluated,
    MinibatchTrained,
    ProcessesAwaited,
    Started,
    StepTaken,
)
from labcore.jobs import Pool
from labcore.processes import WorkerError
from tests.children import children

CONFIG = ClassificationConfig(engine="processes", replicas=2, images=100, batch_size=50, epochs=100)
"""More steps than any test waits for."""
LONG = 60.0

needs_proc = pytest.mark.skipif(
    not Path("/proc/self/stat").exists(), reason="finds processes in /proc, which is not here"
)
pytestmark = needs_proc


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder in which temporary ones are made; neither files nor processes may be left."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    yield folder
    assert list(folder.iterdir()) == []
    assert ranks() == {}


def ranks() -> dict[int, int]:
    """The processes that this one has started, by rank."""
    found = {}
    for pid in children(os.getpid()):
        with suppress(OSError):
            variables = Path(f"/proc/{pid}/environ").read_text().split("\0")
            found |= {int(each[5:]): pid for each in variables if each.startswith("RANK=")}
    return found


def data() -> fashion_mnist.FashionMNIST:
    return fashion_mnist.load(fashion_mnist.EMBEDDED)


def until(events: Iterator[ClassificationEvent], kind: type, count: int = 1) -> list[object]:
    """The events up to the count-th of a kind."""
    seen: list[object] = []
    for event in events:
        seen.append(event)
        count -= isinstance(event, kind)
        if count == 0:
            return seen
    raise AssertionError(f"no {kind.__name__}")


def failure(events: Iterator[ClassificationEvent]) -> WorkerError:
    with pytest.raises(WorkerError) as caught:
        list(events)
    return caught.value


# A full disk, and then a process that is killed


def test_a_full_disk_is_told_and_a_killed_process_ends_the_run(tmp_path: Path) -> None:
    path = tmp_path / "run.ckpt"
    events = train_classifier(CONFIG, data(), checkpoint=path)
    until(events, Checkpointed)
    whole = path.read_bytes()
    # No file that rank 0 writes may be longer, which is the same to it as a disk without room.
    resource.prlimit(ranks()[0], resource.RLIMIT_FSIZE, (10_000, 10_000))
    for _ in range(5):
        last = until(events, Checkpointed)[-1]
        assert isinstance(last, Checkpointed)
        if last.problem is not None:
            break
    assert "could not be kept" in str(last)
    assert "File too large" in str(last)
    after = until(events, EpochEvaluated)  # the run goes on
    assert any(isinstance(each, StepTaken) for each in after)

    os.kill(ranks()[1], signal.SIGKILL)
    error = failure(events)
    assert error.rank == 1
    assert "rank 1 of 2 was ended by SIGKILL" in str(error)
    # What had been kept is there, and can be continued.
    assert path.read_bytes()[:4] == whole[:4]
    assert checkpoints.load(path, format_fields(CONFIG)).epoch > 1
    assert [each.name for each in tmp_path.iterdir() if each.is_file()] == ["run.ckpt"]


# Other ends


def test_a_rank_that_raises_is_named_with_its_error() -> None:
    """And not one that fails since that one is gone."""
    config = replace(CONFIG, batch_size=100)
    labels = data().train_labels.clone()
    labels[data().train_rows(100)[0]] = 10  # there are ten classes, from 0
    damaged = replace(data(), train_labels=labels)
    order = torch.Generator().manual_seed(2 * config.seed + 1)
    minibatch = damaged.train_rows(100)[torch.randperm(100, generator=order)]
    rank = int((labels[minibatch] == 10).nonzero()) // 50
    error = failure(train_classifier(config, damaged))
    assert error.rank == rank
    assert f"rank {rank} of 2 ended with exit code 1, saying “IndexError: Target 10" in str(error)


def test_a_rank_that_hangs_is_named_after_the_time_that_is_stated() -> None:
    events = train_classifier(CONFIG, data(), timeout=20)
    until(events, StepTaken, 5)
    stopped = ranks()[1]
    os.kill(stopped, signal.SIGSTOP)
    started = time.monotonic()
    error = failure(events)
    assert error.rank == 1
    assert "rank 1 of 2 hangs: no worker reported for 20 s" in str(error)
    assert time.monotonic() - started < 20 + LONG


def test_processes_that_end_without_having_finished_are_no_success(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("labcore.launch.RANK", "labcore.units")  # ends at once, with exit code 0
    error = failure(train_classifier(CONFIG, data()))
    assert "ended before the run was finished" in str(error)


def test_longer_shards_are_given_more_time() -> None:
    small = ClassificationConfig(replicas=4, batch_size=4)
    large = ClassificationConfig(replicas=4, batch_size=4_000)
    assert (patience(small), patience(large)) == (60.25, 310)


# Left by its user


def close_while_it_starts(pool: Pool) -> None:
    events = train_classifier(CONFIG, data())
    assert isinstance(until(events, ProcessesAwaited, 3)[-1], ProcessesAwaited)
    assert len(ranks()) == 2
    started = time.monotonic()
    events.close()
    assert time.monotonic() - started < 3


def stop_while_it_starts(pool: Pool) -> None:
    history = ClassificationHistory(CONFIG, "")
    job = pool.submit(train_classifier(CONFIG, data()), history, owner="someone")
    wait_for(lambda: len(ranks()) == 2)
    job.stop()
    assert job.wait(LONG)
    assert history.started is None


@pytest.mark.parametrize("leave", [close_while_it_starts, stop_while_it_starts])
def test_a_run_that_is_left_while_it_starts_leaves_nothing(leave: Callable[[Pool], None]) -> None:
    pool = Pool(workers=1)
    leave(pool)
    pool.close()


def wait_for(true: Callable[[], bool]) -> None:
    until = time.monotonic() + LONG
    while not true():
        assert time.monotonic() < until
        time.sleep(0.02)


def test_a_job_whose_browser_is_gone_is_kept_and_ended(tmp_path: Path) -> None:
    """In the pool, paused in between: then its processes wait, and do not run ahead."""
    path = tmp_path / "run.ckpt"
    pool = Pool(workers=1, lease_seconds=0.1)
    history = ClassificationHistory(CONFIG, "")
    job = pool.submit(train_classifier(CONFIG, data(), checkpoint=path), history, owner="a browser")
    wait_for(lambda: history.taken is not None)
    job.pause()
    assert job.wait(LONG)
    paused = history.taken
    time.sleep(1)
    assert history.taken == paused
    job.step()
    assert job.wait(LONG)
    assert paused is not None
    assert history.taken is not None
    assert history.taken.step == paused.step + 1
    pool.release("a browser")
    assert job.wait(LONG)
    pool.close()
    assert job.state == "stopped"
    kept = checkpoints.load(path, format_fields(CONFIG)).curve
    assert history.taken.step <= kept.step < history.taken.step + 60
    last = kept.minibatches[-1]
    assert isinstance(last, MinibatchTrained)
    assert last.step == kept.step
    assert history.starting is None
    assert isinstance(history.started, Started)
