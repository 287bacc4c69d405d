"""The inbox over HTTP: where providers call in, and who may. A call carries no token: it is signed
by the Standard Webhooks rules with the secret of its source."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

from fastapi import Query, Request
from pydantic import Field
from starlette.responses import Response

from earnest.doors.api import shapes_of_messages as shapes
from earnest.doors.api.json_bodies import json_answer
from earnest.doors.api.listings import Listing
from earnest.doors.api.parameters import PageQuery, Strict
from earnest.doors.api.routes import Answer, Routes
from earnest.doors.api.showing_messages import show_source
from earnest.doors.api.visit import Api, Visiting
from earnest.doors.api.webhooks import ADMINS, OverlapSeconds
from earnest.engine.messages import receiving, sourcing
from earnest.engine.messages.sourcing import Sourced
from earnest.engine.messages.subscribing import OVERLAP

routes = Routes("inbox")

SourceName = Annotated[
    str, Field(strict=True, pattern="^[a-z0-9][a-z0-9_.-]*$", min_length=1, max_length=63)
]
Secret = Annotated[str, Field(strict=True, min_length=1, max_length=200)]


class SourceBody(Strict):
    """`handler` is the name of the app's inbox, the source's own if not given; `secret` is what the
    sender signs with, if it made one itself."""

    name: SourceName
    handler: Annotated[str, Field(strict=True, min_length=1, max_length=100)] | None = None
    secret: Secret | None = None


class SourceRotation(Strict):
    """For so long the secret of before is taken, too; `secret` is the new one, if the sender made
    it itself."""

    overlap_seconds: OverlapSeconds = int(OVERLAP.total_seconds())
    secret: Secret | None = None


@routes.signed("/v1/inbox/{source}", Answer(shapes.Taken), problems=(400, 401, 413, 500, 503))
async def receive_message(request: Request, source: str) -> Response:
    """Take a provider's message, signed by the Standard Webhooks rules.

    It is handled once: sent again, it is answered 200 and nothing is done. A source that is not
    there and a signature that is not right are answered alike. 503: send it again.
    """
    api: Api = request.app.state.api
    body = await request.body()
    fresh = await receiving.receive(api.engine, source, request.headers, body)
    return json_answer({"status": "handled" if fresh else "repeated"})


@routes.get(
    "/v1/inbox-sources", Answer(shapes.SourcePage), roles=ADMINS, seen_by=ADMINS, problems=(400,)
)
async def list_sources(visit: Visiting, query: Annotated[PageQuery, Query()]) -> Response:
    """List the scope's sources by name. No answer holds a secret."""
    listing = Listing(visit, "sources", query)
    place = await listing.place()
    after = None if place is None else str(place[0])
    found = await sourcing.sources(visit.engine, visit.actor, after, listing.rows)
    return json_answer(await listing.page(found, show_source, lambda one: [one.name]))


@routes.post(
    "/v1/inbox-sources",
    Answer(shapes.NewSource, 201),
    roles=ADMINS,
    seen_by=ADMINS,
    problems=(400, 409, 413, 415),
)
async def add_source(visit: Visiting, body: SourceBody) -> Response:
    """Add a source, which then sends to `/v1/inbox/{name}`. Names are shared by all scopes.

    A secret that was made here is in this answer and in no other.
    """
    made = await sourcing.add_source(
        visit.engine, visit.actor, body.name, body.handler or body.name, body.secret
    )
    return _new(made, 201)


@routes.post(
    "/v1/inbox-sources/{source_name}/rotate",
    Answer(shapes.NewSource),
    roles=ADMINS,
    seen_by=ADMINS,
    problems=(400, 413, 415),
)
async def rotate_source_secret(
    visit: Visiting, source_name: str, body: SourceRotation | None = None
) -> Response:
    """Change a source's secret. During the overlap the one before is taken, too."""
    asked = body or SourceRotation()
    overlap = timedelta(seconds=asked.overlap_seconds)
    made = await sourcing.rotate_source(
        visit.engine, visit.actor, source_name, overlap, asked.secret
    )
    return _new(made, 200)


@routes.delete("/v1/inbox-sources/{source_name}", Answer(None, 204), roles=ADMINS, seen_by=ADMINS)
async def remove_source(visit: Visiting, source_name: str) -> Response:
    """Remove a source: its messages are taken no more. What was handled stays known."""
    await sourcing.remove_source(visit.engine, visit.actor, source_name)
    return Response(status_code=204)


def _new(made: Sourced, status: int) -> Response:
    source = show_source(made.source)
    shown = {**source, "secret": made.secret} if made.secret else {**source}
    return json_answer(shown, status)
