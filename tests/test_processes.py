"""Worker processes: what they report arrives, whose fault it was is known, and none is left."""

import gc
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from labcore import processes, worker
from labcore.processes import (
    WorkerError,
    WorkerEvent,
    WorkerReported,
    WorkersAwaited,
    WorkerStarted,
    run_workers,
)
from tests.children import gone, gone_within

ROOT = Path(__file__).parent.parent
LONG = 20.0  # a wait that only a broken launcher exhausts

Write = Callable[[str], str]


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder in which temporary ones are made; nothing may be left there."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setenv("TMPDIR", str(folder))
    yield folder
    assert list(folder.iterdir()) == []


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Writes a worker module, in which `rank` is known, and returns its name."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def write(body: str) -> str:
        head = "import os, signal, sys, time\nfrom labcore.worker import *\n"
        rank = "rank = int(os.environ['RANK'])\n"
        (tmp_path / "some_worker.py").write_text(head + rank + textwrap.dedent(body))
        return "some_worker"

    return write


def reports(events: Iterator[WorkerEvent]) -> list[tuple[int, dict[str, Any]]]:
    return [(each.rank, each.facts) for each in events if isinstance(each, WorkerReported)]


def pids_until_reported(events: Generator[WorkerEvent, None, None], count: int) -> list[int]:
    """The processes, after so many reports have come."""
    pids = []
    for event in events:
        if isinstance(event, WorkerStarted):
            pids.append(event.pid)
        count -= isinstance(event, WorkerReported)
        if count == 0:
            break
    return pids


def failure(module: str, world_size: int, timeout: float = LONG) -> tuple[WorkerError, list[int]]:
    """How a run fails, and which processes it had."""
    pids: list[int] = []
    events = run_workers(module, [None] * world_size, timeout)
    with pytest.raises(WorkerError) as caught:
        pids.extend(each.pid for each in events if isinstance(each, WorkerStarted))
    return caught.value, pids


SLEEPS = "report({})\ntime.sleep(1000)"


# What workers get and what they report


def test_every_rank_reports_on_its_own_payload(write: Write) -> None:
    module = write("report({'doubled': 2 * payload()})")
    found = reports(run_workers(module, [10, 11, 12], LONG))
    assert sorted(found, key=lambda each: each[0]) == [
        (0, {"doubled": 20}),
        (1, {"doubled": 22}),
        (2, {"doubled": 24}),
    ]


def test_a_payload_may_be_large_and_need_not_be_json(write: Write) -> None:
    module = write("report({'size': len(payload())})")
    assert reports(run_workers(module, [b"x" * 5_000_000], LONG)) == [(0, {"size": 5_000_000})]


def test_a_large_report_arrives_whole(write: Write) -> None:
    module = write("report({'text': 'ä' * 150_000})")
    assert reports(run_workers(module, [None], LONG)) == [(0, {"text": "ä" * 150_000})]


def test_a_report_that_is_too_large_is_refused(write: Write) -> None:
    error, _ = failure(write("report({'text': 'x' * 2_000_000})"), 1)
    assert "ValueError: A report must have at most" in str(error)


def test_many_reports_arrive_in_order(write: Write) -> None:
    module = write("for i in range(5000): report({'i': i})")
    found = reports(run_workers(module, [None], LONG))
    assert found == [(0, {"i": i}) for i in range(5000)]


