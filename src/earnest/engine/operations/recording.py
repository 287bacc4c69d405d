"""Recording what became of an operation: a receipt, a sure release, or a doubt.

Every way to an outcome ends here: the call itself, a receipt that came late, a look-up, a person.
Each brings a `Proof`: the send token that it was sent under, or the version that was looked at.
The state, the event, the app's own rows and the run that waits for it move in one transaction.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from earnest.domain import canonical, ids
from earnest.domain.crash_points import reach
from earnest.domain.errors import Conflict, FencedOut, NotFound, StaleVersion
from earnest.domain.event import NewEvent
from earnest.domain.operation import (
    LookupAnswer,
    Operation,
    OperationState,
    ReleaseReason,
)
from earnest.engine.process import auditing
from earnest.engine.process.actors import Actor
from earnest.engine.process.doorbells import QUESTION, WORK
from earnest.engine.process.effects import as_call
from earnest.engine.process.engine import Engine
from earnest.engine.runs import moving
from earnest.engine.runs.moving import Locked
from earnest.store import executions, operations
from earnest.store.database import Tx
from earnest.store.executions import Execution
from earnest.store.operations import Note


@dataclass(frozen=True, slots=True)
class Proof:
    """By whom an outcome is told and what entitles them: `token` (it was their call) or `version`
    (they looked at the operation as it stands). `evidence` says why it is believed; `answer` is
    what a look-up said; `owner` is the fence and token of an attempt that says it of its own run,
    which must still be its own (P5). `person` is who settles a doubt, for the audit. `callback`:
    the provider said so itself, which needs no other title."""

    by: str
    token: uuid.UUID | None = None
    version: int | None = None
    evidence: dict[str, Any] | None = None
    answer: tuple[LookupAnswer, str] | None = None
    owner: tuple[int, uuid.UUID] | None = None
    person: Actor | None = None
    callback: bool = False

    def entitles(self, operation: Operation) -> bool:
        if self.callback:
            return True
        if self.token is not None:
            return operation.send_token == self.token
        return operation.version == self.version

    def require_owner(self, run: Execution | None) -> None:
        if self.owner is not None and (run is None or not run.owned_by(*self.owner)):
            raise FencedOut(f"attempt {self.owner[0]} no longer owns the run")


async def confirm(
    engine: Engine,
    scope_id: str,
    operation_id: uuid.UUID,
    receipt: bytes,
    external_ref: str | None,
    proof: Proof,
) -> Operation:
    """submitting or unknown → submitted, with the app's own record. A receipt for an operation that
    was since released or sent again moves nothing and is kept as a finding. Returns the operation
    as it stands then. Raises `HookFailed` when the app's record failed: nothing is stored."""
    # Chosen here: the promise may be repeated after a lost reply, and is one finding all the same.
    finding_id = ids.new_id()

    async def work(tx: Tx) -> Operation:
        return await confirm_in(
            engine, tx, scope_id, operation_id, receipt, external_ref, proof, finding_id
        )

    return await _promise(engine, "resolve" if proof.token is None else "confirm", work)


async def confirm_in(
    engine: Engine,
    tx: Tx,
    scope_id: str,
    operation_id: uuid.UUID,
    receipt: bytes,
    external_ref: str | None,
    proof: Proof,
    finding_id: uuid.UUID,
) -> Operation:
    """As `confirm`, as a part of the caller's promise."""
    locked, operation = await _lock(tx, scope_id, operation_id)
    if operation.state not in _OPEN or not proof.entitles(operation):
        await _late(tx, operation, receipt, proof, finding_id)
        return operation
    resolution = _resolution(operation, proof, "submitted")
    note = Note("resolve" if resolution else "confirm", proof.by, operation.attempt, resolution)
    await operations.confirm(
        tx, operation, note, receipt=receipt, external_ref=external_ref, resolution=resolution
    )
    await _note_answer(tx, operation, proof)
    await _record(engine, tx, operation, receipt)
    event = moving.operation_event("operation.submitted", operation, ref=external_ref)
    await _tell(engine, tx, locked, operation, event, resolution, doubts=-1)
    await _keep(tx, operation, proof, "submitted")
    return await _now(tx, operation)


