"""A scope's feed as it grows, over server-sent events: the events of many runs on one connection.

A reader has a position of the feed. An operator is told of all runs of its scope, a member of its
own; between two of them positions may be missing, those of others. The frames are those of a run's
stream, with the feed's position as `id`; a heartbeat has one too, so that a reader to whom nothing
happens keeps its place. What can no longer be told is told by `resync_required`, and the stream
goes on with what is new.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from starlette.responses import Response

from earnest.doors.api import shapes, sse
from earnest.doors.api.frames import UNNAMED, Frames
from earnest.doors.api.reader import Reader, first_of
from earnest.doors.api.sse import Ending, EventStream, Wire
from earnest.doors.api.streams import Life, Streams, show_position
from earnest.doors.api.visit import Visit
from earnest.engine.process.epoch import POSITION_PATTERN, Position, read_position
from earnest.engine.streams.feeding import FeedPage, FeedWatch
from earnest.store import feed
from earnest.store.feed import Bounds

NOW = "now"

# Seconds that somebody who asks waits for the feed to be caught up. While nobody watched it was not
# appended to; after a long time that may take longer, and the rest comes as it is found.
_PATIENCE = 5.0

FRAMES = Frames(
    {
        UNNAMED: shapes.Event,
        "heartbeat": shapes.FeedHeartbeat,
        "resync_required": shapes.FeedResync,
        "stream_end": shapes.StreamEnd,
    },
    (UNNAMED, "heartbeat", "resync_required"),
    POSITION_PATTERN,
    "kq3v7d2m4n5p-42",
)


def is_known(at: Position, life: Life, bounds: Bounds) -> bool:
    """Whether a reader can go on after that position without a gap."""
    return at.is_of(life.epoch) and bounds.minimum - 1 <= at.seq <= bounds.head


async def caught_up(visit: Visit, life: Life) -> Bounds:
    """What there is of the feed of the visitor's scope, with all that was committed before."""
    await life.feed.sequencer.catch_up(_PATIENCE)
    scope_id = visit.actor.scope_id
    return (await feed.bounds(visit.engine.database, [scope_id]))[scope_id]


def position_of(cursor: str | None, bounds: Bounds) -> Position:
    """Where a cursor begins; without one, before the oldest event that is kept."""
    if cursor is None:
        return Position(bounds.minimum - 1)
    return Position(bounds.head) if cursor == NOW else read_position(cursor)


async def stream_feed(visit: Visit, streams: Streams, cursor: str | None) -> Response:
    """The answer. Raises `NotFound` for who sees no runs."""
    life = await streams.life()
    bounds = await caught_up(visit, life)
    at = position_of(cursor, bounds)
    resyncs = not is_known(at, life, bounds)
    reader = FeedReader(visit, streams, life, bounds, visit.actor.sees_only(), at.seq, resyncs)
    deadline = streams.settings.send_deadline.total_seconds()
    return EventStream(reader.tell, deadline=deadline)


@dataclass(slots=True, eq=False)
class FeedReader(Reader[FeedWatch, FeedPage]):
    """One reader of one feed: of the runs that `asked_by` asked for, or of all. `after` is the last
    position it was given; `resyncs`: that is not one to go on from."""

    bounds: Bounds
    asked_by: str | None
    after: int
    resyncs: bool
    head: int = field(init=False, default=0)

    async def follow(self, wire: Wire) -> Ending:
        key = (self.visit.actor.scope_id, self.asked_by)
        self.head = self.bounds.head
        with self.life.feed.watch(key, self.bounds, wire.flag) as watch:
            await wire.send(sse.retry())
            if self.resyncs:
                await self._resync(wire)
            else:
                await wire.send(self.heartbeat())
            return await self.take_turns(wire, watch)

    def at_hand(self, watch: FeedWatch) -> FeedPage | None:
        self.head = watch.head
        return watch.at_hand(self.after)

    async def page(self, watch: FeedWatch) -> FeedPage:
        return await watch.page(self.after)

    async def take(self, wire: Wire, watch: FeedWatch, page: FeedPage) -> Ending | None:
        if page.broken:
            await self._resync(wire)
        elif page.frames:
            await self._deliver(wire, page)
        elif page.reached > self.after:
            self.after = page.reached  # what lies between is not this reader's
        else:
            await self.rest(wire)
        return None

    def require_sees(self) -> Ending | None:
        """Who sees more or less than before comes again for that."""
        return None if self.visit.actor.sees_only() == self.asked_by else Ending.ROTATED

    def heartbeat(self) -> bytes:
        told: shapes.FeedHeartbeat = {"head_seq": max(self.head, self.after)}
        return sse.control("heartbeat", told, show_position(self.life.epoch, self.after))

    async def _deliver(self, wire: Wire, page: FeedPage) -> None:
        chunk = first_of(page.frames)
        await wire.send(b"".join(frame.data for frame in chunk))
        self.after = chunk[-1].seq if len(chunk) < len(page.frames) else page.reached

    async def _resync(self, wire: Wire) -> None:
        """Gives a position to go on from: that of now."""
        scope_id = self.visit.actor.scope_id
        bounds = (await feed.bounds(self.visit.engine.database, [scope_id]))[scope_id]
        told: shapes.FeedResync = {
            "status": "resync_required",
            "after_seq": self.after,
            "minimum_retained_seq": bounds.minimum,
            "head_seq": bounds.head,
        }
        self.after = bounds.head
        await wire.send(
            sse.control("resync_required", told, show_position(self.life.epoch, self.after))
        )
