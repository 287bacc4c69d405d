"""The reasons that an operation gives: its call is on its way, or nobody knows if it was done."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime

from earnest.domain import ids
from earnest.domain.duration import in_words
from earnest.domain.explanation import Mover, MoverBy, Reason, ReasonCode, Reference
from earnest.domain.operation import Operation, OperationState, Recovery
from earnest.store.standings import WorkerRow

WORKER = Mover(MoverBy.WORKER)
START_WORKER = Mover(MoverBy.OPERATOR, None, "earnest worker --app MODULE:ATTRIBUTE")


def reasons_of_operation(
    one: Operation, now: datetime, living: Sequence[WorkerRow]
) -> Iterator[Reason]:
    """Why it has not come to its end; nothing where it has, or was not sent yet."""
    if one.state is OperationState.SUBMITTING:
        yield _call(one)
    elif one.state is OperationState.UNKNOWN:
        yield _doubt(one, now)
        if one.lookup_due_at is not None and not any(one.kind in it.effects for it in living):
            yield Reason(
                ReasonCode.EFFECT_WITHOUT_WORKER,
                f"no living worker knows the effect {one.kind}; its provider is not asked",
                refs=(Reference("effect", one.kind),), moved_by=(START_WORKER,),
            )  # fmt: skip


def _call(one: Operation) -> Reason:
    return Reason(
        ReasonCode.CALL_ON_ITS_WAY,
        f"the call of operation {one.name!r} ({one.kind}) is on its way",
        since=one.submitting_at,
        until=one.call_until,
        refs=(reference(one),),
        moved_by=(Mover(MoverBy.PROVIDER),),
    )


def _doubt(one: Operation, now: datetime) -> Reason:
    assert one.unknown_since is not None, "it is in doubt"
    age = in_words(now - one.unknown_since)
    asked = one.lookup_count
    number = f", asked {asked} times so far" if asked else ""
    then = {
        Recovery.RESEND: "it can be sent again while its window is open",
        Recovery.LOOKUP: f"its provider is asked{number}",
        Recovery.HOLD: "its provider cannot be asked; a person decides",
    }[one.recovery]
    return Reason(
        ReasonCode.OPERATION_IN_DOUBT,
        f"whether operation {one.name!r} ({one.kind}, recovery {one.recovery}) was done is not "
        f"known for {age}; {then}",
        since=one.unknown_since,
        until=one.lookup_due_at,
        refs=(reference(one),),
        moved_by=tuple(settlers(one)),
    )


def settlers(one: Operation) -> Iterator[Mover]:
    """Who can end the doubt about it."""
    shown = ids.show("op", one.operation_id)
    if one.lookup_due_at is not None:
        yield WORKER
    if one.recovery is Recovery.LOOKUP:
        look = f"POST /v1/operations/{shown}/lookup", f"earnest operations lookup {shown}"
        yield Mover(MoverBy.OPERATOR, *look)
    settle = f"POST /v1/operations/{shown}/resolution", f"earnest operations resolve {shown}"
    yield Mover(MoverBy.OPERATOR, *settle)


def reference(one: Operation) -> Reference:
    return Reference("operation", ids.show("op", one.operation_id), one.state.value)
