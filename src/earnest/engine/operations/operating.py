"""Operating: one side effect on the outside world, at most once.

    reserve ──▶ (prepare) ──▶ begin ══▶ the call ══▶ confirm
                                │                      │
                    committed before the call      committed with the app's own record

Between the two double lines nobody can know. Whatever happens there (time-out, lost connection,
5xx, a failed save, a crash, a lost lease) ends in a stored receipt, in a release that is sure, or
in doubt; never in silence. What is sent is found by its *send token*: a receipt belongs to the
operation only if the token that it was sent under is still the operation's.

This module is the caller's side. How a doubt is settled stands in `reconciling.py`; the moves that
both sides make stand in `recording.py`, the intent and its begin in `intending.py`; how one waits
for another caller's call stands in `waiting.py`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

from pydantic import ValidationError

from earnest.domain import canonical, ids
from earnest.domain.crash_points import reach
from earnest.domain.errors import (
    CodeChanged,
    DatabaseUnavailable,
    EarnestError,
    FencedOut,
    InDoubt,
    NotDone,
    NotSent,
    Refused,
)
from earnest.domain.kept_error import kept_error, kept_text
from earnest.domain.operation import (
    SENDABLE_AGAIN,
    Operation,
    OperationState,
    Recovery,
    ReleaseReason,
)
from earnest.engine.operations import http_failures, intending, recording
from earnest.engine.operations.intending import Intent
from earnest.engine.operations.waiting import deadline, wait_for_caller
from earnest.engine.process.effects import Effect, as_call
from earnest.engine.process.engine import Engine
from earnest.engine.process.foreign_code import foreign_code, told_of
from earnest.engine.process.typed_json import encode_typed, misfit
from earnest.engine.runs.fencing import patiently
from earnest.engine.runs.leasing import boot_seconds
from earnest.store import operations

T = TypeVar("T")


async def perform(engine: Engine, intent: Intent, patience: timedelta | None = None) -> Any:
    """Does it, or finds that it was done; returns the receipt as the effect's type. `patience`:
    how long to wait for another caller's call; without it, as long as that call may take.

    Raises `Refused`, `NotSent`, `NotDone` (all three: surely not done), `InDoubt`, `CodeChanged`,
    `ResourceBusy`, `FencedOut`, `StopAsked`.
    """
    until = None if patience is None else deadline(patience)
    operation = await _intend(intent, partial(intending.reserve, engine, intent))
    sends = 0
    while True:
        if operation.state is OperationState.SUBMITTED:
            return read_receipt(intent.effect, operation)
        if operation.state is OperationState.RELEASED:
            operation = await _after_release(engine, intent, operation, sends)
        elif operation.state is OperationState.RESERVED:
            operation, may_send = await _prepare(engine, intent, operation)
            if may_send:
                operation = await _send(engine, intent, operation)
                sends += 1
        else:
            operation = await _in_doubt(engine, intent, operation, sends, until)
            sends += 1


async def perform_to_the_end(
    engine: Engine, intent: Intent, patience: timedelta | None = None
) -> Any:
    """As `perform`, for a caller that may be cancelled (a client that hangs up): a call that is on
    its way goes on to its end, and what came of it is stored, although nobody waits any more."""
    task = asyncio.create_task(perform(engine, intent, patience))
    _on_their_way.add(task)
    task.add_done_callback(_forget)
    return await asyncio.shield(task)


def _forget(task: asyncio.Task[Any]) -> None:
    _on_their_way.discard(task)
    if not task.cancelled():
        task.exception()  # Looked at: whoever still waits has it raised, nobody else is warned.


_on_their_way: set[asyncio.Task[Any]] = set()


async def finish_calls() -> None:
    """Waits for calls standing alone that are on their way on this event loop; before it ends."""
    loop = asyncio.get_running_loop()
    while ours := [task for task in tuple(_on_their_way) if task.get_loop() is loop]:
        await asyncio.gather(*ours, return_exceptions=True)


async def _after_release(
    engine: Engine, intent: Intent, operation: Operation, sends: int
) -> Operation:
    """Released as refused or by a person: that is remembered. Not sent, or proved absent: it is
    tried again under the same id, but not within the attempt that just failed to send."""
    if operation.release_reason in SENDABLE_AGAIN and not sends:
        again = partial(intending.reserve_again, engine, intent, operation)
        return await _intend(intent, again)
    raise as_error(operation)


def as_error(operation: Operation) -> EarnestError:
    """What a caller is told of an operation that was released."""
    shown = ids.show("op", operation.operation_id)
    refusal = operation.refusal or {}
    if operation.release_reason is ReleaseReason.REFUSED:
        fields = {k: v for k, v in refusal.items() if k not in ("code", "detail")}
        return Refused(refusal.get("detail", f"{shown} was refused"), fields=fields)
    if operation.release_reason in SENDABLE_AGAIN:
        return NotSent(refusal.get("detail", f"{shown} was not sent"))
    other = "another key" if operation.run_id is None else "a new revision of its run"
    return NotDone(f"{shown} was released without being done; {other} may do it")


async def _in_doubt(
    engine: Engine, intent: Intent, operation: Operation, sends: int, until: float | None
) -> Operation:
    """Waits for another caller's call that stands alone; sends again what may be sent again."""
    if intent.lease is None and operation.state is OperationState.SUBMITTING:
        operation = await wait_for_caller(engine, operation, until)
        if operation.state is not OperationState.SUBMITTING:
            return operation
    if operation.recovery is Recovery.RESEND and sends <= len(engine.settings.resend_waits):
        if sends:
            await asyncio.sleep(engine.settings.resend_waits[sends - 1].total_seconds())
        return await _send(engine, intent, operation)
    shown = ids.show("op", operation.operation_id)
    raise InDoubt(
        f"whether {shown} ({operation.kind}) happened is not known",
        fields={"operation_id": shown},
    )


