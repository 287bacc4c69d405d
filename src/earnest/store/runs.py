"""Runs as rows: writing what was asked, reading how it stands."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any

from msgspec import Struct

from earnest.domain import canonical, ids
from earnest.domain.run import Attempt, AttemptOutcome, NewRun, Run, RunStatus
from earnest.store.database import Database, Record, Tx
from earnest.store.statements import sql


class Lineage(Struct, frozen=True):
    """Where a run stands among its revisions; a first revision is its own lineage."""

    lineage_id: uuid.UUID
    revision: int = 1
    retry_of: uuid.UUID | None = None
    retried_by: str | None = None


async def insert(tx: Tx, new: NewRun, lineage: Lineage, *, fails_on_doubt: bool) -> Run | None:
    """Writes run, execution and first event in one statement, and returns the run. `None` when the
    key, the id or the revision exist already."""
    row = await tx.fetchrow(
        sql("submit_run"),
        new.scope_id,
        new.run_id,
        new.kind,
        new.lane,
        new.principal_id,
        new.idempotency_key,
        new.fingerprint,
        new.input,
        canonical.encode(new.context) if new.context else b"{}",
        canonical.encode(new.labels) if new.labels else b"{}",
        new.conversation_id,
        new.parent_run_id,
        new.child_name,
        new.detached,
        lineage.lineage_id,
        lineage.revision,
        lineage.retry_of,
        new.traceparent,
        new.not_before,
        new.priority,
        new.max_attempts,
        fails_on_doubt,
        new.deadline,
        _told_of_first(new.kind, new.lane)
        if lineage.retry_of is None
        else _told_of_retry(new, lineage.retry_of, lineage.revision),
        lineage.retried_by,
    )
    return None if row is None else _as_submitted(new, lineage, row)


@lru_cache(maxsize=1024)
def _told_of_first(kind: str, lane: str) -> bytes:
    return canonical.encode({"kind": kind, "lane": lane})


def _told_of_retry(new: NewRun, retry_of: uuid.UUID, revision: int) -> bytes:
    told = {"kind": new.kind, "lane": new.lane, "retry_of": ids.show("run", retry_of)}
    return canonical.encode({**told, "revision": revision})


def _as_submitted(new: NewRun, lineage: Lineage, row: Record) -> Run:
    """A run as it stands right after its submit; saves reading it back."""
    return Run(
        scope_id=new.scope_id,
        run_id=new.run_id,
        kind=new.kind,
        lane=new.lane,
        status=RunStatus.QUEUED,
        version=1,
        revision=lineage.revision,
        lineage_id=lineage.lineage_id,
        retry_of=lineage.retry_of,
        conversation_id=new.conversation_id,
        parent_run_id=new.parent_run_id,
        principal_id=new.principal_id,
        priority=new.priority,
        attempt=0,
        failures=0,
        max_attempts=new.max_attempts,
        input=canonical.decode(new.input),
        output=None,
        error=None,
        context=new.context,
        labels=new.labels,
        waiting_on=None,
        due_at=row["due_at"],
        retry_at=None,
        deadline_at=row["deadline_at"],
        cancel_requested=False,
        in_doubt=0,
        last_seq=1,
        created_at=row["created_at"],
        started_at=None,
        finished_at=None,
    )


async def insert_many(tx: Tx, runs: Sequence[NewRun], *, fails_on_doubt: bool) -> set[uuid.UUID]:
    """Writes many runs of one kind, scope and principal in one statement; returns the ids that are
    new. Priorities, labels and the like are what a run has without being given any."""
    if not runs:
        return set()
    first = runs[0]
    rows = await tx.fetch(
        sql("submit_runs"),
        first.scope_id,
        first.principal_id,
        first.kind,
        first.lane,
        first.max_attempts,
        fails_on_doubt,
        first.deadline,
        [new.run_id for new in runs],
        [new.idempotency_key for new in runs],
        [new.fingerprint for new in runs],
        [new.input for new in runs],
    )
    return {row["run_id"] for row in rows}


async def find_by_key(
    tx: Tx, scope_id: str, principal_id: str, key: str
) -> tuple[uuid.UUID, bytes] | None:
    """The run that a principal made under this key, and the fingerprint of its request."""
    row = await tx.fetchrow(sql("find_run_by_key"), scope_id, principal_id, key)
    return None if row is None else (row["run_id"], row["fingerprint"])


async def newest_revision(tx: Tx, scope_id: str, lineage_id: uuid.UUID) -> tuple[uuid.UUID, int]:
    row = await tx.fetchrow(sql("newest_revision"), scope_id, lineage_id)
    assert row is not None, "a lineage has at least its first revision"
    return row["run_id"], row["revision"]


async def find(
    source: Tx | Database, scope_id: str, run_id: uuid.UUID, asked_by: str | None = None
) -> Run | None:
    """The run; with `asked_by` only if that principal asked for it."""
    if isinstance(source, Database):
        row = await source.fetchrow("find_run", scope_id, run_id, asked_by)
    else:
        row = await source.fetchrow(sql("find_run"), scope_id, run_id, asked_by)
    return None if row is None else as_run(row)


@dataclass(frozen=True, slots=True)
class RunFilter:
    """What a list is narrowed to; `None` means any. `search` is looked for in kind, conversation
    and the values of labels, in any case of letters."""

    principal_id: str | None = None
    status: str | None = None
    kind: str | None = None
    lane: str | None = None
    conversation_id: str | None = None
    labels: dict[str, str] | None = None
    created_after: datetime | None = None
    created_before: datetime | None = None
    search: str | None = None


async def listed(
    database: Database, scope_id: str, only: RunFilter, before: uuid.UUID | None, limit: int
) -> list[Run]:
    """A page, newest first, without inputs and outputs."""
    rows = await database.fetch(
        "list_runs",
        scope_id,
        only.principal_id,
        only.status,
        only.kind,
        only.lane,
        only.conversation_id,
        None if only.labels is None else canonical.encode(only.labels),
        only.created_after,
        only.created_before,
        before,
        limit,
        None if only.search is None else _containing(only.search),
    )
    return [as_run(row) for row in rows]


def _containing(text: str) -> str:
    """The LIKE pattern for any text that contains this one."""
    for letter in "\\%_":
        text = text.replace(letter, "\\" + letter)
    return f"%{text.lower()}%"


async def attempts(database: Database, scope_id: str, run_id: uuid.UUID) -> list[Attempt]:
    rows = await database.fetch("attempts_of", scope_id, run_id)
    return [as_attempt(row) for row in rows]


async def fingerprint(tx: Tx, scope_id: str, run_id: uuid.UUID) -> bytes | None:
    """The digest of what the run was asked to do; `None` when there is no such run."""
    found: bytes | None = await tx.fetchval(sql("fingerprint_of"), scope_id, run_id)
    return found


async def counts(database: Database, scope_id: str | None = None) -> dict[str, int]:
    rows = await database.fetch("count_runs", scope_id)
    return {row["status"]: row["runs"] for row in rows}


def as_attempt(row: Record) -> Attempt:
    return Attempt(
        run_id=row["run_id"],
        number=row["fence"],
        instance_id=row["instance_id"],
        started_at=row["started_at"],
        ended_at=row["ended_at"],
        outcome=AttemptOutcome(row["outcome"]) if row["outcome"] else None,
        error=row["error"],
    )


def as_run(row: Record) -> Run:
    status = RunStatus(row["status"])
    waiting: list[dict[str, Any]] | None = row["waiting_on"]
    return Run(
        scope_id=row["scope_id"],
        run_id=row["run_id"],
        kind=row["kind"],
        lane=row["lane"],
        status=status,
        version=row["version"],
        revision=row["revision"],
        lineage_id=row["lineage_id"],
        retry_of=row["retry_of"],
        conversation_id=row["conversation_id"],
        parent_run_id=row["parent_run_id"],
        principal_id=row["principal_id"],
        priority=row["priority"],
        attempt=row["fence"],
        failures=row["failures"],
        max_attempts=row["max_attempts"],
        input=row["input"],
        output=row["output"],
        error=row["error"],
        context=row["context"],
        labels=row["labels"],
        waiting_on=waiting,
        due_at=row["due_at"],
        retry_at=row["retry_at"],
        deadline_at=row["deadline_at"],
        cancel_requested=row["cancel_requested"],
        in_doubt=row["doubts"],
        last_seq=row["last_seq"],
        created_at=row["created_at"],
        started_at=row["started_at"],
        finished_at=row["finished_at"],
    )
