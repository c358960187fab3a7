"""Worker processes on this machine: started together, followed together, and none left behind.

`run_workers` starts one process per rank and yields what they report. However it is left, it ends
them all: SIGTERM first, then SIGKILL. Should its own process vanish, even by SIGKILL, the workers
see the end of their standard input, which only that process held open, and end themselves. A
`PR_SET_PDEATHSIG` would not do: it follows the thread that started the worker.

What a worker gets is a pickle in a private folder; what it reports is a line of JSON on its
standard output, among whatever else libraries print there; see `labcore.worker`. The ranks should
meet in a file of that folder too, not at a port, which another program could take between the
choice and the use: so there is no `MASTER_ADDR` and no `MASTER_PORT`.
"""

import json
import os
import pickle
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any

from labcore.places import PLACES
from labcore.worker import FOLDER, LONGEST_REPORT, MARK

TICK_SECONDS = 0.05
"""How long `run_workers` waits for news before it yields to say that there are none."""
QUEUE_SECONDS = 0.01
"""How long it waits likewise while it stands in line: short, for others may have work to do."""
GRACE_SECONDS = 2.0
"""How long a worker may take to end when asked."""

_ROOT = Path(__file__).parent.parent
_START = "import sys; from labcore import worker; worker.run(sys.argv[1])"
# Small, so that workers whose reports nobody takes, as those of a paused job, soon wait.
_PIPE_BYTES = 4096
# More than a pipe holds, so that one read empties it; also the longest line that is looked at.
_WHOLE_PIPE = LONGEST_REPORT
_KEPT_BYTES = 8192


@dataclass(frozen=True, slots=True)
class WorkerStarted:
    """A worker process exists; it has not reported yet.

    Attributes:
        rank: of the worker.
        pid: of its process.
    """

    rank: int
    pid: int


@dataclass(frozen=True, slots=True)
class WorkerReported:
    """A worker called `worker.report`.

    Attributes:
        rank: of the worker.
        facts: what it reported, as JSON gives it back.
    """

    rank: int
    facts: dict[str, Any]


@dataclass(frozen=True, slots=True)
class WorkersAwaited:
    """No worker has reported lately: a place to pause.

    Attributes:
        seconds: waited for a report since the last one.
    """

    seconds: float


@dataclass(frozen=True, slots=True)
class PlacesAwaited:
    """This machine has no places left for the workers, none of which is started: a place to pause.

    Attributes:
        missing: processes of others that must end first.
    """

    missing: int


WorkerEvent = PlacesAwaited | WorkerStarted | WorkerReported | WorkersAwaited


class WorkerError(RuntimeError):
    """A worker did not do its work; the message says which and why. All workers have ended.

    Attributes:
        rank: of the worker.
        stderr: the end of what it wrote there.
        stdout: the end of what it wrote there other than its reports.
    """

    for_user = True

    def __init__(
        self, rank: int, world_size: int, cause: str, stderr: bytes = b"", stdout: bytes = b""
    ) -> None:
        super().__init__(
            f"The worker process of rank {rank} of {world_size} {cause}. "
            "All workers are stopped; try again, or with fewer of them."
        )
        self.rank = rank
        self.stderr = stderr.decode(errors="replace")
        self.stdout = stdout.decode(errors="replace")


def run_workers(
    module: str,
    payloads: Sequence[object],
    timeout: float,
    *,
    prepare: Callable[[Path], object] = lambda folder: None,
    stop: threading.Event | None = None,
) -> Generator[WorkerEvent, None, None]:
    """Run a module in one process per payload, to the end of all, once `PLACES` has room for them.

    No `next` takes much longer than `TICK_SECONDS`, so a job or a page can run it in any thread. A
    worker that reports while nobody asks waits as soon as its pipe is full. Leave the iterator with
    `contextlib.closing` where an exception may pass: that ends the workers at once.

    Args:
        module: the worker, as after `python -m`, from the project or from `PYTHONPATH`.
        payloads: what `payload` gives to each rank; anything that can be pickled.
        timeout: seconds without any worker's report, waiting only, after which they are given up.
        prepare: puts into the workers' folder what all of them read, before the first starts.
        stop: once set, the workers are told, and `worker.stop_asked` is true for them.

    Yields:
        `PlacesAwaited` until there is room; one `WorkerStarted` per rank, in order; then the
        reports of all as they come, and a `WorkersAwaited` whenever there are none.

    Raises:
        ConfigError: more workers than there will ever be room for.
        WorkerError: a worker could not start, ended otherwise than with exit code 0, or hung.
    """
    workers: list[_Worker] = []
    with (
        PLACES.request(len(payloads)) as places,
        TemporaryDirectory(prefix="labcore-") as folder,
        selectors.DefaultSelector() as selector,
    ):
        try:
            while missing := places.missing():
                time.sleep(QUEUE_SECONDS)
                yield PlacesAwaited(missing)
            prepare(Path(folder))
            for rank, each in enumerate(payloads):
                Path(folder, f"payload-{rank}").write_bytes(pickle.dumps(each))
                worker = _start(module, rank, len(payloads), folder)
                workers.append(worker)
                selector.register(worker.out, selectors.EVENT_READ, worker.take_stdout)
                selector.register(worker.err, selectors.EVENT_READ, worker.take_stderr)
                yield WorkerStarted(rank, worker.process.pid)
            yield from _follow(workers, selector, timeout, stop or threading.Event())
        finally:
            _end(workers)