# ---- the call ----------------------------------------------------------------------------------


async def _prepare(engine: Engine, intent: Intent, operation: Operation) -> tuple[Operation, bool]:
    """The read-only look before the call, bounded as the call is; says whether it may be sent. A
    refusal here is as definite as the provider's, if the run is still the caller's."""
    try:
        async with asyncio.timeout(operation.timeout.total_seconds()):
            with foreign_code:
                await intent.effect.prepare(intent.request)
    except Refused as refusal:
        held = intent.lease
        owner = None if held is None else (held.fence, held.owner_token)
        released = await recording.release(
            engine, intent.scope_id, intent.operation_id, ReleaseReason.REFUSED,
            recording.Proof("owner", version=operation.version, owner=owner),
            refusal=kept_error(refusal),
        )  # fmt: skip
        return released, False
    return operation, True


async def _send(engine: Engine, intent: Intent, operation: Operation) -> Operation:
    """Begins, calls and stores what came of it. Runs to its end even when the caller is cancelled:
    a call that is on its way is never abandoned without a word."""
    token = ids.new_token()
    begin = partial(intending.begin, engine, intent, operation, token)
    begun = await _intend(intent, begin)
    # It is sent only as long as nobody doubts it: while a lost reply was looked for, the reaper may
    # have taken the run over, and a person may have settled what was not sent yet.
    if begun is None or begun.send_token != token or begun.state is not OperationState.SUBMITTING:
        found = await operations.find(engine.database, intent.scope_id, intent.operation_id)
        assert found is not None, "reserved before"
        if begun is None:
            raise InDoubt(f"{ids.show('op', found.operation_id)} may not be sent again")
        return found
    proof = recording.Proof("owner", token=token)
    first = operation.state is OperationState.RESERVED
    if not intent.may_act():
        late = NotSent("the lease ended before the call")
        await _call_failed(engine, intent, proof, late, first=first)
        raise FencedOut("the lease ended before the call; nothing was sent")
    reach("call.before")
    began = time.perf_counter()
    try:
        async with asyncio.timeout(begun.timeout.total_seconds()):
            with foreign_code:
                receipt = await intent.effect.submit(as_call(begun), intent.request)
    except BaseException as error:
        engine.metrics.call_seconds.observe(time.perf_counter() - began, begun.kind)
        return _counted(engine, await _call_failed(engine, intent, proof, error, first=first))
    engine.metrics.call_seconds.observe(time.perf_counter() - began, begun.kind)
    reach("call.after")
    return _counted(engine, await _store(engine, intent, proof, receipt))


def _counted(engine: Engine, after: Operation) -> Operation:
    engine.metrics.calls.add(after.kind, after.state.value)
    return after


