"""Two machines, which are two network namespaces of this one, joined by a cable that can be cut.

Each has its torchrun; only the link joins them. It needs root and Linux's `ip`, and says so where
it has them not.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from labcore import checkpoints
from labcore.classification import ClassificationConfig
from labcore.config import format_fields
from labcore.datasets import fashion_mnist

ROOT = Path(__file__).parent.parent
CONFIG = ClassificationConfig(engine="processes", replicas=2, images=100, batch_size=50, epochs=100)
TIMEOUT = 10
"""Seconds that the ranks are given to meet, and for every word."""
PORT = 29_400
# Between noticing that a rank is gone and the end there are torchrun's own patience and its report.
LONG = 60.0


@dataclass(frozen=True)
class Link:
    """Two namespaces and what joins them; machine 0 has the address."""

    names: tuple[str, str]
    address: str

    def set(self, state: str) -> None:
        """Plug the cable in ("up") or out ("down")."""
        ip("-n", self.names[1], "link", "set", "cable1", state)


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


@pytest.fixture(scope="module")
def link() -> Iterator[Link]:
    if sys.platform != "linux" or not shutil.which("ip"):
        pytest.skip("network namespaces need Linux and its command ip (Debian: iproute2)")
    names = (f"lab{os.getpid()}a", f"lab{os.getpid()}b")
    try:
        for name in names:
            ip("netns", "add", name)
        ends = ("cable0", "netns", names[0], "type", "veth", "peer", "cable1", "netns", names[1])
        ip("link", "add", *ends)
        for number, name in enumerate(names):
            ip("-n", name, "addr", "add", f"10.77.0.{number + 1}/24", "dev", f"cable{number}")
            ip("-n", name, "link", "set", "lo", "up")
            ip("-n", name, "link", "set", f"cable{number}", "up")
        yield Link(names, "10.77.0.1")
    except subprocess.CalledProcessError as error:
        pytest.skip(f"network namespaces are not allowed here: {error.stderr.strip()}")
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)


def start(link: Link, machine: int, path: Path) -> subprocess.Popen[str]:
    """One machine's torchrun; the checkpoint is on the first, whose rank 0 reports."""
    command = [
        *("ip", "netns", "exec", link.names[machine]),
        *(sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1"),
        *(f"--node-rank={machine}", f"--master-addr={link.address}", f"--master-port={PORT}"),
        *("-m", "labcore", "classify", "--engine", "processes", "--replicas", "2"),
        *("--images", "100", "--batch-size", "50", "--epochs", "100"),
        *("--timeout", str(TIMEOUT), "--data-dir", str(fashion_mnist.EMBEDDED)),
        *(("--checkpoint", str(path)) if machine == 0 else ()),
    ]
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "", "GLOO_SOCKET_IFNAME": f"cable{machine}"}
    return subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def steps_until(process: subprocess.Popen[str], count: int) -> list[int]:
    assert process.stdout is not None
    seen: list[int] = []
    for line in process.stdout:
        event = json.loads(line)
        seen += [event["step"]] if event["event"] == "minibatch_trained" else []
        if len(seen) == count:
            return seen
    raise AssertionError(process.stderr.read() if process.stderr else "")


def ended(machines: list[subprocess.Popen[str]]) -> list[tuple[int, str]]:
    """Exit status and standard error of each machine's torchrun."""
    found = []
    for process in machines:
        try:
            _, message = process.communicate(timeout=LONG)
        finally:
            process.kill()
        found.append((process.returncode, message))
    return found


def test_a_cut_link_ends_the_run_which_goes_on_when_it_is_back(link: Link, tmp_path: Path) -> None:
    path = tmp_path / "run.ckpt"
    machines = [start(link, machine, path) for machine in (0, 1)]
    steps_until(machines[0], 5)
    link.set("down")
    cut = time.monotonic()
    for status, message in ended(machines):
        assert status != 0
        assert "has lost the others" in message
        assert "goes on from its checkpoint" in message
    assert time.monotonic() - cut < TIMEOUT + LONG
    kept = checkpoints.load(path, format_fields(CONFIG)).curve.step
    assert kept >= 2

    link.set("up")
    machines = [start(link, machine, path) for machine in (0, 1)]
    steps = steps_until(machines[0], 4)
    assert steps == list(range(kept + 1, kept + 5))
    for process in machines:
        process.send_signal(signal.SIGTERM)
    ended(machines)
    assert checkpoints.load(path, format_fields(CONFIG)).curve.step >= steps[-1]
    assert [each.name for each in tmp_path.iterdir()] == ["run.ckpt"]
