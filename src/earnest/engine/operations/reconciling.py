"""Reconciling: how a doubt is settled.

A provider that can be asked is asked, with back-off; one that honours a repeated id is sent the
same bytes again inside its window; otherwise a person decides, with evidence. An absence is not
yet proof: what the provider does not know now may still arrive there. It releases only after the
effect's `absent_after`, and only if a late arrival could do no harm (the provider recognises a
repeated id) or cannot come (the process that sent it provably ended).
"""

from __future__ import annotations

import asyncio
import random
import uuid
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from earnest.domain import canonical, ids
from earnest.domain.canonical import storable
from earnest.domain.errors import (
    Conflict,
    Inconclusive,
    InvalidRequest,
    NotFound,
    PreconditionRequired,
    StaleVersion,
)
from earnest.domain.kept_error import kept_error, kept_text
from earnest.domain.operation import (
    LookupAnswer,
    Operation,
    OperationState,
    Recovery,
    ReleaseReason,
    may_send_again,
)
from earnest.engine.operations import operating, recording
from earnest.engine.operations.recording import Proof
from earnest.engine.process.actors import Actor, By, acting, name_of
from earnest.engine.process.effects import Effect, as_call
from earnest.engine.process.engine import Engine
from earnest.engine.process.foreign_code import foreign_code, told_of
from earnest.engine.process.instances import has_ended
from earnest.engine.process.logs import get_logger
from earnest.engine.process.typed_json import encode_typed, misfit
from earnest.engine.runs import moving
from earnest.store import operations, runs
from earnest.store.database import Tx

log = get_logger("earnest.reconciling")

MAX_EVIDENCE = 4000


async def ask_due(engine: Engine, limit: int = 20) -> int:
    """Takes what is due and asks it all; returns how many were taken."""
    taken = await take_due(engine, limit)
    await asyncio.gather(*(ask(engine, *key) for key in taken))
    return len(taken)


async def take_due(engine: Engine, limit: int) -> list[tuple[str, uuid.UUID]]:
    """Takes the unknown operations whose next question is due, of effects that this process knows.
    Whoever takes one asks; if it dies, the question comes due again."""
    kinds, claim = engine.effect_kinds(), engine.settings.question_claim

    async def work(tx: Tx) -> list[tuple[str, uuid.UUID]]:
        return await operations.take_due_questions(tx, kinds, claim, limit)

    return await engine.database.promise("look_up", work)


async def ask(engine: Engine, scope_id: str, operation_id: uuid.UUID) -> None:
    """As `look_up`, for a loop: what cannot be asked now is logged and comes due again."""
    try:
        await look_up(engine, scope_id, operation_id)
    except Exception as error:
        shown = ids.show("op", operation_id)
        log.warning("look_up.failed", operation_id=shown, **kept_error(error))


async def look_up(
    engine: Engine, scope_id: str, operation_id: uuid.UUID, *, by: By | None = None
) -> Operation:
    """Asks the provider now and acts on the answer; returns the operation as it stands then. `by`
    is the person who had it asked: what that settles is in the audit under their name.

    Harmless on an operation that is not in doubt. Raises `NotFound`, and `Conflict` where nobody
    can be asked.
    """
    operation = await operations.find(engine.database, scope_id, operation_id)
    if operation is None:
        raise NotFound(f"no such operation: {ids.show('op', operation_id)}")
    if operation.state is not OperationState.UNKNOWN:
        return operation
    effect = engine.effect(operation.kind)
    if effect is None:
        raise Conflict(
            f"the effect {operation.kind} is not known to this process; name its app (--app)"
        )
    if operation.recovery is Recovery.HOLD:
        raise Conflict("this provider cannot be asked; settle the operation with evidence")
    if operation.recovery is Recovery.RESEND:
        await _send_again(engine, operation, effect)
    else:
        await _ask(engine, operation, effect, None if by is None else acting(scope_id, by))
    found = await operations.find(engine.database, scope_id, operation_id)
    assert found is not None, "operations are not removed while they are in doubt"
    return found


# ---- asking ------------------------------------------------------------------------------------


async def _ask(
    engine: Engine, operation: Operation, effect: Effect[Any, Any], person: Actor | None
) -> None:
    # Judged before the question: what arrived after the answer was given is not in it.
    absence_is_proof = await _absence_is_proof(engine, operation)
    answer, detail, receipt = await _answer(operation, effect)
    if receipt is not None:
        await _adopt(engine, operation, *receipt, by="look_up", person=person)
    elif answer is LookupAnswer.ABSENT and absence_is_proof:
        evidence = {"evidence": "the provider does not know it, and it cannot arrive late"}
        proof = Proof("look_up", version=operation.version, evidence=evidence,
                      answer=(answer, detail), person=person)  # fmt: skip
        await recording.release(
            engine, operation.scope_id, operation.operation_id, ReleaseReason.ABSENT, proof
        )
    else:
        await recording.note_answer(engine, operation, answer, detail, _wait(engine, operation))


