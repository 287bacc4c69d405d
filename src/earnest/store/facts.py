"""Steps, events and signals as rows."""

from __future__ import annotations

import os
import uuid
from collections.abc import Sequence
from datetime import timedelta
from itertools import accumulate
from typing import Any

from msgspec import Struct, field

from earnest.domain.event import Event
from earnest.domain.run import Step
from earnest.store.database import Database, Record, Tx
from earnest.store.executions import Key, Unwritten
from earnest.store.statements import sql


def _new_mark() -> int:
    return int.from_bytes(os.urandom(8), signed=True)


class Fact(Struct, frozen=True):
    """An event of an owner, with the step it tells of where there is one (`name` is not None).
    By its `mark` it is recognised when the reply to its writing was lost."""

    scope_id: str
    run_id: uuid.UUID
    fence: int
    owner_token: uuid.UUID
    type: str
    payload: bytes
    name: str | None = None
    kind: str | None = None
    digest: bytes | None = None
    result: bytes | None = None
    mark: int = field(default_factory=_new_mark)

    @property
    def key(self) -> Key:
        return (self.scope_id, self.run_id)


class Written(Struct, frozen=True):
    """A fact was stored; `cancel_requested` is what its run said in that moment."""

    cancel_requested: bool


async def write(tx: Tx, facts: Sequence[Fact], lease: timedelta) -> list[Written | Unwritten]:
    """Stores facts of any runs in one statement, in order, and says which it did not. An attempt
    that lost its run may write beside the one that has it now; only the newest is heard."""
    of_runs = _by_run(facts)
    heads = [facts[places[0]] for places in of_runs.values()]
    counts = [len(places) for places in of_runs.values()]
    in_order = [facts[place] for places in of_runs.values() for place in places]
    rows = await tx.fetch(
        sql("write_facts"),
        [head.scope_id for head in heads],
        [head.run_id for head in heads],
        [head.fence for head in heads],
        [head.owner_token for head in heads],
        list(accumulate(counts[:-1], initial=1)),
        counts,
        [fact.type for fact in in_order],
        [fact.payload for fact in in_order],
        [fact.name for fact in in_order],
        [fact.kind for fact in in_order],
        [fact.digest for fact in in_order],
        [fact.result for fact in in_order],
        _marks(in_order),
        lease,
    )
    written: list[Written | Unwritten] = [Unwritten.FENCED] * len(facts)
    # Those that were stored come first, and count: a lease may have ended in the next moment.
    answers = {(row["scope_id"], row["run_id"]): row for row in reversed(rows)}
    for key, places in of_runs.items():
        for place in places:
            written[place] = _as_written(answers.get(key))
    return written


async def write_again(tx: Tx, facts: Sequence[Fact], lease: timedelta) -> list[Written | Unwritten]:
    """As `write`, for facts that may be stored already, or be stored at this very moment by a
    statement whose connection was lost. It holds the locks of their runs until it is done, so it is
    waited for: its runs are `BUSY`."""
    async with tx.transaction():
        keys = {fact.key for fact in facts}
        scopes, runs = [scope_id for scope_id, _ in keys], [run_id for _, run_id in keys]
        rows = await tx.fetch(sql("lock_to_look"), scopes, runs)
        cancels = {(row["scope_id"], row["run_id"]): row["cancel_requested"] for row in rows}
        stored = await _stored(tx, facts)
        fresh = [fact for fact in facts if fact.key in cancels and fact.mark not in stored]
        written = await write(tx, fresh, lease) if fresh else []
        answers = dict(zip(_marks(fresh), written, strict=True))
    return [
        Written(cancels.get(fact.key, False))
        if fact.mark in stored
        else answers.get(fact.mark, Unwritten.BUSY)
        for fact in facts
    ]


async def _stored(tx: Tx, facts: Sequence[Fact]) -> set[int]:
    scopes, runs = [fact.scope_id for fact in facts], [fact.run_id for fact in facts]
    return {row["mark"] for row in await tx.fetch(sql("stored_marks"), scopes, runs, _marks(facts))}


