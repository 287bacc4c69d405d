"""The parts of a run as pages, as one principal sees them. Who may see is decided in the query:
`asked_by` is the principal that must have asked for the run, `None` whoever did; an invisible run
has no parts. Each page goes on after a place and is in the order of its places."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from earnest.domain.event import Event
from earnest.domain.operation import Lookup, LookupAnswer, Operation
from earnest.domain.run import Attempt, Step
from earnest.store import facts, operations, runs
from earnest.store.database import Database


@dataclass(frozen=True, slots=True)
class Sight:
    """One run, seen by somebody."""

    scope_id: str
    run_id: uuid.UUID
    asked_by: str | None


async def events(
    database: Database, sight: Sight, after: int, limit: int, most_bytes: int | None = None
) -> list[Event]:
    """At most so many, and no more than about so many bytes of them, but one at least."""
    rows = await database.fetch("visible_events", *_of(sight), after, limit, most_bytes)
    return [facts.as_event(row) for row in rows]


async def oldest_event(database: Database, sight: Sight) -> int | None:
    """The number of the first event that is still kept; `None` where there is none."""
    row = await database.fetchrow("oldest_event", *_of(sight))
    return None if row is None else row["seq"]


async def attempts(database: Database, sight: Sight, after: int, limit: int) -> list[Attempt]:
    rows = await database.fetch("visible_attempts", *_of(sight), after, limit)
    return [runs.as_attempt(row) for row in rows]


async def steps(
    database: Database, sight: Sight, after: tuple[datetime, str] | None, limit: int
) -> list[Step]:
    at, name = after or (None, None)
    rows = await database.fetch("visible_steps", *_of(sight), at, name, limit)
    return [facts.as_step(row) for row in rows]


async def run_operations(
    database: Database, sight: Sight, after: tuple[datetime, uuid.UUID] | None, limit: int
) -> list[Operation]:
    at, operation_id = after or (None, None)
    rows = await database.fetch("visible_operations", *_of(sight), at, operation_id, limit)
    return [operations.as_operation(row) for row in rows]


async def lookups(
    database: Database, scope_id: str, operation_ids: Sequence[uuid.UUID]
) -> dict[uuid.UUID, list[Lookup]]:
    """What was asked about each of these operations; those never asked about have an empty list."""
    found: dict[uuid.UUID, list[Lookup]] = defaultdict(list)
    for row in await database.fetch("lookups_of_all", scope_id, list(operation_ids)):
        answer = LookupAnswer(row["answer"])
        found[row["operation_id"]].append(
            Lookup(row["number"], answer, row["detail"], row["created_at"])
        )
    return found


def _of(sight: Sight) -> tuple[str, uuid.UUID, str | None]:
    return (sight.scope_id, sight.run_id, sight.asked_by)
