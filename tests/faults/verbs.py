"""What a caller asks of the engine, each with a key or an id of its own, so that whoever does not
know whether it was done may ask again."""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import dataclass
from typing import Any, NamedTuple

from earnest.domain import ids
from earnest.domain.approval import Decision
from earnest.domain.errors import Conflict, StaleVersion
from earnest.domain.operation import OperationState
from earnest.engine.approvals import deciding
from earnest.engine.operations import reconciling
from earnest.engine.operations.reconciling import Verdict
from earnest.engine.process.actors import Actor
from earnest.engine.process.engine import Engine
from earnest.engine.runs import cancelling, retrying, signalling, submitting
from earnest.engine.runs.submitting import Request
from earnest.store import approvals, operations
from earnest.testing.simulator import Simulator

PRINCIPAL = "person"


class Verb(NamedTuple):
    """`name` is submit, cancel, signal, decide, retry or resolve; `subject` the key of a run to
    submit, or the id of a run or an operation; `detail` the kind and input, the signal's payload,
    or the decision about what the run has put to people."""

    name: str
    subject: str
    detail: Any = None


@dataclass(frozen=True)
class Caller:
    """Who asks: through which engine, for which scope, and whose books a person looks into."""

    engine: Engine
    simulator: Simulator
    scope: str

    async def perform(self, verb: Verb) -> bool:
        """Asks; whether it is done. What is not done may be asked again later."""
        return await _PERFORM[verb.name](self, verb)

    async def refunds_of(self, operation_id: uuid.UUID) -> int:
        """How often the bank really did it. What a killed process had written to its socket is
        read by the bank before a question that comes later, but may be done after it: the answer
        counts when three questions in a row get the same one."""
        shown = ids.show("op", operation_id)
        seen: list[int] = []
        while len(seen) < 3 or len(set(seen[-3:])) > 1:
            truth = await asyncio.to_thread(self.simulator.truth, "bank")
            seen.append(sum(deed["operation_id"] == shown for deed in truth))
        return seen[-1]


async def _submit(caller: Caller, verb: Verb) -> bool:
    kind, value = verb.detail
    request = Request(kind, value, verb.subject)
    await submitting.submit(caller.engine, caller.scope, PRINCIPAL, request)
    return True


async def _cancel(caller: Caller, verb: Verb) -> bool:
    await cancelling.cancel(caller.engine, caller.scope, uuid.UUID(verb.subject), PRINCIPAL)
    return True


async def _signal(caller: Caller, verb: Verb) -> bool:
    payload, run_id = verb.detail, uuid.UUID(verb.subject)
    await signalling.signal(
        caller.engine, caller.scope, run_id, "go", payload, by=PRINCIPAL, key=f"signal {payload}"
    )
    return True


async def _decide(caller: Caller, verb: Verb) -> bool:
    """About what stands there; asked again by whoever does not know whether it was done."""
    run_id = uuid.UUID(verb.subject)
    async with caller.engine.database.connection() as tx:
        (found,) = await approvals.of_run(tx, caller.scope, run_id)
    actor = Actor(caller.scope, PRINCIPAL, frozenset({"approver"}))
    verdict = deciding.Verdict(Decision(verb.detail), found.digest.hex())
    await deciding.decide(
        caller.engine, actor, found.approval_id, verdict, version=found.version, key=verb.subject
    )
    return True


async def _retry(caller: Caller, verb: Verb) -> bool:
    key = f"retry of {verb.subject}"
    run_id = uuid.UUID(verb.subject)
    await retrying.retry(caller.engine, caller.scope, run_id, by=PRINCIPAL, key=key)
    return True


async def _resolve(caller: Caller, verb: Verb) -> bool:
    """Settles a doubt as the bank's own books say. The version is the one from before the look
    into the books: should a worker have sent it again since, the verdict is refused."""
    operation_id = uuid.UUID(verb.subject)
    found = await operations.find(caller.engine.database, caller.scope, operation_id)
    assert found is not None, "the caller saw it"
    if found.state is not OperationState.UNKNOWN:
        return not found.in_doubt
    done = await caller.refunds_of(operation_id)
    verdict = Verdict("submitted" if done else "released", "seen in the bank's books",
                      receipt={"id": "by hand"} if done else None)  # fmt: skip
    try:
        await reconciling.resolve(
            caller.engine, caller.scope, operation_id, verdict, by=PRINCIPAL, version=found.version
        )
    except (StaleVersion, Conflict):
        return False
    return True


_PERFORM = {
    "submit": _submit,
    "cancel": _cancel,
    "signal": _signal,
    "decide": _decide,
    "retry": _retry,
    "resolve": _resolve,
}
