"""Sending one delivery to one sink: what every kind of sink gets, and what can come of it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, timedelta
from typing import Any, Protocol

from earnest.domain import canonical, ids
from earnest.engine.process.engine import Engine
from earnest.store.messages import Message, Taken


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one sending. `gone`: the sink wants nothing any more; `wait`: how long it asks
    to be left alone."""

    arrived: bool
    status: int | None = None
    error: str | None = None
    gone: bool = False
    wait: timedelta | None = None


class Sender(Protocol):
    """Sends to one kind of sink."""

    async def send(self, taken: Taken, seconds: float) -> Outcome:
        """One sending, over after so many seconds. What goes wrong at the sink is an outcome."""

    async def close(self) -> None:
        """Lets go of its connections."""


def as_body(message: Message) -> bytes:
    """What every sink gets of a message; the same bytes each time."""
    data: dict[str, Any] = dict(message.payload)
    if message.run_id is not None:
        data["run_id"] = ids.show("run", message.run_id)
    if message.seq is not None:
        data["seq"] = message.seq
    at = message.happened_at.astimezone(UTC).isoformat().replace("+00:00", "Z")
    return canonical.encode({"type": message.type, "timestamp": at, "data": data})


def make_sender(kind: str, engine: Engine) -> Sender:
    """A sender for sinks of that kind. What it stands on is imported now, and not by processes
    that send nothing."""
    if kind == "nats":
        from earnest.engine.messages.nats import NatsSender

        return NatsSender()
    from earnest.engine.messages.calling import WebhookSender

    return WebhookSender(engine.sealer)
