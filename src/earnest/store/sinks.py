"""Sinks as rows: to whom a scope's messages are told."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from earnest.store.database import Database, Record, Tx
from earnest.store.statements import sql


@dataclass(frozen=True, slots=True)
class Sink:
    """Where messages of these types go. `old_until`: until when the last of the secrets
    before the present one signs, too."""

    scope_id: str
    sink_id: uuid.UUID
    kind: str
    address: str
    types: tuple[str, ...]
    description: str
    state: str
    why: str | None
    position: int
    old_until: datetime | None
    version: int
    created_by: str
    created_at: datetime
    fingerprint: bytes | None


@dataclass(frozen=True, slots=True)
class NewSink:
    scope_id: str
    sink_id: uuid.UUID
    kind: str
    address: str
    types: Sequence[str]
    description: str
    secret: bytes | None
    created_by: str
    key: str | None
    fingerprint: bytes | None


@dataclass(frozen=True, slots=True)
class SinkChange:
    """What is to be another; `None` leaves it."""

    address: str | None = None
    types: Sequence[str] | None = None
    description: str | None = None
    state: str | None = None


async def put(tx: Tx, new: NewSink) -> Sink | None:
    """The new sink; `None` when its key was used before."""
    row = await tx.fetchrow(
        sql("put_sink"), new.scope_id, new.sink_id, new.kind, new.address, list(new.types),
        new.description, new.secret, new.created_by, new.key, new.fingerprint,
    )  # fmt: skip
    return None if row is None else _as_sink(row)


async def by_key(tx: Tx, scope_id: str, created_by: str, key: str) -> Sink | None:
    row = await tx.fetchrow(sql("sink_by_key"), scope_id, created_by, key)
    return None if row is None else _as_sink(row)


async def find_in(tx: Tx, scope_id: str, sink_id: uuid.UUID) -> Sink | None:
    row = await tx.fetchrow(sql("find_sink"), scope_id, sink_id)
    return None if row is None else _as_sink(row)


async def find(database: Database, scope_id: str, sink_id: uuid.UUID) -> Sink | None:
    row = await database.fetchrow("find_sink", scope_id, sink_id)
    return None if row is None else _as_sink(row)


async def count(tx: Tx, scope_id: str, most: int) -> int:
    """How many a scope has; not counted beyond `most`."""
    return len(await tx.fetch(sql("list_sinks"), scope_id, None, None, most))


async def listed(
    database: Database, scope_id: str, kind: str | None, after: uuid.UUID | None, limit: int
) -> list[Sink]:
    """A page, the oldest first."""
    rows = await database.fetch("list_sinks", scope_id, kind, after, limit)
    return [_as_sink(row) for row in rows]


async def change(
    tx: Tx, scope_id: str, sink_id: uuid.UUID, version: int | None, to: SinkChange
) -> Sink | None:
    """The sink as it is then; `None` when it is not there in that version."""
    row = await tx.fetchrow(
        sql("change_sink"), scope_id, sink_id, version, to.address,
        None if to.types is None else list(to.types), to.description, to.state,
    )  # fmt: skip
    return None if row is None else _as_sink(row)


async def rotate(
    tx: Tx, scope_id: str, sink_id: uuid.UUID, secret: bytes, overlap: timedelta
) -> Sink | None:
    row = await tx.fetchrow(sql("rotate_sink_secret"), scope_id, sink_id, secret, overlap)
    return None if row is None else _as_sink(row)


async def disable(tx: Tx, scope_id: str, sink_id: uuid.UUID, why: str) -> None:
    """It is told nothing more; what waits for it becomes dead letters."""
    await tx.execute(sql("disable_sink"), scope_id, sink_id, why)


async def remove(tx: Tx, scope_id: str, sink_id: uuid.UUID) -> bool:
    return await tx.fetchrow(sql("remove_sink"), scope_id, sink_id) is not None


def _as_sink(row: Record) -> Sink:
    return Sink(
        scope_id=row["scope_id"],
        sink_id=row["sink_id"],
        kind=row["kind"],
        address=row["address"],
        types=tuple(row["types"]),
        description=row["description"],
        state=row["state"],
        why=row["why"],
        position=row["position"],
        old_until=max(row["old_until"], default=None),
        version=row["version"],
        created_by=row["created_by"],
        created_at=row["created_at"],
        fingerprint=row["fingerprint"],
    )
