"""Webhooks over HTTP: who is told what happens in a scope. Ruled by its admins."""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import Annotated, Literal

from fastapi import Query
from pydantic import Field
from starlette.responses import Response

from earnest.domain import ids
from earnest.domain.errors import NotFound
from earnest.doors.api import headers
from earnest.doors.api import shapes_of_messages as shapes
from earnest.doors.api.cursors import read_id
from earnest.doors.api.json_bodies import json_answer
from earnest.doors.api.listings import Listing
from earnest.doors.api.parameters import PageQuery, Strict
from earnest.doors.api.routes import KEY_TAKEN, VERSION_TAKEN, Answer, Routes
from earnest.doors.api.showing_messages import show_delivery, show_webhook
from earnest.doors.api.visit import Visit, Visiting
from earnest.engine.messages import subscribing
from earnest.engine.messages.subscribing import (
    LONGEST_OVERLAP,
    OVERLAP,
    Subscribed,
    Subscription,
)
from earnest.engine.process.actors import Role
from earnest.store import messages, sinks
from earnest.store.sinks import Sink, SinkChange

routes = Routes("webhooks")

ADMINS = (Role.ADMIN,)
_ONE = Answer(shapes.Webhook, headers=("ETag",))
_NEW = Answer(shapes.NewWebhook, 201, headers=("ETag", "Location", "Idempotency-Replayed"))

TYPES = r"^(\*|[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)*(\.\*)?)$"
"""A type, all that begin alike, or everything."""

Url = Annotated[str, Field(strict=True, min_length=1, max_length=2000)]
Types = Annotated[
    list[Annotated[str, Field(strict=True, min_length=1, max_length=100, pattern=TYPES)]],
    Field(min_length=1, max_length=50),
]
Description = Annotated[str, Field(strict=True, max_length=500)]
OverlapSeconds = Annotated[int, Field(strict=True, ge=0, le=int(LONGEST_OVERLAP.total_seconds()))]


class WebhookBody(Strict):
    """Where to, and what of: types such as `run.succeeded`, all that begin alike (`refund.*`), or
    everything (`*`)."""

    url: Url
    types: Types
    description: Description = ""


class WebhookChange(Strict):
    """What is left out stays as it is. `paused`: everything waits; `disabled`: nothing does."""

    url: Url | None = None
    types: Types | None = None
    description: Description | None = None
    state: Literal["active", "paused", "disabled"] | None = None


class SecretRotation(Strict):
    """For so long the secret of before signs, too; 0: it ends at once."""

    overlap_seconds: OverlapSeconds = int(OVERLAP.total_seconds())


@routes.get(
    "/v1/webhooks", Answer(shapes.WebhookPage), roles=ADMINS, seen_by=ADMINS, problems=(400,)
)
async def list_webhooks(visit: Visiting, query: Annotated[PageQuery, Query()]) -> Response:
    """List the scope's webhooks, the oldest first. No answer holds a secret."""
    listing = Listing(visit, "webhooks", query)
    place = await listing.place()
    after = None if place is None else read_id(place[0])
    found = await sinks.listed(
        visit.engine.database, visit.actor.scope_id, "webhook", after, listing.rows
    )
    return json_answer(await listing.page(found, show_webhook, lambda one: [one.sink_id.hex]))


@routes.post(
    "/v1/webhooks",
    _NEW,
    roles=ADMINS,
    seen_by=ADMINS,
    problems=(400, 409, 413, 415, 429),
    takes=(KEY_TAKEN,),
)
async def add_webhook(visit: Visiting, body: WebhookBody) -> Response:
    """Add a webhook. It is told what happens from now on, signed with `secret` by the Standard
    Webhooks rules.

    The secret is in this answer and in no other. Sent again with the same key, the answer names the
    same webhook without it. An address that is not on the public internet is refused unless the
    deployment allows it.
    """
    asked = Subscription(body.url, body.types, body.description)
    made = await subscribing.add_webhook(visit.engine, visit.actor, asked, visit.key_of("webhooks"))
    return _new(made, 201)


@routes.get("/v1/webhooks/{webhook_id}", _ONE, roles=ADMINS, seen_by=ADMINS)
async def read_webhook(visit: Visiting, webhook_id: str) -> Response:
    """Read a webhook."""
    return _one(await _find(visit, webhook_id))