@dataclass(eq=False)
class _Worker:
    """A worker as its parent sees it."""

    rank: int
    world_size: int
    process: subprocess.Popen[bytes]
    reports: list[dict[str, Any]] = field(default_factory=list)
    reported: float = 0.0
    noise: bytes = b""
    stderr: bytes = b""
    _line: bytes = b""
    _asked: bool = False

    def ask_to_stop(self) -> None:
        """Send a byte to its standard input, once."""
        if not self._asked and self.process.stdin is not None:
            self._asked = True
            # One that has ended meanwhile need not be asked.
            with suppress(BrokenPipeError):
                self.process.stdin.write(b"s")

    @property
    def out(self) -> IO[bytes]:
        assert self.process.stdout is not None  # it was asked for
        return self.process.stdout

    @property
    def err(self) -> IO[bytes]:
        assert self.process.stderr is not None
        return self.process.stderr

    def take_stdout(self, chunk: bytes) -> None:
        *lines, self._line = (self._line + chunk).split(b"\n")
        if len(self._line) > _WHOLE_PIPE:
            lines, self._line = [*lines, self._line], b""
        for line in lines:
            facts = _reported(line)
            if facts is not None:
                self.reports.append(facts)
                self.reported = time.monotonic()
            elif line:
                self.noise = (self.noise + line + b"\n")[-_KEPT_BYTES:]

    def take_stderr(self, chunk: bytes) -> None:
        self.stderr = (self.stderr + chunk)[-_KEPT_BYTES:]

    def failed(self, cause: str) -> WorkerError:
        return WorkerError(self.rank, self.world_size, cause, self.stderr, self.noise)

    def ended_badly(self) -> WorkerError:
        code = self.process.returncode
        how = f"was ended by {_signal_name(-code)}" if code < 0 else f"ended with exit code {code}"
        lines = self.stderr.decode(errors="replace").splitlines()
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return self.failed(f"{how}, saying “{last}”" if last else f"{how}, without a word")


def _start(module: str, rank: int, world_size: int, folder: str) -> _Worker:
    command = [sys.executable, "-P", "-c", _START, module]
    try:
        process = subprocess.Popen(
            command,
            env=os.environ | _environment(rank, world_size, folder),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            pipesize=_PIPE_BYTES,
            # Ctrl-C on a terminal reaches a whole group: it is for the parent, who ends the others.
            process_group=0,
        )
    except OSError as error:
        raise WorkerError(rank, world_size, f"could not be started ({error})") from error
    return _Worker(rank, world_size, process)


def _environment(rank: int, world_size: int, folder: str) -> dict[str, str]:
    paths = [str(_ROOT), os.environ.get("PYTHONPATH", "")]
    return {
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(world_size),
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo0" if sys.platform == "darwin" else "lo",
        FOLDER: folder,
    }


def _follow(
    workers: list[_Worker],
    selector: selectors.BaseSelector,
    timeout: float,
    stop: threading.Event,
) -> Generator[WorkerEvent, None, None]:
    waited = 0.0
    running = workers
    while running:
        if stop.is_set():
            for worker in running:
                worker.ask_to_stop()
        # Asked before their pipes are read: of those that have ended, nothing is missed then.
        ended = [worker for worker in running if worker.process.poll() is not None]
        started = time.monotonic()
        for key, _ in selector.select(TICK_SECONDS):
            chunk = os.read(key.fd, _WHOLE_PIPE)
            key.data(chunk)
            if not chunk:
                selector.unregister(key.fileobj)
        waited += time.monotonic() - started
        for worker in workers:
            while worker.reports:
                waited = 0.0
                yield WorkerReported(worker.rank, worker.reports.pop(0))
        failed = [worker for worker in ended if worker.process.returncode]
        if failed:
            # Signals, which are negative, come first: they are rather the cause than the effect.
            # `worker.LOST_THE_OTHERS` comes last.
            raise min(failed, key=lambda each: each.process.returncode).ended_badly()
        running = [worker for worker in running if worker not in ended]
        if waited > timeout:
            silent = min(running or workers, key=lambda each: each.reported)
            longest = ", this one longest" if any(each.reported for each in workers) else ""
            raise silent.failed(f"hangs: no worker reported for {timeout:g} s{longest}")
        if waited and running:
            yield WorkersAwaited(waited)


def _end(workers: list[_Worker]) -> None:
    try:
        for worker in workers:
            worker.process.terminate()
        until = time.monotonic() + GRACE_SECONDS
        for worker in workers:
            try:
                worker.process.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                worker.process.kill()
                worker.process.wait()
    finally:
        # Should Ctrl-C come in between, this is what ends the others.
        for worker in workers:
            for stream in (worker.process.stdin, worker.out, worker.err):
                if stream is not None:
                    stream.close()


def _reported(line: bytes) -> dict[str, Any] | None:
    """The facts of a line that `report` has written, None for any other line."""
    if not line.startswith(MARK.encode()):
        return None
    try:
        facts: dict[str, Any] = json.loads(line)["facts"]
    except ValueError:
        return None
    return facts


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
