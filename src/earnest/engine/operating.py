"""Operating: one side effect on the outside world, at most once.

    reserve ──▶ (prepare) ──▶ begin ══▶ the call ══▶ confirm
                                │                      │
                    committed before the call      committed with the app's own record

Between the two double lines nobody can know. Whatever happens there (time-out, lost connection,
5xx, a failed save, a crash, a lost lease) ends in a stored receipt, in a release that is sure, or
in doubt; never in silence. What is sent is found by its *send token*: a receipt belongs to the
operation only if the token that it was sent under is still the operation's.

This module is the caller's side. How a doubt is settled stands in `reconciling.py`; the moves that
both sides make stand in `recording.py`.
"""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from earnest.domain import canonical, ids
from earnest.domain.crash_points import reach
from earnest.domain.errors import (
    CodeChanged,
    Conflict,
    EarnestError,
    FencedOut,
    InDoubt,
    InvalidRequest,
    NotDone,
    NotSent,
    Refused,
    ResourceBusy,
)
from earnest.domain.operation import (
    SENDABLE_AGAIN,
    Operation,
    OperationState,
    Recovery,
    ReleaseReason,
    may_send_again,
)
from earnest.engine import http_failures, moving, recording
from earnest.engine.effects import Effect, as_call
from earnest.engine.engine import Engine
from earnest.engine.leasing import HeldLease, boot_seconds
from earnest.store import executions, operations
from earnest.store.database import Tx, UniqueViolation
from earnest.store.executions import Execution
from earnest.store.operations import NewOperation, Note


class StopAsked(EarnestError):
    """The run was asked to stop; it begins nothing new."""

    code, status = "cancelled", 409


@dataclass(frozen=True, slots=True)
class Intent:
    """One side effect as its caller means it. `lease` is the run's, or `None` when the operation
    stands alone. `data` is the canonical JSON of `request`, `digest` its SHA-256."""

    scope_id: str
    operation_id: uuid.UUID
    principal_id: str
    name: str
    effect: Effect[Any, Any]
    request: Any
    data: bytes
    digest: bytes
    resource_key: str | None
    lease: HeldLease | None

    @property
    def run_id(self) -> uuid.UUID | None:
        return None if self.lease is None else self.lease.run_id

    @property
    def fence(self) -> int:
        return 0 if self.lease is None else self.lease.fence

    def may_act(self) -> bool:
        """Whether the caller may still believe that it owns the run; asked before a byte is sent."""
        return self.lease is None or self.lease.valid()


async def perform(engine: Engine, intent: Intent) -> Any:
    """Does it, or finds that it was done; returns the receipt as the effect's type.

    Raises `Refused`, `NotSent`, `NotDone` (all three: surely not done), `InDoubt`, `CodeChanged`,
    `ResourceBusy`, `FencedOut`, `StopAsked`.
    """
    operation = await _reserve(engine, intent)
    sends = 0
    while True:
        if operation.state is OperationState.SUBMITTED:
            return intent.effect.receipt_type.validate_python(operation.receipt)
        if operation.state is OperationState.RELEASED:
            operation = await _after_release(engine, intent, operation, sends)
        elif operation.state is OperationState.RESERVED:
            await _prepare(engine, intent, operation)
            operation = await _send(engine, intent, operation)
            sends += 1
        else:
            operation = await _in_doubt(engine, intent, operation, sends)
            sends += 1


async def _after_release(
    engine: Engine, intent: Intent, operation: Operation, sends: int
) -> Operation:
    """Released as refused or by a person: that is remembered. Not sent, or proved absent: it is
    tried again under the same id, but not within the attempt that just failed to send."""
    if operation.release_reason in SENDABLE_AGAIN and not sends:
        return await _reserve_again(engine, intent, operation)
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
    return NotDone(f"{shown} was released without being done; a new revision may do it")


async def _in_doubt(engine: Engine, intent: Intent, operation: Operation, sends: int) -> Operation:
    """Sends again what may be sent again; waits for another caller's call that stands alone."""
    if operation.recovery is Recovery.RESEND and sends <= len(engine.settings.resend_waits):
        if sends:
            await asyncio.sleep(engine.settings.resend_waits[sends - 1].total_seconds())
        return await _send(engine, intent, operation)
    if intent.lease is None and operation.state is OperationState.SUBMITTING and not sends:
        return await _wait_for_caller(engine, intent, operation)
    raise InDoubt(
        f"whether {ids.show('op', operation.operation_id)} ({operation.kind}) happened is not known",
        fields={"operation_id": ids.show("op", operation.operation_id)},
    )


