"""Intending: the side effect as its caller means it, made durable before anything is sent.

`reserve` writes the intent, `begin` marks that the one call is about to be made; both are committed
before a byte leaves (P1). Inside a run both are judged under the run's lock: an attempt that lost
its lease reserves and begins nothing, and a run that was asked to stop begins nothing new.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from earnest.domain import canonical, ids
from earnest.domain.canonical import storable
from earnest.domain.errors import (
    CodeChanged,
    Conflict,
    EarnestError,
    FencedOut,
    InvalidRequest,
    ResourceBusy,
)
from earnest.domain.operation import (
    SENDABLE_AGAIN,
    Operation,
    OperationState,
    ReleaseReason,
    may_send_again,
)
from earnest.engine.operations import recording
from earnest.engine.process.effects import Effect
from earnest.engine.process.engine import Engine
from earnest.engine.process.foreign_code import foreign_code
from earnest.engine.process.typed_json import encode_typed, misfit
from earnest.engine.runs import moving
from earnest.engine.runs.leasing import HeldLease, boot_seconds
from earnest.store import executions, operations
from earnest.store.database import Tx, UniqueViolation
from earnest.store.executions import Execution
from earnest.store.operations import NewOperation, Note

MAX_RESOURCE_KEY = 500


class StopAsked(EarnestError):
    """The run was asked to stop; it begins nothing new."""

    code, status = "cancelled", 409


@dataclass(frozen=True, slots=True)
class Intent:
    """One side effect as its caller means it. `lease` is the run's, or `None` when the operation
    stands alone. `data` is the canonical JSON of `request`, `digest` its SHA-256. `approval_id`: it
    is not begun without that."""

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
    approval_id: uuid.UUID | None = None

    @property
    def run_id(self) -> uuid.UUID | None:
        return None if self.lease is None else self.lease.run_id

    @property
    def fence(self) -> int:
        return 0 if self.lease is None else self.lease.fence

    def is_of(self, operation: Operation) -> bool:
        """Whether the operation that stands under the id is the one that is meant."""
        return operation.kind == self.effect.kind and operation.digest == self.digest

    def may_act(self) -> bool:
        """Whether the caller may still believe that it owns the run; asked before sending."""
        return self.lease is None or self.lease.valid()


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
    if resource_key is not None and not _is_resource_key(resource_key):
        raise InvalidRequest(
            f"a resource key has 1 to {MAX_RESOURCE_KEY} characters, as a text without NUL and "
            "halves of surrogate pairs"
        )
    try:
        with foreign_code:
            checked = effect.request_type.validate_python(request)
            data = encode_typed(effect.request_type, checked)
    except (ValueError, canonical.NotJson) as error:
        raise InvalidRequest(f"the request does not fit {effect.kind}: {misfit(error)}") from error
    return Intent(
        scope_id, operation_id, principal_id, name, effect, checked, data, canonical.digest(data),
        resource_key, lease,
    )  # fmt: skip


def _is_resource_key(key: object) -> bool:
    return isinstance(key, str) and 1 <= len(key) <= MAX_RESOURCE_KEY and storable(key)


async def reserve(engine: Engine, intent: Intent) -> Operation:
    """The intent becomes durable, or the one that stands under this id is found (P1, P15)."""

    async def work(tx: Tx) -> Operation:
        row = await _owned(engine, tx, intent, begins=False)
        found = await operations.find(tx, intent.scope_id, intent.operation_id)
        if found is None:
            if row is not None and row.cancel_requested:
                raise StopAsked("the run was asked to stop; nothing new is begun")
            found = await _write_intent(tx, intent)
        check_same(intent, found)
        return await _need_approval(tx, intent, found)

    asked_at = boot_seconds()
    operation = await engine.database.promise("reserve", work)
    _extend(engine, intent, asked_at)
    return operation


def check_same(intent: Intent, found: Operation) -> None:
    """Raises `CodeChanged` unless the operation that stands under the id is the one meant."""
    if not intent.is_of(found):
        advice = (
            "send the old request again, or use another key"
            if found.run_id is None
            else "bring the old code back, or submit a new run"
        )
        raise CodeChanged(
            f"operation {intent.name!r} was asked for with another request before, or by "
            f"another effect; nothing was sent: {advice}",
            fields={"operation_id": ids.show("op", found.operation_id)},
        )
    if found.approval_id not in (None, intent.approval_id) and may_begin(found):
        raise CodeChanged(
            f"operation {intent.name!r} was to be approved first, and is asked for without now; "
            "nothing was sent: bring the old code back, or submit a new run",
            fields={"operation_id": ids.show("op", found.operation_id)},
        )


def may_begin(found: Operation) -> bool:
    """Whether it may still be begun for the first time, or as if it were."""
    released = found.state is OperationState.RELEASED and found.release_reason in SENDABLE_AGAIN
    return found.state is OperationState.RESERVED or released


async def _need_approval(tx: Tx, intent: Intent, found: Operation) -> Operation:
    """Code that asks for an approval now, of what was reserved without."""
    missing = intent.approval_id is not None and found.approval_id is None
    if missing and found.state is OperationState.RESERVED:
        assert intent.approval_id is not None, "told apart above"
        await operations.need_approval(tx, found, intent.approval_id)
        return await _locked(tx, intent)
    return found


async def give_up(engine: Engine, intent: Intent) -> None:
    """What was reserved for a decision that came out otherwise is not held any longer."""
    found = await operations.find(engine.database, intent.scope_id, intent.operation_id)
    held = intent.lease
    if found is None or found.state is not OperationState.RESERVED or held is None:
        return
    owner = (held.fence, held.owner_token)
    proof = recording.Proof("owner", version=found.version, owner=owner)
    await recording.release(
        engine, intent.scope_id, intent.operation_id, ReleaseReason.GIVEN_UP, proof
    )


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
        approval_id=intent.approval_id,
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


async def reserve_again(engine: Engine, intent: Intent, released: Operation) -> Operation:
    async def work(tx: Tx) -> Operation:
        await _owned(engine, tx, intent)
        operation = await _locked(tx, intent)
        if operation.version == released.version:
            note = Note("reserve again", "owner", intent.fence)
            await operations.reserve_again(
                tx, operation, intent.fence, note,
                has_released_hook=intent.effect.has_own("released"),
                approval_id=intent.approval_id,
            )  # fmt: skip
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


async def begin(
    engine: Engine, intent: Intent, operation: Operation, token: uuid.UUID
) -> Operation | None:
    """Committed before the one call; carries fence, send token and deadline. `None`: it may not be
    sent again, because its window is over or its run was cancelled meanwhile."""

    async def work(tx: Tx) -> Operation | None:
        await _owned(engine, tx, intent)
        now_there, now, run = await recording.lock_to_send(tx, intent.scope_id, intent.operation_id)
        if now_there.version != operation.version:
            return now_there
        if run is not None and (run.final or run.cancel_requested):
            return None
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
