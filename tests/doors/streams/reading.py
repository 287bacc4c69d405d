"""A reader of server-sent events over a socket of its own, down to the bytes.

It follows the WHATWG's parsing rules and nothing more: it does not reconnect by itself, and it can
be told to read slowly or not at all.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

PATIENCE = 10.0


@dataclass(frozen=True)
class Item:
    """One event as a client is given it: `id` is the last id that the stream has told."""

    event: str
    data: Any
    id: str


@dataclass
class Parser:
    """Bytes to events: https://html.spec.whatwg.org/multipage/server-sent-events.html"""

    last_id: str = ""
    retry: int | None = None
    _rest: bytes = b""
    _name: str = ""
    _data: list[str] = field(default_factory=list)

    def feed(self, data: bytes) -> list[Item]:
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [item for line in lines if (item := self._take(line.decode())) is not None]

    def _take(self, line: str) -> Item | None:
        if not line:
            return self._dispatch()
        name, _, value = line.partition(":")
        self._field(name, value.removeprefix(" "))
        return None

    def _field(self, name: str, value: str) -> None:
        if name == "data":
            self._data.append(value)
        elif name == "event":
            self._name = value
        elif name == "id" and "\0" not in value:
            self.last_id = value
        elif name == "retry" and value.isdigit():
            self.retry = int(value)

    def _dispatch(self) -> Item | None:
        data, name = self._data, self._name or "message"
        self._data, self._name = [], ""
        return Item(name, json.loads("\n".join(data)), self.last_id) if data else None


@dataclass
class Projection:
    """What a client makes of events: it applies the next number, ignores those that it has, and
    takes a greater one for a gap."""

    seen: list[int] = field(default_factory=list)

    @property
    def after_seq(self) -> int:
        return self.seen[-1] if self.seen else 0

    def take(self, seq: int) -> None:
        if seq > self.after_seq + 1:
            raise AssertionError(f"{seq} came after {self.after_seq}: there is a gap")
        if seq == self.after_seq + 1:
            self.seen.append(seq)


class Stream:
    """One answer to one request. Only a 200 is a stream; of others `body` is the whole answer."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._items: list[Item] = []
        self.status = 0
        self.headers: dict[str, str] = {}
        self.parser = Parser()
        self.raw = b""
        self.ended = False

    async def read_head(self) -> None:
        async with asyncio.timeout(PATIENCE):
            head = (await self._reader.readuntil(b"\r\n\r\n")).decode()
        status, *lines = head.strip().split("\r\n")
        self.status = int(status.split()[1])
        self.headers = dict(line.lower().split(": ", 1) for line in lines)

    async def body(self) -> Any:
        length = int(self.headers.get("content-length", "0"))
        return json.loads(await self._reader.readexactly(length)) if length else None

    async def next(self, within: float = PATIENCE) -> Item | None:
        """The next event; `None` when the stream has ended as it should."""
        async with asyncio.timeout(within):
            while not self._items and not self.ended:
                self._items += self.parser.feed(await self._chunk())
        return self._items.pop(0) if self._items else None

    async def messages(self, count: int, within: float = PATIENCE) -> list[Item]:
        """The next events of the run; what is told about the stream is passed over."""
        found: list[Item] = []
        while len(found) < count:
            item = await self.next(within)
            assert item is not None, f"the stream ended after {[one.data for one in found]}"
            if item.event == "message":
                found.append(item)
        return found

    async def until(self, event: str, within: float = PATIENCE) -> list[Item]:
        """Everything up to the next event of that name, with it."""
        found: list[Item] = []
        while not found or found[-1].event != event:
            item = await self.next(within)
            assert item is not None, f"the stream ended after {found}"
            found.append(item)
        return found

    async def rest(self) -> list[Item]:
        """Everything up to the end."""
        found: list[Item] = []
        while (item := await self.next()) is not None:
            found.append(item)
        return found

    async def until_cut_off(self, within: float = PATIENCE) -> None:
        """Reads what is there, until the connection is broken: the answer has no end."""
        async with asyncio.timeout(within):
            try:
                while await self._chunk():
                    pass
            except (ConnectionError, asyncio.IncompleteReadError):
                return
        raise AssertionError("the stream ended as if all was well")

    async def _chunk(self) -> bytes:
        size = int(await self._reader.readuntil(b"\r\n"), 16)
        data = (await self._reader.readexactly(size + 2))[:-2]
        self.ended = size == 0
        self.raw += data
        return data

    def close(self) -> None:
        self._writer.close()

    def vanish(self) -> None:
        """Leaves without a word of farewell."""
        self._writer.transport.abort()


async def connect(
    url: str,
    headers: Mapping[str, str] | None = None,
    *,
    method: str = "GET",
    buffer: int | None = None,
    limit: int = 2**16,
) -> Stream:
    """Sends the request and reads the head of its answer. `buffer` bounds what the kernel takes for
    a reader that does not read, `limit` what this process does."""
    parts = urlsplit(url)
    link = socket.socket()
    if buffer is not None:
        link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
    link.setblocking(False)
    await asyncio.get_running_loop().sock_connect(link, (parts.hostname, parts.port))
    reader, writer = await asyncio.open_connection(sock=link, limit=limit)
    target = f"{parts.path}?{parts.query}" if parts.query else parts.path
    lines = [f"{method} {target} HTTP/1.1", f"Host: {parts.netloc}"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    writer.write("\r\n".join([*lines, "", ""]).encode())
    stream = Stream(reader, writer)
    await stream.read_head()
    return stream


@asynccontextmanager
async def reading(
    url: str, headers: Mapping[str, str] | None = None, **more: Any
) -> AsyncIterator[Stream]:
    stream = await connect(url, headers, **more)
    try:
        yield stream
    finally:
        stream.close()
