"""Log lines over HTTP: what handlers wrote for people, run by run."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from fastapi import Query
from pydantic import Field
from starlette.responses import Response
from typing_extensions import TypedDict

from earnest.domain import log_line
from earnest.doors.api.json_bodies import json_answer
from earnest.doors.api.listings import Listing
from earnest.doors.api.parameters import PageQuery
from earnest.doors.api.routes import MINE_OR_SCOPES, Answer, Routes
from earnest.doors.api.visit import Visiting
from earnest.store import logs

routes = Routes("runs")


class LogLine(TypedDict):
    """A line that the handler wrote; `number` counts within the attempt."""

    attempt: int
    number: int
    message: str
    fields: dict[str, Any]
    created_at: datetime


class LogPage(TypedDict):
    """`left_out` is how many lines were not kept because there were too many."""

    items: list[LogLine]
    next_cursor: str | None
    left_out: int


class LogsQuery(PageQuery):
    """Of one attempt, or of all."""

    attempt: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = None


@routes.get(
    "/v1/runs/{run_id}/logs",
    Answer(LogPage),
    roles=MINE_OR_SCOPES,
    problems=(400,),
)
async def list_logs(visit: Visiting, run_id: str, query: Annotated[LogsQuery, Query()]) -> Response:
    """List what the handler of a run wrote for people, oldest first.

    Lines are kept for some days, and of an attempt so many.
    """
    run = await visit.run(run_id)
    listing = Listing(visit, "logs", query, run_id=run.run_id.hex)
    place = await listing.place()
    after = (0, 0) if place is None else (int(place[0]), int(place[1]))
    database = visit.engine.database
    found = await logs.visible(database, visit.sight(run), after, query.attempt, listing.rows)
    page = await listing.page(found, show_log_line, lambda one: [one.attempt, one.number])
    left_out = await logs.left_out(database, run.scope_id, run.run_id, query.attempt)
    return json_answer({**page, "left_out": left_out})


def show_log_line(line: log_line.LogLine) -> LogLine:
    return {
        "attempt": line.attempt,
        "number": line.number,
        "message": line.message,
        "fields": line.fields,
        "created_at": line.created_at,
    }
