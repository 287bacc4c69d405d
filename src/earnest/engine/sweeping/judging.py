"""Judging: what may be concluded from a provider's list, and what may not.

A difference accuses somebody: the provider of something that we know nothing of, or our records of
something that never happened. So it is reported only where nothing else explains it.

*An effect without a record* is said of what was listed:

* A call leaves only after its intent is committed, so what was listed is looked for in the records
  after the list was read. If its operation is not there then, it never will be.
* An operation that is reserved, on its way, or in doubt explains its effect; one in doubt is
  settled by it, on the way that look-ups take, if the list has the receipt.
* An operation recorded as not done does not explain it, unless its run goes on and may send it
  again, or it was released only just now: a late arrival that is sent again finds itself done.
* Under one operation's id there is one effect. A second one, of another name, is a difference.
* What comes without an operation's id is recognised by the provider's name for it. As long as an
  operation of that effect, in whichever scope, is in doubt and was begun before, it may be the one,
  and nothing is said.
* What belongs to another scope or to another effect of the same account is not ours to judge. What
  another installation did must be left out by the effect; nobody here can tell.
* What was done before `since`, by the provider's clock, is not judged. The provider is asked for
  a little more, since its clock is not ours.
* What was done after `until`, which is when the list was asked for and a little more, is passed
  over: it belongs to the next sweep, which begins before that.

*A record without an effect* is said of what was not listed, by a list that came to its end:

* Only of an operation that is recorded as done, was begun after `since` and had its receipt some
  time before the list was asked for: `absent_after`, or five minutes. A provider may lag so long.
* Only after a second list does not name it either: while one reads pages, what stands on them may
  move from one that was not read yet to one that was.
* A provider that can be asked about an operation is asked last. Only its clear no counts.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from earnest.domain import ids
from earnest.domain.errors import NotFound
from earnest.domain.kept_error import kept_text
from earnest.domain.operation import SENDABLE_AGAIN, Operation, OperationState
from earnest.domain.sweep import DifferenceKind, NewDifference, SweepCounts, Why
from earnest.engine.process.effects import Effect, Listed
from earnest.engine.process.foreign_code import foreign_code, told_of
from earnest.engine.process.logs import get_logger
from earnest.engine.process.typed_json import encode_typed
from earnest.store import sweeps
from earnest.store.database import Database
from earnest.store.sweeps import Doubt, Recorded

log = get_logger("earnest.sweeping")

MOST_DOUBTS = 1000
UNDER_WAY = (OperationState.RESERVED, OperationState.SUBMITTING, OperationState.UNKNOWN)


@dataclass(frozen=True, slots=True)
class Frame:
    """What is compared: a scope, an effect, from when to when. `settled_by`: what was recorded by
    then, the provider may be held to. `skew`: how far its clock may be off."""

    scope_id: str
    effect: Effect[Any, Any]
    since: datetime
    until: datetime
    settled_by: datetime
    skew: timedelta


@dataclass(frozen=True, slots=True)
class Item:
    """One thing listed, read: the operation's id where it is one of ours, and the provider's name
    for the effect."""

    listed: Listed
    operation_id: uuid.UUID | None
    ref: str | None

    @property
    def subject(self) -> str:
        return self.ref or str(self.listed.operation_id)


@dataclass
class Judged:
    """What a page comes to. `unjudged` are the subjects of which nothing may be said yet."""

    seen: set[uuid.UUID] = field(default_factory=set)
    found: dict[tuple[DifferenceKind, str], NewDifference] = field(default_factory=dict)
    unjudged: set[str] = field(default_factory=set)
    matched: int = 0
    elsewhere: int = 0

    def counted(self, before: SweepCounts, listed: int, settled: int) -> SweepCounts:
        return replace(
            before,
            listed=before.listed + listed,
            matched=before.matched + self.matched,
            elsewhere=before.elsewhere + self.elsewhere,
            settled=before.settled + settled,
            unjudged=before.unjudged + len(self.unjudged),
        )


def read_item(effect: Effect[Any, Any], listed: Listed) -> Item:
    """Raises `ValueError` for a receipt that is none of this effect."""
    ref = listed.external_ref
    if ref is None and listed.receipt is not None:
        ref = effect.external_ref(effect.receipt_type.validate_python(listed.receipt))
    try:
        operation_id = ids.read("op", listed.operation_id or "")
    except NotFound:
        operation_id = None
    return Item(listed, operation_id, None if ref is None else kept_text(ref))


async def judge(database: Database, frame: Frame, items: Sequence[Item]) -> Judged:
    """Compares a page with what is recorded now."""
    ours = [one for one in items if one.listed.scope_id in (None, frame.scope_id)]
    judged = Judged(elsewhere=len(items) - len(ours))
    known = await sweeps.recorded(database, frame.scope_id, _ids(ours))
    strangers = []
    for item in ours:
        found = None if item.operation_id is None else known.get(item.operation_id)
        if found is None:
            strangers.append(item)
        else:
            _judge_recorded(frame, judged, item, found)
    if strangers:
        await _judge_strangers(database, frame, judged, strangers)
    return judged


# ---- what names an operation of this scope -----------------------------------------------------


def _judge_recorded(frame: Frame, judged: Judged, item: Item, found: Recorded) -> None:
    operation = found.operation
    if operation.kind != frame.effect.kind:
        judged.elsewhere += 1
        return
    judged.seen.add(operation.operation_id)
    why = _difference(frame.effect, item, operation)
    if why is Why.RELEASED and _may_still_be_sent(frame, found):
        judged.unjudged.add(item.subject)
    elif why is None or item.listed.at < frame.since:
        judged.matched += 1
    else:
        _report(judged, item, why, operation.operation_id)


def _difference(effect: Effect[Any, Any], item: Item, operation: Operation) -> Why | None:
    if operation.state is OperationState.RELEASED:
        return Why.RELEASED
    if None not in (item.ref, operation.external_ref) and item.ref != operation.external_ref:
        return Why.ANOTHER_EFFECT
    return Why.ANOTHER_REQUEST if _asks_for_another(effect, item.listed, operation) else None


def _asks_for_another(effect: Effect[Any, Any], listed: Listed, operation: Operation) -> bool:
    """Both are read by the code of today: a field that it has since got is no difference. What
    cannot be compared is none either."""
    try:
        with foreign_code:
            return _is_anothers(effect, listed, operation)
    except Exception as error:
        shown = ids.show("op", operation.operation_id)
        log.info("sweep.not_compared", operation_id=shown, error=told_of(error))
        return False


def _is_anothers(effect: Effect[Any, Any], listed: Listed, operation: Operation) -> bool:
    stored = effect.request_type.validate_python(operation.request)
    if listed.receipt is not None:
        receipt = effect.receipt_type.validate_python(listed.receipt)
        if not effect.matches(stored, receipt):
            return True
    if listed.request is None:
        return False
    asked = effect.request_type.validate_python(listed.request)
    return encode_typed(effect.request_type, asked) != encode_typed(effect.request_type, stored)


def _may_still_be_sent(frame: Frame, found: Recorded) -> bool:
    operation = found.operation
    if operation.released_at is None or operation.released_at > frame.settled_by:
        return True
    return found.run_goes_on and operation.release_reason in SENDABLE_AGAIN


# ---- what names none ---------------------------------------------------------------------------


async def _judge_strangers(
    database: Database, frame: Frame, judged: Judged, items: Sequence[Item]
) -> None:
    # Before the names are looked for: what gets its receipt in between is in one of both.
    doubts = await sweeps.doubts(database, frame.effect.kind, MOST_DOUBTS)
    away = await sweeps.elsewhere(database, frame.scope_id, _ids(items))
    names = sorted({item.ref for item in items if item.ref is not None})
    named: dict[str | None, list[Operation]] = {}
    for one in await sweeps.by_ref(database, frame.effect.kind, names):
        named.setdefault(one.external_ref, []).append(one)
    for item in items:
        owners = named.get(item.ref, []) if item.ref is not None else []
        mine = [one.operation_id for one in owners if one.scope_id == frame.scope_id]
        if mine:
            judged.seen.update(mine)
            judged.matched += 1
        elif owners or item.operation_id in away:
            judged.elsewhere += 1
        elif item.listed.at >= frame.since:
            _judge_unknown(frame, judged, item, doubts)


def _judge_unknown(frame: Frame, judged: Judged, item: Item, doubts: Sequence[Doubt]) -> None:
    """An id that nobody knows speaks for itself; without one, a doubt may be what it is."""
    if item.listed.operation_id is None and _may_be_one_of(frame, item, doubts):
        judged.unjudged.add(item.subject)
    else:
        _report(judged, item, Why.NO_OPERATION, None)


def _may_be_one_of(frame: Frame, item: Item, doubts: Sequence[Doubt]) -> bool:
    return len(doubts) >= MOST_DOUBTS or any(
        one.begun_at is None or one.begun_at - frame.skew <= item.listed.at for one in doubts
    )


def _report(judged: Judged, item: Item, why: Why, operation_id: uuid.UUID | None) -> None:
    found = NewDifference(
        kind=DifferenceKind.EFFECT_WITHOUT_RECORD,
        why=why,
        subject=item.subject,
        happened_at=item.listed.at,
        operation_id=operation_id,
        listed_id=None if item.listed.operation_id is None else kept_text(item.listed.operation_id),
        external_ref=item.ref,
    )
    judged.found[found.kind, found.subject] = found


def _ids(items: Iterable[Item]) -> list[uuid.UUID]:
    return sorted({one.operation_id for one in items if one.operation_id is not None})
