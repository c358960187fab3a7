"""A rank's process: under the command line, under torchrun, and where the ranks cannot meet."""

import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed as dist

from labcore import checkpoints
from labcore.classification import ClassificationConfig
from labcore.config import ConfigError, format_fields
from labcore.datasets import fashion_mnist
from labcore.meeting import LostRankError, started_by_torchrun
from labcore.rank_process import be_a_rank
from tests.children import below, gone, gone_within
from tests.test_launch import needs_proc

ROOT = Path(__file__).parent.parent
CONFIG = ClassificationConfig(engine="processes", replicas=2, images=100, batch_size=50, epochs=100)
FLAGS = [
    *("classify", "--engine", "processes", "--replicas", "2"),
    *("--images", "100", "--batch-size", "50", "--data-dir", str(fashion_mnist.EMBEDDED)),
]
COMMAND = [sys.executable, "-m", "labcore", *FLAGS, "--epochs", "100"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nnodes=1", "--nproc-per-node=2"]
LONG = 120.0


@pytest.fixture
def temporary(tmp_path: Path) -> Path:
    """The folder in which temporary ones are made."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    return folder


def start(command: list[str], temporary: Path) -> subprocess.Popen[str]:
    # In a group of its own, as from a shell: its Ctrl-C goes to the whole group.
    return subprocess.Popen(
        command,
        cwd=ROOT,
        env=os.environ | {"TMPDIR": str(temporary), "CUDA_VISIBLE_DEVICES": ""},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
    )


def lines_until(process: subprocess.Popen[str], kind: str, count: int) -> list[dict[str, Any]]:
    """The events up to the count-th of a kind."""
    assert process.stdout is not None
    seen = []
    for line in process.stdout:
        seen.append(json.loads(line))
        count -= seen[-1]["event"] == kind
        if count == 0:
            return seen
    raise AssertionError(process.stderr.read() if process.stderr else "")


# Started by the command line


@needs_proc
def test_processes_end_within_five_seconds_of_a_killed_parent(temporary: Path) -> None:
    with start(COMMAND, temporary) as process:
        lines_until(process, "minibatch_trained", 3)
        ranks = below(process.pid)
        assert len(ranks) == 2
        process.send_signal(signal.SIGKILL)
        assert gone_within(5, ranks)
    assert list(temporary.iterdir()) == []


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory: pytest.TempPathFactory) -> tuple[int, str, Path, Path, bool]:
    """A run with a checkpoint, ended by Ctrl-C: status, message, its files, processes gone."""
    path = tmp_path_factory.mktemp("interrupted") / "run.ckpt"
    temporary = tmp_path_factory.mktemp("temporary")
    with start([*COMMAND, "--checkpoint", str(path)], temporary) as process:
        lines_until(process, "minibatch_trained", 3)
        ranks = below(process.pid)
        os.killpg(process.pid, signal.SIGINT)
        _, message = process.communicate(timeout=LONG)
    return process.returncode, message, path, temporary, all(map(gone, ranks))


@needs_proc
def test_ctrl_c_ends_the_run_in_order(
    interrupted: tuple[int, str, Path, Path, bool],
) -> None:
    status, message, path, temporary, gone = interrupted
    assert (status, message) == (130, "Interrupted.\n")
    assert gone
    assert list(temporary.iterdir()) == []
    assert list(path.parent.iterdir()) == [path]


def test_ctrl_c_keeps_the_step_in_hand(interrupted: tuple[int, str, Path, Path, bool]) -> None:
    kept = checkpoints.load(interrupted[2], format_fields(CONFIG))
    assert kept.curve.step >= 3
    assert kept.curve.step == 2 * (kept.epoch - 1) + kept.steps


# Started by torchrun


@pytest.fixture(scope="module")
def torchrun(
    interrupted: tuple[int, str, Path, Path, bool], tmp_path_factory: pytest.TempPathFactory
) -> tuple[int, list[dict[str, Any]], str, list[int], Path]:
    """The same run continued by torchrun, and ended by SIGTERM: status, lines, message, …"""
    path = interrupted[2]
    flags = [*FLAGS, "--epochs", "100", "--checkpoint", str(path), "--timeout", "60"]
    command = [*TORCHRUN, "--standalone", "-m", "labcore", *flags]
    with start(command, tmp_path_factory.mktemp("temporary")) as process:
        seen = lines_until(process, "minibatch_trained", 3)
        ranks = below(process.pid)
        process.terminate()
        out, message = process.communicate(timeout=LONG)
    seen += [json.loads(line) for line in out.splitlines()]
    return process.returncode, seen, message, ranks, path


def test_torchrun_goes_on_from_the_checkpoint(
    torchrun: tuple[int, list[dict[str, Any]], str, list[int], Path],
) -> None:
    _, seen, *_ = torchrun
    kinds = [each["event"] for each in seen[:3]]
    assert kinds == ["config", "started", "resumed"]
    first = next(each for each in seen if each["event"] == "minibatch_trained")
    assert first["step"] == seen[2]["step"] + 1
    assert set(seen[2]) == {"event", "step", "epochs"}


def test_only_rank_0_of_torchrun_reports(
    torchrun: tuple[int, list[dict[str, Any]], str, list[int], Path],
) -> None:
    steps = [each["step"] for each in torchrun[1] if each["event"] == "minibatch_trained"]
    assert steps == list(range(steps[0], steps[0] + len(steps)))
    assert [each["event"] for each in torchrun[1]].count("config") == 1


@needs_proc
def test_a_terminated_torchrun_keeps_the_step_in_hand(
    torchrun: tuple[int, list[dict[str, Any]], str, list[int], Path],
) -> None:
    status, seen, message, ranks, path = torchrun
    assert status != 0
    assert "Terminated." in message
    assert all(map(gone, ranks))
    assert seen[-1]["event"] == "checkpointed"
    kept = checkpoints.load(path, format_fields(CONFIG)).curve
    assert kept.step == seen[-1]["step"] == [e for e in seen if "loss" in e][-1]["step"]


@needs_proc
def test_ranks_of_a_killed_torchrun_keep_the_step_in_hand_and_end(
    tmp_path: Path, temporary: Path
) -> None:
    path = tmp_path / "run.ckpt"
    command = [*TORCHRUN, "-m", "labcore", *FLAGS, "--checkpoint", str(path)]
    command += ["--epochs", "100", "--batch-size", "2"]
    with start(command, temporary) as process:
        lines_until(process, "minibatch_trained", 3)
        ranks = below(process.pid)
        assert len(ranks) == 2
        process.send_signal(signal.SIGKILL)
        assert gone_within(10, ranks)
    kept = checkpoints.load(path, format_fields(replace(CONFIG, batch_size=2)))
    assert 3 <= kept.curve.step < 5_000
    assert not list(tmp_path.glob("*.partial"))


@needs_proc
def test_a_run_whose_last_checkpoint_could_not_be_written_says_so(
    tmp_path: Path, temporary: Path
) -> None:
    path = tmp_path / "run.ckpt"
    with start([*COMMAND, "--checkpoint", str(path)], temporary) as process:
        lines_until(process, "minibatch_trained", 3)
        for rank in below(process.pid):
            # No file may be longer, which is the same to it as a disk without room.
            resource.prlimit(rank, resource.RLIMIT_FSIZE, (100_000, 100_000))
        out, message = process.communicate(timeout=LONG)
    assert process.returncode == 5
    assert json.loads(out.splitlines()[-1])["event"] == "classifier_trained"
    *_, last = message.splitlines()
    assert f"Step 200 could not be kept in {path}: File too large." in last
    assert not list(tmp_path.glob("*.partial"))


# Where the ranks cannot meet


@pytest.fixture
def rank(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """The environment of rank 1 of 2."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    place = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    for name, value in place.items():
        monkeypatch.setenv(name, value)
    yield place
    assert not dist.is_initialized()


def lost(timeout: float) -> str:
    data = fashion_mnist.load(fashion_mnist.EMBEDDED)
    started = time.monotonic()
    with pytest.raises(LostRankError) as caught:
        next(be_a_rank(CONFIG, data, None, timeout, lambda: False))
    assert time.monotonic() - started < timeout + 10
    return str(caught.value)


def test_an_address_that_does_not_resolve_is_told_at_once(
    rank: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MASTER_ADDR", "no.such.host.invalid")
    started = time.monotonic()
    message = lost(60)
    assert "Rank 1 of 2 could not meet the others at no.such.host.invalid:1 within 60 s" in message
    assert "Check that MASTER_ADDR names the machine of rank 0" in message
    assert time.monotonic() - started < 30


def test_a_place_where_nobody_listens_is_told_after_the_timeout(rank: dict[str, str]) -> None:
    assert "at 127.0.0.1:1 within 1 s (Connection refused)" in lost(1).replace("[Errno 111] ", "")


def test_a_port_in_use_is_told(rank: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        monkeypatch.setenv("RANK", "0")
        monkeypatch.setenv("MASTER_PORT", str(taken.getsockname()[1]))
        assert re.search(r"Rank 0 of 2 could not meet.*address already in use", lost(2))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"engine": "logical"}, "engine must be processes where torchrun has started them"),
        ({"engine": "processes", "replicas": 3}, "replicas must be 2, as many as torchrun has"),
    ],
    ids=["engine", "replicas"],
)
def test_a_run_that_does_not_fit_torchruns_processes_is_refused(
    rank: dict[str, str], settings: dict[str, Any], words: str
) -> None:
    data = fashion_mnist.load(fashion_mnist.EMBEDDED)
    with pytest.raises(ConfigError, match=words):
        next(be_a_rank(ClassificationConfig(**settings), data, None, 1.0, lambda: False))


@pytest.mark.parametrize("name", ["RANK", "WORLD_SIZE"])
def test_a_place_that_is_no_number_is_refused(
    rank: dict[str, str], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "x")
    data = fashion_mnist.load(fashion_mnist.EMBEDDED)
    with pytest.raises(ConfigError, match=f"{name} must be a number, as torchrun sets it"):
        next(be_a_rank(CONFIG, data, None, 1.0, lambda: False))


def test_torchruns_processes_are_known_by_their_environment(
    rank: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert started_by_torchrun()
    monkeypatch.delenv("MASTER_ADDR")
    assert not started_by_torchrun()
