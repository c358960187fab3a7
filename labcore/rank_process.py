"""The process of one rank: started by `labcore.launch`, as this module, or by torchrun.

In the first case its events are reports to the parent, which follows and ends it. In the second
nobody follows, so every word between ranks has a time limit, rank 0 is the command line itself, and
each rank looks after torchrun, with which it ends.
"""

import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import torch

from labcore import worker
from labcore.classification import ClassificationConfig, check_machine
from labcore.config import refusal
from labcore.datasets.fashion_mnist import FashionMNIST
from labcore.distributed import train_rank
from labcore.events import ClassificationEvent, ImagesTested, ShardDone
from labcore.launch import shared_images
from labcore.meeting import LostRankError, meet_at, meet_in
from labcore.wire import pack

GRACE_SECONDS = 1.0
"""How long a rank that has lost another waits, so that the other is seen to have ended first."""
LOOK_SECONDS = 0.5
"""How often a rank of torchrun looks whether that is still there."""
END_SECONDS = 3.0
"""How long it may take, where that is gone, to come to its next step and write itself down."""


def be_a_rank(
    config: ClassificationConfig,
    data: FashionMNIST,
    checkpoint: Path | None,
    timeout: float,
    stop: Callable[[], bool],
) -> Generator[ClassificationEvent, None, None]:
    """Be one of the processes that torchrun has started; the rest as `train_rank`.

    Args:
        timeout: seconds for the ranks to meet, and for each word between them.

    Raises:
        ConfigError: it is not a run on so many processes, this machine lacks the GPUs for it, or
            the environment is not as torchrun makes it.
        LostRankError: the ranks could not meet, or one is gone.
    """
    for name in ("RANK", "WORLD_SIZE"):
        if not os.environ[name].isdecimal():
            raise refusal(name, os.environ[name], "a number, as torchrun sets it", "to unset it")
    world_size = int(os.environ["WORLD_SIZE"])
    if config.engine != "processes":
        allowed = "processes where torchrun has started them"
        raise refusal(f"{config.name}: engine", config.engine, allowed, "processes")
    if config.replicas != world_size:
        allowed = f"{world_size}, as many as torchrun has started processes"
        raise refusal(f"{config.name}: replicas", config.replicas, allowed, world_size)
    check_machine(config)
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    meeting = meet_at(os.environ, timeout)
    try:
        with _ending_with_parent():
            yield from train_rank(config, data, meeting, checkpoint=checkpoint, stop=stop)
    finally:
        meeting.leave()


@contextmanager
def _ending_with_parent() -> Iterator[None]:
    """For a block: when the parent is gone, stop as on SIGTERM, and end soon in any case."""
    parent, left = os.getppid(), threading.Event()

    def look() -> None:
        while not left.wait(LOOK_SECONDS):
            if os.getppid() != parent:
                os.kill(os.getpid(), signal.SIGTERM)
                if not left.wait(END_SECONDS):
                    _fail(1)

    threading.Thread(target=look, name="watch-parent", daemon=True).start()
    try:
        yield
    finally:
        left.set()


def _work() -> None:
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    # DDP loads torch's compiler, which makes itself a folder; here it goes with the others.
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(worker.folder() / "torch"))
    worker.report({"loaded": True})
    config, checkpoint = worker.payload()
    data = shared_images(worker.folder())
    meeting = meet_in(worker.folder() / "rendezvous")
    worker.report({"ready": True})
    for event in train_rank(
        config,
        data,
        meeting,
        checkpoint=checkpoint,
        stop=worker.stop_asked,
        handed=lambda: worker.report({"handed": True}),
    ):
        # The others only show that they are alive.
        if meeting.rank == 0 or isinstance(event, ShardDone | ImagesTested):
            worker.report(pack(event, worker.folder()))
    worker.report({"ended": True})
    meeting.leave()


def _fail(code: int) -> NoReturn:
    """End at once: the threads of a broken process group would abort an orderly end."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    try:
        _work()
    except LostRankError as error:
        print(error, file=sys.stderr)
        time.sleep(GRACE_SECONDS)
        _fail(worker.LOST_THE_OTHERS)
    except Exception:
        traceback.print_exc()
        _fail(1)
