"""Downloads Fashion-MNIST through torchvision, on request, and keeps it only when it is whole.

torchvision knows where the files are and fetches them. It does so in a process of its own, where it
can be given a time limit and can be stopped, where its progress bar stays out of sight, and so that
the lab need not import it. Its MD5 of the compressed files is not asked for: the content counts and
is verified as in any other place, so a mirror may have compressed it again.
"""

import errno
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from labcore.datasets.errors import DataError
from labcore.datasets.fashion_mnist import (
    FULL,
    TORCHVISION,
    cache_folder,
    named_folder,
    places,
    read,
)

MIRROR = ""
"""Where to fetch from, ending in a slash; if empty, torchvision's own address."""
SIZE = 26_421_880 + 29_515 + 4_422_102 + 5_148
"""Bytes of the four gzipped files."""
PATIENCE = 30.0
"""Seconds to wait for a connection, or for more to arrive on one."""
DISK = {errno.ENOSPC, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR}
DISK |= {getattr(errno, "EDQUOT", errno.ENOSPC)}

Progress = Callable[[int, int], None]


def download(progress: Progress = lambda done, total: None, folder: str | Path = "") -> Path:
    """Fetch the 70,000 images, about 31 MB, into the named folder or the lab's cache folder.

    They arrive in a temporary folder beside their place and are moved there, in one step, when all
    four are complete and verified. What is there already and whole is not fetched again; what is
    there and damaged is replaced.

    Args:
        progress: is told the bytes done and in total about ten times a second, from this thread. An
            exception raised by it stops the download and passes through.
        folder: a root in torchvision's sense; if empty, LAB_DATA_DIR, or else the cache folder.

    Returns:
        The folder that holds the four files.

    Raises:
        DataError: no network, a broken connection, wrong content, a full disk; nothing is kept.
    """
    looked_at = places(folder)[0].folder
    if _whole(looked_at):
        return looked_at
    target = (named_folder(folder) or cache_folder()) / TORCHVISION
    try:
        with _temporary_folder(beside=target) as temporary:
            arriving = temporary / "arriving"
            arriving.mkdir()
            _fetch(arriving, progress)
            _verify(arriving)
            _move(arriving, target, temporary / "replaced")
    except OSError as error:
        remedy = "Check the network and try again."
        if error.errno in DISK:
            remedy = (
                f"Make sure that {SIZE / 1e6:.0f} MB fit into {target.parent} and that you may "
                "write there, or name another folder (--data-dir, LAB_DATA_DIR)."
            )
        raise DataError(
            f"Fashion-MNIST could not be downloaded: {error.strerror}. {remedy} Nothing was kept; "
            "the embedded sample works without a download. Debian's package dataset-fashion-mnist "
            "has the same images; or copy the four files into a folder and name it."
        ) from error
    return target


def _whole(folder: Path) -> bool:
    try:
        return read(folder)[1] == FULL
    except DataError:
        return False


@contextmanager
def _temporary_folder(beside: Path) -> Iterator[Path]:
    beside.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=".download-", dir=beside.parent))
    try:
        yield temporary
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _fetch(folder: Path, progress: Progress) -> None:
    """Let the other process fill the folder, and watch the files grow."""
    progress(0, SIZE)
    child = subprocess.Popen(
        [sys.executable, "-m", __name__, str(folder), MIRROR, str(PATIENCE)],
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    with child:
        try:
            while child.poll() is None:
                with suppress(subprocess.TimeoutExpired):
                    child.wait(timeout=0.1)
                done = sum(each.stat().st_size for each in folder.iterdir())
                progress(min(done, SIZE), SIZE)
            report = child.stdout.read() if child.stdout else b""
        finally:
            child.kill()
    if report:
        raise OSError(*json.loads(report))
    if child.returncode:
        raise OSError(0, f"torchvision's process ended with status {child.returncode}")
    progress(SIZE, SIZE)


def _verify(folder: Path) -> None:
    try:
        which = read(folder)[1]
    except DataError as problem:
        # The folder is gone when somebody reads this.
        detail = str(problem).replace(f"{folder}{os.sep}", "").rstrip(".")
        raise OSError(0, f"something wrong arrived. {detail}") from problem
    if which != FULL:
        raise OSError(0, f"something wrong arrived: {which} instead of {FULL}")


def _move(arrived: Path, target: Path, aside: Path) -> None:
    # Another download may have come first; its files stay, since somebody may be reading them.
    if _whole(target):
        return
    if os.path.lexists(target):
        target.rename(aside)
    try:
        arrived.rename(target)
    except OSError:
        if not _whole(target):
            raise


def _fetch_here(folder: str, mirror: str, patience: str) -> None:
    """What the other process does; raises whatever goes wrong."""
    import socket

    from torchvision.datasets import FashionMNIST  # type: ignore[import-untyped]
    from torchvision.datasets.utils import download_url  # type: ignore[import-untyped]

    # By itself torchvision waits for ever.
    socket.setdefaulttimeout(float(patience))
    for name, _ in FashionMNIST.resources:
        download_url((mirror or FashionMNIST.mirrors[0]) + name, folder)


def _number_and_words(error: Exception) -> tuple[int, str]:
    """What an OSError is made of; the number only where this machine, not the network, failed."""
    number = error.errno if isinstance(error, OSError) else None
    # In urllib's errors, what they wrap says more than they do; in HTTP's it is a bare word.
    reason = getattr(error, "reason", error)
    cause = error if isinstance(reason, str) else reason
    words = getattr(cause, "strerror", None) or str(cause) or type(cause).__name__
    return number or 0, words.rstrip(".")


if __name__ == "__main__":
    try:
        _fetch_here(*sys.argv[1:])
    except Exception as error:
        print(json.dumps(_number_and_words(error)))
