"""What every reader of a stream goes through, whatever is streamed.

A reader takes a place, hears at every heartbeat that the stream lives, is asked again then whether
it still may read, and is sent away after a while to come again. What it is told is the business of
each stream: `follow` sends it.
"""

from __future__ import annotations

import asyncio
import random
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import accumulate, takewhile
from typing import Generic, TypeVar

from earnest.domain.errors import NotFound, Unauthenticated
from earnest.doors.api import problems
from earnest.doors.api.sse import Ending, Wire
from earnest.doors.api.streams import Life, Streams
from earnest.doors.api.visit import Visit
from earnest.engine.streams.tails import PAGE_BYTES, Frame

CHUNK_BYTES = PAGE_BYTES
"""About so much is sent at once: this and the server's own buffer are what a reader may hold."""

_CHECK_WITHIN = 5.0  # seconds: with a heartbeat and a send before it, the 30 that are promised


WatchT = TypeVar("WatchT")
PageT = TypeVar("PageT")


@dataclass(slots=True, eq=False)
class Reader(ABC, Generic[WatchT, PageT]):
    """One reader of one stream, while the database leads one life. It takes turns: what is at hand
    in its watch is sent, else what the table has, and then it rests."""

    visit: Visit
    streams: Streams
    life: Life
    beat_at: float = field(init=False, default=0.0)
    end_at: float = field(init=False, default=0.0)

    @abstractmethod
    async def follow(self, wire: Wire) -> Ending:
        """Sends what the reader is to know, until there is a reason to end."""

    @abstractmethod
    def at_hand(self, watch: WatchT) -> PageT | None:
        """What is known beyond what the reader was given; `None` when the table must be asked."""

    @abstractmethod
    async def page(self, watch: WatchT) -> PageT | None:
        """The next of it from the table; `None` when there is nothing to be sent of it."""

    @abstractmethod
    async def take(self, wire: Wire, watch: WatchT, page: PageT) -> Ending | None:
        """Sends it, or rests where there is nothing to send; an ending if that was all."""

    @abstractmethod
    def require_sees(self) -> Ending | None:
        """Whether the visitor, looked at again, may go on. Raises `NotFound` if it may not; an
        ending sends it away to come again."""

    @abstractmethod
    def heartbeat(self) -> bytes:
        """The frame that says that the stream lives."""

    async def tell(self, wire: Wire) -> Ending:
        """Gives the reader a place if there is one, and follows."""
        actor = self.visit.actor
        try:
            with self.streams.places.take((actor.scope_id, actor.principal_id)) as seated:
                self._set_clocks()
                return await self.follow(wire) if seated else Ending.BUSY
        except (NotFound, Unauthenticated):
            return Ending.REVOKED
        except TimeoutError:
            return Ending.BUSY
        except Exception as error:
            if problems.is_busy(error):
                return Ending.BUSY
            raise

    async def take_turns(self, wire: Wire, watch: WatchT) -> Ending:
        """Until there is a reason to end."""
        while (ending := await self._turn(wire, watch)) is None:
            pass
        return ending

    async def _turn(self, wire: Wire, watch: WatchT) -> Ending | None:
        wire.flag.clear()  # before anything is looked at: what comes later sets it again
        wire.require_reader()
        page = self.at_hand(watch)
        if (ending := await self.keep_time(wire)) is not None:
            return ending
        if page is None:
            async with self.turn() as is_mine:
                page = await self.page(watch) if is_mine else None
        return None if page is None else await self.take(wire, watch, page)

    async def keep_time(self, wire: Wire) -> Ending | None:
        """To be called before each piece that is sent."""
        now = asyncio.get_running_loop().time()
        if wire.stopping:
            return Ending.SHUTDOWN
        if now >= self.end_at:
            return Ending.ROTATED
        if now >= self.beat_at:
            self.beat_at = now + self.streams.settings.heartbeat.total_seconds()
            return await self._beat(wire)
        return None

    async def rest(self, wire: Wire) -> None:
        """Until there is something to do."""
        await wire.wait(min(self.beat_at, self.end_at))

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[bool]:
        """Whether it is this reader's turn to ask the table for what was before; it is not when
        there is something else to do first."""
        try:
            async with asyncio.timeout_at(min(self.beat_at, self.end_at)):
                await self.streams.paging.acquire()
        except TimeoutError:
            yield False
            return
        try:
            yield True
        finally:
            self.streams.paging.release()

    def _set_clocks(self) -> None:
        settings, now = self.streams.settings, asyncio.get_running_loop().time()
        # Streams that were opened together do not beat together.
        self.beat_at = now + settings.heartbeat.total_seconds() * random.uniform(0.5, 1)
        shortest, longest = settings.shortest.total_seconds(), settings.longest.total_seconds()
        self.end_at = now + random.uniform(shortest, longest)

    async def _beat(self, wire: Wire) -> Ending | None:
        """Says that the stream lives, if its reader still may read and the database still leads the
        same life."""
        async with asyncio.timeout(_CHECK_WITHIN):
            self.visit = await self.visit.again()
            ending = self.require_sees()
            if ending is None and await self.streams.life() is not self.life:
                ending = Ending.ROTATED
        if ending is None:
            await wire.send(self.heartbeat())
        return ending


def first_of(frames: list[Frame]) -> list[Frame]:
    """Those that are sent at once; one at least. A reader that takes its time is looked after
    between two pieces."""
    sizes = accumulate(len(frame.data) for frame in frames)
    fitting = sum(1 for _ in takewhile(lambda size: size <= CHUNK_BYTES, sizes))
    return frames[: max(fitting, 1)]
