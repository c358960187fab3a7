"""Downloads of Fashion-MNIST from a server on this machine, and everything that breaks one.

The other process and torchvision in it are the real ones, except where a test is about what arrived
or was there before.
"""

import gzip
import hashlib
import shutil
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from labcore.datasets import download as downloading
from labcore.datasets.download import SIZE, Progress, download
from labcore.datasets.errors import DataError
from labcore.datasets.fashion_mnist import DEBIAN, EMBEDDED, FULL, ROLES, TORCHVISION, load, read

on_the_full_set = pytest.mark.skipif(
    not DEBIAN.exists(), reason="the full set (dataset-fashion-mnist) is not on this machine"
)
NAMES = [f"{name}.gz" for name in ROLES]
FIRST = NAMES[0]


class Mirror(BaseHTTPRequestHandler):
    """Serves a folder; `trouble` takes over for the file named FIRST."""

    def __init__(self, folder: Path, trouble: "Trouble | None", *rest: object) -> None:
        self.folder, self.trouble = folder, trouble
        super().__init__(*rest)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        content = (self.folder / self.path[1:]).read_bytes()
        try:
            if self.trouble and self.path == f"/{FIRST}":
                self.trouble(self, content)
            else:
                self.answer(content, len(content))
        except ConnectionError:
            pass  # torchvision asks twice, and hangs up once.

    def answer(self, content: bytes, length: int) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(length))
        self.end_headers()
        self.wfile.write(content)
        self.wfile.flush()

    def log_message(self, format: str, *arguments: object) -> None:
        pass


Trouble = Callable[[Mirror, bytes], None]


def not_found(mirror: Mirror, content: bytes) -> None:
    mirror.send_error(404)


def cut(mirror: Mirror, content: bytes) -> None:
    mirror.answer(content[: len(content) // 2], len(content))


def reset(mirror: Mirror, content: bytes) -> None:
    mirror.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    cut(mirror, content)
    mirror.connection.close()


def stall(mirror: Mirror, content: bytes) -> None:
    cut(mirror, content)
    mirror.connection.settimeout(60)
    mirror.connection.recv(1)


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Makes a folder the mirror from which downloads come."""
    servers = []
    monkeypatch.setenv("no_proxy", "*")

    def start(folder: Path, trouble: Trouble | None = None) -> None:
        server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Mirror, folder, trouble))
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}).start()
        servers.append(server)
        monkeypatch.setattr(downloading, "MIRROR", f"http://127.0.0.1:{server.server_port}/")

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture(autouse=True)
def root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The lab's cache folder."""
    monkeypatch.delenv("LAB_DATA_DIR", raising=False)
    monkeypatch.setenv("LAB_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def files(root: Path) -> list[str]:
    """Every file below a folder, hidden ones too."""
    return sorted(str(file.relative_to(root)) for file in root.rglob("*") if not file.is_dir())


def refusal(folder: str | Path = "") -> str:
    with pytest.raises(DataError) as caught:
        download(folder=folder)
    return str(caught.value)


# It works


@dataclass
class Downloaded:
    root: Path
    returned: Path = Path()
    progress: list[tuple[int, int]] = field(default_factory=list)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Downloaded:
    """One download, on which several tests look."""
    made = Downloaded(tmp_path_factory.mktemp("downloaded"))
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Mirror, DEBIAN, None))
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}).start()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("no_proxy", "*")
        patch.setattr(downloading, "MIRROR", f"http://127.0.0.1:{server.server_port}/")
        made.returned = download(lambda *both: made.progress.append(both), made.root)
    server.shutdown()
    server.server_close()
    return made


@on_the_full_set
def test_a_download_is_loaded_from_where_it_was_put(done: Downloaded) -> None:
    assert load(done.root).train_images.shape == (60_000, 28, 28)


@on_the_full_set
def test_a_download_is_in_torchvisions_layout(done: Downloaded) -> None:
    assert done.returned == done.root / "FashionMNIST" / "raw"


@on_the_full_set
def test_a_download_leaves_the_four_files_and_nothing_else(done: Downloaded) -> None:
    assert files(done.root) == sorted(str(TORCHVISION / name) for name in NAMES)


