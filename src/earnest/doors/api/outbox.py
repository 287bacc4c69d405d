"""The outbox over HTTP: what could not be delivered, and its replay."""

from __future__ import annotations

import uuid
from typing import Annotated

from fastapi import Query
from pydantic import Field
from starlette.responses import Response

from earnest.domain import ids
from earnest.domain.errors import InvalidRequest, NotFound
from earnest.doors.api import headers
from earnest.doors.api import shapes_of_messages as shapes
from earnest.doors.api.cursors import read_id
from earnest.doors.api.json_bodies import json_answer
from earnest.doors.api.listings import Listing
from earnest.doors.api.parameters import PageQuery, Text
from earnest.doors.api.routes import KEY_TAKEN, Answer, Routes
from earnest.doors.api.showing_messages import show_delivery
from earnest.doors.api.visit import Visiting
from earnest.doors.api.words import TYPE_ID
from earnest.engine.messages import dead_letters
from earnest.store.messages import DeliveryFilter

routes = Routes("messages")


class DeadLettersQuery(PageQuery):
    """Of one sink, of one type."""

    sink_id: Annotated[str, Field(pattern=TYPE_ID.format("sink"))] | None = None
    type: Text | None = None


@routes.get(
    "/v1/outbox/dead-letters",
    Answer(shapes.DeliveryPage),
    roles=dead_letters.MAY,
    seen_by=dead_letters.MAY,
    problems=(400,),
)
async def list_dead_letters(
    visit: Visiting, query: Annotated[DeadLettersQuery, Query()]
) -> Response:
    """List what could not be delivered, the oldest first; without what it says."""
    listing = Listing(visit, "dead letters", query)
    place = await listing.place()
    after = None if place is None else read_id(place[0])
    only = DeliveryFilter(_sink(query.sink_id), query.type)
    found = await dead_letters.dead_letters(visit.engine, visit.actor, only, after, listing.rows)
    return json_answer(await listing.page(found, show_delivery, lambda one: [one.delivery_id.hex]))


@routes.post(
    "/v1/outbox/dead-letters/{delivery_id}/replay",
    Answer(shapes.Delivery),
    roles=dead_letters.MAY,
    seen_by=dead_letters.MAY,
    problems=(400, 409),
    takes=(KEY_TAKEN,),
)
async def replay_dead_letter(visit: Visiting, delivery_id: str) -> Response:
    """Send a dead letter again, under the message id that it had.

    Harmless when repeated: what is no dead letter any more stays as it is.
    """
    headers.idempotency_key(visit.headers)
    wanted = ids.read("dlv", delivery_id)
    return json_answer(show_delivery(await dead_letters.replay(visit.engine, visit.actor, wanted)))


def _sink(text: str | None) -> uuid.UUID | None:
    try:
        return None if text is None else ids.read("sink", text)
    except NotFound as error:
        raise InvalidRequest("sink_id is the id of a sink, such as sink_01…") from error
