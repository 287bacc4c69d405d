"""Waiting for another caller's call: its answer is the answer to whoever asks for the same.

Only for operations standing alone: inside a run the fence says whose call it is. There may be no
worker and no reaper, so whoever waits also says when there is nothing left to wait for.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta

from earnest.domain import ids
from earnest.domain.errors import InDoubt
from earnest.domain.operation import Operation, OperationState, Recovery
from earnest.engine.operations import recording
from earnest.engine.process.engine import Engine
from earnest.engine.process.instances import provably_ended
from earnest.store import operations
from earnest.store.operations import CallSeen

BETWEEN_LOOKS = 0.1


def deadline(patience: timedelta) -> float:
    """When that is over, by the clock of the event loop."""
    return asyncio.get_running_loop().time() + patience.total_seconds()


async def wait_for_caller(
    engine: Engine, operation: Operation, until: float | None = None
) -> Operation:
    """Looks until the call has come to an end; a call that follows it is waited for as well, for
    its own time. When that is over with a grace, or the caller's process has provably ended, the
    operation is in doubt. What may be sent again stays `submitting` then, without a grace.
    Raises `InDoubt` after `until`: the call goes on, and nothing was changed."""
    while True:
        seen = await operations.watch_call(
            engine.database, operation.scope_id, operation.operation_id
        )
        operation = seen.operation
        if operation.state is not OperationState.SUBMITTING:
            return operation
        if not _has_had_its_time(engine, seen):
            await _look_later(operation, until)
        elif operation.recovery is Recovery.RESEND:
            return operation
        else:
            await _doubt(engine, operation)


async def _look_later(operation: Operation, until: float | None) -> None:
    left = BETWEEN_LOOKS if until is None else until - asyncio.get_running_loop().time()
    if left <= 0:
        shown = ids.show("op", operation.operation_id)
        raise InDoubt(
            f"{shown} ({operation.kind}) is still on its way for another caller; ask again later, "
            "for the same key",
            fields={"operation_id": shown},
        )
    await asyncio.sleep(min(left, BETWEEN_LOOKS))


def _has_had_its_time(engine: Engine, seen: CallSeen) -> bool:
    """By the database's clock, which also said how long the call may take."""
    call = seen.operation
    assert call.call_until is not None, "it was begun"
    grace = timedelta(0) if call.recovery is Recovery.RESEND else engine.settings.call_grace
    return seen.now >= call.call_until + grace or provably_ended(seen.host, seen.process)


async def _doubt(engine: Engine, operation: Operation) -> None:
    proof = recording.Proof("another caller", token=operation.send_token)
    why = "the caller ended during the call"
    await recording.doubt(engine, operation.scope_id, operation.operation_id, proof, why)
