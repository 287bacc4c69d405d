"""Live text as rows: deltas, the heads of runs that have some, and what is kept for a principal."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from earnest.domain.run import RunStatus
from earnest.domain.text import Standing, TextDelta, TextHead
from earnest.store.database import Database, Record, Tx
from earnest.store.executions import Key, Unwritten
from earnest.store.statements import sql
from earnest.store.visible import Sight


@dataclass(frozen=True, slots=True)
class Piece:
    """What an owner wants to write. `before` is the sequence of what it wrote last, `None` for the
    first piece of its attempt."""

    scope_id: str
    run_id: uuid.UUID
    fence: int
    owner_token: uuid.UUID
    content: str
    before: int | None = None

    @property
    def key(self) -> Key:
        return (self.scope_id, self.run_id)


@dataclass(frozen=True, slots=True)
class Stored:
    """A piece was stored; `cancel_requested` is what its run said in that moment."""

    sequence: int
    cancel_requested: bool


async def write(tx: Tx, pieces: Sequence[Piece], lease: timedelta) -> list[Stored | Unwritten]:
    """Stores pieces of any runs in one statement, in order, and says which it did not. Raises
    `asyncpg.CheckViolationError` where a bound would be passed; then nothing was stored."""
    rows = await tx.fetch(
        sql("write_texts"),
        [piece.scope_id for piece in pieces],
        [piece.run_id for piece in pieces],
        [piece.fence for piece in pieces],
        [piece.owner_token for piece in pieces],
        [piece.content for piece in pieces],
        lease,
    )
    stored: list[Stored | Unwritten] = [Unwritten.BUSY] * len(pieces)
    # Those that were stored come first, and count: a lease may have ended in the next moment.
    for row in reversed(rows):
        stored[row["place"] - 1] = _as_stored(row)
    return stored


def _as_stored(row: Record) -> Stored | Unwritten:
    if row["sequence"] is None:
        return Unwritten.FENCED
    return Stored(row["sequence"], row["cancel_requested"])


async def written_before(tx: Tx, piece: Piece) -> Stored | None:
    """Whether the piece is stored already: the reply was lost. Its owner writes one at a time."""
    head = _as_head(await tx.fetchrow(sql("text_head"), *piece.key))
    if head.attempt != piece.fence or head.last_sequence <= (piece.before or 0):
        return None
    return Stored(head.last_sequence, cancel_requested=False)


async def find_head(database: Database, scope_id: str, run_id: uuid.UUID) -> TextHead:
    """How far a run's text is; at zero while it has none."""
    return _as_head(await database.fetchrow("text_head", scope_id, run_id))


async def standings(
    database: Database, looked_at: Sequence[tuple[Key, int]]
) -> dict[Key, Standing]:
    """How runs stand, each with the last event that was taken into account before. Its progress is
    only what was told since; `None` without any."""
    rows = await database.fetch(
        "text_standings",
        [scope_id for (scope_id, _), _ in looked_at],
        [run_id for (_, run_id), _ in looked_at],
        [seq for _, seq in looked_at],
    )
    return {(row["scope_id"], row["run_id"]): _as_standing(row) for row in rows}


async def after(
    database: Database, heads: Sequence[tuple[Key, int]], limit: int, most_bytes: int
) -> list[tuple[Key, TextDelta]]:
    """New text of several runs, each after the sequence given with it; of each at most `limit`
    pieces, and no more once they have `most_bytes`. A run's come together and in order."""
    rows = await database.fetch(
        "texts_after",
        [scope_id for (scope_id, _), _ in heads],
        [run_id for (_, run_id), _ in heads],
        [sequence for _, sequence in heads],
        limit,
        most_bytes,
    )
    return [((row["scope_id"], row["run_id"]), _as_delta(row)) for row in rows]


async def visible(
    database: Database, sight: Sight, after: int, limit: int, most_bytes: int
) -> list[TextDelta]:
    """The next text of a run as somebody sees it; who may not see the run finds none."""
    rows = await database.fetch(
        "visible_texts", sight.scope_id, sight.run_id, sight.asked_by, after, limit, most_bytes
    )
    return [_as_delta(row) for row in rows]


async def prune(tx: Tx, after_success: timedelta, after_failure: timedelta, limit: int) -> int:
    """Removes the text of runs that ended so long ago, of `limit` runs at most; returns of how
    many."""
    rows = await tx.fetch(sql("prune_texts"), after_success, after_failure, limit)
    return len(rows)


def _as_head(row: Record | None) -> TextHead:
    return TextHead() if row is None else TextHead(**dict(row.items()))


def _as_delta(row: Record) -> TextDelta:
    return TextDelta(
        run_id=row["run_id"],
        sequence=row["sequence"],
        attempt=row["attempt"],
        content=row["content"],
        resets=row["resets"],
        created_at=row["created_at"],
    )


def _as_standing(row: Record) -> Standing:
    told = row["payload"]
    return Standing(
        status=RunStatus(row["status"]),
        attempt=row["fence"],
        progress=told if told is not None and told.get("attempt") == row["fence"] else None,
        last_sequence=row["last_sequence"] or 0,
        looked_at=row["last_seq"],
    )