async def _call_failed(
    engine: Engine, intent: Intent, proof: recording.Proof, error: BaseException, *, first: bool
) -> Operation:
    """Tells the sure outcomes from doubt. Only what surely did not happen is released: that this
    call was refused or not sent says nothing of an earlier one that it repeats."""
    known = error if isinstance(error, (Refused, NotSent)) else http_failures.classify(error)
    if known is not None and first:
        return await _release(engine, intent, proof, known)
    why = kept_text(told_of(error))
    doubted = await _doubt(engine, intent, proof, why)
    if not isinstance(error, Exception):
        raise error
    return doubted


async def _release(
    engine: Engine, intent: Intent, proof: recording.Proof, known: Refused | NotSent
) -> Operation:
    """The release is stored, or the operation is in doubt with what is known as its evidence. A
    database that is away stores no doubt either; then the reaper will."""
    refused = isinstance(known, Refused)
    reason = ReleaseReason.REFUSED if refused else ReleaseReason.NOT_SENT
    told = kept_error(known)
    try:
        release = partial(recording.release, engine, intent.scope_id, intent.operation_id)
        return await _record(engine, intent, partial(release, reason, proof, refusal=told))
    except DatabaseUnavailable:
        raise
    except Exception as error:
        return await _doubt(engine, intent, proof, kept_text(error), refusal=told)


async def _store(engine: Engine, intent: Intent, proof: recording.Proof, receipt: Any) -> Operation:
    """The receipt is stored, or the operation is in doubt with the receipt as its evidence; as
    above."""
    try:
        data, reference = encode_receipt(intent.effect, receipt)
    except Exception as error:
        why = kept_text(f"the answer is not a receipt: {misfit(error)}")
        return await _doubt(engine, intent, proof, why)
    try:
        confirm = partial(recording.confirm, engine, intent.scope_id, intent.operation_id)
        return await _record(engine, intent, partial(confirm, data, reference, proof))
    except DatabaseUnavailable:
        raise
    except Exception as error:
        told = canonical.decode(data)
        return await _doubt(engine, intent, proof, kept_text(error), receipt=told)


async def _doubt(
    engine: Engine, intent: Intent, proof: recording.Proof, why: str, **detail: Any
) -> Operation:
    doubt = partial(recording.doubt, engine, intent.scope_id, intent.operation_id)
    return await _record(engine, intent, partial(doubt, proof, why, **detail))


async def _record(engine: Engine, intent: Intent, work: Callable[[], Awaitable[T]]) -> T:
    """What came of a call is stored also if somebody sits on a row of it: it is waited for while
    the lease lives, or for the grace of a call that stands alone."""
    if intent.lease is not None:
        return await patiently(intent.lease.valid, work)
    until = boot_seconds() + engine.settings.call_grace.total_seconds()
    return await patiently(lambda: boot_seconds() < until, work)


async def _intend(intent: Intent, work: Callable[[], Awaitable[T]]) -> T:
    """So does a run before its call. Whoever calls without one is told: nothing was sent yet."""
    return await (work() if intent.lease is None else patiently(intent.lease.valid, work))


def read_receipt(effect: Effect[Any, Any], operation: Operation) -> Any:
    """The stored receipt as the effect's type. Raises `CodeChanged`."""
    try:
        return effect.receipt_type.validate_python(operation.receipt)
    except ValidationError as error:
        raise CodeChanged(
            f"the receipt of operation {operation.name!r} no longer fits {operation.kind}: "
            f"{misfit(error)}; bring the old code back"
        ) from error


def encode_receipt(effect: Effect[Any, Any], receipt: Any) -> tuple[bytes, str | None]:
    """A receipt as it is stored, and the provider's own name for it. Raises `ValueError` (also
    pydantic's and canonical's) when it is none."""
    with foreign_code:
        checked = effect.receipt_type.validate_python(receipt)
        if checked is None:
            raise ValueError("None is no receipt; a receipt says what was done")
        data = encode_typed(effect.receipt_type, checked)
        reference = effect.external_ref(checked)
    return data, None if reference is None else kept_text(reference)


async def send_stored(
    engine: Engine, operation: Operation, effect: Effect[Any, Any], request: Any
) -> Operation:
    """Sends a doubtful `resend` operation again from what is stored, without its caller."""
    intent = Intent(
        scope_id=operation.scope_id,
        operation_id=operation.operation_id,
        principal_id=operation.principal_id,
        name=operation.name,
        effect=effect,
        request=request,
        data=canonical.encode(operation.request),
        digest=operation.digest,
        resource_key=operation.resource_key,
        lease=None,
    )
    return await _send(engine, intent, operation)
