"""How a run stands, and who could move it on, as rows; all read in the caller's snapshot."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from earnest.domain.run import RunStatus
from earnest.store.database import Record, Tx
from earnest.store.statements import sql
from earnest.store.visible import Sight


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """A process that has not said goodbye. `lives`: its session lock is held."""

    instance_id: uuid.UUID
    lanes: frozenset[str]
    kinds: frozenset[str]
    effects: frozenset[str]
    slots: int
    held: int
    lives: bool


@dataclass(frozen=True, slots=True)
class Submitted:
    """An operation that was done outside."""

    operation_id: uuid.UUID
    name: str
    kind: str


async def find(tx: Tx, sight: Sight) -> Record | None:
    """The run, if it may be seen; with the database's clock as `now`."""
    return await tx.fetchrow(sql("explained_run"), sight.scope_id, sight.run_id, sight.asked_by)


async def told_at(
    tx: Tx, scope_id: str, run_id: uuid.UUID, types: Sequence[str]
) -> datetime | None:
    """When an event of these types was told last; `None`: none is kept."""
    found: datetime | None = await tx.fetchval(
        sql("newest_event_of_types"), scope_id, run_id, list(types)
    )
    return found


async def backlog(tx: Tx, row: Record, most: int) -> tuple[int, int]:
    """How many runs of its lane come before it, and how many of them are its scope's; at most
    `most` are counted."""
    found = await tx.fetchrow(
        sql("backlog_before"), row["lane"], row["turn_at"], row["run_id"], row["scope_id"], most
    )
    assert found is not None, "a count has a row"
    return found["ahead"], found["own"]


async def standings(
    tx: Tx, scope_id: str, run_ids: Sequence[uuid.UUID]
) -> list[tuple[uuid.UUID, str, RunStatus]]:
    """Kind and status of several runs."""
    rows = await tx.fetch(sql("standings_of"), scope_id, list(run_ids))
    return [(row["run_id"], row["kind"], RunStatus(row["status"])) for row in rows]


async def submitted(tx: Tx, scope_id: str, lineage_id: uuid.UUID, most: int) -> list[Submitted]:
    """What was done outside for any revision of the lineage, or for runs that it asked for: the
    oldest first, at most so many."""
    rows = await tx.fetch(sql("submitted_of_lineage"), scope_id, lineage_id, most)
    return [Submitted(row["operation_id"], row["name"], row["kind"]) for row in rows]


async def workers(tx: Tx) -> list[WorkerRow]:
    return [
        WorkerRow(
            row["instance_id"],
            frozenset(row["lanes"]),
            frozenset(row["kinds"]),
            frozenset(row["effects"]),
            row["slots"],
            row["held"],
            row["lives"],
        )
        for row in await tx.fetch(sql("workers_about"))
    ]
