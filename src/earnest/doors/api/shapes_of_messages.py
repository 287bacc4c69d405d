"""The bodies of answers about messages: webhooks, deliveries, and sources of the inbox. None holds
a secret but the one that brings a new one; none holds what a message says."""

from __future__ import annotations

from datetime import datetime
from typing import Literal, NotRequired

from typing_extensions import TypedDict

SinkState = Literal["active", "paused", "disabled"]
DeliveryState = Literal["pending", "delivered", "dead"]


class Webhook(TypedDict):
    """`why` says why it was disabled. Until `rotating_until` secrets of before sign, too."""

    id: str
    url: str
    types: list[str]
    description: str
    state: SinkState
    why: str | None
    rotating_until: datetime | None
    version: int
    created_by: str
    created_at: datetime


class NewWebhook(Webhook):
    """`secret` is there once, in the answer that made it, and in no repeated one."""

    secret: NotRequired[str]


class WebhookPage(TypedDict):
    items: list[Webhook]
    next_cursor: str | None


class Delivery(TypedDict):
    """A message on its way to one sink. `message_id` is what the receiver sees as `webhook-id`;
    `seq` is there where it is an event of the run. `due_at` is when it is tried next."""

    id: str
    sink_id: str
    message_id: str
    type: str
    run_id: str | None
    seq: int | None
    state: DeliveryState
    attempts: int
    due_at: datetime | None
    last_status: int | None
    last_error: str | None
    happened_at: datetime
    created_at: datetime
    ended_at: datetime | None


class DeliveryPage(TypedDict):
    items: list[Delivery]
    next_cursor: str | None


class Taken(TypedDict):
    """`repeated`: it was handled before, and nothing was done."""

    status: Literal["handled", "repeated"]


class Source(TypedDict):
    """Who may send messages to `/v1/inbox/{name}`; `handler` is the app's inbox that they go to.
    Until `rotating_until` secrets of before are taken, too."""

    name: str
    handler: str
    rotating_until: datetime | None
    version: int
    created_by: str
    created_at: datetime


class NewSource(Source):
    """`secret` is there once, in the answer that made it, and not if it was given."""

    secret: NotRequired[str]


class SourcePage(TypedDict):
    items: list[Source]
    next_cursor: str | None