async def _wait_for_caller(engine: Engine, intent: Intent, operation: Operation) -> Operation:
    """Another program is in the middle of the very same operation: its answer is ours too."""
    until = boot_seconds() + (operation.timeout + engine.settings.call_grace).total_seconds()
    while operation.state is OperationState.SUBMITTING and boot_seconds() < until:
        await asyncio.sleep(0.1)
        found = await operations.find(engine.database, intent.scope_id, intent.operation_id)
        assert found is not None, "operations are not removed while they are live"
        operation = found
    if operation.state is OperationState.SUBMITTING:
        raise InDoubt(f"{ids.show('op', operation.operation_id)} is still on its way")
    return operation


# ---- reserve and begin -------------------------------------------------------------------------


async def _reserve(engine: Engine, intent: Intent) -> Operation:
    """The intent becomes durable, or the one that stands under this id is found (P1, P15)."""

    async def work(tx: Tx) -> Operation:
        row = await _owned(engine, tx, intent, begins=False)
        found = await operations.find(tx, intent.scope_id, intent.operation_id)
        if found is None:
            if row is not None and row.cancel_requested:
                raise StopAsked("the run was asked to stop; nothing new is begun")
            found = await _write_intent(tx, intent)
        if found.digest != intent.digest:
            raise CodeChanged(
                f"operation {intent.name!r} was asked for with another request before; nothing was "
                "sent: bring the old code back, or submit a new run",
                fields={"operation_id": ids.show("op", found.operation_id)},
            )
        return found

    asked_at = boot_seconds()
    operation = await engine.database.promise("reserve", work)
    _extend(engine, intent, asked_at)
    return operation


async def _write_intent(tx: Tx, intent: Intent) -> Operation:
    new = NewOperation(
        scope_id=intent.scope_id,
        operation_id=intent.operation_id,
        run_id=intent.run_id,
        principal_id=intent.principal_id,
        name=intent.name,
        terms=intent.effect.terms(),
        resource_key=intent.resource_key,
        request=intent.data,
        digest=intent.digest,
        fence=intent.fence,
    )
    if not await operations.reserve(tx, new, Note("reserve", "owner", intent.fence)):
        await _refuse_reserve(tx, intent)
    operation = await operations.find(tx, intent.scope_id, intent.operation_id)
    assert operation is not None, "reserved in this transaction"
    if intent.run_id is not None:
        event = moving.operation_event("operation.reserved", operation)
        await executions.touch(tx, intent.scope_id, intent.run_id, [event], reserved=1)
    return operation


async def _refuse_reserve(tx: Tx, intent: Intent) -> None:
    """The insert found something in its way. The same id written by a racing caller shows only now;
    the caller's transaction starts anew and finds it."""
    if intent.resource_key is not None:
        other = await operations.live_intent(
            tx, intent.scope_id, intent.effect.kind, intent.resource_key
        )
        if other is not None and other != intent.operation_id:
            raise ResourceBusy(
                f"{intent.effect.kind} on {intent.resource_key!r} is already meant by "
                f"{ids.show('op', other)}",
                fields={"operation_id": ids.show("op", other)},
            )
    if await operations.find(tx, intent.scope_id, intent.operation_id) is None:
        raise Conflict("the operation could not be reserved; try again")


async def _reserve_again(engine: Engine, intent: Intent, released: Operation) -> Operation:
    async def work(tx: Tx) -> Operation:
        await _owned(engine, tx, intent)
        operation = await _locked(tx, intent)
        if operation.version == released.version:
            note = Note("reserve again", "owner", intent.fence)
            await operations.reserve_again(tx, operation, intent.fence, note)
            if intent.run_id is not None:
                event = moving.operation_event("operation.reserved", operation, again=True)
                await executions.touch(tx, intent.scope_id, intent.run_id, [event], reserved=1)
        return await _locked(tx, intent)

    try:
        return await engine.database.promise("reserve", work)
    except UniqueViolation as error:
        raise ResourceBusy(
            f"{intent.effect.kind} on {intent.resource_key!r} is meant by another operation now"
        ) from error