@routes.patch(
    "/v1/webhooks/{webhook_id}",
    _ONE,
    roles=ADMINS,
    seen_by=ADMINS,
    problems=(400, 412, 413, 415),
    takes=(VERSION_TAKEN,),
)
async def change_webhook(visit: Visiting, webhook_id: str, body: WebhookChange) -> Response:
    """Change a webhook. With `If-Match`, only if it is still as it was read."""
    found = await _find(visit, webhook_id)
    change = SinkChange(body.url, body.types, body.description, body.state)
    version = headers.expected_version(visit.headers)
    return _one(
        await subscribing.change_sink(visit.engine, visit.actor, found.sink_id, change, version)
    )


@routes.delete("/v1/webhooks/{webhook_id}", Answer(None, 204), roles=ADMINS, seen_by=ADMINS)
async def remove_webhook(visit: Visiting, webhook_id: str) -> Response:
    """Remove a webhook with all that waits for it."""
    found = await _find(visit, webhook_id)
    await subscribing.remove_sink(visit.engine, visit.actor, found.sink_id)
    return Response(status_code=204)


@routes.post(
    "/v1/webhooks/{webhook_id}/rotate",
    Answer(shapes.NewWebhook, headers=("ETag",)),
    roles=ADMINS,
    seen_by=ADMINS,
    problems=(400, 413, 415),
)
async def rotate_webhook_secret(
    visit: Visiting, webhook_id: str, body: SecretRotation | None = None
) -> Response:
    """Make a new secret for a webhook. It is in this answer and in no other.

    During the overlap messages carry a signature of each secret. If the answer was lost, ask again:
    secrets of before keep the time that they had.
    """
    found = await _find(visit, webhook_id)
    overlap = timedelta(seconds=(body or SecretRotation()).overlap_seconds)
    made = await subscribing.rotate_secret(visit.engine, visit.actor, found.sink_id, overlap)
    return _new(made, 200)


@routes.post(
    "/v1/webhooks/{webhook_id}/test",
    Answer(shapes.Delivery, 202),
    roles=ADMINS,
    seen_by=ADMINS,
    problems=(400, 409),
)
async def test_webhook(visit: Visiting, webhook_id: str) -> Response:
    """Send a webhook a message of the type `webhook.test`, on the way that all others take."""
    found = await _find(visit, webhook_id)
    sent = await subscribing.send_test(visit.engine, visit.actor, found.sink_id)
    delivery = await messages.find(visit.engine.database, visit.actor.scope_id, sent)
    assert delivery is not None, "it was stored just now and is kept for a while"
    return json_answer(show_delivery(delivery), 202)


@routes.get(
    "/v1/webhooks/{webhook_id}/deliveries",
    Answer(shapes.DeliveryPage),
    roles=ADMINS,
    seen_by=ADMINS,
    problems=(400,),
)
async def list_deliveries(
    visit: Visiting, webhook_id: str, query: Annotated[PageQuery, Query()]
) -> Response:
    """List what was and will be sent to a webhook, the newest first; without what it says."""
    found = await _find(visit, webhook_id)
    listing = Listing(visit, "deliveries", query, webhook_id=webhook_id)
    place = await listing.place()
    before = None if place is None else read_id(place[0])
    sent = await messages.of_sink(
        visit.engine.database, visit.actor.scope_id, found.sink_id, before, listing.rows
    )
    return json_answer(await listing.page(sent, show_delivery, lambda one: [one.delivery_id.hex]))


async def _find(visit: Visit, text: str) -> Sink:
    """Raises `NotFound`, also for a sink that is no webhook."""
    sink_id: uuid.UUID = ids.read("sink", text)
    found = await subscribing.find_sink(visit.engine, visit.actor, sink_id)
    if found.kind != "webhook":
        raise NotFound(f"no such webhook: {text[:80]!r}")
    return found


def _one(sink: Sink) -> Response:
    return json_answer(show_webhook(sink), headers={"ETag": f'"{sink.version}"'})


def _new(made: Subscribed, status: int) -> Response:
    webhook = show_webhook(made.sink)
    shown = {**webhook, "secret": made.secret} if made.secret else {**webhook}
    told = {"ETag": f'"{made.sink.version}"'}
    if status == 201:
        told["Location"] = f"/v1/webhooks/{webhook['id']}"
    if made.replayed:
        told["Idempotency-Replayed"] = "true"
    return json_answer(shown, status, told)
