"""Receiving: a message from outside is handled once, in one transaction with its effect.

    verify ─▶ note that it is handled ─▶ the app's handler ─▶ what it says is done ─▶ commit ─▶ 2xx

The note comes first: of a message that is sent twice at once, the second waits for the first and
finds it handled. If anything after it fails, nothing of it is there, and the sender, who gets no
2xx, sends it again. Who signs badly and who names a source that is not there are told the same.

What a handler says of an operation passes the ways that a look-up passes: the receipt has to fit
the effect and to belong to the request, the app's `record` runs, and what comes too late or says
something else moves nothing and is a finding on the desk. So messages may come in any order.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from earnest.domain import canonical, ids
from earnest.domain.errors import (
    Busy,
    Conflict,
    EarnestError,
    InvalidRequest,
    NotFound,
    Unauthenticated,
)
from earnest.domain.kept_error import kept_text
from earnest.domain.operation import Operation, OperationState, ReleaseReason
from earnest.engine.messages import signing
from earnest.engine.operations import operating, recording
from earnest.engine.operations.recording import Proof
from earnest.engine.process.doorbells import QUESTION, WORK
from earnest.engine.process.effects import Effect
from earnest.engine.process.engine import Engine
from earnest.engine.process.foreign_code import foreign_code, told_of
from earnest.engine.process.inboxes import (
    InboxHandler,
    InboxMessage,
    Refutes,
    Said,
    Settles,
    Signals,
)
from earnest.engine.process.logs import get_logger
from earnest.engine.process.typed_json import misfit
from earnest.engine.runs import signalling
from earnest.engine.runs.moving import HOOK_LOCK_TIMEOUT, HOOK_SECONDS, HookFailed
from earnest.store import executions, inbox, operations
from earnest.store.database import Tx, lend, let_wait, not_the_hooks_fault
from earnest.store.inbox import Source

log = get_logger("earnest.inbox")

SOURCE_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,62}", re.ASCII)
# An unknown source takes as long to refuse as a bad signature.
_NOBODYS_SECRET = signing.new_secret()
_NOT_NOW = 30  # seconds


async def receive(engine: Engine, name: str, headers: Mapping[str, str], body: bytes) -> bool:
    """Handles a message that came to the source `name`; returns false when it was handled before.
    Raises `Unauthenticated` without a reason, and `Busy` when it cannot be handled now: whoever
    sent it is to send it again."""
    source, message_id = await _verified(engine, name, headers, body)
    handler = engine.inboxes.get(source.handler)
    if handler is None:
        log.error("inbox.no_handler", source=source.name, handler=source.handler)
        raise _not_now()
    message = InboxMessage(source.scope_id, source.name, message_id, _json(body), body)
    try:
        moved = await _handle(engine, handler, message)
    except HookFailed as error:
        log.error("inbox.failed", source=source.name, error=error.detail)
        raise _not_now() from error
    if moved is None:
        return False
    engine.bells.ring(WORK, QUESTION)
    engine.bells.moved(*moved.run_ids)
    return True


async def _verified(
    engine: Engine, name: str, headers: Mapping[str, str], body: bytes
) -> tuple[Source, str]:
    found = None
    if SOURCE_NAME.fullmatch(name):
        found = await inbox.source_by_name(engine.database, name)
    secrets = [_NOBODYS_SECRET] if found is None else map(engine.sealer.open, found[1])
    try:
        message_id = signing.verify(secrets, headers, body)
    except signing.SignatureBad:
        message_id = ""
    if found is None or not message_id:
        raise Unauthenticated("the message was not taken")
    return found[0], message_id


@dataclass(frozen=True, slots=True)
class _Moved:
    """The runs that a message moved; also none is something that was done."""

    run_ids: list[uuid.UUID]


async def _handle(engine: Engine, handler: InboxHandler, message: InboxMessage) -> _Moved | None:
    """`None` when it was handled before."""
    where = (message.scope_id, message.source, message.id)

    async def work(tx: Tx) -> _Moved | None:
        if not await inbox.enter(tx, *where):
            return None
        said = await _ask(handler, tx, message)
        outcomes, moved = await _do(engine, tx, message, said)
        await inbox.note_outcome(tx, *where, outcomes)
        return _Moved(moved)

    # Repeated after a lost reply it finds its own note, and is a repetition.
    return await engine.database.promise("receive", work)


async def _ask(handler: InboxHandler, tx: Tx, message: InboxMessage) -> Sequence[Said]:
    """The app's own code in the transaction. Raises `HookFailed` for its errors."""
    lend(tx)
    await let_wait(tx, HOOK_LOCK_TIMEOUT)
    try:
        async with asyncio.timeout(HOOK_SECONDS):
            with foreign_code:
                said = await handler(tx, message)
    except Exception as error:
        if not_the_hooks_fault(tx, error):
            raise
        raise HookFailed(f"the inbox {message.source} failed: {told_of(error)}") from error
    if said is None:
        return ()
    return [_may_be_said(message, one) for one in _several(said)]


def _several(said: Said | Sequence[Said]) -> Sequence[object]:
    return said if isinstance(said, list | tuple) else [said]


