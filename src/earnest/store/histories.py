"""What is recorded of runs that have not ended, read without changing anything."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from earnest.domain.run import RunStatus
from earnest.store.database import Database, Record, Tx
from earnest.store.statements import sql

T = TypeVar("T")

_LISTS = ("parked_in_flight", "running_in_flight", "delayed_in_flight", "queued_in_flight")


@dataclass(frozen=True, slots=True)
class InFlight:
    """A run that has not ended."""

    scope_id: str
    run_id: uuid.UUID
    kind: str
    status: RunStatus


@dataclass(frozen=True, slots=True)
class ChildRow:
    """A child as it was asked for (the digest of that) and as it stands."""

    run_id: uuid.UUID
    name: str
    fingerprint: bytes
    status: RunStatus
    output: Any
    error: dict[str, Any] | None


async def in_snapshot(database: Database, work: Callable[[Tx], Awaitable[T]]) -> T:
    """Runs what only reads, all of it in one state of the database; the server refuses writes."""

    async def read(tx: Tx) -> T:
        await tx.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        return await work(tx)

    return await database.promise("look", read)


async def in_flight(
    tx: Tx, kinds: Sequence[str] | None, percent: int, limit: int
) -> list[InFlight]:
    """At most `limit` runs: those that have most behind them come first."""
    found: list[InFlight] = []
    for statement in _LISTS:
        left = limit - len(found)
        rows = await tx.fetch(sql(statement), kinds, percent, left) if left else []
        found += [_as_in_flight(row) for row in rows]
    return found


async def children(tx: Tx, scope_id: str, run_id: uuid.UUID) -> list[ChildRow]:
    rows = await tx.fetch(sql("children_of"), scope_id, run_id)
    return [
        ChildRow(
            row["run_id"],
            row["child_name"],
            row["fingerprint"],
            RunStatus(row["status"]),
            row["output"],
            row["error"],
        )
        for row in rows
    ]


async def find(tx: Tx, scope_id: str, run_id: uuid.UUID) -> Record | None:
    """The run and its execution as one row."""
    return await tx.fetchrow(sql("find_run"), scope_id, run_id, None)


def _as_in_flight(row: Record) -> InFlight:
    return InFlight(row["scope_id"], row["run_id"], row["kind"], RunStatus(row["status"]))
