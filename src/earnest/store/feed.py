"""The feed of a scope as rows: passes of the sequencer, and pages in the feed's order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from earnest.domain.event import Event
from earnest.store import facts
from earnest.store.database import Database, Record, Tx
from earnest.store.statements import sql

ADOPTED_AT_ONCE = 5_000


@dataclass(frozen=True, slots=True)
class Bounds:
    """A scope's feed holds the positions from `minimum` to `head`; `head + 1` will be the next."""

    minimum: int = 1
    head: int = 0


@dataclass(frozen=True, slots=True)
class Place:
    """After which position of a scope's feed somebody goes on, and of whose runs: those that the
    principal `asked_by` asked for, or with `None` everybody's."""

    scope_id: str
    asked_by: str | None
    position: int


@dataclass(frozen=True, slots=True)
class Fed:
    """An event at its position. `event` is `None` where the feed names one that is gone."""

    position: int
    event: Event | None


@dataclass(frozen=True, slots=True)
class Page:
    """What comes after a place, and the bounds of the scope's feed in that moment: if the page is
    not full, there is nothing else to be seen up to its head."""

    bounds: Bounds
    fed: list[Fed] = field(default_factory=list)


# ---- the sequencer -----------------------------------------------------------------------------


async def is_behind(database: Database) -> bool:
    """Whether something was committed that is not in the feed. Writes nothing."""
    row = await database.fetchrow("is_feed_behind")
    return bool(row is not None and row["behind"])


async def append(tx: Tx) -> bool:
    """One pass; returns whether there is more to do. All statements go in one message: the server
    comes to the end of it even if this process does not."""
    status = await tx.execute(sql("lock_feed") + sql("take_time_for_feed") + sql("append_to_feed"))
    return status != "SELECT 0"


async def move_to(tx: Tx, server: str) -> None:
    """Makes sure that passes count the transactions of this server, and not of one before."""
    await tx.fetchval(sql("lock_feed"))
    await tx.execute(sql("move_feed"), server)


async def adopt(tx: Tx) -> bool:
    """Gives events of another server's transactions the number of one of here; returns whether
    there may be more of them."""
    status = await tx.execute(sql("adopt_events"), ADOPTED_AT_ONCE)
    return status == f"UPDATE {ADOPTED_AT_ONCE}"


async def prune(tx: Tx, scope_id: str, position: int) -> None:
    """Forgets the feed up to a position. Before events are deleted, the feed that names them is
    pruned, so that whoever comes from before is told. Not for what was appended just now: the
    newest rows of a run say how far its events have come."""
    await tx.execute(sql("prune_feed"), scope_id, position)


# ---- readers -----------------------------------------------------------------------------------


async def bounds(database: Database, scope_ids: Sequence[str]) -> dict[str, Bounds]:
    """What is there of the feeds of these scopes."""
    rows = await database.fetch("feed_bounds", list(scope_ids))
    return {row["scope_id"]: _as_bounds(row) for row in rows}


async def after(database: Database, places: Sequence[Place], limit: int) -> list[Page]:
    """What comes after each of the places, in order, at most `limit` of each."""
    scopes = [place.scope_id for place in places]
    asked_by = [place.asked_by for place in places]
    positions = [place.position for place in places]
    found: dict[int, Page] = {}
    for row in await database.fetch("feed_after", scopes, asked_by, positions, limit):
        page = found.setdefault(row["place"], Page(_as_bounds(row)))
        if row["row_position"] is not None:
            page.fed.append(_as_fed(row))
    return [found[place] for place in range(1, len(places) + 1)]


def _as_bounds(row: Record) -> Bounds:
    return Bounds(row["pruned"] + 1, row["head"])


def _as_fed(row: Record) -> Fed:
    if not row["follows"]:
        return Fed(row["row_position"], None)
    return Fed(row["position"], facts.as_event(row))