async def take_as_found(engine: Engine, operation: Operation, receipt: Any, by: str) -> None:
    """Takes a receipt that was come by in another way, such as in a provider's list, as an answer
    to a look-up: it settles the doubt if it is this operation's. What it leaves in doubt, and what
    was settled meanwhile, stays as it is."""
    effect = engine.effect(operation.kind)
    if effect is None or operation.state is not OperationState.UNKNOWN:
        return
    try:
        with foreign_code:
            answer, detail, found = _judge(operation, effect, receipt)
    except Exception as error:
        answer, detail, found = LookupAnswer.INCONCLUSIVE, kept_text(told_of(error)), None
    if found is not None:
        await _adopt(engine, operation, *found, by=by)
    else:
        await recording.note_answer(engine, operation, answer, detail, _wait(engine, operation))


async def ask_only(operation: Operation, effect: Effect[Any, Any]) -> LookupAnswer:
    """What the provider says of an operation, whatever its state; nothing is done about it."""
    return (await _answer(operation, effect))[0]


async def _answer(
    operation: Operation, effect: Effect[Any, Any]
) -> tuple[LookupAnswer, str, tuple[bytes, str | None] | None]:
    """What the provider says, with the receipt as it is stored. Any failure to answer is
    inconclusive."""
    try:
        with foreign_code:
            return await _ask_provider(operation, effect)
    except Inconclusive as error:
        return LookupAnswer.INCONCLUSIVE, kept_text(error.detail), None
    except Exception as error:
        told = kept_text(told_of(error))
        return LookupAnswer.INCONCLUSIVE, told, None


async def _ask_provider(
    operation: Operation, effect: Effect[Any, Any]
) -> tuple[LookupAnswer, str, tuple[bytes, str | None] | None]:
    async with asyncio.timeout(operation.timeout.total_seconds()):
        receipt = await effect.lookup(as_call(operation))
    if receipt is None:
        return LookupAnswer.ABSENT, "not known there", None
    return _judge(operation, effect, receipt)


def _judge(
    operation: Operation, effect: Effect[Any, Any], receipt: Any
) -> tuple[LookupAnswer, str, tuple[bytes, str | None] | None]:
    """Whether a receipt is this operation's. Raises `ValueError` for what is none."""
    checked = effect.receipt_type.validate_python(receipt)
    request = effect.request_type.validate_python(operation.request)
    if not effect.matches(request, checked):
        return LookupAnswer.MISMATCHED, "found, but it is another request's", None
    return LookupAnswer.FOUND, "found", operating.encode_receipt(effect, checked)


_FOUND = {"look_up": "found by its id", "sweep": "found in the provider's list"}


async def _adopt(
    engine: Engine,
    operation: Operation,
    data: bytes,
    reference: str | None,
    *,
    by: str,
    person: Actor | None = None,
) -> None:
    proof = Proof(by, version=operation.version, evidence={"evidence": _FOUND[by]},
                  answer=(LookupAnswer.FOUND, "found"), person=person)  # fmt: skip
    try:
        await recording.confirm(
            engine, operation.scope_id, operation.operation_id, data, reference, proof
        )
    except moving.HookFailed as error:
        await recording.note_answer(
            engine,
            operation,
            LookupAnswer.INCONCLUSIVE,
            kept_text(error.detail),
            _wait(engine, operation),
        )
    except StaleVersion:
        log.info("look_up.outrun", operation_id=ids.show("op", operation.operation_id))


async def _absence_is_proof(engine: Engine, operation: Operation) -> bool:
    if operation.absent_after is None or operation.submitting_at is None:
        return False
    async with engine.database.connection() as tx:
        now: datetime = await tx.fetchval("SELECT clock()")
        if now < operation.submitting_at + operation.absent_after:
            return False
        return operation.dedupes or await has_ended(tx, operation.instance_id)


def _wait(engine: Engine, operation: Operation) -> timedelta | None:
    """Doubling, spread over the upper half, so that a provider that comes back is not stormed.
    `None` where it cannot be asked."""
    if operation.recovery is Recovery.HOLD:
        return None
    first, longest = engine.settings.first_question, engine.settings.longest_question_wait
    window = min(first * float(2 ** min(operation.lookup_count, 20)), longest)
    return window * (0.5 + random.random() / 2)


# ---- sending again -----------------------------------------------------------------------------


async def _send_again(engine: Engine, operation: Operation, effect: Effect[Any, Any]) -> None:
    """The same bytes under the same id, for a run that waits for it or an operation that stands
    alone. A run that was cancelled or has ended gets nothing sent any more."""
    if not await _may_be_sent(engine, operation):
        await recording.note_answer(
            engine, operation, LookupAnswer.INCONCLUSIVE,
            "it may not be sent again: its window is over or its run was cancelled",
            engine.settings.longest_question_wait,
        )  # fmt: skip
        return
    request = _as_it_was_sent(operation, effect)
    if request is None:
        await recording.note_answer(
            engine, operation, LookupAnswer.INCONCLUSIVE,
            "this code would send other bytes than were stored; nothing was sent",
            engine.settings.longest_question_wait,
        )  # fmt: skip
        return
    after = await operating.send_stored(engine, operation, effect, request)
    if after.state is OperationState.UNKNOWN:
        detail = "sent again, and still no answer"
        wait = _wait(engine, after)
        await recording.note_answer(engine, after, LookupAnswer.INCONCLUSIVE, detail, wait)


