"""Operations as rows. Every move writes its line of history in the same transaction."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from earnest.domain import canonical, ids
from earnest.domain.errors import StaleVersion
from earnest.domain.operation import (
    EffectTerms,
    Lookup,
    LookupAnswer,
    Operation,
    OperationMove,
    OperationState,
    Recovery,
    ReleaseReason,
)
from earnest.store.database import Database, Record, Tx
from earnest.store.statements import sql


@dataclass(frozen=True, slots=True)
class NewOperation:
    """An intent about to be reserved. `request` is canonical JSON, `digest` its SHA-256."""

    scope_id: str
    operation_id: uuid.UUID
    run_id: uuid.UUID | None
    principal_id: str
    name: str
    terms: EffectTerms
    resource_key: str | None
    request: bytes
    digest: bytes
    fence: int
    approval_id: uuid.UUID | None = None


@dataclass(frozen=True, slots=True)
class Note:
    """Who moves an operation and why; kept in its history."""

    move: str
    by: str
    fence: int = 0
    detail: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class CallSeen:
    """A call as whoever waits for it sees it: the database's clock, and the process that makes it
    as the operating system of its host names it (empty where that is not known)."""

    operation: Operation
    now: datetime
    host: str
    process: str


async def reserve(tx: Tx, new: NewOperation, note: Note) -> bool:
    """False when the id exists already or the resource key has a live intent."""
    version = await tx.fetchval(
        sql("reserve_operation"),
        new.scope_id,
        new.operation_id,
        new.run_id,
        new.principal_id,
        new.name,
        new.terms.kind,
        new.terms.recovery.value,
        new.terms.provider,
        new.resource_key,
        new.terms.keeps_resource,
        new.request,
        new.digest,
        new.fence,
        new.terms.window,
        new.terms.dedupes,
        new.terms.absent_after,
        new.terms.timeout,
        new.terms.has_released_hook,
        new.approval_id,
    )
    if version is None:
        return False
    await _note(tx, new.scope_id, new.operation_id, version, OperationState.RESERVED, note)
    return True


async def lock(tx: Tx, scope_id: str, operation_id: uuid.UUID) -> tuple[Operation, datetime] | None:
    """The operation, locked, and the database's clock read under that lock."""
    row = await tx.fetchrow(sql("lock_operation"), scope_id, operation_id)
    return None if row is None else (as_operation(row), row["now"])


async def find(
    source: Tx | Database, scope_id: str, operation_id: uuid.UUID, asked_by: str | None = None
) -> Operation | None:
    """The operation; with `asked_by` only if it is that principal's."""
    if isinstance(source, Database):
        row = await source.fetchrow("find_operation", scope_id, operation_id, asked_by)
    else:
        row = await source.fetchrow(sql("find_operation"), scope_id, operation_id, asked_by)
    return None if row is None else as_operation(row)


async def watch_call(database: Database, scope_id: str, operation_id: uuid.UUID) -> CallSeen:
    """The operation, which must be there, and who made its last call."""
    row = await database.fetchrow("watch_call", scope_id, operation_id)
    assert row is not None, "operations are not removed while they are live"
    return CallSeen(as_operation(row), row["now"], row["host"], row["process"])


async def of_run(source: Tx | Database, scope_id: str, run_id: uuid.UUID) -> list[Operation]:
    if isinstance(source, Database):
        rows = await source.fetch("operations_of", scope_id, run_id)
    else:
        rows = await source.fetch(sql("operations_of"), scope_id, run_id)
    return [as_operation(row) for row in rows]


async def reserve_again(
    tx: Tx,
    operation: Operation,
    fence: int,
    note: Note,
    *,
    has_released_hook: bool = False,
    approval_id: uuid.UUID | None = None,
) -> None:
    """`approval_id`: from now on it needs that; what it needed before stays needed."""
    await _move(
        tx, operation, OperationState.RESERVED, note, "reserve_again", fence, has_released_hook,
        approval_id,
    )  # fmt: skip