async def release(
    engine: Engine,
    scope_id: str,
    operation_id: uuid.UUID,
    reason: ReleaseReason,
    proof: Proof,
    *,
    refusal: dict[str, Any] | None = None,
) -> Operation:
    """It surely did not happen. Returns the operation as it stands; one that was settled otherwise
    in the meantime stays so. Raises `FencedOut` where the proof has an owner and it is none."""

    async def work(tx: Tx) -> Operation:
        return await release_in(engine, tx, scope_id, operation_id, reason, proof, refusal=refusal)

    return await _promise(engine, "resolve" if proof.token is None else "release", work)


async def release_in(
    engine: Engine,
    tx: Tx,
    scope_id: str,
    operation_id: uuid.UUID,
    reason: ReleaseReason,
    proof: Proof,
    *,
    refusal: dict[str, Any] | None = None,
) -> Operation:
    """As `release`, as a part of the caller's promise."""
    locked, operation = await _lock(tx, scope_id, operation_id)
    proof.require_owner(None if operation.run_id is None else locked[operation.run_id])
    open_states = (*_OPEN, OperationState.RESERVED)
    if operation.state not in open_states or not proof.entitles(operation):
        return operation
    resolution = _resolution(operation, proof, "released")
    note = Note("resolve" if resolution else "release", proof.by, operation.attempt, resolution)
    await operations.release(
        tx, operation, note, reason=reason, refusal=refusal, resolution=resolution
    )
    await _note_answer(tx, operation, proof)
    await moving.run_released_hook(engine, tx, operation, reason)
    event = moving.operation_event("operation.released", operation, reason=reason.value)
    was_reserved = operation.state is OperationState.RESERVED
    doubts, reserved = (0, -1) if was_reserved else (-1, 0)
    await _tell(engine, tx, locked, operation, event, resolution, doubts, reserved)
    await _keep(tx, operation, proof, "released")
    return await _now(tx, operation)


async def doubt(
    engine: Engine,
    scope_id: str,
    operation_id: uuid.UUID,
    proof: Proof,
    why: str,
    **detail: Any,
) -> Operation:
    """submitting → unknown, said by the caller itself."""

    async def work(tx: Tx) -> Operation:
        return await doubt_in(tx, scope_id, operation_id, proof, why, **detail)

    return await _promise(engine, "doubt", work)


async def doubt_in(
    tx: Tx, scope_id: str, operation_id: uuid.UUID, proof: Proof, why: str, **detail: Any
) -> Operation:
    """As `doubt`, as a part of the caller's promise."""
    _, operation = await _lock(tx, scope_id, operation_id)
    if operation.state is OperationState.SUBMITTING and proof.entitles(operation):
        await moving.doubt_operation(tx, operation, proof.by, why, **detail)
    return await _now(tx, operation)


async def note_answer(
    engine: Engine,
    operation: Operation,
    answer: LookupAnswer,
    detail: str,
    ask_in: timedelta | None,
) -> None:
    """A look-up that settled nothing; the next one is due after `ask_in`, or none."""

    async def work(tx: Tx) -> bool:
        await operations.note_lookup(tx, operation, answer, detail, ask_in)
        return True

    async def reread(tx: Tx) -> bool | None:
        found = await operations.find(tx, operation.scope_id, operation.operation_id)
        noted = found is not None and found.lookup_count > operation.lookup_count
        return noted or None

    await engine.database.promise("look_up", work, reread=reread)


_OPEN = (OperationState.SUBMITTING, OperationState.UNKNOWN)


async def _promise(engine: Engine, name: str, work: Any) -> Operation:
    # Repeated after a lost reply it finds its own outcome: the state has left those it moves from,
    # or its finding is there.
    operation: Operation = await engine.database.promise(name, work)
    engine.bells.ring(WORK, QUESTION)
    if operation.run_id is not None:
        engine.bells.moved(operation.run_id)
    return operation


async def _lock(tx: Tx, scope_id: str, operation_id: uuid.UUID) -> tuple[Locked, Operation]:
    """The run (with its parent) first, then the operation. Which run never changes."""
    seen = await _now_by_id(tx, scope_id, operation_id)
    locked: Locked = {}
    if seen.run_id is not None:
        locked = await executions.lock_with_parents(tx, scope_id, [seen.run_id])
    found = await operations.lock(tx, scope_id, operation_id)
    assert found is not None, "read in this transaction"
    return locked, found[0]


