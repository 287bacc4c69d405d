"""Deciding: one person, one decision, about one exact request; the database says who was first.

A decision names the digest of what was looked at. Repeated it is harmless, contradicted or late it
is refused (P11). It is judged under the locks of the run's execution and of the approval, in that
order, by the database's clock; the decision, its event, the run that wakes and the audit's entry
are one transaction.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import datetime

from earnest.domain import ids
from earnest.domain.approval import DECIDED_AS, Approval, ApprovalStatus, Decision
from earnest.domain.canonical import storable
from earnest.domain.errors import (
    ApprovalExpired,
    Conflict,
    Forbidden,
    IdempotencyConflict,
    InvalidRequest,
    NotFound,
    PreconditionRequired,
    ProposalChanged,
    StaleVersion,
)
from earnest.engine.approvals.reading import eyes_of
from earnest.engine.approvals.requesting import approval_event
from earnest.engine.process import auditing
from earnest.engine.process.actors import Actor
from earnest.engine.process.doorbells import WORK
from earnest.engine.process.engine import Engine
from earnest.engine.runs import moving
from earnest.store import approvals, executions
from earnest.store.database import Tx, UniqueViolation
from earnest.store.executions import Execution

MAX_NOTE = 4000


@dataclass(frozen=True, slots=True)
class Verdict:
    """What somebody decided, and about what: `digest` is the SHA-256 of the proposal that they
    looked at, in hexadecimal digits."""

    decision: Decision
    digest: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class Decided:
    """The approval as it stands. `replayed`: it had been decided so before."""

    approval: Approval
    replayed: bool


async def decide(
    engine: Engine,
    actor: Actor,
    approval_id: uuid.UUID,
    verdict: Verdict,
    *,
    version: int | None,
    key: str | None = None,
) -> Decided:
    """Decides, or finds that it was decided so. While it is pending, `version` must be the one that
    was looked at (`PreconditionRequired`, `StaleVersion`).

    Raises `NotFound` for what the actor may not see, `Forbidden` for who lacks its role or is an
    excluded proposer, `ProposalChanged` for another digest, `ApprovalExpired`, `Conflict` for the
    other decision and for a run that has ended, `IdempotencyConflict` for a used key.
    """
    _check(verdict)

    async def work(tx: Tx) -> Decided:
        return await _decide(tx, actor, approval_id, verdict, version, key)

    try:
        decided = await engine.database.promise("decide", work)
    except UniqueViolation as error:
        raise IdempotencyConflict(f"the key {key!r} was used for another decision") from error
    engine.bells.ring(WORK)
    engine.bells.moved(decided.approval.run_id)
    return decided


async def _decide(
    tx: Tx,
    actor: Actor,
    approval_id: uuid.UUID,
    verdict: Verdict,
    version: int | None,
    key: str | None,
) -> Decided:
    seen = await approvals.find_visible(tx, eyes_of(actor), approval_id)
    if seen is None:
        raise NotFound("no such approval, or not this actor's to see")
    _require_entitled(actor, seen)
    # Which run it is of never changes.
    locked = await executions.lock(tx, actor.scope_id, [seen.run_id])
    found = await approvals.lock(tx, actor.scope_id, approval_id)
    assert found is not None, "approvals are kept with their run"
    approval, now = found
    _require_same(approval, verdict)
    if approval.status is not ApprovalStatus.PENDING:
        return _already(approval, locked[approval.run_id], verdict, actor, key)
    _require_open(approval, locked[approval.run_id], now)
    _require_version(approval, version)
    status = DECIDED_AS[verdict.decision]
    decided = await approvals.decide(tx, approval, status, actor.principal_id, verdict.note, key)
    await _tell(tx, locked, decided)
    await _keep(tx, actor, decided)
    return Decided(decided, replayed=False)


# ---- judging -----------------------------------------------------------------------------------


def _check(verdict: Verdict) -> None:
    if len(verdict.note) > MAX_NOTE or not storable(verdict.note):
        raise InvalidRequest(
            f"a note has at most {MAX_NOTE} characters, without NUL and halves of surrogate pairs"
        )


def _require_entitled(actor: Actor, approval: Approval) -> None:
    if approval.role not in actor.roles:
        raise Forbidden(f"this decision needs the role {approval.role}")
    own = approval.excludes_proposer and actor.principal_id == approval.proposer
    if own or actor.principal_id in approval.excluded:
        raise Forbidden(
            "whoever asked for the run or retried it may not decide about it: somebody else must"
        )


def _require_same(approval: Approval, verdict: Verdict) -> None:
    if verdict.digest.lower() != approval.digest.hex():
        raise ProposalChanged(
            "the digest is that of another proposal; look at the one that waits, and decide about "
            "that",
            fields={"digest": approval.digest.hex(), "version": approval.version},
        )


def _require_open(approval: Approval, run: Execution, now: datetime) -> None:
    """It is pending; time may have passed it by, and the engine not yet said so."""
    if run.final:
        raise _ended(approval, run)
    if approval.expires_at is not None and approval.expires_at <= now:
        raise _expired(approval)


def _require_version(approval: Approval, version: int | None) -> None:
    if version is None:
        raise PreconditionRequired("name the version that you looked at (If-Match)")
    if version != approval.version:
        raise StaleVersion(
            f"the approval is in version {approval.version} now; look at it again",
            fields={"version": approval.version},
        )


def _already(
    approval: Approval, run: Execution, verdict: Verdict, actor: Actor, key: str | None
) -> Decided:
    """The approval, if it was decided so."""
    if approval.status is ApprovalStatus.EXPIRED:
        raise _expired(approval)
    if approval.status is ApprovalStatus.CANCELLED:
        raise _ended(approval, run)
    same_key = key is not None and key == approval.decision_key
    own_key = same_key and approval.decided_by == actor.principal_id
    same = approval.status is DECIDED_AS[verdict.decision]
    if own_key and not (same and approval.note == verdict.note):
        raise IdempotencyConflict(f"the key {key!r} was used for another decision")
    if not same:
        raise Conflict(
            f"it was {approval.status} by {approval.decided_by} and stays so",
            fields={"status": approval.status.value},
        )
    return Decided(approval, replayed=own_key)


def _expired(approval: Approval) -> ApprovalExpired:
    return ApprovalExpired(
        "it could be decided until its time was over; a new run, or a new name, asks again",
        fields={"approval_id": ids.show("apr", approval.approval_id)},
    )


def _ended(approval: Approval, run: Execution) -> Conflict:
    shown = ids.show("run", approval.run_id)
    return Conflict(
        f"the run {shown} is {run.status}; there is nothing left to decide",
        fields={"run_status": run.status.value},
    )


# ---- what a decision brings with it ------------------------------------------------------------


async def _tell(tx: Tx, locked: moving.Locked, decided: Approval) -> None:
    """The event, and the run goes on if it waits for this."""
    event = approval_event("approval.decided", decided)
    await approvals.count(tx, decided.scope_id, decided.run_id, -1)
    await executions.touch(tx, decided.scope_id, decided.run_id, [event])
    await wake_if_waiting(tx, locked, decided)


async def wake_if_waiting(tx: Tx, locked: moving.Locked, told: Approval) -> None:
    """Only under the execution's lock, after the row was changed."""
    locked.update(await executions.lock(tx, told.scope_id, [told.run_id]))
    shown = ids.show("apr", told.approval_id)
    waits = locked[told.run_id].waiting_on or ()
    if any(wait.get("approval_id") == shown for wait in waits):
        why = {"kind": "approval", "name": told.name, "approval_id": shown}
        await moving.wake(tx, locked, told.run_id, why)


async def _keep(tx: Tx, actor: Actor, decided: Approval) -> None:
    told = {
        "status": decided.status.value,
        "digest": decided.digest.hex(),
        "name": decided.name,
        "run_id": ids.show("run", decided.run_id),
    }
    subject = ids.show("apr", decided.approval_id)
    await auditing.keep(tx, actor, "approval.decided", subject, told)
