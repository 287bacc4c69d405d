"""What every move of a run brings with it, written once.

Callers hold the locks of the run and of its parent (`executions.lock_with_parents`). A final move
releases what was only reserved, wakes a waiting parent, and closes the attempt; a move into doubt
names the operations; a settled doubt sets the run going again. All in the caller's transaction.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

from msgspec.structs import replace

from earnest.domain import ids
from earnest.domain.errors import EarnestError
from earnest.domain.event import NewEvent
from earnest.domain.operation import Operation, OperationState, Recovery, ReleaseReason
from earnest.domain.run import AttemptOutcome, RunStatus
from earnest.engine.process.effects import Effect, as_call
from earnest.engine.process.engine import Engine
from earnest.engine.process.foreign_code import foreign_code, told_of
from earnest.store import approvals, executions, operations
from earnest.store.database import Tx, lend, let_wait, not_the_hooks_fault
from earnest.store.executions import Execution
from earnest.store.operations import Note

Locked = dict[uuid.UUID, Execution]

HOOK_SECONDS = 20.0
HOOK_LOCK_TIMEOUT = "10s"

UNKNOWN_EXECUTION = {
    "code": "unknown_execution",
    "detail": "an operation's outcome is not known; it is on the desk",
}


class HookFailed(EarnestError):
    """The app's own code inside the transaction failed; nothing of it was stored."""

    code, status = "hook_failed", 409


class HookNotHere(HookFailed):
    """This process does not know the app's own code that belongs to the move; another one may."""

    code = "hook_not_here"


async def finish(
    engine: Engine,
    tx: Tx,
    locked: Locked,
    run_id: uuid.UUID,
    status: RunStatus,
    *,
    outcome: AttemptOutcome | None = None,
    output: bytes | None = None,
    error: dict[str, Any] | None = None,
    failures: int | None = None,
    before: Sequence[NewEvent] = (),
) -> None:
    """The final move: `status` with its event, after `before`. `outcome` closes the attempt. What
    nobody has decided yet, nobody decides any more."""
    row = await release_reserved(engine, tx, locked, run_id)
    if row.undecided:
        await approvals.cancel(tx, row.scope_id, run_id)
    told: dict[str, Any] = {"attempt": row.fence}
    if error is not None:
        told["error"] = error
    if status is RunStatus.CANCELLED:
        told["operations"] = await _sent_of(tx, row)
    last = NewEvent(f"run.{status.value}", told)
    await executions.finish(
        tx, row, status, [*before, last], output=output, error=error, failures=failures
    )
    if outcome is not None:
        await executions.close_attempt(tx, row, outcome, error)
    locked[run_id] = replace(row, status=status, version=row.version + 1)
    await wake_parent(tx, locked, row)


async def doubt(
    engine: Engine,
    tx: Tx,
    locked: Locked,
    run_id: uuid.UUID,
    outcome: AttemptOutcome | None,
    *,
    failures: int | None = None,
    before: Sequence[NewEvent] = (),
) -> None:
    """To `unknown`, or to `failed` where the kind says so; the operations stay on the desk."""
    row = locked[run_id]
    if row.fails_on_doubt:
        await finish(
            engine, tx, locked, run_id, RunStatus.FAILED, outcome=outcome,
            error=UNKNOWN_EXECUTION, failures=failures, before=before,
        )  # fmt: skip
        return
    doubtful = [
        ids.show("op", operation.operation_id)
        for operation in await operations.of_run(tx, row.scope_id, run_id)
        if operation.in_doubt
    ]
    last = NewEvent("run.unknown", {"attempt": row.fence, "operation_ids": doubtful})
    await executions.doubt(tx, row, [*before, last], failures=failures)
    if outcome is not None:
        await executions.close_attempt(tx, row, outcome)


async def resume_if_settled(engine: Engine, tx: Tx, locked: Locked, run_id: uuid.UUID) -> None:
    """After a doubt was settled: the run goes on when none is left, or ends when that was asked."""
    row = await _again(tx, locked, run_id)
    if row.status is not RunStatus.UNKNOWN or row.doubts:
        return
    if row.cancel_requested:
        await finish(engine, tx, locked, run_id, RunStatus.CANCELLED)
    else:
        await executions.requeue(tx, row, [NewEvent("run.resumed", {"attempt": row.fence})])


async def doubt_submitting(
    tx: Tx, locked: Locked, row: Execution, by: str, *, keep: Sequence[uuid.UUID] = ()
) -> int:
    """Every call of the run that is on its way is put in doubt, except those in `keep`. Returns how
    many operations of the run are in doubt for people to see, `keep` not counted."""
    unknown = 0
    for operation in await operations.of_run(tx, row.scope_id, row.run_id):
        if operation.operation_id in keep:
            continue
        if operation.state is OperationState.SUBMITTING:
            await doubt_operation(tx, operation, by, "the caller ended during the call")
            unknown += 1
        elif operation.state is OperationState.UNKNOWN:
            unknown += 1
    await _again(tx, locked, row.run_id)
    return unknown