async def lock_to_send(
    tx: Tx, scope_id: str, operation_id: uuid.UUID
) -> tuple[Operation, datetime, Execution | None]:
    """The operation and the clock, with its run (if any) locked before it."""
    seen = await _now_by_id(tx, scope_id, operation_id)
    run = None
    if seen.run_id is not None:
        run = (await executions.lock(tx, scope_id, [seen.run_id]))[seen.run_id]
    found = await operations.lock(tx, scope_id, operation_id)
    assert found is not None, "read in this transaction"
    return *found, run


async def _now_by_id(tx: Tx, scope_id: str, operation_id: uuid.UUID) -> Operation:
    seen = await operations.find(tx, scope_id, operation_id)
    if seen is None:
        raise NotFound(f"no such operation: {ids.show('op', operation_id)}")
    return seen


async def _now(tx: Tx, operation: Operation) -> Operation:
    return await _now_by_id(tx, operation.scope_id, operation.operation_id)


async def _record(engine: Engine, tx: Tx, operation: Operation, receipt: bytes) -> None:
    """The app's own rows, in this transaction or not at all (P4)."""
    effect = engine.effect(operation.kind)
    if effect is None:
        raise Conflict(
            f"no effect {operation.kind} is known to this process, so its record cannot be "
            "written; start it with the app that defines the effect"
        )
    async with moving.hook_of(tx, effect, "record"):
        typed = effect.receipt_type.validate_python(canonical.decode(receipt))
        reach("record.before")
        await effect.record(tx, as_call(operation), typed)
        reach("record.after")


async def _late(
    tx: Tx, operation: Operation, receipt: bytes, proof: Proof, finding_id: uuid.UUID
) -> None:
    value = canonical.decode(receipt)
    if operation.state is OperationState.SUBMITTED and operation.receipt == value:
        return  # Said before; perhaps by this very promise, whose reply was lost.
    if proof.token is None and not proof.callback:
        _refuse_stale(operation, proof)
    told = {"by": proof.by, "receipt": value, "state": operation.state.value}
    await operations.put_finding(tx, operation, finding_id, "late_receipt", told)


def _refuse_stale(operation: Operation, proof: Proof) -> None:
    shown = ids.show("op", operation.operation_id)
    if operation.version != proof.version:
        raise StaleVersion(
            f"{shown} is {operation.state} in version {operation.version} now; look at it again",
            fields={"version": operation.version},
        )
    raise Conflict(f"{shown} is {operation.state} and cannot be resolved")


def _resolution(operation: Operation, proof: Proof, outcome: str) -> dict[str, Any] | None:
    """Who settled a doubt and why; `None` when the call itself gave a timely answer."""
    if operation.state is not OperationState.UNKNOWN:
        return None
    by = "late_receipt" if proof.token is not None else proof.by
    return {"outcome": outcome, "by": by, **(proof.evidence or {})}


async def _keep(tx: Tx, operation: Operation, proof: Proof, outcome: str) -> None:
    """The evidence itself stands with the operation."""
    if proof.person is not None:
        subject = ids.show("op", operation.operation_id)
        told = {"outcome": outcome, "kind": operation.kind}
        await auditing.keep(tx, proof.person, "operation.resolved", subject, told)


async def _note_answer(tx: Tx, operation: Operation, proof: Proof) -> None:
    if proof.answer is not None:
        await operations.note_final_lookup(tx, operation, *proof.answer)


async def _tell(
    engine: Engine,
    tx: Tx,
    locked: Locked,
    operation: Operation,
    event: NewEvent,
    resolution: dict[str, Any] | None,
    doubts: int = 0,
    reserved: int = 0,
) -> None:
    """The run's events and counts, and the run itself if it waited for nothing else."""
    if operation.run_id is None:
        return
    events = [event]
    if resolution is not None:
        told = {"outcome": resolution["outcome"], "by": resolution["by"]}
        events.append(moving.operation_event("operation.resolved", operation, **told))
    await executions.touch(
        tx, operation.scope_id, operation.run_id, events, doubts=doubts, reserved=reserved
    )
    await moving.resume_if_settled(engine, tx, locked, operation.run_id)
