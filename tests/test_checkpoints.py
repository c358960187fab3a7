"""Checkpoints: whole or not there, and of this run or refused."""

import os
import resource
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from labcore import checkpoints
from labcore.checkpoints import Checkpoint, CheckpointError, check_place, load, save
from labcore.classification import ClassificationConfig, train_classifier
from labcore.config import ConfigError, format_fields
from labcore.events import MinibatchTrained, Resumed

ROOT = Path(__file__).parent.parent
CONFIG = ClassificationConfig(engine="processes", replicas=2)
SETTINGS = format_fields(CONFIG)
STEP = MinibatchTrained(1, 0.1, 2.3, 1.0, {"split": 0.1}, (1,), (2.3,), (1.0,), 1.0, 0.0, None)
CHECKPOINT = Checkpoint(
    settings=SETTINGS,
    epoch=2,
    steps=3,
    seconds=1.5,
    order=torch.Generator().manual_seed(1).get_state(),
    replica={"parameters": [torch.rand(100_000)], "velocity": [], "buffers": [torch.rand(3)]},
    reference=None,
    curve=Resumed(13, 1.3, (STEP,), (), {"split": 0.1}),
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    save(tmp_path / "run.ckpt", CHECKPOINT)
    return tmp_path / "run.ckpt"


def test_what_is_read_is_what_was_written(path: Path) -> None:
    found = load(path, SETTINGS)
    assert (found.epoch, found.steps, found.seconds) == (2, 3, 1.5)
    assert found.curve == CHECKPOINT.curve
    assert torch.equal(found.order, CHECKPOINT.order)
    for name, tensors in CHECKPOINT.replica.items():
        assert all(map(torch.equal, found.replica[name], tensors))


def test_a_new_one_replaces_the_last_and_leaves_nothing_else(path: Path) -> None:
    save(path, replace(CHECKPOINT, steps=4))
    assert load(path, SETTINGS).steps == 4
    assert list(path.parent.iterdir()) == [path]


def test_it_can_be_read_without_running_anything_in_it(path: Path) -> None:
    assert torch.load(path, weights_only=True)["steps"] == 3


def refused(path: Path, settings: dict[str, str] = SETTINGS) -> str:
    with pytest.raises(CheckpointError) as caught:
        load(path, settings)
    assert str(path) in str(caught.value)
    assert str(caught.value).endswith("to begin anew.")
    return str(caught.value)


@pytest.mark.parametrize("kept", [0.0, 0.3, 0.99])
def test_a_truncated_one_is_refused(path: Path, kept: float) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: int(kept * len(content))])
    assert "it is none, or damaged" in refused(path)


def test_a_file_of_something_else_is_refused(path: Path) -> None:
    path.write_text("hello")
    assert "it is none, or damaged" in refused(path)


def test_a_file_that_would_run_code_is_refused_and_does_not(path: Path) -> None:
    class Mischief:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.mkdir, (str(path.parent / "made"),)

    torch.save(Mischief(), path)
    assert "it is none, or damaged" in refused(path)
    assert not (path.parent / "made").exists()


@pytest.mark.parametrize("content", [[1, 2], {"weights": torch.ones(3)}], ids=["list", "dict"])
def test_a_foreign_one_is_refused(path: Path, content: object) -> None:
    torch.save(content, path)
    assert "it was not written by this lab" in refused(path)


def test_one_of_another_version_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "VERSION", 2)
    assert "another version" in refused(path)


def test_one_of_another_run_is_refused_with_what_differs(path: Path) -> None:
    other = format_fields(replace(CONFIG, lr=0.5, seed=3))
    assert "a run with lr 0.1 instead of 0.5, seed 0 instead of 3" in refused(path, other)


def test_it_is_refused_before_any_process_starts(path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"lr 0\.1 instead of 0\.5"):
        train_classifier(replace(CONFIG, lr=0.5), checkpoint=path)


@pytest.mark.parametrize(
    ("place", "why"),
    [
        ("nowhere/run.ckpt", "No such file or directory"),
        (".", "that is no file"),
        ("/dev/full", "that is no file"),
        ("/proc/run.ckpt", "No such file or directory"),
    ],
)
def test_a_place_for_none_is_refused(tmp_path: Path, place: str, why: str) -> None:
    with pytest.raises(CheckpointError, match=rf"must be a file in a folder .*\({why}\)"):
        check_place(tmp_path / place)
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_may_be_written_to_stays_as_it_was(path: Path) -> None:
    before = path.read_bytes()
    check_place(path)
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def test_two_processes_that_write_to_one_place_are_not_in_each_others_way(path: Path) -> None:
    assert checkpoints.partial_of(path, 1) != checkpoints.partial_of(path, 2)
    other = checkpoints.partial_of(path, os.getpid() + 1)
    other.write_bytes(b"half")
    save(path, CHECKPOINT)
    assert other.read_bytes() == b"half"
    assert load(path, SETTINGS).curve.step == CHECKPOINT.curve.step


def test_only_processes_have_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="engine must be processes for a run with a checkpoint"):
        train_classifier(ClassificationConfig(), checkpoint=tmp_path / "run.ckpt")


def test_a_disk_that_is_full_leaves_the_last_one_and_nothing_else(path: Path) -> None:
    before = path.read_bytes()
    # No file of this process may be longer, which is the same to it as a disk without room.
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            save(path, CHECKPOINT)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def test_a_process_killed_while_it_writes_leaves_the_last_one(path: Path) -> None:
    code = f"""
    import os, torch
    from pathlib import Path
    from labcore import checkpoints
    path = Path({str(path)!r})
    found = checkpoints.load(path, checkpoints.torch.load(path, weights_only=True)["settings"])
    os.fsync = lambda _: os.kill(os.getpid(), 9)
    checkpoints.save(path, found)
    """
    before = path.read_bytes()
    with subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], cwd=ROOT) as process:
        pass
    # It was about to take its place.
    assert checkpoints.partial_of(path, process.pid).exists()
    assert path.read_bytes() == before
