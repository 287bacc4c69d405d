"""Requesting: a run parks for a decision. What is put to people, its event and the parking are one
transaction, under the lock of the run's execution; so nobody can decide about a run that does not
wait yet, and a decision that came before a second parking is found by it (P25).
"""

from __future__ import annotations

from collections.abc import Sequence

from earnest.domain import ids
from earnest.domain.approval import Approval, ApprovalStatus, Proposal
from earnest.domain.event import NewEvent
from earnest.domain.run import Wait
from earnest.store import approvals
from earnest.store.database import Tx
from earnest.store.executions import Execution


async def request(
    tx: Tx, row: Execution, waits: Sequence[Wait]
) -> tuple[tuple[Wait, ...], list[NewEvent]]:
    """Puts to people what these waits ask for the first time. Returns the waits with the approvals
    that stand for them, and the events to tell. The caller holds the execution's lock and parks."""
    stand, events = [], []
    for wait in waits:
        if not isinstance(wait.approval, Proposal):
            stand.append(wait)
            continue
        is_new = await approvals.put(tx, row.scope_id, row.run_id, wait.approval)
        found = await approvals.find(tx, row.scope_id, wait.approval.approval_id)
        assert found is not None, "it was put there in this transaction, or before"
        stand.append(Wait("approval", name=found.name, approval=found))
        if is_new:
            events.append(approval_event("approval.requested", found))
    if events:
        await approvals.count(tx, row.scope_id, row.run_id, len(events))
    return tuple(stand), events


def is_decided(wait: Wait) -> bool:
    """Whether what a wait asks for is no longer open. By the row, which is read under the lock."""
    found = wait.approval
    return isinstance(found, Approval) and found.status is not ApprovalStatus.PENDING


def approval_event(type_: str, found: Approval) -> NewEvent:
    """What an event says of an approval: never what it is about (P21)."""
    told = {
        "approval_id": ids.show("apr", found.approval_id),
        "name": found.name,
        "role": found.role,
        "status": found.status.value,
    }
    if found.operation_id is not None:
        told["operation_id"] = ids.show("op", found.operation_id)
    if found.expires_at is not None and found.status is ApprovalStatus.PENDING:
        told["expires_at"] = found.expires_at.isoformat()
    if found.decided_by is not None:
        told["decided_by"] = found.decided_by
    return NewEvent(type_, told)