def test_a_worker_finds_its_place_where_torchrun_puts_it(write: Write) -> None:
    names = ["RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "OMP_NUM_THREADS"]
    module = write(f"report({{name: os.environ[name] for name in {names}}})")
    found = dict(reports(run_workers(module, [None, None], LONG)))
    assert list(found[1].values()) == ["1", "1", "2", "2", "1"]


def test_a_worker_is_out_of_reach_of_ctrl_c_on_the_terminal(write: Write) -> None:
    """That goes to a whole process group: here the parent's, who ends the workers itself."""
    module = write("report({'group': os.getpgid(0)})")
    [(_, facts)] = reports(run_workers(module, [None], LONG))
    assert facts["group"] != os.getpgid(0)


def test_ranks_share_a_folder(write: Write) -> None:
    module = write(
        """
        (folder() / f"from-{rank}").touch()
        while not (folder() / f"from-{1 - rank}").exists():
            time.sleep(0.01)
        """
    )
    assert reports(run_workers(module, [None, None], LONG)) == []


def test_workers_start_in_order_of_rank(write: Write) -> None:
    started = [e for e in run_workers(write(""), [None] * 3, LONG) if isinstance(e, WorkerStarted)]
    assert [event.rank for event in started] == [0, 1, 2]


NOISE = """
sys.stdout.write("no end of line")
report({"a": 1})
print("text", "{}", "[1, 2", '{"labcore": 0, "facts": {}}', "[" * 100_000, sep="\\n")
os.write(1, b"\\xff\\xfe")
report({"b": 2})
print('{"labcore": 1, "facts": {')
"""


def test_noise_on_stdout_is_no_report(write: Write) -> None:
    found = reports(run_workers(write(NOISE), [None], LONG))
    assert found == [(0, {"a": 1}), (0, {"b": 2})]


def test_noise_is_kept_for_the_error(write: Write) -> None:
    error, _ = failure(write("print('loading'); sys.stderr.write('one\\ntwo'); sys.exit(1)"), 1)
    assert (error.stdout, error.stderr) == ("loading\n", "one\ntwo")


def test_the_folder_that_it_is_called_in_does_not_matter(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "labcore").mkdir(parents=True)
    (elsewhere / "labcore" / "__init__.py").write_text("raise SystemExit('not this one')")
    monkeypatch.chdir(elsewhere)
    found = reports(run_workers(write("report({'cwd': os.getcwd()})"), [None], LONG))
    assert found == [(0, {"cwd": str(elsewhere)})]


def test_it_runs_in_any_thread(write: Write) -> None:
    found: list[Any] = []
    module = write("report({})")
    thread = threading.Thread(target=lambda: found.extend(run_workers(module, [None], LONG)))
    thread.start()
    thread.join(LONG)
    assert WorkerReported(0, {}) in found


def test_whoever_asks_is_answered_soon_while_workers_are_silent(write: Write) -> None:
    with closing(run_workers(write(SLEEPS), [None], LONG)) as events:
        pids_until_reported(events, 1)
        started = time.monotonic()
        answers = [next(events) for _ in range(3)]
    assert all(isinstance(each, WorkersAwaited) for each in answers)
    assert time.monotonic() - started < 1


def test_the_time_until_someone_asks_does_not_count_as_silence(write: Write) -> None:
    events = run_workers(write(SLEEPS), [None], 1.5)
    pids_until_reported(events, 1)
    time.sleep(2)
    with closing(events):
        assert isinstance(next(events), WorkersAwaited)


def test_a_worker_outside_the_launcher_is_told_how_to_start() -> None:
    with pytest.raises(RuntimeError, match="Call run_workers"):
        worker.folder()


# Whose fault it was


@pytest.mark.parametrize(
    ("deed", "words"),
    [
        ("raise ValueError('boom')", "ended with exit code 1, saying “ValueError: boom”"),
        ("sys.exit(3)", "ended with exit code 3, without a word"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "was ended by SIGKILL"),
        ("import no_such_module", "No module named 'no_such_module'"),
    ],
    ids=["raises", "exits", "killed", "cannot load"],
)
def test_a_worker_that_fails_is_named_with_the_cause(write: Write, deed: str, words: str) -> None:
    error, pids = failure(write(f"if rank == 1:\n    {deed}\ntime.sleep(1000)"), 3)
    assert f"rank 1 of 3 {words}" in str(error) or words in str(error)
    assert error.rank == 1
    assert len(pids) == 3
    assert all(map(gone, pids))


def test_a_worker_killed_from_outside_is_named(write: Write) -> None:
    events = run_workers(write(SLEEPS), [None, None], LONG)
    pids = pids_until_reported(events, 2)
    os.kill(pids[1], signal.SIGKILL)
    with pytest.raises(WorkerError, match="rank 1 of 2 was ended by SIGKILL"):
        list(events)
    assert all(map(gone, pids))


def test_of_two_that_have_ended_the_killed_one_is_named(write: Write) -> None:
    """The others fail in turn, and all that may have happened while nobody asked."""
    module = write(f"signal.signal(signal.SIGTERM, lambda *_: os._exit(1))\n{SLEEPS}")
    events = run_workers(module, [None, None], LONG)
    pids = pids_until_reported(events, 2)
    os.kill(pids[0], signal.SIGTERM)
    os.kill(pids[1], signal.SIGKILL)
    time.sleep(1)
    with pytest.raises(WorkerError, match="rank 1 of 2"):
        list(events)


def test_a_module_that_does_not_exist_is_named() -> None:
    error, _ = failure("labcore.no_such_module", 1)
    assert "No module named labcore.no_such_module" in str(error)


def test_a_worker_that_cannot_be_started_is_named(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = run_workers(write(SLEEPS), [None, None], LONG)
    first = next(events)
    assert isinstance(first, WorkerStarted)
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(WorkerError, match="rank 1 of 2 could not be started"):
        next(events)
    assert gone(first.pid)


def test_reports_before_a_failure_arrive(write: Write) -> None:
    events = run_workers(write("report({'last': 1}); os._exit(1)"), [None], LONG)
    assert len(pids_until_reported(events, 1)) == 1
    with pytest.raises(WorkerError):
        list(events)


def test_workers_that_hang_are_given_up_and_the_longest_silent_is_named(write: Write) -> None:
    module = write("report({})\nif rank == 0: time.sleep(.3); report({})\ntime.sleep(1000)")
    error, pids = failure(module, 2, timeout=1.0)
    assert "rank 1 of 2 hangs: no worker reported for 1 s" in str(error)
    assert all(map(gone, pids))


def test_a_worker_that_closed_its_output_is_still_followed(write: Write) -> None:
    error, _ = failure(write("os.close(1); os.close(2); time.sleep(.3); os._exit(7)"), 1)
    assert "exit code 7" in str(error)


# None is left


def close(events: Generator[WorkerEvent, None, None]) -> None:
    events.close()


def interrupt(events: Generator[WorkerEvent, None, None]) -> None:
    with pytest.raises(KeyboardInterrupt):
        events.throw(KeyboardInterrupt())


@pytest.mark.parametrize("leave", [close, interrupt])
def test_leaving_half_way_ends_all_workers(
    write: Write, temporary: Path, leave: Callable[..., None]
) -> None:
    events = run_workers(write(SLEEPS), [None] * 3, LONG)
    pids = pids_until_reported(events, 3)
    leave(events)
    assert all(map(gone, pids))
    assert list(temporary.iterdir()) == []


def test_leaving_while_workers_start_ends_those_that_have(write: Write) -> None:
    events = run_workers(write(SLEEPS), [None] * 3, LONG)
    first = next(events)
    events.close()
    assert isinstance(first, WorkerStarted)
    assert gone(first.pid)


def test_workers_of_a_dropped_run_end(write: Write) -> None:
    events = run_workers(write(SLEEPS), [None], LONG)
    pids = pids_until_reported(events, 1)
    del events
    gc.collect()
    assert all(map(gone, pids))


@pytest.mark.parametrize(
    "deed",
    [
        "signal.signal(signal.SIGTERM, signal.SIG_IGN); report({}); time.sleep(1000)",
        "report({}); os.kill(os.getpid(), signal.SIGSTOP)",
        "report({})\nwhile True: print('x' * 1000)",
        "report({})\nwhile True: pass",
    ],
    ids=["ignores SIGTERM", "is stopped", "floods", "computes"],
)
def test_a_stubborn_worker_is_ended(
    write: Write, monkeypatch: pytest.MonkeyPatch, deed: str
) -> None:
    monkeypatch.setattr(processes, "GRACE_SECONDS", 0.2)
    events = run_workers(write(deed), [None], LONG)
    pids = pids_until_reported(events, 1)
    time.sleep(0.1)
    events.close()
    assert all(map(gone, pids))


def test_a_worker_may_tidy_up_when_it_is_ended(write: Write, tmp_path: Path) -> None:
    mark = tmp_path / "tidy"
    deed = f"signal.signal(signal.SIGTERM, lambda *_: (open({str(mark)!r}, 'w'), os._exit(0)))\n"
    events = run_workers(write(deed + SLEEPS), [None], LONG)
    pids_until_reported(events, 1)
    events.close()
    assert mark.exists()


def test_processes_of_a_normal_run_have_ended(write: Write) -> None:
    events = list(run_workers(write("report({})"), [None, None], LONG))
    assert all(gone(each.pid) for each in events if isinstance(each, WorkerStarted))


PARENT = """
import sys
from labcore.processes import *
count = 0
for event in run_workers("some_worker", [None] * 2, 1000.0):
    if isinstance(event, WorkerStarted):
        print(event.pid, flush=True)
    if isinstance(event, WorkerReported):
        print("reported", flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("deed", ["time.sleep(1000)", "while True: pass"])
def test_workers_end_within_five_seconds_of_their_parent(
    write: Write, deed: str, number: signal.Signals
) -> None:
    module = write(f"report({{}})\n{deed}")
    assert module == "some_worker"
    command = [sys.executable, "-c", PARENT]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as parent:
        assert parent.stdout is not None
        lines = [parent.stdout.readline().strip() for _ in range(4)]
        pids = [int(line) for line in lines if line != "reported"]
        assert len(pids) == 2
        assert not any(map(gone, pids))
        parent.send_signal(number)
        assert gone_within(5, pids)


def test_a_worker_that_still_loads_ends_with_its_parent(write: Write) -> None:
    """As torch does, which takes seconds: the module has not come to its own first line yet."""
    module = write("time.sleep(1000)")
    assert module == "some_worker"
    command = [sys.executable, "-c", PARENT]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pids = [int(parent.stdout.readline()) for _ in range(2)]
        parent.kill()
        assert gone_within(5, pids)


# Asked to stop, and other news between parent and workers


def test_workers_are_told_when_they_are_to_stop(write: Write) -> None:
    module = write("report({})\nwhile not stop_asked(): time.sleep(.01)\nreport({'stopped': 1})")
    stop = threading.Event()
    events = run_workers(module, [None, None], LONG, stop=stop)
    pids_until_reported(events, 2)
    stop.set()
    assert sorted(reports(events)) == [(0, {"stopped": 1}), (1, {"stopped": 1})]


def test_a_worker_that_ends_before_it_is_told_to_stop_is_no_failure(write: Write) -> None:
    stop = threading.Event()
    events = run_workers(write("report({}); os._exit(0)"), [None], LONG, stop=stop)
    pids_until_reported(events, 1)
    time.sleep(0.5)
    stop.set()
    assert list(reports(events)) == []


def test_what_all_read_is_there_before_the_first_starts(write: Write) -> None:
    module = write("report({'text': (folder() / 'common').read_text()})")
    events = run_workers(
        module, [None, None], LONG, prepare=lambda folder: (folder / "common").write_text("hello")
    )
    assert [facts for _, facts in reports(events)] == [{"text": "hello"}] * 2


def test_of_two_that_have_failed_the_one_that_lost_the_other_is_not_named(write: Write) -> None:
    """Even where it is the first of them."""
    module = write("report({}); time.sleep(.2); os._exit(LOST_THE_OTHERS if rank == 0 else 1)")
    events = run_workers(module, [None, None], LONG)
    pids_until_reported(events, 2)
    time.sleep(1)
    with pytest.raises(WorkerError, match="rank 1 of 2 ended with exit code 1"):
        list(events)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a pipe has a size of its own")
def test_a_worker_that_nobody_listens_to_soon_waits(write: Write, tmp_path: Path) -> None:
    """So that a paused run does not run ahead."""
    count = tmp_path / "count"
    note = f"open({str(count)!r}, 'w').write(str(i))"
    body = f"for i in range(10_000):\n    report({{'i': i}})\n    {note}"
    with closing(run_workers(write(body), [None], LONG)) as events:
        pids_until_reported(events, 1)
        time.sleep(1)
        assert int(count.read_text()) < 300
