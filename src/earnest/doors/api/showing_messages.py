"""Webhooks, deliveries and sources as the JSON objects that people outside see."""

from __future__ import annotations

from earnest.domain import ids
from earnest.doors.api import shapes_of_messages as shapes
from earnest.store.inbox import Source
from earnest.store.messages import Delivery
from earnest.store.sinks import Sink


def show_webhook(sink: Sink) -> shapes.Webhook:
    return {
        "id": ids.show("sink", sink.sink_id),
        "url": sink.address,
        "types": list(sink.types),
        "description": sink.description,
        "state": sink.state,  # type: ignore[typeddict-item] # as the table has it
        "why": sink.why,
        "rotating_until": sink.old_until,
        "version": sink.version,
        "created_by": sink.created_by,
        "created_at": sink.created_at,
    }


def show_delivery(delivery: Delivery) -> shapes.Delivery:
    message = delivery.message
    return {
        "id": ids.show("dlv", delivery.delivery_id),
        "sink_id": ids.show("sink", delivery.sink_id),
        "message_id": ids.show("msg", message.message_id),
        "type": message.type,
        "run_id": None if message.run_id is None else ids.show("run", message.run_id),
        "seq": message.seq,
        "state": delivery.state,  # type: ignore[typeddict-item] # as the table has it
        "attempts": delivery.attempts,
        "due_at": delivery.due_at if delivery.state == "pending" else None,
        "last_status": delivery.last_status,
        "last_error": delivery.last_error,
        "happened_at": message.happened_at,
        "created_at": delivery.created_at,
        "ended_at": delivery.ended_at,
    }


def show_source(source: Source) -> shapes.Source:
    return {
        "name": source.name,
        "handler": source.handler,
        "rotating_until": source.old_until,
        "version": source.version,
        "created_by": source.created_by,
        "created_at": source.created_at,
    }
