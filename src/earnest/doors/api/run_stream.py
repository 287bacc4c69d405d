"""A run's events as they happen, over server-sent events.

A reader has a position, the last event it was given. What the run has after it is sent in order,
from the table and then live, without a seam. A position that cannot be gone on from is answered by
`resync_required` with the run as it stands, and the stream goes on from there. Who may read is
asked again at every heartbeat. What is sent, and when a stream ends, is here; the way to the reader
is `sse`'s, and where events come from is `engine.streaming`'s.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from itertools import accumulate, takewhile
from typing import Any

from pydantic import TypeAdapter
from starlette.datastructures import Headers
from starlette.responses import Response

from earnest.domain.errors import InvalidRequest, NotFound, Unauthenticated
from earnest.domain.run import Run
from earnest.doors.api import problems, shapes, sse
from earnest.doors.api.showing import show_run
from earnest.doors.api.sse import Ending, EventStream, Wire
from earnest.doors.api.streams import Life, Streams, show_position
from earnest.doors.api.visit import Visit
from earnest.engine import reading
from earnest.engine.epoch import POSITION_PATTERN, Position, read_position
from earnest.engine.streaming import PAGE_BYTES, Frame, Watch
from earnest.store import visible

CHUNK_BYTES = PAGE_BYTES
"""About so much is sent at once: this and the server's own buffer are what a reader may hold."""

_CHECK_WITHIN = 5.0  # seconds: with a heartbeat and a send before it, the 30 that are promised

_CONTROLS = {
    "heartbeat": shapes.Heartbeat,
    "resync_required": shapes.Resync,
    "stream_end": shapes.StreamEnd,
}


def item_schema() -> dict[str, Any]:
    """What a stream is made of, for OpenAPI: events of the run without a name, and named ones about
    the stream."""
    controls = [
        TypeAdapter(shape).json_schema(mode="serialization", ref_template=shapes.REFERENCE)
        for shape in _CONTROLS.values()
    ]
    for schema in controls:
        schema.pop("$defs", None)  # they are in the document already
    event = {"$ref": shapes.REFERENCE.format(model="Event")}
    data = {"contentMediaType": "application/json", "contentSchema": {"anyOf": [event, *controls]}}
    return {
        "type": "object",
        "required": ["data"],
        "properties": {
            "id": {"type": "string", "pattern": POSITION_PATTERN},
            "event": {"type": "string", "enum": list(_CONTROLS)},
            "data": {"type": "string", **data},
            "retry": {"type": "integer", "minimum": 0},
        },
    }


def position_asked(headers: Headers, after_seq: str) -> Position:
    """Where a reader goes on: `Last-Event-ID`, which a client sends by itself when it comes again,
    else the query's `after_seq`. Raises `InvalidRequest`."""
    given = headers.getlist("last-event-id")
    if len(given) > 1:
        raise InvalidRequest("there are two Last-Event-ID headers; send one")
    return read_position(given[0] if given else after_seq)


async def stream_events(visit: Visit, streams: Streams, run_id: str, at: Position) -> Response:
    """The answer: the stream, or 204 for who has everything of a run that has ended, so that an
    `EventSource` stops coming again. Raises `NotFound`."""
    life = await streams.life()
    run = await visit.run(run_id)
    # Whether what comes after it is still kept shows when it is read.
    is_known = at.is_of(life.epoch) and at.seq <= run.last_seq
    if is_known and run.final and at.seq == run.last_seq:
        return Response(status_code=204)
    reader = Reader(visit, streams, life, run, at.seq, resyncs=not is_known)
    deadline = streams.settings.send_deadline.total_seconds()
    return EventStream(reader.tell, deadline=deadline)


def first_kept(oldest: int | None, run: Run) -> int:
    """With none left the next one will be the first."""
    return run.last_seq + 1 if oldest is None else oldest


