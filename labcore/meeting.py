"""Where the ranks of a run meet, on which devices they work, and what they say to one another."""

import os
import socket
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from textwrap import shorten
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch import distributed as dist

T = TypeVar("T")

PLACE = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""The environment variables from which torchrun's processes learn where they are."""
_FOR_EVER = timedelta(days=365)


class LostRankError(RuntimeError):
    """This rank cannot reach the others, or lost them; the message says which rank and why."""

    for_user = True


@dataclass(frozen=True)
class Meeting:
    """All ranks of a run, as one of them sees it; made by `meet_in` and `meet_at`.

    Every method is called by all ranks at the same point, and returns the same to all.

    Attributes:
        rank: of this process.
        world_size: number of ranks.
        device: on which this rank works.
        backend: what carries their words: "gloo" or "nccl".
    """

    rank: int
    world_size: int
    device: torch.device
    backend: str

    @property
    def words(self) -> str:
        """One phrase that says what the replicas are."""
        processes = "1 process" if self.world_size == 1 else f"{self.world_size} processes"
        threads = torch.get_num_threads()
        each = "1 thread" if threads == 1 else f"{threads} threads"
        where = f"the CPU, {each} each" if self.device.type == "cpu" else "GPUs"
        return f"{processes} on {where} ({self.backend})"

    def total(self, values: Tensor) -> Tensor:
        """The sum of a tensor over all ranks, on the CPU."""
        moved = values.to(self.device) if self.backend == "nccl" else values.clone()
        dist.all_reduce(moved)
        return moved.cpu()

    def gather(self, values: Sequence[float]) -> list[list[float]]:
        """Every rank's numbers, by rank."""
        rows = torch.zeros(self.world_size, len(values), dtype=torch.float64)
        rows[self.rank] = torch.tensor(values, dtype=torch.float64)
        gathered: list[list[float]] = self.total(rows).tolist()
        return gathered

    def share(self, value: T) -> T:
        """Rank 0's value."""
        values = [value]
        dist.broadcast_object_list(values, device=self.device if self.backend == "nccl" else None)
        return values[0]

    @contextmanager
    def noticing(self) -> Generator[None, None, None]:
        """Say that another rank is gone where torch says that something could not be sent.

        Raises:
            LostRankError: it is.
        """
        try:
            yield
        except RuntimeError as error:
            words = ("gloo", "NCCL", "Connection closed", "Broken pipe")
            if isinstance(error, dist.DistError) or any(word in str(error) for word in words):
                raise LostRankError(
                    f"Rank {self.rank} of {self.world_size} has lost the others "
                    f"({_in_short(error)}). All ranks end; the run can be started again, and goes "
                    "on from its checkpoint if it has one."
                ) from error
            raise

    def leave(self) -> None:
        """Say good-bye: the last thing that a rank does."""
        dist.destroy_process_group()


def started_by_torchrun() -> bool:
    """Whether this process is a rank of several, started by torchrun or in its way."""
    return all(name in os.environ for name in PLACE)


def meet_in(path: Path) -> Meeting:
    """Meet in a file, on one machine; whoever started the ranks ends them if they do not."""
    store = dist.FileStore(str(path), int(os.environ["WORLD_SIZE"]))  # type: ignore[attr-defined]
    return _meet(os.environ, _FOR_EVER, store=store)


def meet_at(environment: Mapping[str, str], timeout: float) -> Meeting:
    """Meet at MASTER_ADDR and MASTER_PORT, as torchrun's processes do.

    Args:
        environment: in which `PLACE` is.
        timeout: seconds for this, and later for every word.

    Raises:
        LostRankError: no such place, its port is in use, or the others did not come in time.
    """
    rank, world_size = environment["RANK"], environment["WORLD_SIZE"]
    address = f"{environment['MASTER_ADDR']}:{environment['MASTER_PORT']}"
    try:
        _await_store(environment, time.monotonic() + timeout)
        return _meet(environment, timedelta(seconds=timeout), init_method="env://")
    except (OSError, RuntimeError, ValueError) as error:
        raise LostRankError(
            f"Rank {rank} of {world_size} could not meet the others at {address} within "
            f"{timeout:g} s ({_in_short(error)}). Check that MASTER_ADDR names the machine of "
            "rank 0, that MASTER_PORT is free there and can be reached, and that all ranks start."
        ) from error


def _await_store(environment: Mapping[str, str], until: float) -> None:
    """Wait until something listens where the ranks meet; rank 0 is who opens that place.

    torch would wait for longer than asked, also for an address that does not exist, and with noise.
    """
    host, port = environment["MASTER_ADDR"], int(environment["MASTER_PORT"])
    socket.getaddrinfo(host, port)
    while environment["RANK"] != "0":
        try:
            socket.create_connection((host, port), max(0.1, until - time.monotonic())).close()
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.1)
        else:
            return


def _meet(environment: Mapping[str, str], timeout: timedelta, **where: Any) -> Meeting:
    rank, world_size = int(environment["RANK"]), int(environment["WORLD_SIZE"])
    here = int(environment.get("LOCAL_RANK", rank))
    gpus = torch.cuda.device_count()
    # nccl wants a GPU for each rank; gloo also lets them share one.
    alone = gpus >= int(environment.get("LOCAL_WORLD_SIZE", world_size))
    device = torch.device("cuda", here % gpus) if gpus else torch.device("cpu")
    if gpus:
        torch.cuda.set_device(device)
    backend = "nccl" if gpus and alone else "gloo"
    dist.init_process_group(backend, timeout=timeout, rank=rank, world_size=world_size, **where)
    return Meeting(rank, world_size, device, backend)


def _in_short(error: BaseException) -> str:
    """The first line of what torch says, without where in torch's source it was."""
    line = next(iter(str(error).strip().splitlines()), type(error).__name__)
    return shorten(line.rpartition("] ")[2] or line, 200, placeholder=" …")
