"""Messages on their way out, as rows: the outbox, and a delivery for each message and sink."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from earnest.store.database import Database, Record, Tx
from earnest.store.statements import sql


@dataclass(frozen=True, slots=True)
class Message:
    """Something to tell the outside. `seq` is there where it is an event of a run."""

    scope_id: str
    message_id: uuid.UUID
    type: str
    run_id: uuid.UUID | None
    seq: int | None
    payload: dict[str, Any]
    happened_at: datetime


@dataclass(frozen=True, slots=True)
class NewDelivery:
    """A message for one sink; `payload` is canonical JSON."""

    sink_id: uuid.UUID
    delivery_id: uuid.UUID
    message: Message
    payload: bytes


@dataclass(frozen=True, slots=True)
class Delivery:
    """A message on its way to one sink: `pending`, `delivered` or `dead`."""

    delivery_id: uuid.UUID
    sink_id: uuid.UUID
    sink_kind: str
    address: str
    message: Message
    state: str
    attempts: int
    due_at: datetime
    last_status: int | None
    last_error: str | None
    created_at: datetime
    ended_at: datetime | None


@dataclass(frozen=True, slots=True)
class Taken:
    """A delivery that was taken under `token`, with the sink's sealed secrets."""

    delivery: Delivery
    token: uuid.UUID
    secrets: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Follower:
    """A sink and how far in its scope's feed it is."""

    scope_id: str
    sink_id: uuid.UUID
    types: tuple[str, ...]
    position: int = 0


# ---- what is new -------------------------------------------------------------------------------


async def put(
    tx: Tx,
    scope_id: str,
    message_id: uuid.UUID,
    type_: str,
    run_id: uuid.UUID | None,
    payload: bytes,
) -> None:
    """Raises asyncpg's `ForeignKeyViolationError` for a run of another scope."""
    await tx.execute(sql("put_message"), scope_id, message_id, type_, run_id, payload)


async def put_published(
    tx: Tx, scope_id: str, run_id: uuid.UUID, name: str, digest: bytes, fence: int
) -> bool:
    """Remembers in the run that it has published this. False if it had before."""
    row = await tx.fetchrow(sql("put_published"), scope_id, run_id, name, digest, fence)
    return row is not None


async def take_new(tx: Tx, limit: int) -> list[Message]:
    """The oldest leave the outbox."""
    rows = await tx.fetch(sql("take_messages"), limit)
    return [
        Message(row["scope_id"], row["message_id"], row["type"], row["run_id"], None,
                row["payload"], row["created_at"])
        for row in rows
    ]  # fmt: skip


async def lock_sinks(tx: Tx, scope_ids: Sequence[str]) -> list[Follower]:
    """Who is told of what is new in these scopes; they stay to the end of the transaction."""
    rows = await tx.fetch(sql("lock_sinks"), scope_ids)
    return [Follower(row["scope_id"], row["sink_id"], tuple(row["types"])) for row in rows]


async def put_deliveries(tx: Tx, new: Sequence[NewDelivery]) -> None:
    messages = [one.message for one in new]
    await tx.execute(
        sql("put_deliveries"),
        [message.scope_id for message in messages],
        [one.sink_id for one in new],
        [one.delivery_id for one in new],
        [message.message_id for message in messages],
        [message.type for message in messages],
        [message.run_id for message in messages],
        [message.seq for message in messages],
        [one.payload for one in new],
        [message.happened_at for message in messages],
    )


# ---- following the feed ------------------------------------------------------------------------


async def has_followers(database: Database) -> bool:
    row = await database.fetchrow("has_feed_readers")
    return bool(row is not None and row["found"])


async def followers_behind(database: Database, backlog: int, limit: int) -> list[Follower]:
    """Sinks that the feed has more for, if less than `backlog` of theirs is pending."""
    rows = await database.fetch("sinks_behind", backlog, limit)
    return [
        Follower(row["scope_id"], row["sink_id"], tuple(row["types"]), row["position"])
        for row in rows
    ]


async def advance(tx: Tx, follower: Follower, position: int) -> bool:
    """False if somebody else was first."""
    row = await tx.fetchrow(
        sql("advance_sink"), follower.scope_id, follower.sink_id, follower.position, position
    )
    return row is not None


