"""The scope's feed over HTTP: what happens to all runs that somebody may see, in one order."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Query
from starlette.responses import Response

from earnest.domain.errors import ResyncRequired
from earnest.doors.api import headers, shapes
from earnest.doors.api.feed_stream import (
    FRAMES,
    caught_up,
    is_known,
    position_of,
    stream_feed,
)
from earnest.doors.api.json_bodies import json_answer
from earnest.doors.api.parameters import FeedQuery
from earnest.doors.api.routes import LAST_EVENT_ID, MINE_OR_SCOPES, Answer, Routes
from earnest.doors.api.showing import show_event
from earnest.doors.api.streams import Streaming, Streams, show_position
from earnest.doors.api.visit import Visit, Visiting
from earnest.engine.process.epoch import read_position
from earnest.engine.streams.feeding import read_page
from earnest.store.feed import Bounds, Place

routes = Routes("events")


@routes.get(
    "/v1/events",
    Answer(shapes.FeedPage, items=FRAMES, ends=False),
    roles=MINE_OR_SCOPES,
    problems=(400, 410),
    takes=(LAST_EVENT_ID,),
)
async def read_feed(
    visit: Visiting, streams: Streaming, query: Annotated[FeedQuery, Query()]
) -> Response:
    """Read the events of all runs that you may see, in one order: as a page, or as they happen.

    Each run's events come in order and without a gap. A page: 410 when what comes after the cursor
    is no longer kept, or the cursor is not one of this database. With `Accept: text/event-stream` a
    stream of server-sent events, where that is told by an event `resync_required`; it has no end.
    """
    given = headers.last_event_id(visit.headers)
    if given is not None:
        read_position(given)
    if headers.wants_stream(visit.headers):
        return await stream_feed(visit, streams, query.cursor if given is None else given)
    return await _feed_page(visit, streams, query)


async def _feed_page(visit: Visit, streams: Streams, query: FeedQuery) -> Response:
    life = await streams.life()
    bounds = await caught_up(visit, life)
    at = position_of(query.cursor, bounds)
    place = Place(visit.actor.scope_id, visit.actor.sees_only(), at.seq)
    page = await read_page(visit.engine, place, query.limit)
    if page is None or not is_known(at, life, page.bounds):
        raise _resync(at.seq, bounds if page is None else page.bounds)
    full = len(page.fed) == query.limit
    reached = page.fed[-1].position if full else page.bounds.head
    cursor = show_position(life.epoch, reached)
    return json_answer(
        {
            "items": [show_event(fed.event) for fed in page.fed if fed.event is not None],
            "next_cursor": cursor if full else None,
            "cursor": cursor,
            "head_seq": page.bounds.head,
            "minimum_retained_seq": page.bounds.minimum,
        }
    )


def _resync(after: int, bounds: Bounds) -> ResyncRequired:
    fields: dict[str, Any] = {
        "after_seq": after,
        "minimum_retained_seq": bounds.minimum,
        "head_seq": bounds.head,
    }
    return ResyncRequired(
        f"what comes after {after} cannot be told without a gap: {bounds.minimum} to {bounds.head} "
        "are kept; read the runs that you follow anew and go on from head_seq",
        fields=fields,
    )
