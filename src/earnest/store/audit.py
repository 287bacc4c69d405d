"""The audit as rows."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import datetime

from earnest.domain import canonical
from earnest.domain.audit import AuditEntry
from earnest.store.database import Database, Record, Tx
from earnest.store.statements import sql


@dataclass(frozen=True, slots=True)
class AuditFilter:
    """What of a scope's audit; `None` narrows nothing. From `since` on, before `until`."""

    action: str | None = None
    subject: str | None = None
    principal_id: str | None = None
    since: datetime | None = None
    until: datetime | None = None


async def put(
    tx: Tx,
    scope_id: str,
    entry_id: uuid.UUID,
    principal_id: str,
    token_id: str | None,
    action: str,
    subject: str,
    detail: dict[str, object],
    request_id: str | None,
) -> None:
    """Raises `canonical.NotJson` for a detail that cannot be stored."""
    data = canonical.encode(detail)
    await tx.execute(
        sql("put_audit"), scope_id, entry_id, principal_id, token_id, action, subject, data,
        request_id,
    )  # fmt: skip


async def listed(
    database: Database, scope_id: str, only: AuditFilter, before: uuid.UUID | None, limit: int
) -> list[AuditEntry]:
    """A page, newest first."""
    rows = await database.fetch(
        "list_audit", scope_id, only.action, only.subject, only.principal_id, only.since,
        only.until, before, limit,
    )  # fmt: skip
    return [_as_entry(row) for row in rows]


def _as_entry(row: Record) -> AuditEntry:
    return AuditEntry(**dict(row))
