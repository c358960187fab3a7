"""An allreduce on real processes: the sums are right, and no process is left."""

import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor

from labcore.collectives import ring
from labcore.config import ConfigError
from labcore.process_allreduce import (
    ProcessReduce,
    ReduceEvent,
    StageReached,
    difference,
    reduce_for_real,
    reduce_steps,
)
from labcore.processes import WorkerError, WorkerStarted
from labcore.schedules import allreduce
from tests.children import gone

ROOT = Path(__file__).parent.parent
STAGES = ("loaded", "joined", "reduced", "timed")

CASES = [
    (2, 1000, torch.float64),
    (3, 0, torch.int64),
    (4, 1003, torch.float32),
    (8, 5, torch.int64),
]
FOUR = CASES[2]


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder in which temporary ones are made; nothing may be left there."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setenv("TMPDIR", str(folder))
    yield folder
    assert list(folder.iterdir()) == []


def vectors(world_size: int, length: int, dtype: torch.dtype) -> Tensor:
    """Whole numbers, whose sums are exact in every order."""
    generator = torch.Generator().manual_seed(0)
    return torch.randint(-1000, 1000, (world_size, length), generator=generator).to(dtype)


@cache
def run(world_size: int, length: int, dtype: torch.dtype) -> list[ReduceEvent]:
    return list(reduce_steps(vectors(world_size, length, dtype)))


def result(world_size: int, length: int, dtype: torch.dtype) -> ProcessReduce:
    last = run(world_size, length, dtype)[-1]
    assert isinstance(last, ProcessReduce)
    return last


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"p={case[0]}, n={case[1]}")
def test_every_process_receives_the_plain_sum(case: tuple[int, int, torch.dtype]) -> None:
    expected = vectors(*case).sum(0).to(case[2]).expand(case[0], -1)
    torch.testing.assert_close(result(*case).sums, expected, rtol=0, atol=0)


def test_the_processes_agree_with_a_schedule() -> None:
    buffers = list(vectors(*FOUR).clone())
    allreduce(ring(4), buffers)
    assert difference(result(*FOUR), buffers) == 0


def test_every_process_reaches_every_stage_in_order() -> None:
    reached = [event for event in run(*FOUR) if isinstance(event, StageReached)]
    for rank in range(4):
        assert tuple(each.stage for each in reached if each.rank == rank) == STAGES


def test_the_result_comes_once_and_last() -> None:
    kinds = Counter(isinstance(event, ProcessReduce) for event in run(*FOUR)[:-1])
    assert kinds[True] == 0


def test_all_processes_have_ended_when_the_result_is_there() -> None:
    started = [event for event in run(*FOUR) if isinstance(event, WorkerStarted)]
    assert len(started) == 4
    assert all(gone(each.pid) for each in started)


def test_times_are_positive() -> None:
    assert result(*FOUR).seconds > 0
    assert result(*FOUR).startup_seconds > result(*FOUR).seconds


def test_bandwidths_are_those_of_nccl_tests() -> None:
    """Their PERFORMANCE.md: busbw of an allreduce is algbw times 2 (n − 1) / n."""
    made = ProcessReduce(torch.zeros(4, 10), seconds=2.0, startup_seconds=1.0, n_bytes=4000)
    assert (made.algbw, made.busbw) == (2000.0, 3000.0)


def test_the_bytes_are_those_of_one_vector() -> None:
    assert result(*FOUR).n_bytes == 4012


@pytest.mark.parametrize(
    ("refused", "words"),
    [
        (torch.zeros(9, 1), "world_size must be from 1 to 8, since every rank is a process"),
        (torch.zeros(0, 1), "world_size must be from 1 to 8"),
        (torch.zeros(1, 1_000_001), "length must be at most 1,000,000; received 1000001"),
        (torch.zeros(2, 1, dtype=torch.float16), "dtype must be one of torch.float32"),
        (torch.zeros(3), r"vectors must be one row per rank; received \(3,\)"),
    ],
    ids=["too many", "none", "too long", "half precision", "one vector"],
)
def test_vectors_are_refused_at_the_call(refused: Tensor, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        reduce_steps(refused)


@pytest.mark.parametrize("wrong", [float("nan"), 2.5])
def test_the_difference_is_that_of_the_worst_element(wrong: float) -> None:
    sums = torch.zeros(2, 3)
    sums[1, 2] = wrong
    found = difference(ProcessReduce(sums, 1.0, 1.0, 12), torch.zeros(2, 3))
    torch.testing.assert_close(found, wrong, equal_nan=True)


def test_a_difference_to_other_vectors_is_refused() -> None:
    made = ProcessReduce(torch.zeros(2, 3), 1.0, 1.0, 12)
    with pytest.raises(ValueError, match="must be like the processes' "):
        difference(made, torch.zeros(2, 4))


def test_a_killed_process_is_named_and_ends_the_others() -> None:
    pids = []
    events = reduce_steps(torch.ones(2, 5))
    with closing(events):
        for event in events:
            if isinstance(event, WorkerStarted):
                pids.append(event.pid)
            if event == StageReached(0, "loaded"):
                break
        os.kill(pids[1], signal.SIGKILL)
        with pytest.raises(WorkerError, match="rank 1 of 2 was ended by SIGKILL"):
            list(events)
    assert all(map(gone, pids))


def test_leaving_half_way_ends_all_processes() -> None:
    pids = []
    with closing(reduce_steps(torch.ones(3, 5))) as events:
        for event in events:
            if not isinstance(event, WorkerStarted):
                break
            pids.append(event.pid)
    assert len(pids) == 3
    assert all(map(gone, pids))


def test_a_process_that_hangs_in_an_allreduce_ends_with_its_parent(tmp_path: Path) -> None:
    worker = """
    import time, torch
    from torch import distributed as dist
    from labcore.worker import report
    from labcore.process_allreduce import _join
    rank = _join()
    report({})
    if rank == 0:
        dist.all_reduce(torch.ones(10))
    time.sleep(1000)
    """
    (tmp_path / "hanging_worker.py").write_text(textwrap.dedent(worker))
    parent = """
    from labcore.processes import *
    for event in run_workers("hanging_worker", [None] * 2, 1000.0):
        if isinstance(event, WorkerStarted):
            print(event.pid, flush=True)
        if isinstance(event, WorkerReported):
            print("in the allreduce", flush=True)
    """
    command = [sys.executable, "-c", textwrap.dedent(parent)]
    env = os.environ | {"PYTHONPATH": str(tmp_path)}
    with subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(4)]
        pids = [int(line) for line in lines if line != "in the allreduce\n"]
        assert len(pids) == 2
        time.sleep(0.3)
        process.kill()
        until = time.monotonic() + 5
        while not all(map(gone, pids)) and time.monotonic() < until:
            time.sleep(0.05)
        assert all(map(gone, pids))


def test_one_process_receives_its_own_vector() -> None:
    assert reduce_for_real(torch.tensor([[1, 2, 3]])).sums.tolist() == [[1, 2, 3]]