@dataclass(slots=True, eq=False)
class Reader:
    """One reader of one run. `after` is the last event it was given; `resyncs`: that is not one of
    this life of the database."""

    visit: Visit
    streams: Streams
    life: Life
    run: Run
    after: int
    resyncs: bool
    ended: bool = field(init=False)
    beat_at: float = field(init=False)
    end_at: float = field(init=False)

    async def tell(self, wire: Wire) -> Ending:
        """Sends what the reader is to know, until there is a reason to end."""
        actor = self.visit.actor
        try:
            with self.streams.places.take((actor.scope_id, actor.principal_id)) as seated:
                return await self._follow(wire) if seated else Ending.BUSY
        except (NotFound, Unauthenticated):
            return Ending.REVOKED
        except TimeoutError:
            return Ending.BUSY
        except Exception as error:
            if problems.is_busy(error):
                return Ending.BUSY
            raise

    async def _follow(self, wire: Wire) -> Ending:
        run, settings = self.run, self.streams.settings
        self.ended = run.final
        now = asyncio.get_running_loop().time()
        # Streams that were opened together do not beat together.
        self.beat_at = now + settings.heartbeat.total_seconds() * random.uniform(0.5, 1)
        shortest, longest = settings.shortest.total_seconds(), settings.longest.total_seconds()
        self.end_at = now + random.uniform(shortest, longest)
        with self.life.hub.watch(run.scope_id, run.run_id, run.last_seq, wire.flag) as watch:
            await wire.send(sse.retry())
            if self.resyncs:
                await self._resync(wire, watch)
            while (ending := await self._turn(wire, watch)) is None:
                pass
            return ending

    async def _turn(self, wire: Wire, watch: Watch) -> Ending | None:
        wire.flag.clear()  # before anything is looked at: what comes later sets it again
        wire.require_reader()
        if (ending := await self._keep_time(wire, watch)) is not None:
            return ending
        frames = watch.at_hand(self.after)
        if frames is None:
            frames = await watch.page(self.after, self.visit.actor.sees_only())
        if frames and frames[-1].seq == self.after + len(frames):
            await self._deliver(wire, frames)
        elif frames or watch.head > self.after:
            await self._resync(wire, watch)
        elif self.ended:
            return Ending.FINAL
        else:
            await wire.wait(min(self.beat_at, self.end_at))
        return None

    async def _keep_time(self, wire: Wire, watch: Watch) -> Ending | None:
        now = asyncio.get_running_loop().time()
        if wire.stopping:
            return Ending.SHUTDOWN
        if now >= self.end_at:
            return Ending.ROTATED
        if now >= self.beat_at:
            self.beat_at = now + self.streams.settings.heartbeat.total_seconds()
            return await self._beat(wire, watch)
        return None

    async def _beat(self, wire: Wire, watch: Watch) -> Ending | None:
        """Says that the stream lives, if its reader may still read and the database still leads the
        same life."""
        async with asyncio.timeout(_CHECK_WITHIN):
            self.visit = await self.visit.again()
            _require_sees(self.visit, self.run)
            if await self.streams.life() is not self.life:
                return Ending.ROTATED
        told: shapes.Heartbeat = {"head_seq": max(watch.head, self.after)}
        await wire.send(sse.control("heartbeat", told))
        return None

    async def _deliver(self, wire: Wire, frames: list[Frame]) -> None:
        """As many as are sent at once: a reader that takes its time is still looked after."""
        chunk = _first_of(frames)
        await wire.send(b"".join(frame.data for frame in chunk))
        self.after = chunk[-1].seq
        self.ended = self.ended or any(frame.final for frame in chunk)

    async def _resync(self, wire: Wire, watch: Watch) -> None:
        """Gives the run as it stands, and a position to go on from."""
        actor, engine = self.visit.actor, self.visit.engine
        head = watch.head  # it may grow while the snapshot is on its way: that comes after it
        run = await reading.find_run(engine, actor, self.run.run_id)
        oldest = await visible.oldest_event(engine.database, self.visit.sight(run))
        told: shapes.Resync = {
            "status": "resync_required",
            "after_seq": self.after,
            "minimum_retained_seq": first_kept(oldest, run),
            "head_seq": run.last_seq,
            "snapshot": show_run(run),
        }
        await wire.send(
            sse.control("resync_required", told, show_position(self.life.epoch, run.last_seq))
        )
        # A head above the run's is of a database that was rolled back; its epoch ends it soon.
        self.after, self.ended = max(run.last_seq, head), run.final


def _require_sees(visit: Visit, run: Run) -> None:
    if visit.actor.sees_only() not in (None, run.principal_id):
        raise NotFound("not this actor's to see")


def _first_of(frames: list[Frame]) -> list[Frame]:
    """Those that are sent at once; one at least."""
    sizes = accumulate(len(frame.data) for frame in frames)
    fitting = sum(1 for _ in takewhile(lambda size: size <= CHUNK_BYTES, sizes))
    return frames[: max(fitting, 1)]
