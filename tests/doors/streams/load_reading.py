"""Very many readers of streams in one process, each as cheap as can be: what is measured is the
server. A reader notes when each event came, or reads nothing at all."""

from __future__ import annotations

import asyncio
import re
import socket
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import cast
from urllib.parse import urlsplit

_WRITTEN = re.compile(rb'"created_at":"([^"]+)"')
_REASON = re.compile(rb'stream_end\ndata: {"reason":"(\w+)"')
_TOGETHER = 50  # how many connect at once


@dataclass
class Notes:
    """What readers noted: `took`, seconds from the statement that wrote an event to the reader;
    `ended`, why their streams did."""

    took: list[float] = field(default_factory=list)
    heartbeats: int = 0
    ended: Counter[str] = field(default_factory=Counter)
    grew: asyncio.Event = field(default_factory=asyncio.Event)

    async def has(self, count: int, within: float = 60) -> None:
        async with asyncio.timeout(within):
            while len(self.took) < count:
                self.grew.clear()
                await self.grew.wait()


class LoadReader(asyncio.Protocol):
    """One connection with one request for a stream."""

    def __init__(self, notes: Notes, request: bytes) -> None:
        self.opened = asyncio.Event()
        self.cut_off_at = 0.0
        self._notes = notes
        self._request = request
        self._rest = b""
        self._reason = ""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        now = time.time()
        *frames, self._rest = (self._rest + data).split(b"\n\n")
        for frame in frames:
            self._take(frame, now)

    def connection_lost(self, exc: Exception | None) -> None:
        self.cut_off_at = time.monotonic()
        self._notes.ended[self._reason or ("lost" if exc is None else type(exc).__name__)] += 1
        self.opened.set()

    def _take(self, frame: bytes, now: float) -> None:
        self.opened.set()
        if found := _WRITTEN.search(frame):
            written = datetime.fromisoformat(found[1].decode()).timestamp()
            self._notes.took.append(now - written)
            self._notes.grew.set()
        elif b"event: heartbeat" in frame:
            self._notes.heartbeats += 1
        elif ending := _REASON.search(frame):
            self._reason = ending[1].decode()

    def stall(self) -> None:
        """Reads no more."""
        assert self._transport is not None, "connected before"
        self._transport.pause_reading()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()


async def connect_readers(
    url: str, tokens: Iterable[str], notes: Notes, *, buffer: int | None = None
) -> list[LoadReader]:
    """One reader for each token, once all have been answered. `buffer` bounds what the kernel takes
    for one that does not read."""
    room = asyncio.Semaphore(_TOGETHER)

    async def one(token: str) -> LoadReader:
        async with room:
            return await _connect(url, token, notes, buffer)

    return list(await asyncio.gather(*map(one, tokens)))


async def _connect(url: str, token: str, notes: Notes, buffer: int | None) -> LoadReader:
    parts = urlsplit(url)
    lines = (
        f"GET {parts.path}?{parts.query} HTTP/1.1",
        f"Host: {parts.netloc}",
        "Accept: text/event-stream",
        f"Authorization: Bearer {token}",
        "",
        "",
    )
    link = socket.socket()
    if buffer is not None:
        link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
    link.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(link, (parts.hostname, parts.port))
    reader = LoadReader(notes, "\r\n".join(lines).encode())
    await loop.create_connection(lambda: reader, sock=link)
    async with asyncio.timeout(60):
        await reader.opened.wait()
    return reader