def _marks(facts: Sequence[Fact]) -> list[int]:
    return [fact.mark for fact in facts]


def _as_written(row: Record | None) -> Written | Unwritten:
    if row is None:
        return Unwritten.BUSY
    return Written(row["cancel_requested"]) if row["stored"] else Unwritten.FENCED


def _by_run(facts: Sequence[Fact]) -> dict[Key, list[int]]:
    """The places of each run's facts, of those with its newest fence."""
    places: dict[Key, list[int]] = {}
    for place, fact in enumerate(facts):
        own = places.setdefault(fact.key, [])
        if own and facts[own[0]].fence < fact.fence:
            own.clear()
        if not own or facts[own[0]].fence == fact.fence:
            own.append(place)
    return places


async def put_timer(
    tx: Tx, scope_id: str, run_id: uuid.UUID, name: str, digest: bytes, span: timedelta, fence: int
) -> None:
    await tx.execute(sql("put_timer"), scope_id, run_id, name, digest, span, fence)


async def steps(source: Tx | Database, scope_id: str, run_id: uuid.UUID) -> list[Step]:
    if isinstance(source, Database):
        rows = await source.fetch("steps_of", scope_id, run_id)
    else:
        rows = await source.fetch(sql("steps_of"), scope_id, run_id)
    return [as_step(row) for row in rows]


def as_step(row: Record) -> Step:
    return Step(
        name=row["name"],
        kind=row["kind"],
        digest=row["digest"],
        result=row["result"],
        attempt=row["fence"],
        created_at=row["created_at"],
    )


async def events(
    database: Database, scope_id: str, run_id: uuid.UUID, after: int, limit: int
) -> list[Event]:
    rows = await database.fetch("events_of", scope_id, run_id, after, limit)
    return [as_event(row) for row in rows]


def as_event(row: Record) -> Event:
    return Event(row["run_id"], row["seq"], row["type"], row["payload"], row["created_at"])


async def events_after(
    database: Database, heads: Sequence[tuple[tuple[str, uuid.UUID], int]], limit: int
) -> list[tuple[tuple[str, uuid.UUID], Event]]:
    """New events of several runs, each after the number given with it, at most `limit` of each; a
    run's come together and in order."""
    rows = await database.fetch(
        "events_after",
        [scope_id for (scope_id, _), _ in heads],
        [run_id for (_, run_id), _ in heads],
        [head for _, head in heads],
        limit,
    )
    return [((row["scope_id"], row["run_id"]), as_event(row)) for row in rows]


class Signal(Struct, frozen=True):
    """The `number`-th signal of that name sent to a run."""

    name: str
    number: int
    payload: Any


async def put_signal(
    tx: Tx,
    scope_id: str,
    run_id: uuid.UUID,
    name: str,
    payload: bytes,
    principal_id: str,
    key: str | None,
) -> int:
    number: int = await tx.fetchval(
        sql("put_signal"), scope_id, run_id, name, payload, principal_id, key
    )
    return number


async def signal_by_key(
    tx: Tx, scope_id: str, run_id: uuid.UUID, principal_id: str, key: str
) -> Signal | None:
    row = await tx.fetchrow(sql("signal_by_key"), scope_id, run_id, principal_id, key)
    return None if row is None else Signal(row["name"], row["number"], row["payload"])


async def signals(tx: Tx, scope_id: str, run_id: uuid.UUID) -> list[Signal]:
    rows = await tx.fetch(sql("signals_of"), scope_id, run_id)
    return [Signal(row["name"], row["number"], row["payload"]) for row in rows]


async def signal_exists(tx: Tx, scope_id: str, run_id: uuid.UUID, name: str, number: int) -> bool:
    return bool(await tx.fetchval(sql("signal_exists"), scope_id, run_id, name, number))