async def need_approval(tx: Tx, operation: Operation, approval_id: uuid.UUID) -> None:
    """A reserved operation is not begun any more without it. That is no move."""
    await tx.execute(sql("need_approval"), operation.scope_id, operation.operation_id, approval_id)


async def begin(
    tx: Tx,
    operation: Operation,
    note: Note,
    *,
    send_token: uuid.UUID,
    instance_id: uuid.UUID | None,
    span: timedelta,
) -> None:
    await _move(
        tx,
        operation,
        OperationState.SUBMITTING,
        note,
        "begin_operation",
        note.fence,
        send_token,
        instance_id,
        span,
    )


async def confirm(
    tx: Tx,
    operation: Operation,
    note: Note,
    *,
    receipt: bytes,
    external_ref: str | None,
    resolution: dict[str, Any] | None,
) -> None:
    await _move(
        tx,
        operation,
        OperationState.SUBMITTED,
        note,
        "confirm_operation",
        receipt,
        external_ref,
        _json(resolution),
    )


async def release(
    tx: Tx,
    operation: Operation,
    note: Note,
    *,
    reason: ReleaseReason,
    refusal: dict[str, Any] | None = None,
    resolution: dict[str, Any] | None = None,
) -> None:
    await _move(
        tx,
        operation,
        OperationState.RELEASED,
        note,
        "release_operation",
        reason.value,
        _json(refusal),
        _json(resolution),
    )


async def doubt(tx: Tx, operation: Operation, note: Note, *, ask_in: timedelta | None) -> None:
    await _move(tx, operation, OperationState.UNKNOWN, note, "doubt_operation", ask_in)


async def free_resource(tx: Tx, operation: Operation, note: Note) -> None:
    """Gives the resource key free; harmless when it already is."""
    row = await tx.fetchrow(sql("free_resource"), operation.scope_id, operation.operation_id)
    if row is not None:
        await _note(
            tx,
            operation.scope_id,
            operation.operation_id,
            row["version"],
            OperationState.SUBMITTED,
            note,
        )


async def live_intent(tx: Tx, scope_id: str, kind: str, resource_key: str) -> uuid.UUID | None:
    found: uuid.UUID | None = await tx.fetchval(sql("live_intent"), scope_id, kind, resource_key)
    return found


async def take_due_questions(
    tx: Tx, kinds: Sequence[str], claim_for: timedelta, limit: int
) -> list[tuple[str, uuid.UUID]]:
    rows = await tx.fetch(sql("take_due_questions"), claim_for, kinds, limit)
    return [(row["scope_id"], row["operation_id"]) for row in rows]


async def note_lookup(
    tx: Tx, operation: Operation, answer: LookupAnswer, detail: str, ask_in: timedelta | None
) -> None:
    await tx.execute(
        sql("note_lookup"),
        operation.scope_id,
        operation.operation_id,
        operation.version,
        answer.value,
        detail[:2000],
        ask_in,
    )


async def note_final_lookup(
    tx: Tx, operation: Operation, answer: LookupAnswer, detail: str
) -> None:
    await tx.execute(
        sql("note_final_lookup"),
        operation.scope_id,
        operation.operation_id,
        answer.value,
        detail[:2000],
    )


async def put_finding(
    tx: Tx, operation: Operation, finding_id: uuid.UUID, kind: str, detail: dict[str, Any]
) -> None:
    """Harmless to repeat under the same id."""
    await tx.execute(
        sql("put_finding"),
        operation.scope_id,
        finding_id,
        operation.operation_id,
        kind,
        canonical.encode(detail),
    )


async def moves(database: Database, scope_id: str, operation_id: uuid.UUID) -> list[OperationMove]:
    rows = await database.fetch("moves_of", scope_id, operation_id)
    return [
        OperationMove(
            version=row["version"],
            move=row["move"],
            state=OperationState(row["state"]),
            attempt=row["fence"],
            by=row["by"],
            detail=row["detail"],
            at=row["created_at"],
        )
        for row in rows
    ]