async def doubt_operation(tx: Tx, operation: Operation, by: str, why: str, **detail: Any) -> None:
    """submitting → unknown, with its event; the count of doubts stays, since both states count.
    Only under the locks of run and operation."""
    askable = operation.recovery is not Recovery.HOLD
    await operations.doubt(
        tx,
        operation,
        Note("doubt", by, operation.attempt, {"why": why, **detail}),
        ask_in=timedelta(0) if askable else None,
    )
    if operation.run_id is not None:
        event = operation_event("operation.unknown", operation, why=why)
        await executions.touch(tx, operation.scope_id, operation.run_id, [event])


async def release_reserved(engine: Engine, tx: Tx, locked: Locked, run_id: uuid.UUID) -> Execution:
    """What was reserved and never begun is given up. Returns the row as it stands after."""
    row = locked[run_id]
    if not row.reserved:
        return row
    for operation in await operations.of_run(tx, row.scope_id, run_id):
        if operation.state is OperationState.RESERVED:
            note = Note("release", "engine", operation.attempt, {"why": "the run ended"})
            await operations.release(tx, operation, note, reason=ReleaseReason.GIVEN_UP)
            await run_released_hook(engine, tx, operation, ReleaseReason.GIVEN_UP)
            event = operation_event("operation.released", operation, reason="given_up")
            await executions.touch(tx, row.scope_id, run_id, [event], reserved=-1)
    return await _again(tx, locked, run_id)


async def run_released_hook(
    engine: Engine, tx: Tx, operation: Operation, reason: ReleaseReason
) -> None:
    """The app's own rows, in this transaction or not at all (P4). Raises `HookNotHere`."""
    effect = engine.effect(operation.kind)
    if effect is None:
        if operation.has_released_hook:
            raise HookNotHere(
                f"the effect {operation.kind} is not known to this process, so its hook `released` "
                "cannot be run, and nothing was changed; start it with the app that defines the "
                "effect (--app MODULE:ATTRIBUTE)",
                fields={"effect": operation.kind},
            )
        return
    async with hook_of(tx, effect, "released"):
        await effect.released(tx, as_call(operation), reason.value)


@asynccontextmanager
async def hook_of(tx: Tx, effect: Effect[Any, Any], name: str) -> AsyncIterator[None]:
    """Around the app's own code in the transaction. It holds locks, so its time is bounded; for
    rows of the app it may wait longer than the engine's statements do. Raises `HookFailed` for its
    errors; what the database says of the whole transaction is raised as it is."""
    if effect.has_own(name):
        lend(tx)
        await let_wait(tx, HOOK_LOCK_TIMEOUT)
    try:
        async with asyncio.timeout(HOOK_SECONDS):
            with foreign_code:
                yield
    except Exception as error:
        if not_the_hooks_fault(tx, error):
            raise
        raise HookFailed(f"{effect.kind}.{name} failed: {told_of(error)}") from error


async def wake_parent(tx: Tx, locked: Locked, child: Execution) -> None:
    """The parent goes on when the last child that it waits for has ended. Its lock is held, so no
    other child can end in between and nobody misses the last one (P25)."""
    parent = None if child.parent_run_id is None else locked.get(child.parent_run_id)
    if parent is None or parent.status is not RunStatus.WAITING:
        return
    for wait in parent.waiting_on or ():
        waited = [ids.read("run", text) for text in wait.get("run_ids", ())]
        if child.run_id in waited and not await executions.active_among(
            tx, parent.scope_id, waited
        ):
            await wake(tx, locked, parent.run_id, {"kind": "children"})
            return


async def wake(tx: Tx, locked: Locked, run_id: uuid.UUID, why: dict[str, Any]) -> None:
    row = locked[run_id]
    await executions.requeue(tx, row, [NewEvent("run.woken", why)])
    await _again(tx, locked, run_id)


def operation_event(type_: str, operation: Operation, **more: Any) -> NewEvent:
    """What an event says of an operation: never its request."""
    told = {
        "operation_id": ids.show("op", operation.operation_id),
        "name": operation.name,
        "kind": operation.kind,
        "attempt": operation.attempt,
        **more,
    }
    return NewEvent(type_, told)


async def _sent_of(tx: Tx, row: Execution) -> list[dict[str, str]]:
    """What a cancelled run had done or may have done on the outside (P20)."""
    return [
        {
            "operation_id": ids.show("op", operation.operation_id),
            "name": operation.name,
            "state": operation.state.value,
        }
        for operation in await operations.of_run(tx, row.scope_id, row.run_id)
        if operation.state is not OperationState.RELEASED
    ]


async def _again(tx: Tx, locked: Locked, run_id: uuid.UUID) -> Execution:
    """The row as this transaction has left it; the lock is already ours."""
    locked.update(await executions.lock(tx, locked[run_id].scope_id, [run_id]))
    return locked[run_id]
