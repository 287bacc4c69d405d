"""Log lines as rows."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from earnest.domain.log_line import LogLine
from earnest.store.database import Database, Tx
from earnest.store.executions import Key, Unwritten
from earnest.store.statements import sql
from earnest.store.visible import Sight


@dataclass(frozen=True, slots=True)
class Lines:
    """What an owner wants to write of its attempt: `data` is the canonical JSON of an array of
    `{number, message, fields, age}`, where `age` is how many seconds ago it was written; `left_out`
    counts the lines beyond what is kept."""

    scope_id: str
    run_id: uuid.UUID
    fence: int
    owner_token: uuid.UUID
    data: bytes
    left_out: int

    @property
    def key(self) -> Key:
        return (self.scope_id, self.run_id)


@dataclass(frozen=True, slots=True)
class Logged:
    """Lines were stored; `cancel_requested` is what their run said in that moment."""

    cancel_requested: bool


async def write(tx: Tx, batch: Sequence[Lines], lease: timedelta) -> list[Logged | Unwritten]:
    """Stores lines of any runs in one statement, and says which it did not. Harmless to repeat."""
    rows = await tx.fetch(
        sql("write_logs"),
        [one.scope_id for one in batch],
        [one.run_id for one in batch],
        [one.fence for one in batch],
        [one.owner_token for one in batch],
        [one.data for one in batch],
        [one.left_out for one in batch],
        lease,
    )
    stored: list[Logged | Unwritten] = [Unwritten.BUSY] * len(batch)
    for row in reversed(rows):
        written = row["stored"] is not None
        stored[row["place"] - 1] = Logged(row["cancel_requested"]) if written else Unwritten.FENCED
    return stored


async def visible(
    database: Database,
    sight: Sight,
    after: tuple[int, int],
    attempt: int | None,
    limit: int,
) -> list[LogLine]:
    """A page of a run's lines as somebody sees it, after that attempt and number."""
    rows = await database.fetch(
        "visible_logs", sight.scope_id, sight.run_id, sight.asked_by, *after, attempt, limit
    )
    return [LogLine(**dict(row.items())) for row in rows]


async def left_out(
    database: Database, scope_id: str, run_id: uuid.UUID, attempt: int | None
) -> int:
    """How many lines were not kept."""
    row = await database.fetchrow("lines_left_out", scope_id, run_id, attempt)
    return 0 if row is None else int(row["left_out"])


async def prune(tx: Tx, kept: timedelta, limit: int) -> int:
    """Of how many attempts the lines were removed."""
    return len(await tx.fetch(sql("prune_logs"), kept, limit))