async def _begin(
    engine: Engine, intent: Intent, operation: Operation, token: uuid.UUID
) -> Operation | None:
    """Committed before the one call; carries fence, send token and deadline. `None`: the window in
    which it might have been sent again is over."""

    async def work(tx: Tx) -> Operation | None:
        await _owned(engine, tx, intent)
        now_there, now = await recording.lock_to_send(tx, intent.scope_id, intent.operation_id)
        if now_there.version != operation.version:
            return now_there
        first = now_there.state is OperationState.RESERVED
        if not first and not _window_is_open(now_there, now):
            await _hold(tx, now_there)
            return None
        await _write_begin(tx, intent, now_there, token, engine.instance.instance_id)
        return await _locked(tx, intent)

    async def reread(tx: Tx) -> Operation | None:
        found = await operations.find(tx, intent.scope_id, intent.operation_id)
        return found if found is not None and found.send_token == token else None

    asked_at = boot_seconds()
    begun = await engine.database.promise("begin", work, reread=reread)
    _extend(engine, intent, asked_at)
    return begun


async def _write_begin(
    tx: Tx, intent: Intent, operation: Operation, token: uuid.UUID, instance_id: uuid.UUID
) -> None:
    first = operation.state is OperationState.RESERVED
    note = Note("begin" if first else "send again", "owner", intent.fence or operation.attempt)
    await operations.begin(
        tx, operation, note, send_token=token, instance_id=instance_id, span=operation.timeout
    )
    if operation.run_id is not None:
        sends = operation.send_count + 1
        event = moving.operation_event("operation.submitting", operation, sends=sends)
        doubts, reserved = (1, -1) if first else (0, 0)
        await executions.touch(
            tx, intent.scope_id, operation.run_id, [event], doubts=doubts, reserved=reserved
        )


def _window_is_open(operation: Operation, now: datetime) -> bool:
    return (
        operation.first_begun_at is not None
        and operation.window is not None
        and may_send_again(operation.first_begun_at, now, operation.window, operation.timeout)
    )


async def _hold(tx: Tx, operation: Operation) -> None:
    """Past its window a `resend` is a `hold`."""
    if operation.state is OperationState.SUBMITTING:
        await moving.doubt_operation(tx, operation, "owner", "the window for sending again is over")


# ---- the call ----------------------------------------------------------------------------------


async def _prepare(engine: Engine, intent: Intent, operation: Operation) -> None:
    """The read-only look before the call. A refusal here is as definite as the provider's."""
    try:
        await intent.effect.prepare(intent.request)
    except Refused as refusal:
        released = await recording.release(
            engine, intent.scope_id, intent.operation_id, ReleaseReason.REFUSED,
            recording.Proof("owner", version=operation.version), refusal=refusal.as_json(),
        )  # fmt: skip
        raise as_error(released) from refusal


async def _send(engine: Engine, intent: Intent, operation: Operation) -> Operation:
    """Begins, calls and stores what came of it. Runs to its end even when the caller is cancelled:
    a call that is on its way is never abandoned without a word."""
    token = ids.new_token()
    begun = await _begin(engine, intent, operation, token)
    if begun is None or begun.send_token != token:
        found = await operations.find(engine.database, intent.scope_id, intent.operation_id)
        assert found is not None, "reserved before"
        if begun is None:
            raise InDoubt(f"the window for sending {ids.show('op', found.operation_id)} is over")
        return found
    proof = recording.Proof("owner", token=token)
    if not intent.may_act():
        await _release(engine, intent, proof, NotSent("the lease ended before the call"))
        raise FencedOut("the lease ended before the call; nothing was sent")
    reach("call.before")
    try:
        async with asyncio.timeout(begun.timeout.total_seconds()):
            receipt = await intent.effect.submit(as_call(begun), intent.request)
    except BaseException as error:
        return await _call_failed(engine, intent, proof, error)
    reach("call.after")
    return await _store(engine, intent, proof, receipt)


