"""Cancelling, told truthfully: `cancelled`, `requested` or `too_late` (P20)."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from functools import partial

from earnest.domain import ids
from earnest.domain.errors import Busy, NotFound
from earnest.domain.event import NewEvent
from earnest.domain.run import CancelOutcome, Run, RunStatus
from earnest.engine.process import auditing
from earnest.engine.process.actors import By, acting, name_of
from earnest.engine.process.doorbells import STOP, WORK
from earnest.engine.process.engine import Engine
from earnest.engine.runs import moving
from earnest.store import executions, runs
from earnest.store.database import Tx
from earnest.store.executions import Execution

_TRIES = 10


@dataclass(frozen=True, slots=True)
class Cancelled:
    outcome: CancelOutcome
    run: Run


async def cancel(engine: Engine, scope_id: str, run_id: uuid.UUID, by: By) -> Cancelled:
    """Cancels the run and, below it, what is not detached. A running run is asked; its owner lets
    a call that was already sent finish and then stops. Cancelling an unknown run leaves its
    operation on the desk. Repeating it is harmless. Who cancelled is kept in the audit. Raises
    `NotFound`."""
    family: set[uuid.UUID] = set()
    for _ in range(_TRIES):
        work = partial(_cancel_family, engine, scope_id, run_id, by, family)
        found = await engine.database.promise("cancel", work)
        if isinstance(found, Cancelled):
            engine.bells.ring(STOP, WORK)
            engine.bells.moved(run_id, *family)
            return found
        family = found
    raise Busy("the run keeps making children; cancel it again")


async def _cancel_family(
    engine: Engine, scope_id: str, run_id: uuid.UUID, by: By, family: set[uuid.UUID], tx: Tx
) -> Cancelled | set[uuid.UUID]:
    """Locks the family as it was last read, all in order, and reads it again: if it has grown, the
    new set is answered and nothing was changed."""
    family = family or await executions.family(tx, scope_id, run_id)
    locked = await executions.lock_with_parents(tx, scope_id, family)
    now = await executions.family(tx, scope_id, run_id)
    if not now:
        raise NotFound(f"no such run: {ids.show('run', run_id)}")
    if now - family:
        return now
    changed = sum(_would_move(locked[member]) for member in family)
    outcome = await _cancel_one(engine, tx, locked, run_id, name_of(by))
    for child_id in family - {run_id}:
        await _cancel_one(engine, tx, locked, child_id, name_of(by))
    if changed:
        told = {"outcome": outcome.value, "runs": changed}
        subject = ids.show("run", run_id)
        await auditing.keep(tx, acting(scope_id, by), "run.cancelled", subject, told)
    run = await runs.find(tx, scope_id, run_id)
    assert run is not None, "its execution is locked"
    return Cancelled(outcome, run)


def _would_move(row: Execution) -> bool:
    asked = row.status is RunStatus.RUNNING and row.cancel_requested
    return not row.final and not asked


async def _cancel_one(
    engine: Engine, tx: Tx, locked: moving.Locked, run_id: uuid.UUID, by: str
) -> CancelOutcome:
    # The parent may have been woken by a child that was cancelled just before.
    row = (await executions.lock(tx, locked[run_id].scope_id, [run_id]))[run_id]
    locked[run_id] = row
    if row.final:
        return (
            CancelOutcome.CANCELLED if row.status is RunStatus.CANCELLED else CancelOutcome.TOO_LATE
        )
    asked = NewEvent("run.cancel_requested", {"by": by})
    if row.status is RunStatus.RUNNING:
        if not row.cancel_requested:
            await executions.ask_to_cancel(tx, row, [asked])
        return CancelOutcome.REQUESTED
    await moving.doubt_submitting(tx, locked, row, by)
    await moving.finish(engine, tx, locked, run_id, RunStatus.CANCELLED, before=[asked])
    return CancelOutcome.CANCELLED
