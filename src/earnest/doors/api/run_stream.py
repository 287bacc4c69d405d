"""A run's events as they happen, over server-sent events.

A reader has a position, the last event it was given. What the run has after it is sent in order,
from the table and then live, without a seam. A position that cannot be gone on from is answered by
`resync_required` with the run as it stands, and the stream goes on from there. Who may read is
asked again at every heartbeat. What is sent, and when a stream ends, is here; the way to the reader
is `sse`'s, and where events come from is `engine.streaming`'s.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from starlette.datastructures import Headers
from starlette.responses import Response

from earnest.domain.errors import NotFound
from earnest.domain.run import Run
from earnest.doors.api import shapes, sse
from earnest.doors.api.frames import UNNAMED, Frames
from earnest.doors.api.headers import last_event_id
from earnest.doors.api.reader import Reader, first_of
from earnest.doors.api.showing import show_run_snapshot
from earnest.doors.api.sse import Ending, EventStream, Wire
from earnest.doors.api.streams import Streams, show_position
from earnest.doors.api.visit import Visit
from earnest.engine.process.epoch import POSITION_PATTERN, Position, read_position
from earnest.engine.runs import reading
from earnest.engine.streams.streaming import Watch
from earnest.engine.streams.tails import Frame
from earnest.store import visible

FRAMES = Frames(
    {
        UNNAMED: shapes.Event,
        "heartbeat": shapes.Heartbeat,
        "resync_required": shapes.Resync,
        "stream_end": shapes.StreamEnd,
    },
    (UNNAMED, "resync_required"),
    POSITION_PATTERN,
    "kq3v7d2m4n5p-3",
)


def position_asked(headers: Headers, after_seq: str) -> Position:
    """Where a reader goes on: `Last-Event-ID`, which a client sends by itself when it comes again,
    else the query's `after_seq`. Raises `InvalidRequest`."""
    given = last_event_id(headers)
    return read_position(after_seq if given is None else given)


async def stream_events(visit: Visit, streams: Streams, run_id: str, at: Position) -> Response:
    """The answer: the stream, or 204 for who has everything of a run that has ended, so that an
    `EventSource` stops coming again. Raises `NotFound`."""
    life = await streams.life()
    run = await visit.run(run_id)
    # Whether what comes after it is still kept shows when it is read.
    is_known = at.is_of(life.epoch) and at.seq <= run.last_seq
    if is_known and run.final and at.seq == run.last_seq:
        return Response(status_code=204)
    reader = RunReader(visit, streams, life, run, at.seq, resyncs=not is_known)
    deadline = streams.settings.send_deadline.total_seconds()
    return EventStream(reader.tell, deadline=deadline)


def first_kept(oldest: int | None, run: Run) -> int:
    """With none left the next one will be the first."""
    return run.last_seq + 1 if oldest is None else oldest


@dataclass(slots=True, eq=False)
class RunReader(Reader[Watch, list[Frame]]):
    """One reader of one run. `after` is the last event it was given; `resyncs`: that is not one of
    this life of the database. `head` is the newest event that is known here."""

    run: Run
    after: int
    resyncs: bool
    ended: bool = field(init=False, default=False)
    head: int = field(init=False, default=0)

    async def follow(self, wire: Wire) -> Ending:
        run = self.run
        self.ended = run.final
        with self.life.hub.watch(run.scope_id, run.run_id, run.last_seq, wire.flag) as watch:
            await wire.send(sse.retry())
            if self.resyncs:
                await self._resync(wire, watch)
            return await self.take_turns(wire, watch)

    def at_hand(self, watch: Watch) -> list[Frame] | None:
        self.head = watch.head
        return watch.at_hand(self.after)

    async def page(self, watch: Watch) -> list[Frame]:
        return await watch.page(self.after, self.visit.actor.sees_only())

    async def take(self, wire: Wire, watch: Watch, page: list[Frame]) -> Ending | None:
        if page and page[-1].seq == self.after + len(page):
            await self._deliver(wire, page)
        elif page or watch.head > self.after:
            await self._resync(wire, watch)
        elif self.ended:
            return Ending.FINAL
        else:
            await self.rest(wire)
        return None

    def require_sees(self) -> None:
        if self.visit.actor.sees_only() not in (None, self.run.principal_id):
            raise NotFound("not this actor's to see")

    def heartbeat(self) -> bytes:
        told: shapes.Heartbeat = {"head_seq": max(self.head, self.after)}
        return sse.control("heartbeat", told)

    async def _deliver(self, wire: Wire, frames: list[Frame]) -> None:
        chunk = first_of(frames)
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
            "snapshot": show_run_snapshot(run),
        }
        await wire.send(
            sse.control("resync_required", told, show_position(self.life.epoch, run.last_seq))
        )
        # A head above the run's is of a database that was rolled back; its epoch ends it soon.
        self.after, self.ended = max(run.last_seq, head), run.final
