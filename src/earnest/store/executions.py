"""Executions as rows: claiming, renewing and the guarded moves.

Callers lock first (`lock`), judge the locked rows, and then move them; a move names the version it
was judged on, so that a mistake in the order of things shows as `StaleVersion`, never as a lost
update.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from enum import Enum
from typing import Any

from msgspec import Struct

from earnest.domain import canonical
from earnest.domain.errors import StaleVersion
from earnest.domain.event import NewEvent
from earnest.domain.run import FINAL, AttemptOutcome, RunStatus
from earnest.store.database import Database, Record, Tx
from earnest.store.statements import sql

Key = tuple[str, uuid.UUID]


class Unwritten(Enum):
    """Why nothing was stored of what an owner wrote: the run is another's, or somebody sits on its
    row now."""

    FENCED = "fenced"
    BUSY = "busy"


class Execution(Struct, frozen=True):
    """A locked execution row, judged at `now` (the database's clock, read under the lock)."""

    scope_id: str
    run_id: uuid.UUID
    kind: str
    status: RunStatus
    version: int
    fence: int
    owner_token: uuid.UUID | None
    instance_id: uuid.UUID | None
    lease_until: datetime | None
    failures: int
    max_attempts: int
    fails_on_doubt: bool
    doubts: int
    reserved: int
    undecided: int
    cancel_requested: bool
    parent_run_id: uuid.UUID | None
    waiting_on: list[dict[str, Any]] | None
    wake_at: datetime | None
    deadline_at: datetime | None
    last_seq: int
    now: datetime

    @property
    def final(self) -> bool:
        return self.status in FINAL

    def owned_by(self, fence: int, owner_token: uuid.UUID) -> bool:
        """Running, under this fence and token, with a lease that has not run out."""
        return (
            self.status is RunStatus.RUNNING
            and self.fence == fence
            and self.owner_token == owner_token
            and self.lease_until is not None
            and self.lease_until > self.now
        )


class Claimed(Struct, frozen=True):
    """A run that this process has just claimed, with what its handler needs."""

    scope_id: str
    run_id: uuid.UUID
    kind: str
    lane: str
    fence: int
    owner_token: uuid.UUID
    parent_run_id: uuid.UUID | None
    failures: int
    max_attempts: int
    deadline_at: datetime | None
    input: Any
    principal_id: str
    context: dict[str, Any]
    labels: dict[str, str]
    conversation_id: str | None
    traceparent: str | None

    @property
    def key(self) -> Key:
        return (self.scope_id, self.run_id)


async def claim(
    tx: Tx,
    lane: str,
    kinds: Sequence[str],
    instance_id: uuid.UUID,
    lease: timedelta,
    limit: int,
) -> list[Claimed]:
    rows = await tx.fetch(sql("claim_runs"), lane, kinds, instance_id, lease, limit)
    return [as_claimed(row, row["fence"], row["owner_token"]) for row in rows]


def as_claimed(row: Record, fence: int, owner_token: uuid.UUID) -> Claimed:
    """A claimed run, from its row and the fence and token that it was claimed under."""
    return Claimed(
        scope_id=row["scope_id"],
        run_id=row["run_id"],
        kind=row["kind"],
        lane=row["lane"],
        fence=fence,
        owner_token=owner_token,
        parent_run_id=row["parent_run_id"],
        failures=row["failures"],
        max_attempts=row["max_attempts"],
        deadline_at=row["deadline_at"],
        input=row["input"],
        principal_id=row["principal_id"],
        context=row["context"] or {},
        labels=row["labels"] or {},
        conversation_id=row["conversation_id"],
        traceparent=row["traceparent"],
    )


async def lock(tx: Tx, scope_id: str, run_ids: Iterable[uuid.UUID]) -> dict[uuid.UUID, Execution]:
    """The executions of these runs, locked in order. Unknown ids are missing from the answer."""
    rows = await tx.fetch(sql("lock_executions"), scope_id, list(run_ids))
    return {row["run_id"]: _as_execution(row) for row in rows}


async def lock_with_parents(
    tx: Tx, scope_id: str, run_ids: Iterable[uuid.UUID]
) -> dict[uuid.UUID, Execution]:
    """These executions and those of their parents, locked in order."""
    rows = await tx.fetch(sql("lock_with_parents"), scope_id, list(run_ids))
    return {row["run_id"]: _as_execution(row) for row in rows}


async def family(tx: Tx, scope_id: str, run_id: uuid.UUID) -> set[uuid.UUID]:
    """The run and the runs below it that follow it when it is cancelled."""
    rows = await tx.fetch(sql("family_of"), scope_id, run_id)
    return {row["run_id"] for row in rows}


async def finish(
    tx: Tx,
    row: Execution,
    status: RunStatus,
    events: Sequence[NewEvent],
    *,
    output: bytes | None = None,
    error: dict[str, Any] | None = None,
    failures: int | None = None,
) -> None:
    moved = await tx.fetchrow(
        sql("finish_execution"),
        row.scope_id,
        row.run_id,
        row.version,
        status.value,
        output,
        _json(error),
        len(events),
        row.failures if failures is None else failures,
    )
    await _tell(tx, row, moved, events)


async def requeue(
    tx: Tx,
    row: Execution,
    events: Sequence[NewEvent],
    *,
    delay: timedelta = timedelta(0),
    failures: int | None = None,
    error: dict[str, Any] | None = None,
) -> None:
    moved = await tx.fetchrow(
        sql("requeue_execution"),
        row.scope_id,
        row.run_id,
        row.version,
        delay,
        len(events),
        row.failures if failures is None else failures,
        _json(error),
    )
    await _tell(tx, row, moved, events)


async def park(
    tx: Tx,
    row: Execution,
    events: Sequence[NewEvent],
    waiting_on: list[dict[str, Any]],
    wake_at: datetime | None,
) -> None:
    moved = await tx.fetchrow(
        sql("park_execution"),
        row.scope_id,
        row.run_id,
        row.version,
        canonical.encode(waiting_on),
        wake_at,
        len(events),
    )
    await _tell(tx, row, moved, events)


async def doubt(
    tx: Tx, row: Execution, events: Sequence[NewEvent], *, failures: int | None = None
) -> None:
    moved = await tx.fetchrow(
        sql("doubt_execution"),
        row.scope_id,
        row.run_id,
        row.version,
        len(events),
        row.failures if failures is None else failures,
    )
    await _tell(tx, row, moved, events)


async def ask_to_cancel(tx: Tx, row: Execution, events: Sequence[NewEvent]) -> None:
    moved = await tx.fetchrow(
        sql("ask_to_cancel"), row.scope_id, row.run_id, row.version, len(events)
    )
    await _tell(tx, row, moved, events)


async def touch(
    tx: Tx,
    scope_id: str,
    run_id: uuid.UUID,
    events: Sequence[NewEvent],
    *,
    doubts: int = 0,
    reserved: int = 0,
) -> None:
    """Events of an operation's move, and the counts; only under the row's lock."""
    moved = await tx.fetchrow(
        sql("touch_execution"), scope_id, run_id, len(events), doubts, reserved
    )
    assert moved is not None, "the execution is locked by this transaction"
    await append(tx, scope_id, run_id, moved["last_seq"] - len(events), events)


async def renew(tx: Tx, row: Execution, lease: timedelta) -> None:
    await tx.execute(sql("renew_lease"), row.scope_id, row.run_id, lease)


async def close_attempt(
    tx: Tx, row: Execution, outcome: AttemptOutcome, error: dict[str, Any] | None = None
) -> None:
    await tx.execute(
        sql("close_attempt"), row.scope_id, row.run_id, row.fence, outcome.value, _json(error)
    )


async def append(
    tx: Tx, scope_id: str, run_id: uuid.UUID, after: int, events: Sequence[NewEvent]
) -> None:
    if events:
        await tx.execute(
            sql("append_events"),
            scope_id,
            run_id,
            after,
            [event.type for event in events],
            [canonical.encode(event.payload) for event in events],
        )


async def active_among(tx: Tx, scope_id: str, run_ids: Sequence[uuid.UUID]) -> int:
    count: int = await tx.fetchval(sql("active_among"), scope_id, list(run_ids))
    return count


async def keys(database: Database, statement: str, *arguments: Any) -> list[Key]:
    """The (scope, run) pairs that one of the watching statements finds."""
    rows = await database.fetch(statement, *arguments)
    return [(row["scope_id"], row["run_id"]) for row in rows]


async def _tell(tx: Tx, row: Execution, moved: Record | None, events: Sequence[NewEvent]) -> None:
    if moved is None:
        raise StaleVersion(f"run {row.run_id} was moved since version {row.version} was read")
    await append(tx, row.scope_id, row.run_id, moved["last_seq"] - len(events), events)


def _json(value: Any) -> bytes | None:
    return None if value is None else canonical.encode(value)


def _as_execution(row: Record) -> Execution:
    return Execution(
        scope_id=row["scope_id"],
        run_id=row["run_id"],
        kind=row["kind"],
        status=RunStatus(row["status"]),
        version=row["version"],
        fence=row["fence"],
        owner_token=row["owner_token"],
        instance_id=row["instance_id"],
        lease_until=row["lease_until"],
        failures=row["failures"],
        max_attempts=row["max_attempts"],
        fails_on_doubt=row["fails_on_doubt"],
        doubts=row["doubts"],
        reserved=row["reserved"],
        undecided=row["undecided"],
        cancel_requested=row["cancel_requested"],
        parent_run_id=row["parent_run_id"],
        waiting_on=row["waiting_on"],
        wake_at=row["wake_at"],
        deadline_at=row["deadline_at"],
        last_seq=row["last_seq"],
        now=row["now"],
    )