async def _call_failed(
    engine: Engine, intent: Intent, proof: recording.Proof, error: BaseException
) -> Operation:
    """Tells the sure outcomes from doubt. Only what surely did not happen is released."""
    known = error if isinstance(error, (Refused, NotSent)) else http_failures.classify(error)
    if known is not None:
        return await _release(engine, intent, proof, known)
    why = f"{type(error).__name__}: {error}"[:500]
    doubted = await recording.doubt(engine, intent.scope_id, intent.operation_id, proof, why)
    if not isinstance(error, Exception):
        raise error
    return doubted


async def _release(
    engine: Engine, intent: Intent, proof: recording.Proof, known: Refused | NotSent
) -> Operation:
    refused = isinstance(known, Refused)
    reason = ReleaseReason.REFUSED if refused else ReleaseReason.NOT_SENT
    return await recording.release(
        engine, intent.scope_id, intent.operation_id, reason, proof, refusal=known.as_json()
    )


async def _store(engine: Engine, intent: Intent, proof: recording.Proof, receipt: Any) -> Operation:
    """The receipt is stored, or the operation is in doubt with the receipt as its evidence."""
    try:
        data, reference = encode_receipt(intent.effect, receipt)
    except (ValueError, EarnestError) as error:
        why = f"the answer is not a receipt: {error}"[:500]
        return await recording.doubt(engine, intent.scope_id, intent.operation_id, proof, why)
    try:
        return await recording.confirm(
            engine, intent.scope_id, intent.operation_id, data, reference, proof
        )
    except moving.HookFailed as error:
        return await recording.doubt(
            engine, intent.scope_id, intent.operation_id, proof, str(error)[:500],
            receipt=canonical.decode(data),
        )  # fmt: skip


def encode_receipt(effect: Effect[Any, Any], receipt: Any) -> tuple[bytes, str | None]:
    """A receipt as it is stored, and the provider's own name for it. Raises `ValueError` (also
    pydantic's and canonical's) when it is none."""
    checked = effect.receipt_type.validate_python(receipt)
    if checked is None:
        raise ValueError("None is no receipt; a receipt says what was done")
    data = canonical.encode(effect.receipt_type.dump_python(checked, mode="json"))
    return data, effect.external_ref(checked)


# ---- ownership ---------------------------------------------------------------------------------


async def _owned(
    engine: Engine, tx: Tx, intent: Intent, *, begins: bool = True
) -> Execution | None:
    """Locks the run and refuses whoever does not own it. `begins`: something new is about to be
    begun, which a run that was asked to stop does not do."""
    held = intent.lease
    if held is None:
        return None
    row = (await executions.lock(tx, held.scope_id, [held.run_id])).get(held.run_id)
    if row is None or not row.owned_by(held.fence, held.owner_token):
        raise FencedOut(f"attempt {held.fence} no longer owns run {ids.show('run', held.run_id)}")
    if begins and row.cancel_requested:
        raise StopAsked("the run was asked to stop; nothing new is begun")
    await executions.renew(tx, row, engine.settings.lease)
    return row


async def _locked(tx: Tx, intent: Intent) -> Operation:
    found = await operations.lock(tx, intent.scope_id, intent.operation_id)
    assert found is not None, "reserved before"
    return found[0]


def _extend(engine: Engine, intent: Intent, asked_at: float) -> None:
    """Every write of the owner renews its lease, in the database and in its own belief."""
    if intent.lease is not None:
        until = asked_at + engine.settings.lease.total_seconds()
        intent.lease.until = max(intent.lease.until, until)


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


def make_intent(
    effect: Effect[Any, Any],
    request: Any,
    *,
    scope_id: str,
    operation_id: uuid.UUID,
    principal_id: str,
    name: str,
    resource_key: str | None,
    lease: HeldLease | None,
) -> Intent:
    """Checks the request against the effect's type and gives it its canonical bytes. Raises
    `InvalidRequest`: then nothing was reserved."""
    if not effect.kind:
        raise InvalidRequest(f"{type(effect).__name__} has no kind; name it")
    try:
        checked = effect.request_type.validate_python(request)
        data = canonical.encode(effect.request_type.dump_python(checked, mode="json"))
    except (ValueError, canonical.NotJson) as error:
        raise InvalidRequest(f"the request does not fit {effect.kind}: {error}") from error
    return Intent(
        scope_id, operation_id, principal_id, name, effect, checked, data, canonical.digest(data),
        resource_key, lease,
    )  # fmt: skip
