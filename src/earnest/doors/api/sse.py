"""Server-sent events (WHATWG): frames as bytes, and the answer that sends them.

`EventStream` is for any stream: of a run, of a scope, of text. What it sends is the business of the
function that it is given; how it is sent, what happens to a reader that does not read, and how it
ends, is here. Every line ends with LF alone.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from enum import StrEnum
from typing import Any

import msgspec
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from earnest.domain.errors import EarnestError
from earnest.doors.api.connections import HURRIED, Connection, connection_of
from earnest.engine.process.logs import get_logger

log = get_logger("earnest.streams")

MEDIA_TYPE = "text/event-stream"
HEADERS = {
    "Content-Type": MEDIA_TYPE,
    "Cache-Control": "no-cache, no-transform",
    "X-Accel-Buffering": "no",
    "Connection": "close",
}
# Above this the server has writers wait (the high-water mark of its transports).
_UNSENT = 64 * 1024
SEND_DEADLINE = 10.0
"""Seconds within which a reader must take what is sent to it."""


class Ending(StrEnum):
    """Why a stream ends."""

    FINAL = "final"
    ROTATED = "rotated"
    BUSY = "busy"
    REVOKED = "revoked"
    SHUTDOWN = "shutdown"


# Milliseconds after which a reader comes again, at random between the two: many that were cut off
# together do not come back together. The others need not come again.
_OPENED = (1_000, 3_000)
_RETRY = {
    Ending.ROTATED: (100, 3_000),
    Ending.BUSY: (5_000, 15_000),
    Ending.SHUTDOWN: (1_000, 5_000),
}


# ---- frames ------------------------------------------------------------------------------------


def message(data: bytes, id: str) -> bytes:
    """An event without a name: clients see it with `onmessage`. `data` is JSON on one line."""
    return b"id: %s\ndata: %s\n\n" % (id.encode(), data)


def control(name: str, data: Any, id: str = "") -> bytes:
    """A named event. An id, where it has one, is a place to go on from."""
    place = f"id: {id}\n" if id else ""
    return b"event: %s\n%sdata: %s\n\n" % (name.encode(), place.encode(), msgspec.json.encode(data))


def comment(text: str) -> bytes:
    """What no client shows; it keeps the way open."""
    return b": %s\n\n" % text.encode()


def retry(between: tuple[int, int] = _OPENED) -> bytes:
    """How long a reader is to wait before it comes again."""
    return b"retry: %d\n\n" % random.randint(*between)


def come_again(ending: Ending) -> bytes:
    """When a reader is to come again after such an end, if it is to."""
    return retry(_RETRY[ending]) if ending in _RETRY else b""


def stream_end(ending: Ending) -> bytes:
    """The last thing that a stream says."""
    return come_again(ending) + control("stream_end", {"reason": ending})


# ---- the way to one reader ---------------------------------------------------------------------


class Left(Exception):
    """The reader has gone, or was given up."""


class Wire:
    """The way to one reader. `flag` is set whenever there may be something to do: the reader has
    left, the server stops, or whatever else the teller has it set for."""

    def __init__(
        self, connection: Connection, receive: Receive, send: Send, deadline: float
    ) -> None:
        self.flag = asyncio.Event()
        self.stopping = False
        self._gone = False
        self._connection = connection
        self._receive = receive
        self._send = send
        self._deadline = deadline
        self._sending: asyncio.Timeout | None = None
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_at: float | None = None
        self._leaving: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        self._leaving = asyncio.create_task(self._until_left())
        self._connection.when_stopping(self._stop)
        try:
            headers = [(name.lower().encode(), text.encode()) for name, text in HEADERS.items()]
            await self._send({"type": "http.response.start", "status": 200, "headers": headers})
            yield
        finally:
            self._leaving.cancel()
            self._silence()

    async def send(self, data: bytes) -> None:
        """Returns when the reader has taken it, but for what the buffers hold. Raises `Left`; a
        reader that takes nothing until the deadline is cut off."""
        self.require_reader()
        if self._connection.is_known and self._connection.unsent() < _UNSENT:
            await self._send(_body(data))  # which does not wait now
            data = b""
        if data or self._connection.unsent() >= _UNSENT:
            await self._send_patiently(data)
        self.require_reader()

    async def wait(self, until: float) -> None:
        """Until the flag is set; at that time of the loop, or a moment before, it is."""
        # One alarm for many waits: most of them end by an event, long before it.
        if self._alarm_at != until:
            self._silence()
            self._alarm_at = until
            self._alarm = asyncio.get_running_loop().call_at(until, self._ring)
        await self.flag.wait()

    def _ring(self) -> None:
        self._alarm_at = None
        self.flag.set()

    async def end(self, data: bytes) -> None:
        """Sends the last of it and closes; whoever does not take it is cut off."""
        await self.send(data)
        await self._send(_body(b"", more=False))
        self._connection.abort_in(self._patience())

    def require_reader(self) -> None:
        if self._gone:
            raise Left

    async def _send_patiently(self, data: bytes) -> None:
        try:
            async with asyncio.timeout(self._patience()) as self._sending:
                await self._send(_body(data))
                if data:
                    # A server writes first, and waits before it writes again.
                    await self._send(_body(b""))
        except TimeoutError:
            await self._give_up()
        finally:
            self._sending = None

    def _silence(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()

    def _patience(self) -> float:
        return min(HURRIED, self._deadline) if self.stopping else self._deadline

    async def _until_left(self) -> None:
        with suppress(EarnestError):  # a body that is too long is as good as no reader
            while (await self._receive())["type"] != "http.disconnect":
                pass
        self._gone = True
        self.flag.set()

    def _stop(self) -> None:
        self.stopping = True
        self.flag.set()
        if self._sending is not None and not self._sending.expired():
            self._sending.reschedule(asyncio.get_running_loop().time() + self._patience())

    async def _give_up(self) -> None:
        log.info("stream.reader_stalled", seconds=self._patience())
        if self._connection.abort() and self._leaving is not None:
            # Who returned before the server noticed would seem to have forgotten the answer's end.
            await asyncio.wait({self._leaving}, timeout=HURRIED)
        raise Left


def _body(data: bytes, *, more: bool = True) -> Message:
    return {"type": "http.response.body", "body": data, "more_body": more}


Tell = Callable[[Wire], Awaitable[Ending]]
Farewell = Callable[[Ending], bytes]


class EventStream(Response):
    """An answer that stays open: `tell` sends on the wire what there is to be sent, and returns why
    it ends; `farewell` is the last that is said then."""

    media_type = MEDIA_TYPE

    def __init__(
        self, tell: Tell, *, deadline: float = SEND_DEADLINE, farewell: Farewell = stream_end
    ) -> None:
        super().__init__()
        self._tell = tell
        self._deadline = deadline
        self._farewell = farewell

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        wire = Wire(connection_of(scope), receive, send, self._deadline)
        request_id = scope.get("state", {}).get("request_id")
        try:
            async with wire.opened():
                ending = await self._tell(wire)
                await wire.end(self._farewell(ending))
                log.debug("stream.ended", reason=ending, request_id=request_id)
        except Left:
            log.debug("stream.left", request_id=request_id)


def busy_answer() -> EventStream:
    """For who asked for a stream that cannot be given now. A 503 would end an `EventSource` for
    ever; this sends it away for a while."""

    async def tell(_: Wire) -> Ending:
        return Ending.BUSY

    return EventStream(tell)