async def lookups(database: Database, scope_id: str, operation_id: uuid.UUID) -> list[Lookup]:
    rows = await database.fetch("lookups_of", scope_id, operation_id)
    return [
        Lookup(row["number"], LookupAnswer(row["answer"]), row["detail"], row["created_at"])
        for row in rows
    ]


async def findings(
    database: Database, scope_id: str, operation_id: uuid.UUID
) -> list[dict[str, Any]]:
    rows = await database.fetch("findings_of", scope_id, operation_id)
    return [{"kind": row["kind"], "detail": row["detail"], "at": row["created_at"]} for row in rows]


Position = tuple[datetime, uuid.UUID]


async def listed(
    database: Database, scope_id: str, state: str | None, after: Position | None, limit: int
) -> list[Operation]:
    """A page, oldest first; the unknown ones by how long they have been so."""
    at, operation_id = after or (None, None)
    if state == OperationState.UNKNOWN:
        rows = await database.fetch("list_unknown_operations", scope_id, at, operation_id, limit)
    else:
        rows = await database.fetch("list_operations", scope_id, state, at, operation_id, limit)
    return [as_operation(row) for row in rows]


async def doubts_by_scope(database: Database) -> dict[str, int]:
    return {row["scope_id"]: row["doubts"] for row in await database.fetch("doubts_by_scope")}


async def _move(
    tx: Tx,
    operation: Operation,
    state: OperationState,
    note: Note,
    statement: str,
    *arguments: Any,
) -> None:
    version = await tx.fetchval(
        sql(statement),
        operation.scope_id,
        operation.operation_id,
        operation.version,
        *arguments,
    )
    if version is None:
        raise StaleVersion(
            f"operation {ids.show('op', operation.operation_id)} is {operation.state} in version "
            f"{operation.version} and cannot {note.move} now"
        )
    await _note(tx, operation.scope_id, operation.operation_id, version, state, note)


async def _note(
    tx: Tx,
    scope_id: str,
    operation_id: uuid.UUID,
    version: int,
    state: OperationState,
    note: Note,
) -> None:
    await tx.execute(
        sql("note_move"),
        scope_id,
        operation_id,
        version,
        note.move,
        state.value,
        note.fence,
        note.by,
        canonical.encode(note.detail or {}),
    )


def _json(value: Any) -> bytes | None:
    return None if value is None else canonical.encode(value)


def as_operation(row: Record) -> Operation:
    return Operation(
        scope_id=row["scope_id"],
        operation_id=row["operation_id"],
        run_id=row["run_id"],
        principal_id=row["principal_id"],
        name=row["name"],
        kind=row["kind"],
        state=OperationState(row["state"]),
        recovery=Recovery(row["recovery"]),
        provider=row["provider"],
        resource_key=row["resource_key"],
        live=row["live"],
        has_released_hook=row["has_released_hook"],
        approval_id=row["approval_id"],
        request=row["request"],
        digest=row["digest"],
        attempt=row["fence"],
        send_count=row["send_count"],
        send_token=row["send_token"],
        instance_id=row["instance_id"],
        window=row["send_window"],
        dedupes=row["dedupes"],
        absent_after=row["absent_after"],
        timeout=row["timeout"],
        first_begun_at=row["first_begun_at"],
        submitting_at=row["submitting_at"],
        call_until=row["call_until"],
        unknown_since=row["unknown_since"],
        submitted_at=row["submitted_at"],
        released_at=row["released_at"],
        release_reason=ReleaseReason(row["release_reason"]) if row["release_reason"] else None,
        refusal=row["refusal"],
        receipt=row["receipt"],
        external_ref=row["external_ref"],
        lookup_count=row["lookup_count"],
        lookup_due_at=row["lookup_due_at"],
        resolution=row["resolution"],
        version=row["version"],
        created_at=row["created_at"],
    )