def _as_it_was_sent(operation: Operation, effect: Effect[Any, Any]) -> Any | None:
    """The stored request as the effect's type; `None` where this code would send other bytes."""
    try:
        request = effect.request_type.validate_python(operation.request)
        data = encode_typed(effect.request_type, request)
    except ValueError:
        return None
    return request if canonical.digest(data) == operation.digest else None


async def _may_be_sent(engine: Engine, operation: Operation) -> bool:
    if operation.first_begun_at is None or operation.window is None:
        return False
    if operation.run_id is not None:
        run = await runs.find(engine.database, operation.scope_id, operation.run_id)
        if run is None or run.final or run.cancel_requested:
            return False
    async with engine.database.connection() as tx:
        now: datetime = await tx.fetchval("SELECT clock()")
    return may_send_again(operation.first_begun_at, now, operation.window, operation.timeout)


# ---- a person ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a person established: `outcome` is `submitted` (with the receipt) or `released`."""

    outcome: str
    evidence: str
    note: str = ""
    receipt: Any = None


async def resolve(
    engine: Engine,
    scope_id: str,
    operation_id: uuid.UUID,
    verdict: Verdict,
    *,
    by: By,
    version: int | None,
) -> Operation:
    """Settles an unknown operation. The same verdict again is harmless, whatever its version; a
    contradiction is a `Conflict`. While it is unknown, `version` must be the one that was looked at
    (`PreconditionRequired`, `StaleVersion`)."""
    _check_verdict(verdict)
    operation = await operations.find(engine.database, scope_id, operation_id)
    if operation is None:
        raise NotFound(f"no such operation: {ids.show('op', operation_id)}")
    if operation.state is not OperationState.UNKNOWN:
        return _already(engine, operation, verdict)
    if version is None:
        raise PreconditionRequired("name the version that you looked at (If-Match)")
    who = name_of(by)
    evidence = {"principal_id": who, "evidence": verdict.evidence, "note": verdict.note}
    proof = Proof(who, version=version, evidence=evidence, person=acting(scope_id, by))
    if version != operation.version:
        raise StaleVersion(
            f"the operation is in version {operation.version} now; look at it again",
            fields={"version": operation.version},
        )
    if verdict.outcome == "released":
        settled = await recording.release(
            engine, scope_id, operation_id, ReleaseReason.GIVEN_UP, proof
        )
    else:
        data, reference = _receipt_of(engine, operation, verdict)
        settled = await recording.confirm(engine, scope_id, operation_id, data, reference, proof)
    return _already(engine, settled, verdict)


def _check_verdict(verdict: Verdict) -> None:
    if verdict.outcome not in ("submitted", "released"):
        raise InvalidRequest("outcome is `submitted` (it happened) or `released` (it did not)")
    if not verdict.evidence.strip():
        raise InvalidRequest("evidence is needed: say how you know")
    if len(verdict.evidence) > MAX_EVIDENCE or len(verdict.note) > MAX_EVIDENCE:
        raise InvalidRequest(f"evidence and note have at most {MAX_EVIDENCE} characters each")
    if not storable(verdict.evidence) or not storable(verdict.note):
        raise InvalidRequest("a NUL or half of a surrogate pair cannot be stored")
    if verdict.outcome == "submitted" and verdict.receipt is None:
        raise InvalidRequest("`submitted` needs the receipt: what the provider says of it, as JSON")
    if verdict.outcome == "released" and verdict.receipt is not None:
        raise InvalidRequest("`released` says that it did not happen: leave the receipt out")


def _receipt_of(engine: Engine, operation: Operation, verdict: Verdict) -> tuple[bytes, str | None]:
    effect = engine.effect(operation.kind)
    if effect is None:
        raise Conflict(
            f"the effect {operation.kind} is not known here; resolve it where its app is (--app)"
        )
    try:
        return operating.encode_receipt(effect, verdict.receipt)
    except ValueError as error:
        raise InvalidRequest(
            f"the receipt does not fit {operation.kind}: {misfit(error)}"
        ) from error


def _already(engine: Engine, operation: Operation, verdict: Verdict) -> Operation:
    """The operation, if it stands as the verdict says, with the same receipt."""
    if operation.state.value != verdict.outcome:
        raise Conflict(
            f"the operation is {operation.state}, which contradicts {verdict.outcome!r}",
            fields={"state": operation.state.value},
        )
    if verdict.receipt is not None:
        data, _ = _receipt_of(engine, operation, verdict)
        if canonical.decode(data) != operation.receipt:
            raise Conflict("the operation has another receipt; look at it again")
    return operation
