"""Publishing: a message for the outside is stored with the change that it tells, or not at all.

It is sent after the commit by a relay, at least once, to every sink of the scope that wants its
type. An app publishes inside its own hooks (`record`, `released`, an inbox handler) with the
transaction that these are given, and in a handler with `ctx.publish`.
"""

from __future__ import annotations

import uuid
from typing import Any, Protocol

from pydantic_core import to_jsonable_python

from earnest.domain import canonical, ids
from earnest.domain.errors import FencedOut, InvalidRequest, PayloadTooLarge
from earnest.domain.event import MAX_PAYLOAD_BYTES, is_app_type
from earnest.engine.process.engine import Engine
from earnest.engine.process.typed_json import misfit
from earnest.store import executions, messages
from earnest.store.database import Tx
from earnest.store.executions import Claimed


class Origin(Protocol):
    """Where a message comes from: an operation's `Call`, or a message of the inbox."""

    @property
    def scope_id(self) -> str: ...
    @property
    def run_id(self) -> uuid.UUID | None: ...


async def publish(tx: Tx, origin: Origin, type: str, payload: dict[str, Any]) -> str:
    """Stores a message in the transaction `tx`; returns its id, which receivers see as
    `webhook-id`. `origin` says in which scope, and of which run it is, if of any. Raises
    `InvalidRequest` and `PayloadTooLarge`."""
    check_type(type)
    message_id = ids.new_id()
    await messages.put(
        tx, origin.scope_id, message_id, type, origin.run_id, encode_payload(payload)
    )
    return ids.show("msg", message_id)


async def publish_owned(
    engine: Engine, claimed: Claimed, name: str, type: str, payload: bytes
) -> None:
    """Stores a message of an attempt, and remembers under `name` that it has. Raises
    `FencedOut`."""

    digest = canonical.digest(payload)

    async def work(tx: Tx) -> bool:
        locked = await executions.lock(tx, claimed.scope_id, [claimed.run_id])
        row = locked.get(claimed.run_id)
        if row is None or not row.owned_by(claimed.fence, claimed.owner_token):
            raise FencedOut(f"attempt {claimed.fence} no longer owns the run")
        run = (claimed.scope_id, claimed.run_id)
        if await messages.put_published(tx, *run, name, digest, claimed.fence):
            message_id = ids.published_message_id(claimed.run_id, name)
            await messages.put(tx, claimed.scope_id, message_id, type, claimed.run_id, payload)
        return True

    await engine.database.promise("publish", work)
    engine.bells.moved(claimed.run_id)


def check_type(type: str) -> None:
    """Raises `InvalidRequest` unless an app may publish this type."""
    if not is_app_type(type):
        raise InvalidRequest(
            f"{type[:80]!r} is no type for an app's message: use dotted lower-case words, "
            "none of the engine's own"
        )


def encode_payload(payload: dict[str, Any]) -> bytes:
    """The payload as it is stored. Raises `InvalidRequest` and `PayloadTooLarge`."""
    try:
        data = canonical.encode(to_jsonable_python(payload))
    except (canonical.NotJson, ValueError) as error:
        raise InvalidRequest(f"the message cannot be stored: {misfit(error)}") from error
    if len(data) > MAX_PAYLOAD_BYTES:
        raise PayloadTooLarge(f"a message's payload has at most {MAX_PAYLOAD_BYTES} bytes")
    return data
