"""A real server and a real browser, each test in a session of its own."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Page, sync_playwright
from playwright.sync_api import TimeoutError as PlaywrightTimeout

ROOT = Path(__file__).parents[2]
LOOPBACK = "127.0.0.1"
START_SECONDS = 60
END_SECONDS = 20
WAIT_SECONDS = 20
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    # No other machine can be reached. Requests need not be looked at for that, which would keep the
    # browser from remembering Streamlit's scripts.
    f"--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE {LOOPBACK}",
]
LAPTOP = {"width": 1280, "height": 900}


@dataclass
class Server:
    """The lab as `streamlit run app.py` starts it."""

    port: int
    process: subprocess.Popen
    log: Path

    @property
    def url(self):
        return f"http://{LOOPBACK}:{self.port}"

    def cpu_seconds(self):
        """Processor time that the server has used so far."""
        user, system = Path(f"/proc/{self.process.pid}/stat").read_text().split()[13:15]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def free_port():
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return probe.getsockname()[1]


def start_server(folder):
    """A server on a free port, with a home of its own, that answers."""
    port, log = free_port(), folder / "server.log"
    home = folder / "home"
    home.mkdir()
    command = [sys.executable, "-m", "streamlit", "run", "app.py"]
    command += ["--server.port", str(port), "--server.headless", "true"]
    with log.open("ab") as output:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, "HOME": str(home)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    server = Server(port, process, log)
    until = time.monotonic() + START_SECONDS
    while not answers(server):
        if process.poll() is not None or time.monotonic() > until:
            process.kill()
            process.wait()
            pytest.fail(f"The server did not start:\n{log.read_text()}")
        time.sleep(0.1)
    return server


def answers(server):
    try:
        with urllib.request.urlopen(f"{server.url}/_stcore/health", timeout=2) as reply:
            return reply.status == 200
    except (urllib.error.URLError, OSError):
        return False


def end_server(server):
    """End it as a terminal or systemd does; returns its exit code and what it has logged."""
    server.process.send_signal(signal.SIGTERM)
    try:
        code = server.process.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        server.process.kill()
        code = f"none within {END_SECONDS} s of SIGTERM ({server.process.wait()} after SIGKILL)"
    return code, server.log.read_text()


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """One server for the tests of a module. At its end it must exit cleanly, without an error."""
    running = start_server(tmp_path_factory.mktemp("server"))
    yield running
    code, log = end_server(running)
    assert "Traceback" not in log, log
    assert code == 0, log


@pytest.fixture
def fresh_server(tmp_path):
    """A server that nobody has visited yet."""
    running = start_server(tmp_path)
    yield running
    code, log = end_server(running)
    assert "Traceback" not in log, log
    assert code == 0, log


@pytest.fixture(scope="module")
def chromium():
    """Not for the whole session: its event loop would be in the way of tests that run their own."""
    path = shutil.which("chromium") or "/usr/bin/chromium"
    if not Path(path).exists():
        pytest.fail("The browser tests need Chromium; on Debian: apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield browser
        browser.close()


@dataclass
class Visit:
    """A browser window, and what must not have happened in it.

    Attributes:
        strangers: requests to any other machine.
        errors: what the page has reported as an error.
    """

    page: Page
    strangers: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def note_request(self, request):
        self.note_address(request.url)

    def note_socket(self, websocket):
        self.note_address(websocket.url)

    def note_address(self, url):
        parts = urlsplit(url)
        if parts.scheme not in ("data", "blob", "about") and parts.hostname != LOOPBACK:
            self.strangers.append(url)

    def note_message(self, message):
        if message.type == "error":
            self.errors.append(message.text)


@pytest.fixture(scope="module")
def profile(chromium):
    """For all windows, so that each need not load Streamlit's scripts again."""
    context = chromium.new_context()
    context.set_default_timeout(WAIT_SECONDS * 1000)
    yield context
    context.close()


@pytest.fixture
def visit(profile):
    """Opens windows, each a session of its own; none may ask another machine for anything.

    Of a window can be told its `viewport`, and what it prefers, such as `color_scheme="dark"`.
    """
    visits = []

    def open_window(viewport=LAPTOP, **media):
        window = Visit(profile.new_page())
        window.page.set_viewport_size(viewport)
        window.page.emulate_media(**media)
        window.page.on("request", window.note_request)
        window.page.on("websocket", window.note_socket)
        window.page.on("console", window.note_message)
        window.page.on("pageerror", lambda error: window.errors.append(str(error)))
        visits.append(window)
        return window

    yield open_window
    for window in visits:
        stop_race(window.page)
        window.page.close()
    assert [url for window in visits for url in window.strangers] == []


def stop_race(page):
    """Leave no race behind that would slow down the tests to come."""
    if page.is_closed():
        return
    stop = page.get_by_test_id("stMain").get_by_role("button", name="Stop")
    if stop.count() and stop.is_enabled():
        # It may end by itself just now.
        with suppress(PlaywrightTimeout):
            stop.click(timeout=3000)
        page.get_by_text(re.compile(r"^(Stopped|Finished)")).wait_for()


class Proxy:
    """A TCP relay to the server which can be cut like a network cable."""

    def __init__(self, target):
        self._target = target
        self._open = threading.Event()
        self._open.set()
        self._lock = threading.Lock()
        self._ends = set()
        self._threads = []
        self._listener = socket.create_server((LOOPBACK, 0))
        self.url = f"http://{LOOPBACK}:{self._listener.getsockname()[1]}"
        self._run(self._accept)

    def cut(self):
        """Break every connection, and refuse new ones."""
        self._open.clear()
        with self._lock:
            for end in self._ends:
                # A thread that waits for data is only woken by this.
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

    def mend(self):
        self._open.set()

    def close(self):
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()
        for thread in self._threads:
            thread.join()

    def _run(self, target, *arguments):
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self):
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if not self._open.is_set():
                client.close()
                continue
            server = socket.create_connection((LOOPBACK, self._target))
            with self._lock:
                self._ends |= {client, server}
            self._run(self._relay, client, server)

    def _relay(self, client, server):
        back = threading.Thread(target=pump, args=(server, client), daemon=True)
        back.start()
        pump(client, server)
        back.join()
        with self._lock:
            self._ends -= {client, server}
        client.close()
        server.close()


def pump(source, sink):
    """Copy until either end is gone, then let the other one know."""
    with suppress(OSError):
        while data := source.recv(65_536):
            sink.sendall(data)
    for end in (source, sink):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def proxy(server):
    relay = Proxy(server.port)
    yield relay
    relay.close()