async def lowest_position_needed(tx: Tx, scope_id: str) -> int | None:
    """Up to which position the feed of a scope has been read by all who follow it: it must not be
    pruned beyond. `None`: nobody follows it."""
    position: int | None = await tx.fetchval(sql("lowest_position_needed"), scope_id)
    return position


# ---- taking and acknowledging ------------------------------------------------------------------


async def take(
    tx: Tx,
    token: uuid.UUID,
    lease: timedelta,
    *,
    per_sink: int,
    limit: int,
    under_way: dict[tuple[str, uuid.UUID], int],
) -> list[Taken]:
    """What is due, at most `per_sink` of one sink with what is `under_way` to it here."""
    rows = await tx.fetch(
        sql("take_deliveries"),
        lease,
        token,
        per_sink,
        limit,
        [sink_id for _, sink_id in under_way],
        [scope_id for scope_id, _ in under_way],
        list(under_way.values()),
    )
    return [
        Taken(
            as_delivery(row),
            token,
            tuple(one for one in row["secrets"] if one is not None),
        )
        for row in rows
    ]


async def ack(tx: Tx, taken: Taken, status: int | None) -> bool:
    """It arrived. False when somebody else has taken it since."""
    return await _end(tx, "ack_delivery", taken, status)


async def put_off(
    tx: Tx, taken: Taken, wait: timedelta, status: int | None, error: str | None
) -> bool:
    return await _end(tx, "put_off_delivery", taken, wait, status, error)


async def bury(tx: Tx, taken: Taken, status: int | None, error: str | None) -> bool:
    return await _end(tx, "bury_delivery", taken, status, error)


async def _end(tx: Tx, statement: str, taken: Taken, *arguments: Any) -> bool:
    delivery = taken.delivery
    row = await tx.fetchrow(
        sql(statement), delivery.message.scope_id, delivery.delivery_id, taken.token, *arguments
    )
    return row is not None


async def prune(tx: Tx, older_than: timedelta, limit: int) -> int:
    return len(await tx.fetch(sql("prune_deliveries"), older_than, limit))


# ---- looking on --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DeliveryFilter:
    """Which deliveries; `None` narrows nothing."""

    sink_id: uuid.UUID | None = None
    type: str | None = None


async def dead(
    database: Database, scope_id: str, only: DeliveryFilter, after: uuid.UUID | None, limit: int
) -> list[Delivery]:
    """Dead letters, the oldest first."""
    return await _listed(database, "dead_letters", scope_id, only, after, limit)


async def pending(
    database: Database, scope_id: str, only: DeliveryFilter, after: uuid.UUID | None, limit: int
) -> list[Delivery]:
    """What has not arrived yet, the oldest first."""
    return await _listed(database, "pending_deliveries", scope_id, only, after, limit)


async def of_sink(
    database: Database, scope_id: str, sink_id: uuid.UUID, before: uuid.UUID | None, limit: int
) -> list[Delivery]:
    """All that is kept of one sink, the newest first."""
    rows = await database.fetch("deliveries_of_sink", scope_id, sink_id, before, limit)
    return [as_delivery(row) for row in rows]


async def find(database: Database, scope_id: str, delivery_id: uuid.UUID) -> Delivery | None:
    row = await database.fetchrow("find_delivery", scope_id, delivery_id)
    return None if row is None else as_delivery(row)


async def replay(tx: Tx, scope_id: str, delivery_id: uuid.UUID) -> bool:
    """False for what is no dead letter."""
    return await tx.fetchrow(sql("replay_delivery"), scope_id, delivery_id) is not None


async def _listed(
    database: Database,
    statement: str,
    scope_id: str,
    only: DeliveryFilter,
    after: uuid.UUID | None,
    limit: int,
) -> list[Delivery]:
    rows = await database.fetch(statement, scope_id, only.sink_id, only.type, after, limit)
    return [as_delivery(row) for row in rows]


def as_delivery(row: Record) -> Delivery:
    return Delivery(
        delivery_id=row["delivery_id"],
        sink_id=row["sink_id"],
        sink_kind=row["kind"],
        address=row["address"],
        message=Message(
            row["scope_id"], row["message_id"], row["type"], row["run_id"], row["seq"],
            row["payload"], row["happened_at"],
        ),
        state=row["state"],
        attempts=row["attempts"],
        due_at=row["due_at"],
        last_status=row["last_status"],
        last_error=row["last_error"],
        created_at=row["created_at"],
        ended_at=row["ended_at"],
    )  # fmt: skip
