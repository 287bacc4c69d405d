"""The parts of a run over HTTP, each a list: events, attempts, steps, operations."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Query
from starlette.responses import Response

from earnest.domain.errors import InvalidRequest, ResyncRequired
from earnest.domain.run import Run
from earnest.doors.api import headers, shapes
from earnest.doors.api.cursors import instant, read_id, read_instant
from earnest.doors.api.json_bodies import json_answer
from earnest.doors.api.listings import Listing
from earnest.doors.api.parameters import EventsQuery, PageQuery
from earnest.doors.api.routes import LAST_EVENT_ID, MINE_OR_SCOPES, Answer, Routes
from earnest.doors.api.run_stream import FRAMES, first_kept, position_asked, stream_events
from earnest.doors.api.showing import (
    show_attempt,
    show_event,
    show_operation,
    show_run_snapshot,
    show_step,
)
from earnest.doors.api.streams import Streaming, Streams
from earnest.doors.api.visit import Visit, Visiting
from earnest.engine.process.epoch import Position, read_position
from earnest.store import visible

routes = Routes("runs")

Page = Annotated[PageQuery, Query()]


@routes.get(
    "/v1/runs/{run_id}/events",
    Answer(shapes.EventPage, items=FRAMES),
    roles=MINE_OR_SCOPES,
    problems=(400, 410),
    takes=(LAST_EVENT_ID,),
)
async def list_events(
    visit: Visiting, streams: Streaming, run_id: str, query: Annotated[EventsQuery, Query()]
) -> Response:
    """Read a run's events after a number, in order and without a gap: as a page, or as they happen.

    A page: 410 when some of them are no longer kept, or the number is one that the run has not
    reached. With `Accept: text/event-stream` a stream of server-sent events, where that is told by
    an event `resync_required`; it goes on until the run has ended, and 204 says that it had.
    """
    at = position_asked(visit.headers, query.after_seq)
    if headers.wants_stream(visit.headers):
        if query.cursor is not None:
            raise InvalidRequest("a cursor is for pages; a stream goes on after `after_seq`")
        return await stream_events(visit, streams, run_id, at)
    return await _events_page(visit, streams, run_id, query)


async def _events_page(visit: Visit, streams: Streams, run_id: str, query: EventsQuery) -> Response:
    run = await visit.run(run_id)
    listing = Listing(visit, "events", query, run_id=run.run_id.hex)
    place = await listing.place()
    at = read_position(query.after_seq) if place is None else Position(int(place[0]))
    database, sight = visit.engine.database, visit.sight(run)
    oldest = first_kept(await visible.oldest_event(database, sight), run)
    of_today = at.epoch is None or at.is_of((await streams.life()).epoch)
    if not of_today or not oldest - 1 <= at.seq <= run.last_seq:
        raise _resync(run, at.seq, oldest)
    found = await visible.events(database, sight, at.seq, listing.rows)
    page = await listing.page(found, show_event, lambda event: [event.seq])
    head = max(run.last_seq, *(event.seq for event in found), 0)
    return json_answer({**page, "head_seq": head, "minimum_retained_seq": oldest})


@routes.get(
    "/v1/runs/{run_id}/attempts",
    Answer(shapes.AttemptPage),
    roles=MINE_OR_SCOPES,
    problems=(400,),
)
async def list_attempts(visit: Visiting, run_id: str, query: Page) -> Response:
    """List the attempts at a run, oldest first."""
    run = await visit.run(run_id)
    listing = Listing(visit, "attempts", query, run_id=run.run_id.hex)
    place = await listing.place()
    after = 0 if place is None else int(place[0])
    found = await visible.attempts(visit.engine.database, visit.sight(run), after, listing.rows)
    return json_answer(await listing.page(found, show_attempt, lambda made: [made.number]))


@routes.get(
    "/v1/runs/{run_id}/steps",
    Answer(shapes.StepPage),
    roles=MINE_OR_SCOPES,
    problems=(400,),
)
async def list_steps(visit: Visiting, run_id: str, query: Page) -> Response:
    """List the remembered steps of a run, oldest first."""
    run = await visit.run(run_id)
    listing = Listing(visit, "steps", query, run_id=run.run_id.hex)
    place = await listing.place()
    after = None if place is None else (read_instant(place[0]), str(place[1]))
    found = await visible.steps(visit.engine.database, visit.sight(run), after, listing.rows)
    return json_answer(
        await listing.page(found, show_step, lambda step: [instant(step.created_at), step.name])
    )


@routes.get(
    "/v1/runs/{run_id}/operations",
    Answer(shapes.OperationPage),
    roles=MINE_OR_SCOPES,
    problems=(400,),
)
async def list_run_operations(visit: Visiting, run_id: str, query: Page) -> Response:
    """List the operations of a run, oldest first, with what was asked about them."""
    run = await visit.run(run_id)
    listing = Listing(visit, "run operations", query, run_id=run.run_id.hex)
    place = await listing.place()
    after = None if place is None else (read_instant(place[0]), read_id(place[1]))
    database = visit.engine.database
    found = await visible.run_operations(database, visit.sight(run), after, listing.rows)
    asked = await visible.lookups(database, run.scope_id, [one.operation_id for one in found])
    return json_answer(
        await listing.page(
            found,
            lambda one: show_operation(one, asked.get(one.operation_id, ())),
            lambda one: [instant(one.created_at), one.operation_id.hex],
        )
    )


def _resync(run: Run, after: int, oldest: int) -> ResyncRequired:
    fields: dict[str, Any] = {
        "after_seq": after,
        "minimum_retained_seq": oldest,
        "head_seq": run.last_seq,
        "snapshot": show_run_snapshot(run),
    }
    return ResyncRequired(
        f"events after {after} cannot be told without a gap: {oldest} to {run.last_seq} are kept; "
        "take the snapshot and go on after its last_seq",
        fields=fields,
    )
