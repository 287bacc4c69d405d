"""A relay between one client and a server of the API: it knows what was asked for and when, and
breaks the way as it is told to.

It also is the origin of a browser's page. An `EventSource` can send no token, and the API takes one
in the header alone, so the relay adds it to what the page asks for. That is what a reverse proxy
with a session would do; a token in the URL would have been another way in.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NoReturn
from urllib.parse import urlsplit

PAGE = "/page"
_PAGE_ANSWER = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\nContent-Length: 38\r\n"
    b"Connection: close\r\n\r\n<!doctype html><title>A reader</title>"
)
_AT_ONCE = struct.pack("ii", 1, 0)
_GONE = (ConnectionError, asyncio.IncompleteReadError, TimeoutError)

Frames = AsyncIterator[bytes]
Fault = Callable[[Frames], Frames]
"""What happens to the frames of one answer on their way."""


class Cut(Exception):
    """The connection breaks here: the answer has no end."""


class Refused(Exception):
    """There is no answer at all."""


@dataclass
class Asked:
    """One request for a stream, as it came by. `retry` is what its answer said last, in
    milliseconds; `over_at` when the answer ended or broke."""

    target: str
    last_event_id: str | None
    at: float
    status: int = 0
    retry: int | None = None
    over_at: float = 0.0
    said: list[bytes] = field(default_factory=list)


class Relay:
    """Stands before the server at `upstream`. The answers to its first requests go through
    `faults`, one each, the later ones as they are. With `token` it adds that to each request."""

    def __init__(self, upstream: str, faults: list[Fault], token: str | None = None) -> None:
        self.upstream = upstream
        self.asked: list[Asked] = []
        self._faults = list(faults)
        self._token = token
        self._more = asyncio.Condition()
        self._passing: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.url = ""

    async def __aenter__(self) -> Relay:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()[:2]
        self.url = f"http://{host}:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None, "entered before"
        self._server.close()
        for task in self._passing:
            task.cancel()
        await asyncio.gather(*self._passing, return_exceptions=True)

    async def until_asked(self, times: int, within: float = 30) -> Asked:
        """Returns when the client has come so many times, and how it came then."""
        async with asyncio.timeout(within), self._more:
            await self._more.wait_for(lambda: len(self.asked) >= times)
        return self.asked[times - 1]

    # ---- one connection --------------------------------------------------------------------

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._pass(reader, writer))
        self._passing.add(task)
        task.add_done_callback(self._passing.discard)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._serve(reader, writer)
        except (Refused, *_GONE):
            _break(writer)
        finally:
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        target = head.split(" ", 2)[1]
        if not target.startswith("/v1/"):
            writer.write(_PAGE_ANSWER if target == PAGE else _NOTHING)
            await writer.drain()
            return
        asked = await self._note(target, head)
        passing = asyncio.create_task(self._answer(asked, head, writer))
        leaving = asyncio.create_task(reader.read(1))
        try:
            await asyncio.wait({passing, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if passing.done():
                passing.result()
        finally:
            asked.over_at = time.monotonic()
            for task in (passing, leaving):
                task.cancel()
            await asyncio.gather(passing, leaving, return_exceptions=True)

    async def _note(self, target: str, head: str) -> Asked:
        headers = {
            name.lower(): value
            for name, _, value in (line.partition(": ") for line in head.split("\r\n")[1:])
        }
        asked = Asked(target, headers.get("last-event-id"), time.monotonic())
        async with self._more:
            self.asked.append(asked)
            self._more.notify_all()
        return asked

    async def _answer(self, asked: Asked, head: str, writer: asyncio.StreamWriter) -> None:
        fault = self._faults.pop(0) if self._faults else _unharmed
        parts = urlsplit(self.upstream)
        reader, upstream = await asyncio.open_connection(parts.hostname, parts.port)
        try:
            upstream.write(self._forwarded(head))
            answer = await reader.readuntil(b"\r\n\r\n")
            asked.status = int(answer.split(b" ", 2)[1])
            if b"chunked" in answer.lower():
                await _pass_frames(asked, answer, fault(_frames(reader)), writer)
            else:
                await _pass_body(answer, reader, writer)
        finally:
            upstream.close()

    def _forwarded(self, head: str) -> bytes:
        request, *headers = head.rstrip("\r\n").split("\r\n")
        kept = [one for one in headers if not one.lower().startswith("connection:")]
        token = [] if self._token is None else [f"Authorization: Bearer {self._token}"]
        return "\r\n".join([request, *kept, *token, "Connection: close", "", ""]).encode("latin-1")


_NOTHING = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


def _break(writer: asyncio.StreamWriter) -> None:
    """As when a machine between the two forgets the connection."""
    link: socket.socket | None = writer.get_extra_info("socket")
    if link is not None:
        with suppress(OSError):
            link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
    writer.transport.abort()


async def _frames(reader: asyncio.StreamReader) -> Frames:
    """The frames of an answer in chunks, each with the empty line that ends it."""
    rest = b""
    while size := int(await reader.readuntil(b"\r\n"), 16):
        *whole, rest = (rest + (await reader.readexactly(size + 2))[:-2]).split(b"\n\n")
        for frame in whole:
            yield frame + b"\n\n"
    if rest:
        yield rest


async def _pass_frames(
    asked: Asked, answer: bytes, pieces: Frames, writer: asyncio.StreamWriter
) -> None:
    """Hands on each piece as a chunk and as a packet of its own."""
    writer.write(answer)
    try:
        async for piece in pieces:
            if piece.startswith(b"retry: "):
                asked.retry = int(piece[7:].split(b"\n", 1)[0])
            asked.said.append(piece)
            writer.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            await writer.drain()
        writer.write(b"0\r\n\r\n")
    except Cut:
        pass  # closed without the chunk that ends the answer
    await writer.drain()


async def _pass_body(
    answer: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    writer.write(answer + await reader.read())
    await writer.drain()


# ---- faults ------------------------------------------------------------------------------------


def _unharmed(frames: Frames) -> Frames:
    return frames


def is_event(frame: bytes) -> bool:
    """Whether it is an event of the run, which has no name."""
    return frame.startswith(b"id: ")


def cut_after(
    count: int, inside: bytes = b"", *, named: bytes = b"", when: asyncio.Event | None = None
) -> Fault:
    """The connection breaks after so many events (or frames of that name); before it does, still
    come the bytes of the next one up to `inside` and the first byte of that. It breaks at once, or
    `when` that is set: a browser may drop what came just before."""

    def counted(frame: bytes) -> bool:
        return frame.startswith(b"event: " + named) if named else is_event(frame)

    async def fault(frames: Frames) -> Frames:
        seen = 0
        async for frame in frames:
            if seen == count and inside and counted(frame):
                yield frame[: frame.index(inside) + 1]
                await _cut(when)
            yield frame
            seen += counted(frame)
            if seen == count and not inside:
                await _cut(when)

    return fault


async def _cut(when: asyncio.Event | None) -> NoReturn:
    if when is not None:
        await when.wait()
    raise Cut


def twice(number: int) -> Fault:
    """The event of that place in the answer comes twice."""

    async def fault(frames: Frames) -> Frames:
        seen = 0
        async for frame in frames:
            yield frame
            seen += is_event(frame)
            if seen == number and is_event(frame):
                yield frame

    return fault


def by_bytes(frames: Frames) -> Frames:
    """Every byte is a packet of its own."""

    async def fault() -> Frames:
        async for frame in frames:
            for place in range(len(frame)):
                yield frame[place : place + 1]
                await asyncio.sleep(0)

    return fault()


def refused(frames: Frames) -> Frames:
    """The connection is reset before there is any answer."""
    raise Refused
