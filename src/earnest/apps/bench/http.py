"""The least that speaks HTTP: what a client costs is not to be measured."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar, cast
from urllib.parse import urlsplit

from earnest.domain.errors import EarnestError

P = TypeVar("P", bound=asyncio.Protocol)

_HEAD_END = b"\r\n\r\n"
_LENGTH = b"content-length: "


class NotAnswered(EarnestError):
    """A server of the benchmark did not answer as it should."""

    code = "not_answered"


def request(url: str, token: str, accept: str = "application/json") -> bytes:
    parts = urlsplit(url)
    target = f"{parts.path}?{parts.query}" if parts.query else parts.path
    lines = [f"GET {target} HTTP/1.1", f"Host: {parts.netloc}", f"Accept: {accept}"]
    if token:
        lines.append(f"Authorization: Bearer {token}")
    return "\r\n".join([*lines, "", ""]).encode()


async def connect(url: str, make: Callable[[], P]) -> P:
    parts = urlsplit(url)
    assert parts.hostname is not None, "servers say where they are"
    assert parts.port is not None, "and at which port"
    loop = asyncio.get_running_loop()
    _, protocol = await loop.create_connection(make, parts.hostname, parts.port)
    return protocol


class Asking(asyncio.Protocol):
    """Sends the same request on one connection again and again, as soon as it was answered."""

    def __init__(self, asked: bytes, count: int) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._asked, self._left = asked, count
        self._received = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are one without deriving from it.
        self._transport = cast(asyncio.Transport, transport)

    def begin(self) -> Awaitable[None]:
        self._send()
        return self.done

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, found, body = self._received.partition(_HEAD_END)
        if not found or len(body) < _length(head):
            return
        self._received = b""
        if not head.startswith(b"HTTP/1.1 200"):
            self._end(NotAnswered(f"a server answered {head.splitlines()[0].decode()!r}"))
            return
        self._left -= 1
        if self._left:
            self._send()
        else:
            self._end(None)

    def connection_lost(self, error: Exception | None) -> None:
        self._end(NotAnswered("a server closed the connection"))

    def _send(self) -> None:
        assert self._transport is not None, "it is connected"
        self._transport.write(self._asked)

    def _end(self, error: Exception | None) -> None:
        if self.done.done():
            return
        if error is None:
            self.done.set_result(None)
        else:
            self.done.set_exception(error)
        if self._transport is not None:
            self._transport.close()


class Reading(asyncio.Protocol):
    """A reader of a stream: notes when each event of one type came."""

    def __init__(self, asked: bytes, type_: bytes) -> None:
        self.began = asyncio.Event()
        self.times: list[float] = []
        self.heard = asyncio.Event()
        self.lost = False
        self._asked, self._type = asked, type_
        self._transport: asyncio.Transport | None = None
        self._tail = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(self._asked)

    def data_received(self, data: bytes) -> None:
        whole, _, self._tail = (self._tail + data).rpartition(b"\n\n")
        if b"run.submitted" in whole:
            self.began.set()
        for _ in range(whole.count(self._type)):
            self.times.append(time.monotonic())
            self.heard.set()

    def connection_lost(self, error: Exception | None) -> None:
        self.lost = True
        self.began.set()
        self.heard.set()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


def _length(head: bytes) -> int:
    _, _, rest = head.lower().partition(_LENGTH)
    return int(rest.partition(b"\r\n")[0] or b"0")
