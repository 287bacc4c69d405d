"""The clients that streams are tried with: what each can do, the process that drives it, and what
it was given.

Every driver speaks the same lines of JSON (`lines.py`); one process follows many streams.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import shutil
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tests.doors.streams.clients.chromium_driver import PROGRAM as CHROMIUM
from tests.doors.streams.reading import PATIENCE, Item, Projection

_HERE = Path(__file__).parent
_ROOT = _HERE.parents[3]
NAMES = (
    "heartbeat",
    "resync_required",
    "stream_end",
    "progress",
    "delta",
    "reset",
    "terminal",
)
"""The named frames that every client listens for."""


@dataclass(frozen=True)
class Client:
    """`comes_again`: by itself, with the last id it was given. `names_first_id`: its caller can
    name a last id from another life. `sends_token`: its caller can add a header. `needs` says what
    is missing on this machine, or nothing."""

    name: str
    command: tuple[str, ...]
    needs: Callable[[], str]
    comes_again: bool = True
    names_first_id: bool = True
    sends_token: bool = True
    tries_once_more: bool = True


def _program(name: str) -> Callable[[], str]:
    return lambda: "" if shutil.which(name) else f"{name} is not installed: scripts/system-packages"


def _module(name: str) -> Callable[[], str]:
    return lambda: "" if find_spec(name) else f"{name} is not installed: make setup"


def _package(name: str) -> Callable[[], str]:
    def needs() -> str:
        here = (_HERE / "node_modules" / name).is_dir()
        return _program("node")() or (
            "" if here else f"{name} is not installed: scripts/node-packages"
        )

    return needs


def _driver(name: str) -> tuple[str, ...]:
    return (sys.executable, "-m", f"{__package__}.{name}_driver")


_NODE = ("node", "--no-warnings", str(_HERE / "driver.mjs"))

CLIENTS = (
    Client(
        "Chromium",
        _driver("chromium"),
        _program(CHROMIUM),
        names_first_id=False,
        sends_token=False,
    ),
    Client("eventsource", (*_NODE, "eventsource"), _package("eventsource")),
    Client("undici", (*_NODE, "undici"), _package("undici"), tries_once_more=False),
    Client("httpx-sse", _driver("httpx_sse"), _module("httpx_sse")),
    Client("curl", _driver("curl"), _program("curl"), comes_again=False),
)


@dataclass
class Seen:
    """What a client was given of one stream."""

    items: list[Item] = field(default_factory=list)
    opened: int = 0
    away: int = 0
    closed: bool = False
    status: int | None = None
    broken: str = ""
    _taken: int = 0
    _grew: asyncio.Event = field(default_factory=asyncio.Event)

    def take(self, line: dict[str, Any]) -> None:
        saw = line["saw"]
        self.opened += saw == "open"
        self.away += saw == "away"
        self.closed = self.closed or saw in ("closed", "broken")
        self.broken = line.get("why", "")
        self.status = line.get("status") or self.status
        if saw == "event":
            self.items.append(Item(line["event"], json.loads(line["data"]), line["id"]))
        self._grew.set()

    @property
    def numbers(self) -> list[int]:
        """Those of the run's events, in the order and as often as they came."""
        return [item.data["seq"] for item in self.items if item.event == "message"]

    def named(self, name: str) -> list[Item]:
        return [item for item in self.items if item.event == name]

    @property
    def last_id(self) -> str:
        """The newest that it was given; one client shows none where a frame has none."""
        return next((item.id for item in reversed(self.items) if item.id), "")

    def projection(self, *before: int) -> list[int]:
        """The numbers that are applied by a client that has seen some before. Raises
        `AssertionError` at a gap."""
        made = Projection(list(before))
        for number in self.numbers:
            made.take(number)
        return made.seen

    async def until(self, holds: Callable[[Seen], bool], within: float = 30) -> None:
        try:
            async with asyncio.timeout(within):
                while not holds(self):
                    self._grew.clear()
                    await self._grew.wait()
        except TimeoutError:
            raise AssertionError(f"the client was only given {self.told()}") from None

    async def has(self, count: int, name: str = "message") -> None:
        await self.until(lambda seen: len(seen.named(name)) >= count)

    async def until_closed(self) -> None:
        await self.until(lambda seen: seen.closed)

    def told(self) -> str:
        shown = [item.data["seq"] if item.event == "message" else item.event for item in self.items]
        state = "closed" if self.closed else f"opened {self.opened}, away {self.away}"
        status = f"status {self.status}" if self.status else ""
        told = ", ".join(filter(None, (state, status, self.broken)))
        return f"{shown[-40:]} ({told})"


class Driver:
    """The process that drives one client; `version` is the client's."""

    def __init__(self, process: asyncio.subprocess.Process, version: str) -> None:
        self.version = version
        self._process = process
        self._numbers = itertools.count(1)
        self._open: dict[str, Seen] = {}

    @asynccontextmanager
    async def follow(
        self, url: str, token: str | None, last_event_id: str | None
    ) -> AsyncIterator[Seen]:
        """Has the client follow a stream; it is closed at the end."""
        name = str(next(self._numbers))
        seen = self._open[name] = Seen()
        asked = {"url": url, "token": token, "last_event_id": last_event_id, "names": NAMES}
        await self._say({"open": name, **asked})
        try:
            yield seen
        finally:
            del self._open[name]
            await self._say({"close": name})

    async def hear(self) -> None:
        """Takes what the driver says, until it ends."""
        while (line := await _line(self._process)) is not None:
            if line["stream"] in self._open:
                self._open[line["stream"]].take(line)

    async def _say(self, line: dict[str, Any]) -> None:
        assert self._process.stdin is not None, "opened as a pipe"
        self._process.stdin.write(json.dumps(line).encode() + b"\n")
        await self._process.stdin.drain()


async def _line(process: asyncio.subprocess.Process) -> dict[str, Any] | None:
    assert process.stdout is not None, "opened as a pipe"
    said = await process.stdout.readline()
    found: dict[str, Any] | None = json.loads(said) if said else None
    return found


@asynccontextmanager
async def driving(client: Client) -> AsyncIterator[Driver]:
    """Starts the client's driver; ended with the block."""
    process = await asyncio.create_subprocess_exec(
        *client.command,
        cwd=_ROOT,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=2**24,
    )
    hearing: asyncio.Task[None] | None = None
    try:
        async with asyncio.timeout(60):
            ready = await _line(process)
        if ready is None:
            raise RuntimeError(f"the driver of {client.name} did not start; see its error above")
        driver = Driver(process, ready["ready"])
        hearing = asyncio.create_task(driver.hear())
        yield driver
    finally:
        await _end(process)
        if hearing is not None:
            hearing.cancel()
            await asyncio.gather(hearing, return_exceptions=True)


async def _end(process: asyncio.subprocess.Process) -> None:
    assert process.stdin is not None, "opened as a pipe"
    process.stdin.close()
    try:
        await asyncio.wait_for(process.wait(), PATIENCE)
    except TimeoutError:
        process.kill()
        await process.wait()
