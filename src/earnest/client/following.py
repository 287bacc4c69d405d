"""Following a stream of server-sent events over as many connections as it takes.

A connection is a loan: it breaks, is silent, or is ended by the server, which says when to come
again. A `Reader` knows what the frames of its stream mean and which place to go on from; the way
to the server is here.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Generic, Protocol, TypeVar

import httpx2
from httpx2 import EventSource, ServerSentEvent

from earnest.client.calling import AGAIN, Caller, Query
from earnest.client.patience import Patience
from earnest.domain.errors import Busy, EarnestError

ToldT_co = TypeVar("ToldT_co", covariant=True)
T = TypeVar("T")

MAX_FRAME = 1024 * 1024
"""Bytes of one frame; a stream with larger ones is not one of ours."""

_FAREWELLS = frozenset({"stream_end", "error"})


class Reader(Protocol[ToldT_co]):
    """`place` is the id to go on from, `query` what is asked for while there is none. `ended`:
    there is nothing more to come. `broken`: what came does not follow on what came before; only
    coming again helps."""

    path: str
    query: Query
    place: str
    ended: bool
    broken: bool

    def take(self, frame: ServerSentEvent) -> ToldT_co | None:
        """What the frame tells the caller, if it does."""


async def follow(
    caller: Caller, reader: Reader[T], patience: float | None = None
) -> AsyncGenerator[T, None]:
    """What the stream tells, until it ends. Raises what was refused; when there was no sign of life
    for as long as patience lasts, `Unreachable` or `Busy`."""
    trying = Patience(caller.patience if patience is None else patience, begun=False)
    while not reader.ended:
        connection = _Connection(caller, reader, trying)
        async with aclosing(connection.told()) as told:
            async for one in told:
                yield one
        if not reader.ended:
            await trying.pause(connection.failure, connection.retry)


class _Connection(Generic[T]):
    """One connection of a reader. When it is over, `failure` says why and `retry` after how many
    seconds the server wants to see the reader again."""

    def __init__(self, caller: Caller, reader: Reader[T], trying: Patience) -> None:
        self._caller = caller
        self._reader = reader
        self._trying = trying
        self.retry = 0.0
        self.failure: EarnestError = Busy("the stream was ended by the server; come again")

    async def told(self) -> AsyncGenerator[T, None]:
        reader = self._reader
        try:
            async with self._frames() as frames:
                async for frame in frames:
                    told = self._take(frame)
                    if told is not None:
                        yield told
                    if reader.ended or reader.broken:
                        return
        except httpx2.TransportError as error:
            self.failure = self._caller.unreachable(error)
        except EarnestError as error:
            if error.status not in AGAIN:
                raise
            self.failure, self.retry = error, error.fields.get("retry_after", 0.0)

    @asynccontextmanager
    async def _frames(self) -> AsyncIterator[AsyncIterator[ServerSentEvent]]:
        reader = self._reader
        reader.broken = False
        headers = {"Accept": "text/event-stream", "Cache-Control": "no-store"}
        if reader.place:
            headers["Last-Event-ID"] = reader.place
        query = {} if reader.place else reader.query
        async with self._caller.opened(reader.path, query=query, headers=headers) as answer:
            # No content: whoever was given everything has nothing to come back for.
            reader.ended = answer.status_code == 204
            yield _nothing() if reader.ended else aiter(EventSource(answer, MAX_FRAME))

    def _take(self, frame: ServerSentEvent) -> T | None:
        if frame.retry is not None:
            self.retry = max(frame.retry, 0) / 1000
        if not frame.data:
            return None
        told = self._reader.take(frame)
        if frame.event in _FAREWELLS:
            self.failure = Busy(f"the server ended the stream: {frame.data}")
        elif not self._reader.broken:
            self._trying.renew()
        return told


async def _nothing() -> AsyncIterator[ServerSentEvent]:
    return
    yield
