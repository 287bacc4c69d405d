"""Approvals as rows. Who may see one is decided in the query; what may be changed, by callers that
hold the lock of the run's execution."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from earnest.domain.approval import Approval, ApprovalStatus, Proposal
from earnest.domain.run import Run
from earnest.store import runs
from earnest.store.database import Database, Record, Tx
from earnest.store.statements import sql

Position = tuple[datetime, uuid.UUID]


@dataclass(frozen=True, slots=True)
class Eyes:
    """Who looks: everything of its scope (`all`), else what is addressed to one of its roles and
    what its own runs asked for (`proposer`; `None`: it has no runs)."""

    scope_id: str
    all: bool
    roles: frozenset[str]
    proposer: str | None


async def put(tx: Tx, scope_id: str, run_id: uuid.UUID, asked: Proposal) -> bool:
    """False when it was asked for before."""
    found = await tx.fetchval(
        sql("put_approval"), scope_id, asked.approval_id, run_id, asked.name, asked.operation_id,
        asked.effect, asked.data, asked.digest, asked.role, asked.expires_in, asked.proposer,
        asked.excludes_proposer,
    )  # fmt: skip
    return found is not None


async def find(source: Tx | Database, scope_id: str, approval_id: uuid.UUID) -> Approval | None:
    """For the engine itself, which may see all."""
    if isinstance(source, Database):
        row = await source.fetchrow("find_approval", scope_id, approval_id)
    else:
        row = await source.fetchrow(sql("find_approval"), scope_id, approval_id)
    return None if row is None else as_approval(row)


async def of_run(tx: Tx, scope_id: str, run_id: uuid.UUID) -> list[Approval]:
    return [as_approval(row) for row in await tx.fetch(sql("approvals_of"), scope_id, run_id)]


async def find_visible(
    source: Tx | Database, eyes: Eyes, approval_id: uuid.UUID
) -> Approval | None:
    asked = (eyes.scope_id, approval_id, eyes.all, sorted(eyes.roles), eyes.proposer)
    if isinstance(source, Database):
        row = await source.fetchrow("visible_approval", *asked)
    else:
        row = await source.fetchrow(sql("visible_approval"), *asked)
    return None if row is None else as_approval(row)


async def lock(tx: Tx, scope_id: str, approval_id: uuid.UUID) -> tuple[Approval, datetime] | None:
    """The approval, locked, and the database's clock read under that lock."""
    row = await tx.fetchrow(sql("lock_approval"), scope_id, approval_id)
    return None if row is None else (as_approval(row), row["now"])


async def count(tx: Tx, scope_id: str, run_id: uuid.UUID, more: int) -> None:
    """So many more of the run's approvals are pending."""
    await tx.execute(sql("count_undecided"), scope_id, run_id, more)


async def decide(
    tx: Tx, approval: Approval, status: ApprovalStatus, by: str, note: str, key: str | None
) -> Approval:
    """Only under its lock, while it is pending in that version. Raises `UniqueViolation` for a key
    that decided another one."""
    row = await tx.fetchrow(
        sql("decide_approval"), approval.scope_id, approval.approval_id, approval.version,
        status.value, by, note, key,
    )  # fmt: skip
    assert row is not None, "it is locked, and pending in that version"
    return as_approval(row)


async def expire(tx: Tx, scope_id: str, run_id: uuid.UUID) -> list[Approval]:
    """Those of the run whose time is over are expired now."""
    return [as_approval(row) for row in await tx.fetch(sql("expire_approvals"), scope_id, run_id)]


async def cancel(tx: Tx, scope_id: str, run_id: uuid.UUID) -> None:
    """The run's pending ones are closed; nobody decides them any more."""
    await tx.execute(sql("cancel_approvals"), scope_id, run_id)


async def listed(
    database: Database,
    eyes: Eyes,
    status: ApprovalStatus | None,
    after: Position | None,
    limit: int,
) -> list[Approval]:
    """A page of what these eyes see, oldest first."""
    at, approval_id = after or (None, None)
    wanted = None if status is None else status.value
    if not eyes.all and not eyes.roles:
        rows = await database.fetch(
            "list_approvals_of_proposer", eyes.scope_id, eyes.proposer, at, approval_id, limit,
            wanted,
        )  # fmt: skip
        return [as_approval(row) for row in rows]
    seen = (eyes.scope_id, eyes.all, sorted(eyes.roles), eyes.proposer, at, approval_id, limit)
    if status is ApprovalStatus.PENDING:
        rows = await database.fetch("list_pending_approvals", *seen)
    else:
        rows = await database.fetch("list_approvals", *seen, wanted)
    return [as_approval(row) for row in rows]


async def summaries(
    database: Database, scope_id: str, run_ids: Iterable[uuid.UUID]
) -> dict[uuid.UUID, Run]:
    """The runs of approvals that were seen, without inputs and outputs."""
    rows = await database.fetch("summaries_of", scope_id, sorted(set(run_ids)))
    return {row["run_id"]: runs.as_run(row) for row in rows}


def as_approval(row: Record) -> Approval:
    return Approval(
        scope_id=row["scope_id"],
        approval_id=row["approval_id"],
        run_id=row["run_id"],
        name=row["name"],
        operation_id=row["operation_id"],
        effect=row["effect"],
        proposal=row["proposal"],
        digest=row["digest"],
        role=row["role"],
        status=ApprovalStatus(row["status"]),
        version=row["version"],
        requested_at=row["requested_at"],
        expires_at=row["expires_at"],
        decided_by=row["decided_by"],
        decided_at=row["decided_at"],
        note=row["note"],
        decision_key=row["decision_key"],
        proposer=row["proposer"],
        excludes_proposer=row["excludes_proposer"],
        excluded=row["excluded"],
    )
