"""The audit: who decided, resolved, cancelled, retried, or changed who may come in.

An entry is written in the transaction of the change that it tells (P4), by the verb that makes it,
and only where something changed: a repetition leaves none. It holds no secret and no input (P21),
only what the change was.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

from earnest.domain import ids
from earnest.domain.audit import ACTION, AuditEntry
from earnest.engine.process.actors import Actor, Role
from earnest.engine.process.engine import Engine
from earnest.store import audit
from earnest.store.audit import AuditFilter
from earnest.store.database import Tx


async def keep(
    tx: Tx, actor: Actor, action: str, subject: str, detail: Mapping[str, Any] | None = None
) -> None:
    """Writes an entry into the actor's scope, in the caller's transaction. `action` is a noun and
    what happened to it (`run.cancelled`), `subject` the TypeID of what was changed or its noun and
    name (`principal ann`), `detail` a few plain values."""
    assert ACTION.fullmatch(action), f"an action reads noun.happened, not {action!r}"
    await audit.put(
        tx,
        actor.scope_id,
        ids.new_id(),
        actor.principal_id,
        actor.token_id,
        action,
        subject,
        dict(detail or {}),
        actor.request_id,
    )


async def entries(
    engine: Engine, actor: Actor, only: AuditFilter, before: uuid.UUID | None, limit: int
) -> list[AuditEntry]:
    """A page of the scope's entries, newest first. Raises `Forbidden` for who is no
    admin."""
    actor.require(Role.ADMIN)
    return await audit.listed(engine.database, actor.scope_id, only, before, limit)
