"""A class that races at once: many sessions at one server, each as a browser would keep it.

By hand: python -m tests.load_sessions --sessions 30 --seconds 60

Thirty browsers would measure the machine that draws them. So this speaks what a browser speaks with
Streamlit: protobuf messages over a websocket. A session opens the Optimizers page, presses Start on
a race that is far from its end, and then asks for the page's live part again whenever its timer is
due. Exits with 1 if a session starved or the server's memory grew.
"""

import argparse
import asyncio
import re
import statistics
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg
from websockets.asyncio.client import ClientConnection, connect

from tests.browser.conftest import LOOPBACK, Server, end_server, start_server

RACE = "engine=from+scratch&epochs=10000&pace=max"
"""The five presets, as the page has them by default."""

WINDOW_SECONDS = 5.0
WARM_UP_SECONDS = 15.0
LEAST_SHARE = 1 / 3
"""Of the median session's steps, for the slowest session."""
MOST_GROWTH = 0.1
"""Of the server's memory, after the warm-up."""


@dataclass
class Session:
    """One browser window, as far as the server can tell.

    Attributes:
        steps: (seconds since the class began, step on the page), for each update.
        moves: when the chart's data changed.
        updates: charts received.
    """

    websocket: ClientConnection
    began: float
    steps: list[tuple[float, int]] = field(default_factory=list)
    moves: list[float] = field(default_factory=list)
    updates: int = 0
    _query: str = RACE
    _page: str = ""
    _start: str = ""
    _chart: bytes = b""
    _timers: dict[str, asyncio.Task[None]] = field(default_factory=dict)

    async def run(self) -> None:
        """Open the page, press Start once it is there, and follow the race until cancelled."""
        await self._send(page_name="optimizers")
        pressed = False
        async for data in self.websocket:
            message = ForwardMsg.FromString(data)
            match message.WhichOneof("type"):
                case "new_session" if not message.metadata.run.fragment_ids:
                    self.stop_timers()
                case "navigation":
                    self._page = message.navigation.page_script_hash
                case "page_info_changed":
                    self._query = message.page_info_changed.query_string
                case "delta":
                    self._draw(message.delta.new_element)
                case "auto_rerun":
                    self._start_timer(message.auto_rerun.fragment_id, message.auto_rerun.interval)
                case "script_finished" if not pressed and self._start:
                    pressed = True
                    await self._send(press=self._start)

    async def _send(self, *, page_name: str = "", press: str = "", fragment: str = "") -> None:
        message = BackMsg()
        request = message.rerun_script
        request.query_string = self._query
        request.page_script_hash = self._page
        request.page_name = page_name
        request.fragment_id = fragment
        request.is_auto_rerun = bool(fragment)
        if press:
            request.widget_states.widgets.add(id=press, trigger_value=True)
        await self.websocket.send(message.SerializeToString())

    def _start_timer(self, fragment: str, interval: float) -> None:
        async def tick() -> None:
            while True:
                await asyncio.sleep(interval)
                await self._send(fragment=fragment)

        if fragment not in self._timers:
            self._timers[fragment] = asyncio.create_task(tick())

    def stop_timers(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _draw(self, element) -> None:
        now = time.monotonic() - self.began
        match element.WhichOneof("type"):
            case "button" if element.button.id.endswith("race:start"):
                self._start = element.button.id
            case "progress":
                if found := re.search(r"step ([\d,]+) of", element.progress.text):
                    self.steps.append((now, int(found[1].replace(",", ""))))
            case "vega_lite_chart":
                self.updates += 1
                chart = element.vega_lite_chart.SerializeToString()
                if chart != self._chart:
                    self._chart = chart
                    self.moves.append(now)


async def hold_class(server: Server, sessions: int, seconds: float) -> tuple[list[Session], float]:
    """Run the sessions; also returns by which share the server's memory grew after the warm-up."""
    began = time.monotonic()
    address = f"ws://{LOOPBACK}:{server.port}/_stcore/stream"
    protocols = ["streamlit", "PLACEHOLDER_AUTH_TOKEN"]
    sockets = await asyncio.gather(
        *(
            connect(address, subprotocols=protocols, compression=None, max_size=None)
            for _ in range(sessions)
        )
    )
    everybody = [Session(websocket, began) for websocket in sockets]
    tasks = [asyncio.create_task(each.run()) for each in everybody]
    await go_on(tasks, began + WARM_UP_SECONDS)
    warm = resident_megabytes(server)
    await go_on(tasks, began + seconds)
    end = resident_megabytes(server)
    print(f"server memory: {warm:.0f} MB at {WARM_UP_SECONDS:.0f} s, {end:.0f} MB at the end")
    for task, each in zip(tasks, everybody, strict=True):
        each.stop_timers()
        task.cancel()
    await asyncio.gather(*(websocket.close() for websocket in sockets))
    return everybody, end / warm - 1


async def go_on(tasks: list[asyncio.Task[None]], until: float) -> None:
    """Let the sessions run; one that breaks off raises here what it met."""
    ended, _ = await asyncio.wait(
        tasks, timeout=until - time.monotonic(), return_when=asyncio.FIRST_COMPLETED
    )
    for task in ended:
        task.result()
        raise RuntimeError("The server closed a session.")


def resident_megabytes(server: Server) -> float:
    text = Path(f"/proc/{server.process.pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+)", text)[1]) / 1024