@on_the_full_set
def test_others_on_the_machine_may_read_a_download(done: Downloaded, tmp_path: Path) -> None:
    (tmp_path / "usual").mkdir()
    assert done.returned.stat().st_mode == (tmp_path / "usual").stat().st_mode


@on_the_full_set
def test_progress_begins_with_nothing_and_ends_with_everything(done: Downloaded) -> None:
    assert (done.progress[0], done.progress[-1]) == ((0, SIZE), (SIZE, SIZE))


@on_the_full_set
def test_progress_never_goes_back(done: Downloaded) -> None:
    assert done.progress == sorted(done.progress)


@on_the_full_set
def test_the_size_is_that_of_the_originals() -> None:
    # Theirs have the file's name in the gzip header, and a zero byte after it; Debian's do not.
    assert sum((DEBIAN / name).stat().st_size + len(name) - 2 for name in NAMES) == SIZE


@on_the_full_set
def test_what_is_there_is_not_fetched_again(
    done: Downloaded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(downloading, "_fetch")
    assert download(folder=done.root) == done.returned


@on_the_full_set
def test_a_folder_with_the_files_themselves_needs_no_download(
    done: Downloaded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(downloading, "_fetch")
    assert download(folder=done.returned) == done.returned


@on_the_full_set
def test_torchvision_reads_the_original_files_that_we_keep(tmp_path: Path) -> None:
    from torchvision.datasets import FashionMNIST as Twin

    raw = tmp_path / TORCHVISION
    raw.mkdir(parents=True)
    for name, md5 in Twin.resources:
        time = (1_504_176_606 if "train" in name else 1_504_176_627).to_bytes(4, "little")
        header = b"\x1f\x8b\x08\x08" + time + b"\0\x03" + name.removesuffix(".gz").encode() + b"\0"
        original = header + (DEBIAN / name).read_bytes()[10:]
        assert hashlib.md5(original, usedforsecurity=False).hexdigest() == md5
        (raw / name).write_bytes(original)
    assert len(Twin(tmp_path, download=True)) == 60_000


@on_the_full_set
def test_two_downloads_at_once_both_succeed(serve: Callable[..., None], root: Path) -> None:
    serve(DEBIAN)
    returned: list[Path] = []
    threads = [threading.Thread(target=lambda: returned.append(download())) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert returned == [root / TORCHVISION] * 2
    assert files(root) == sorted(str(TORCHVISION / name) for name in NAMES)


# It breaks on the way

WORDS = {
    "404": (not_found, "HTTP Error 404: Not Found. Check the network and try again."),
    "cut": (cut, f"something wrong arrived. The data file {FIRST} is truncated"),
    "reset": (reset, "Connection reset by peer. Check the network and try again."),
    "stalled": (stall, "timed out. Check the network and try again."),
}


@pytest.mark.parametrize(("trouble", "words"), WORDS.values(), ids=WORDS)
def test_a_broken_download_says_why_and_leaves_nothing(
    trouble: Trouble,
    words: str,
    serve: Callable[..., None],
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(downloading, "PATIENCE", 1.0)
    serve(EMBEDDED, trouble)
    message = refusal()
    assert message.startswith(f"Fashion-MNIST could not be downloaded: {words}")
    assert files(root) == []


def test_a_server_that_is_down_is_told(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "*")
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        monkeypatch.setattr(downloading, "MIRROR", f"http://127.0.0.1:{unused.getsockname()[1]}/")
        assert "could not be downloaded: Connection refused. Check the network" in refusal()
    assert files(root) == []


def test_a_full_disk_is_told(serve: Callable[..., None], root: Path) -> None:
    def fill(done: int, total: int) -> None:
        # Writing to this device meets the error of a full disk, from the same call.
        [folder] = root.glob("FashionMNIST/.download-*/arriving")
        if not (folder / FIRST).is_symlink():
            (folder / FIRST).symlink_to("/dev/full")

    serve(EMBEDDED)
    with pytest.raises(DataError, match=r"No space left on device\. Make sure that 31 MB"):
        download(fill)
    assert files(root) == []


def test_a_process_that_dies_is_told(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(downloading.sys, "executable", "/bin/false")
    assert "torchvision's process ended with status 1" in refusal()
    assert files(root) == []


class Cancelled(BaseException):
    """What a page or a signal raises."""


def test_an_exception_in_progress_stops_the_download(
    serve: Callable[..., None], root: Path
) -> None:
    def progress(done: int, total: int) -> None:
        if done:
            raise Cancelled

    serve(EMBEDDED, stall)
    with pytest.raises(Cancelled):
        download(progress)
    assert files(root) == []


# Something wrong arrives


@pytest.fixture
def arrives(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
    """Makes downloads bring the files of a folder, without a network."""

    def replace(folder: Path) -> None:
        def fetch(into: Path, progress: Progress) -> None:
            shutil.copytree(folder, into, dirs_exist_ok=True)

        monkeypatch.setattr(downloading, "_fetch", fetch)

    return replace


WRONG: dict[str, tuple[Callable[[Path], object], str]] = {
    "a web page": (
        lambda file: file.write_bytes(b"<!DOCTYPE html>"),
        f"something wrong arrived. The data file {FIRST} is not an IDX file",
    ),
    "one bit changed": (
        lambda file: file.write_bytes(
            gzip.compress(gzip.decompress(file.read_bytes())[:-1] + b"!")
        ),
        f"something wrong arrived. The data file {FIRST} is not Fashion-MNIST's training images",
    ),
    "test for train": (
        lambda file: shutil.copy(file.with_name(NAMES[2]), file),
        f"something wrong arrived. The data file {FIRST} is swapped",
    ),
    "a file less": (
        lambda file: file.unlink(),
        f"something wrong arrived. The data file {FIRST.removesuffix('.gz')} is missing",
    ),
    "the sample": (
        lambda file: None,
        "something wrong arrived: 6,000 + 1,000 images instead of 60,000 + 10,000 images",
    ),
}


@pytest.mark.parametrize(("how", "words"), WRONG.values(), ids=WRONG)
def test_wrong_content_is_told_and_not_kept(
    how: Callable[[Path], object],
    words: str,
    arrives: Callable[[Path], None],
    root: Path,
    tmp_path: Path,
) -> None:
    wrong = Path(shutil.copytree(EMBEDDED, tmp_path / "wrong"))
    how(wrong / FIRST)
    arrives(wrong)
    assert refusal().startswith(f"Fashion-MNIST could not be downloaded: {words}")
    assert files(root) == []


def test_a_refusal_says_what_else_can_be_done() -> None:
    # No folder can be made below a device.
    message = refusal("/dev/null")
    for part in ["Nothing was kept", "embedded sample", "dataset-fashion-mnist", "LAB_DATA_DIR"]:
        assert part in message


def test_a_folder_that_cannot_be_made_is_told() -> None:
    assert "Not a directory. Make sure that 31 MB fit into /dev/null/Fash" in refusal("/dev/null")


# What was there before


@on_the_full_set
def test_damaged_files_are_replaced(arrives: Callable[[Path], None], root: Path) -> None:
    (root / TORCHVISION).mkdir(parents=True)
    (root / TORCHVISION / FIRST).write_bytes(b"damaged")
    arrives(DEBIAN)
    assert read(download())[1] == FULL
    assert files(root) == sorted(str(TORCHVISION / name) for name in NAMES)


def test_a_failed_download_leaves_what_was_there(
    arrives: Callable[[Path], None], root: Path
) -> None:
    shutil.copytree(EMBEDDED, root / TORCHVISION)
    before = files(root)
    arrives(EMBEDDED)
    refusal()
    assert files(root) == before


@on_the_full_set
def test_who_comes_second_leaves_the_files_of_the_first(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fetch(into: Path, progress: Progress) -> None:
        shutil.copytree(DEBIAN, into, dirs_exist_ok=True)
        shutil.copytree(DEBIAN, root / TORCHVISION)
        (root / TORCHVISION / "mark of the first").touch()

    monkeypatch.setattr(downloading, "_fetch", fetch)
    assert (download() / "mark of the first").exists()


@on_the_full_set
def test_the_environment_names_the_folder(
    arrives: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAB_DATA_DIR", str(tmp_path / "named"))
    arrives(DEBIAN)
    assert download() == tmp_path / "named" / TORCHVISION