def _may_be_said(message: InboxMessage, one: object) -> Said:
    if isinstance(one, Settles | Refutes | Signals):
        return one
    raise HookFailed(
        f"the inbox {message.source} returned {type(one).__name__}; it may return Settles, "
        "Refutes, Signals, a list of them, or nothing"
    )


async def _do(
    engine: Engine, tx: Tx, message: InboxMessage, said: Sequence[Said]
) -> tuple[list[dict[str, Any]], list[uuid.UUID]]:
    """Does what was said, under the locks of all runs that it is about, taken in order."""
    meant = [await _about(tx, message.scope_id, one) for one in said]
    runs = sorted({run_id for run_id, _ in meant if run_id is not None})
    await executions.lock_with_parents(tx, message.scope_id, runs)
    outcomes = []
    for number, (one, (run_id, operation)) in enumerate(zip(said, meant, strict=True)):
        outcome = await _do_one(engine, tx, message, number, one, run_id, operation)
        outcomes.append({"said": type(one).__name__.lower(), "outcome": outcome})
    return outcomes, runs


async def _about(tx: Tx, scope_id: str, said: Said) -> tuple[uuid.UUID | None, Operation | None]:
    """The run and the operation; nothing where there are none in this scope."""
    try:
        if isinstance(said, Settles | Refutes):
            operation = await operations.find(tx, scope_id, ids.read("op", said.operation_id))
            return None if operation is None else operation.run_id, operation
        return ids.read("run", said.run_id), None
    except NotFound:
        return None, None


async def _do_one(
    engine: Engine,
    tx: Tx,
    message: InboxMessage,
    number: int,
    said: Said,
    run_id: uuid.UUID | None,
    operation: Operation | None,
) -> str:
    if isinstance(said, Settles | Refutes):
        if operation is None:
            return "no such operation"
        if isinstance(said, Settles):
            return await _settle(engine, tx, message, operation, said)
        return await _refute(engine, tx, message, operation, said)
    if run_id is None:
        return "no such run"
    key = f"{number}:{hashlib.sha256(message.id.encode()).hexdigest()}"
    try:
        await signalling.signal_in(
            tx, message.scope_id, run_id, said.name, said.payload, by=_by(message), key=key
        )
    except (NotFound, Conflict) as error:
        return kept_text(error.detail)
    except EarnestError as error:
        raise HookFailed(f"the inbox {message.source}: {error.detail}") from error
    return "signalled"


async def _settle(
    engine: Engine, tx: Tx, message: InboxMessage, operation: Operation, said: Settles
) -> str:
    effect = engine.effect(operation.kind)
    if effect is None:
        raise HookFailed(f"the effect {operation.kind} is not known to this process")
    try:
        data, reference = operating.encode_receipt(effect, said.receipt)
        fits = _belongs(effect, operation, data)
    except ValueError as error:
        told = f"the receipt does not fit {operation.kind}: {misfit(error)}"
        raise HookFailed(told) from error
    if not fits:
        detail = {"by": _by(message), "receipt": canonical.decode(data)}
        await operations.put_finding(tx, operation, ids.new_id(), "mismatched_callback", detail)
        return "the receipt is another request's"
    proof = _proof(message, "the provider says that it was done")
    settled = await recording.confirm_in(
        engine, tx, operation.scope_id, operation.operation_id, data, reference, proof,
        ids.new_id(),
    )  # fmt: skip
    return settled.state.value


def _belongs(effect: Effect[Any, Any], operation: Operation, receipt: bytes) -> bool:
    checked = effect.receipt_type.validate_python(canonical.decode(receipt))
    request = effect.request_type.validate_python(operation.request)
    with foreign_code:
        return effect.matches(request, checked)


async def _refute(
    engine: Engine, tx: Tx, message: InboxMessage, operation: Operation, said: Refutes
) -> str:
    """Only of a doubt. While a call is on its way it may say something else, and what is settled
    stays so: the contradiction is for people."""
    if operation.state is OperationState.SUBMITTING:
        raise _not_now()
    evidence = kept_text(said.evidence)
    if operation.state is OperationState.UNKNOWN:
        refusal = {"code": "refused", "detail": evidence}
        settled = await recording.release_in(
            engine, tx, operation.scope_id, operation.operation_id, ReleaseReason.REFUSED,
            _proof(message, evidence), refusal=refusal,
        )  # fmt: skip
        return settled.state.value
    if operation.state is OperationState.SUBMITTED:
        detail = {"by": _by(message), "evidence": evidence, "state": operation.state.value}
        await operations.put_finding(tx, operation, ids.new_id(), "contradicted", detail)
    return operation.state.value


def _proof(message: InboxMessage, evidence: str) -> Proof:
    told = {"evidence": evidence, "message_id": kept_text(message.id)}
    return Proof(_by(message), evidence=told, callback=True)


def _by(message: InboxMessage) -> str:
    return f"inbox:{message.source}"


def _json(body: bytes) -> Any:
    try:
        return canonical.decode(body)
    except (canonical.NotJson, InvalidRequest):
        return None


def _not_now() -> Busy:
    return Busy(
        "the message cannot be handled now; send it again", fields={"retry_after": _NOT_NOW}
    )
