"""Operations that stand alone: the same promise without a run, inside any program.

The same key gives the same operation, so a request that is handled twice, by two processes or after
a crash, refunds once. The key includes the generation where there is one (`4001/2`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TypeVar

from earnest.domain import ids
from earnest.domain.canonical import storable
from earnest.domain.duration import Duration, duration
from earnest.domain.errors import InvalidRequest
from earnest.domain.operation import OperationState, Recovery
from earnest.engine.operations import intending, operating, reconciling
from earnest.engine.process import binding, scopes
from earnest.engine.process.effects import Effect
from earnest.engine.process.engine import Engine
from earnest.engine.runs.submitting import MAX_KEY
from earnest.store import operations

RequestT = TypeVar("RequestT")
ReceiptT = TypeVar("ReceiptT")


@asynccontextmanager
async def operation(
    key: str,
    effect: Effect[RequestT, ReceiptT] | type[Effect[RequestT, ReceiptT]],
    request: RequestT,
    *,
    resource_key: str | None = None,
    scope: str | None = None,
    wait: Duration | None = None,
) -> AsyncIterator[ReceiptT]:
    """Does it at most once and gives the receipt to the body; done before, it gives the same one.

    The body runs only when it surely happened. Raises `Refused`, `NotSent`, `NotDone` (it surely
    did not), `InDoubt` (it waits on the desk), `CodeChanged` (the key was used for another
    request), `ResourceBusy`. `scope` is another one than the program was opened with; `NotFound` if
    there is none of that name: nothing was sent then.

    While another caller's call of that key is on its way, this one waits for its answer: at most
    until the call's time-out and a grace of 45 seconds are over, at once where the caller's process
    has provably ended. `wait` bounds that: after it, `InDoubt` is raised without any harm, and the
    same key may be asked for again.
    """
    if not _is_key(key):
        raise InvalidRequest(
            f"an operation's key has 1 to {MAX_KEY} characters, as a text without NUL and halves "
            f"of surrogate pairs: {str(key)[:80]!r}"
        )
    bound = binding.current()
    patience = None if wait is None else duration(wait)
    made = bound.engine.effect_of(effect)
    scope_id = bound.scope_id if scope is None else scope
    if scope_id != bound.scope_id:
        await scopes.require_scope(bound.engine, scope_id)
    intent = intending.make_intent(
        made,
        request,
        scope_id=scope_id,
        operation_id=ids.standing_operation_id(scope_id, bound.principal_id, made.kind, key),
        principal_id=bound.principal_id,
        name=key,
        resource_key=resource_key,
        lease=None,
    )
    await _ask_first(bound.engine, intent)
    yield await operating.perform_to_the_end(bound.engine, intent, patience)


def _is_key(key: object) -> bool:
    return isinstance(key, str) and 1 <= len(key) <= MAX_KEY and storable(key)


async def _ask_first(engine: Engine, intent: intending.Intent) -> None:
    """Where an earlier call is in doubt and the provider can be asked, it is asked now: there may
    be no worker that does."""
    known = await operations.find(engine.database, intent.scope_id, intent.operation_id)
    if (
        known is not None
        and known.state is OperationState.UNKNOWN
        and known.recovery is Recovery.LOOKUP
    ):
        await reconciling.look_up(engine, intent.scope_id, intent.operation_id)
