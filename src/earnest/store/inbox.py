"""The inbox as rows: who may send, and which messages were handled."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from earnest.domain import canonical
from earnest.store.database import Database, Record, Tx
from earnest.store.statements import sql


@dataclass(frozen=True, slots=True)
class Source:
    """Who may send messages under a name; `handler` is the app's code that they go to."""

    scope_id: str
    name: str
    handler: str
    version: int
    old_until: datetime | None
    created_by: str
    created_at: datetime


async def put_source(
    tx: Tx, scope_id: str, name: str, handler: str, secret: bytes, created_by: str
) -> Source | None:
    """`None` when the name is taken, in whatever scope."""
    row = await tx.fetchrow(sql("put_source"), scope_id, name, handler, secret, created_by)
    return None if row is None else _as_source(row)


async def source_by_name(database: Database, name: str) -> tuple[Source, tuple[bytes, ...]] | None:
    """The source and the sealed secrets that are good now."""
    row = await database.fetchrow("source_by_name", name)
    if row is None:
        return None
    return _as_source(row), tuple(row["secrets"])


async def sources(database: Database, scope_id: str, after: str | None, limit: int) -> list[Source]:
    rows = await database.fetch("list_sources", scope_id, after, limit)
    return [_as_source(row) for row in rows]


async def rotate(
    tx: Tx, scope_id: str, name: str, secret: bytes, overlap: timedelta
) -> Source | None:
    row = await tx.fetchrow(sql("rotate_source_secret"), scope_id, name, secret, overlap)
    return None if row is None else _as_source(row)


async def sealed_with(tx: Tx, scope_id: str, name: str, secret: bytes) -> Source | None:
    """The source if it has this very secret: a sealed one is made once."""
    row = await tx.fetchrow(sql("source_sealed_with"), scope_id, name, secret)
    return None if row is None else _as_source(row)


async def remove_source(tx: Tx, scope_id: str, name: str) -> bool:
    return await tx.fetchrow(sql("remove_source"), scope_id, name) is not None


async def enter(tx: Tx, scope_id: str, source: str, message_id: str) -> bool:
    """Notes that the message is handled by this transaction. False when it was before; one that is
    just being handled is waited for."""
    return await tx.fetchrow(sql("enter_message"), scope_id, source, message_id) is not None


async def note_outcome(
    tx: Tx, scope_id: str, source: str, message_id: str, outcome: list[dict[str, Any]]
) -> None:
    data = canonical.encode(outcome)
    await tx.execute(sql("note_outcome"), scope_id, source, message_id, data)


async def find_entry(
    database: Database, scope_id: str, source: str, message_id: str
) -> Record | None:
    return await database.fetchrow("find_entry", scope_id, source, message_id)


async def prune(tx: Tx, older_than: timedelta, limit: int) -> int:
    return len(await tx.fetch(sql("prune_entries"), older_than, limit))


def _as_source(row: Record) -> Source:
    return Source(
        scope_id=row["scope_id"],
        name=row["name"],
        handler=row["handler"],
        version=row["version"],
        old_until=max(row["old_until"], default=None),
        created_by=row["created_by"],
        created_at=row["created_at"],
    )
