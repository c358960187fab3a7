"""What a worker process needs: its payload, its reports, and to end when its parent does.

`labcore.processes` starts a worker as `run(module)`: the module's `if __name__ == "__main__"` is
the work, and calls `payload`, `report` and perhaps `stop_asked`. It finds its place where torchrun
puts it too: `RANK`, `LOCAL_RANK`, `WORLD_SIZE`, `LOCAL_WORLD_SIZE`.

A report is one line of JSON on standard output that begins with `MARK`, which holds the version of
what follows; whatever else is printed there is noise. Standard input belongs to the parent: a byte
there asks to stop at the next good moment, its end says that the parent is gone.
"""

import json
import os
import pickle
import runpy
import shutil
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

MARK = '{"labcore": 1, "facts": '
"""How every report begins; the number is the version of what follows."""
FOLDER = "LABCORE_WORKER_FOLDER"
"""Which environment variable names the folder that all ranks share."""
LONGEST_REPORT = 1 << 20
"""Characters."""
LOST_THE_OTHERS = 75
"""Exit code of a worker that fails since another one did: it is rather the effect than the cause.
The number is `EX_TEMPFAIL` of sysexits.h."""

_stop_asked = threading.Event()


def folder() -> Path:
    """The folder that all ranks and their parent share; it is gone when `run_workers` ends.

    Raises:
        RuntimeError: this process is no worker.
    """
    if FOLDER not in os.environ:
        raise RuntimeError(
            "Only a process that run_workers has started has a worker's folder, and this one has "
            "none. Call run_workers with the module's name instead of running the module."
        )
    return Path(os.environ[FOLDER])


def payload() -> Any:
    """What the parent gave to this rank."""
    return pickle.loads((folder() / f"payload-{os.environ['RANK']}").read_bytes())


def report(facts: Mapping[str, Any]) -> None:
    """Tell the parent; it gets a `WorkerReported`.

    Args:
        facts: values that JSON can hold; what is large belongs into a file in `folder`.

    Raises:
        ValueError: more than 1 MiB.
    """
    line = f"{MARK}{json.dumps(facts)}}}"
    if len(line) > LONGEST_REPORT:
        raise ValueError(
            f"A report must have at most {LONGEST_REPORT:,} characters; received {len(line):,}. "
            "Write a file into folder() and report its name."
        )
    # Whatever stands on the line already, even without an end, is not part of the report.
    print(f"\n{line}", flush=True)


def stop_asked() -> bool:
    """Whether the parent has asked this worker to stop."""
    return _stop_asked.is_set()


def run(module: str) -> None:
    """Be the worker that a module describes, watching the parent from the first moment."""
    watch_parent()
    # Loading the module may take long, so the parent is watched before.
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def watch_parent() -> None:
    """From now on this process ends when its parent does, in whatever it is stuck.

    Standard input is taken.
    """
    threading.Thread(target=_outlive, name="watch-parent", daemon=True).start()


def _outlive() -> None:
    # Not sys.stdin: its lock, held here for ever, would abort the interpreter at its end.
    while os.read(0, 1):
        _stop_asked.set()
    shutil.rmtree(folder(), ignore_errors=True)
    os._exit(1)
