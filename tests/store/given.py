"""Rows as a test needs them, made by the statements that make them in production."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from earnest.domain import canonical, ids
from earnest.domain.operation import EffectTerms, Operation, Recovery
from earnest.domain.run import NewRun
from earnest.store import executions, operations, runs
from earnest.store.database import Database, Record, Tx
from earnest.store.executions import Claimed, Execution
from earnest.store.operations import NewOperation, Note
from earnest.store.statements import sql

SCOPE, LANE, KIND = "shop", "default", "work"
ALICE = "alice"
LEASE = timedelta(seconds=45)
ME, YOU = uuid.UUID(int=1), uuid.UUID(int=2)
BY = Note("test", "test")


def new_run(**terms: Any) -> NewRun:
    made = {
        "scope_id": SCOPE,
        "run_id": ids.new_id(),
        "kind": KIND,
        "lane": LANE,
        "principal_id": ALICE,
        "input": b'"in"',
        **terms,
    }
    return NewRun(**made)


async def insert(tx: Tx, new: NewRun, *, fails_on_doubt: bool = False) -> bool:
    """False when something stands in the way."""
    lineage = runs.Lineage(new.run_id)
    return await runs.insert(tx, new, lineage, fails_on_doubt=fails_on_doubt) is not None


async def submitted(database: Database, count: int = 1, **terms: Any) -> list[uuid.UUID]:
    """Runs in the queue, in the order in which they were asked for."""
    made = [new_run(**terms) for _ in range(count)]
    async with database.connection() as tx:
        for new in made:
            assert await insert(tx, new)
    return [new.run_id for new in made]


async def claim(
    tx: Tx,
    limit: int = 100,
    *,
    instance: uuid.UUID = ME,
    lane: str = LANE,
    kinds: Sequence[str] = (KIND,),
) -> list[Claimed]:
    return await executions.claim(tx, lane, list(kinds), instance, LEASE, limit)


async def claimed(database: Database, count: int = 1, **terms: Any) -> list[Claimed]:
    """Runs in hand, in the order in which they were asked for."""
    run_ids = await submitted(database, count, **terms)
    async with database.connection() as tx:
        taken = {one.run_id: one for one in await claim(tx)}
    return [taken[run_id] for run_id in run_ids]


async def execution(database: Database, run_id: uuid.UUID, scope_id: str = SCOPE) -> Record:
    async with database.connection() as tx:
        row = await tx.fetchrow(
            "SELECT * FROM execution WHERE scope_id = $1 AND run_id = $2", scope_id, run_id
        )
    assert row is not None
    return row


async def locked(tx: Tx, run_id: uuid.UUID) -> Execution:
    return (await executions.lock(tx, SCOPE, [run_id]))[run_id]


async def event_types(database: Database, run_id: uuid.UUID) -> list[str]:
    """The run's events in order; their numbers have no gap."""
    async with database.connection() as tx:
        rows = await tx.fetch(sql("events_of"), SCOPE, run_id, 0, 1000)
    assert [row["seq"] for row in rows] == list(range(1, len(rows) + 1))
    assert (await execution(database, run_id))["last_seq"] == len(rows)
    return [row["type"] for row in rows]


def arrays(taken: Sequence[Claimed]) -> list[list[Any]]:
    """Scopes, runs, fences and tokens, as the statements on many runs want them."""
    return [
        [one.scope_id for one in taken],
        [one.run_id for one in taken],
        [one.fence for one in taken],
        [one.owner_token for one in taken],
    ]


async def blocked(database: Database, other: Tx) -> None:
    """Returns when the other connection waits for a lock that somebody holds."""
    waits = "SELECT wait_event_type = 'Lock', pg_sleep(0.002) FROM pg_stat_activity WHERE pid = $1"
    async with database.connection() as tx:
        while not await tx.fetchval(waits, other.get_server_pid()):
            pass


# ---- operations ---------------------------------------------------------------------------------


def new_operation(run_id: uuid.UUID | None = None, **terms: Any) -> NewOperation:
    request = canonical.encode({"amount": 1})
    made = {
        "scope_id": SCOPE,
        "operation_id": ids.new_id(),
        "run_id": run_id,
        "principal_id": ALICE,
        "name": "refund",
        "terms": EffectTerms("bank.refund", Recovery.RESEND, window=timedelta(hours=1)),
        "resource_key": None,
        "request": request,
        "digest": canonical.digest(request),
        "fence": 1,
        **terms,
    }
    return NewOperation(**made)


async def reserved(tx: Tx, **terms: Any) -> Operation:
    new = new_operation(**terms)
    assert await operations.reserve(tx, new, BY)
    return await operation(tx, new.operation_id)


async def operation(tx: Tx, operation_id: uuid.UUID) -> Operation:
    found = await operations.find(tx, SCOPE, operation_id)
    assert found is not None
    return found


async def begun(tx: Tx, **terms: Any) -> Operation:
    made = await reserved(tx, **terms)
    await operations.begin(
        tx, made, BY, send_token=ids.new_token(), instance_id=ME, span=made.timeout
    )
    return await operation(tx, made.operation_id)


async def doubted(tx: Tx, ask_in: timedelta | None = timedelta(0), **terms: Any) -> Operation:
    made = await begun(tx, **terms)
    await operations.doubt(tx, made, BY, ask_in=ask_in)
    return await operation(tx, made.operation_id)
