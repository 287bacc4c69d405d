"""Expiring: what nobody decided in time is closed by the engine, by the database's clock, and its
run goes on with that as its answer. The reaper finds and calls; a decision that comes between the
time and this look is refused all the same (`deciding.py`).
"""

from __future__ import annotations

from earnest.engine.approvals.deciding import wake_if_waiting
from earnest.engine.approvals.requesting import approval_event
from earnest.store import approvals, executions
from earnest.store.database import Tx
from earnest.store.executions import Key


async def expire(tx: Tx, key: Key) -> bool:
    """Closes the overdue approvals of a run. False when there are none any more."""
    scope_id, run_id = key
    locked = await executions.lock(tx, scope_id, [run_id])
    over = await approvals.expire(tx, scope_id, run_id)
    if not over:
        return False
    await approvals.count(tx, scope_id, run_id, -len(over))
    events = [approval_event("approval.expired", one) for one in over]
    await executions.touch(tx, scope_id, run_id, events)
    for one in over:
        await wake_if_waiting(tx, locked, one)
    return True