def windows_without_a_move(session: Session, seconds: float) -> list[int]:
    """The whole windows after the warm-up in which no curve moved, by their begins in seconds."""
    moved = {int(moment // WINDOW_SECONDS) for moment in session.moves}
    first, last = int(WARM_UP_SECONDS // WINDOW_SECONDS), int(seconds // WINDOW_SECONDS)
    return [int(each * WINDOW_SECONDS) for each in range(first, last) if each not in moved]


def report(everybody: list[Session], seconds: float) -> bool:
    """Print the figures; returns whether nobody starved."""
    gaps = [windows_without_a_move(each, seconds) for each in everybody]
    moving = gaps.count([])
    steps = sorted(each.steps[-1][1] if each.steps else 0 for each in everybody)
    median = statistics.median(steps)
    updates = sum(each.updates for each in everybody) / seconds
    print(f"charts that moved in every {WINDOW_SECONDS:.0f} s: {moving} of {len(everybody)}")
    for begin, still in sorted(Counter(each for gap in gaps for each in gap).items()):
        print(f"  {still} stood still from {begin} to {begin + WINDOW_SECONDS:.0f} s")
    print(f"steps per session: min {steps[0]:,}, median {median:,.0f}, max {steps[-1]:,}")
    print(f"slowest / median: {steps[0] / max(1, median):.2f} (at least {LEAST_SHARE:.2f})")
    print(f"updates per second, all together: {updates:.1f}")
    return moving == len(everybody) and steps[0] > 0 and steps[0] >= LEAST_SHARE * median


def main() -> int:
    """Start a server, hold a class, print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sessions", type=int, default=30)
    parser.add_argument("--seconds", type=float, default=60.0)
    args = parser.parse_args()
    if args.seconds < WARM_UP_SECONDS + WINDOW_SECONDS:
        parser.error(f"--seconds must be at least {WARM_UP_SECONDS + WINDOW_SECONDS:.0f}")
    with tempfile.TemporaryDirectory() as folder:
        server = start_server(Path(folder))
        try:
            everybody, growth = asyncio.run(hold_class(server, args.sessions, args.seconds))
        finally:
            code, log = end_server(server)
    fair = report(everybody, args.seconds)
    print(f"memory growth after the warm-up: {growth:+.1%} (at most {MOST_GROWTH:.0%})")
    clean = code == 0 and "Traceback" not in log
    if not clean:
        print(f"server exit code {code}; its log:\n{log}")
    return 0 if fair and growth <= MOST_GROWTH and clean else 1


if __name__ == "__main__":
    sys.exit(main())
