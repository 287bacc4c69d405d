"""Sweeps as rows: who looks at which provider, what its list names, and what differs."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from earnest.domain import ids
from earnest.domain.operation import Operation
from earnest.domain.sweep import (
    Difference,
    DifferenceKind,
    DifferenceState,
    NewDifference,
    Stage,
    Sweep,
    SweepCounts,
    SweepState,
    Why,
)
from earnest.store.database import Database, Record, Tx
from earnest.store.operations import as_operation
from earnest.store.statements import sql


@dataclass(frozen=True, slots=True)
class NewSweep:
    scope_id: str
    sweep_id: uuid.UUID
    effect: str
    since: datetime
    created_by: str
    key: str | None = None
    fingerprint: bytes | None = None


@dataclass(frozen=True, slots=True)
class Held:
    """A sweep that was taken under `token`."""

    sweep: Sweep
    token: uuid.UUID

    @property
    def key(self) -> tuple[str, uuid.UUID]:
        return (self.sweep.scope_id, self.sweep.sweep_id)


@dataclass(frozen=True, slots=True)
class Recorded:
    """An operation that a list names; `run_goes_on`: its run may still send it again."""

    operation: Operation
    run_goes_on: bool


@dataclass(frozen=True, slots=True)
class Doubt:
    """An operation of which it is not known whether it was done, of any scope."""

    begun_at: datetime | None
    digest: bytes


@dataclass(frozen=True, slots=True)
class Unlisted:
    """An operation that ought to be in the list. `known`: found before, and not vanished since."""

    operation_id: uuid.UUID
    external_ref: str | None
    begun_at: datetime
    submitted_at: datetime
    known: bool


@dataclass(frozen=True, slots=True)
class DifferenceFilter:
    state: str | None = None
    effect: str | None = None
    kind: str | None = None


# ---- asking for one, and looking at it ---------------------------------------------------------


async def put(tx: Tx, new: NewSweep) -> Sweep | None:
    """`None` when the key was used, or a sweep of the effect is under way."""
    row = await tx.fetchrow(
        sql("put_sweep"), new.scope_id, new.sweep_id, new.effect, new.since, new.created_by,
        new.key, new.fingerprint,
    )  # fmt: skip
    return None if row is None else _as_sweep(row)


async def by_key(tx: Tx, scope_id: str, created_by: str, key: str) -> Sweep | None:
    row = await tx.fetchrow(sql("sweep_by_key"), scope_id, created_by, key)
    return None if row is None else _as_sweep(row)


async def active(tx: Tx, scope_id: str, effect: str) -> Sweep | None:
    row = await tx.fetchrow(sql("active_sweep"), scope_id, effect)
    return None if row is None else _as_sweep(row)


async def find(database: Database, scope_id: str, sweep_id: uuid.UUID) -> Sweep | None:
    row = await database.fetchrow("find_sweep", scope_id, sweep_id)
    return None if row is None else _as_sweep(row)


async def listed(
    database: Database,
    scope_id: str,
    effect: str | None,
    state: str | None,
    before: uuid.UUID | None,
    limit: int,
) -> list[Sweep]:
    """A page, the newest first."""
    rows = await database.fetch("list_sweeps", scope_id, effect, state, before, limit)
    return [_as_sweep(row) for row in rows]


async def last_complete(tx: Tx, scope_id: str, effect: str) -> datetime | None:
    """When the last complete list was asked for."""
    found: datetime | None = await tx.fetchval(sql("last_complete_sweep"), scope_id, effect)
    return found


async def oldest_begin(
    tx: Tx, scope_id: str, effect: str, submitted_after: datetime
) -> datetime | None:
    """When the oldest was begun of those whose receipt came after that."""
    found: datetime | None = await tx.fetchval(
        sql("oldest_begin"), scope_id, effect, submitted_after
    )
    return found


# ---- under a lease -----------------------------------------------------------------------------


async def take(
    tx: Tx, effects: Sequence[str], lease: timedelta, only: uuid.UUID | None = None
) -> Held | None:
    """One that waits, or whose sweeper is gone; it begins anew."""
    token = ids.new_token()
    row = await tx.fetchrow(sql("take_sweep"), effects, token, lease, only)
    return None if row is None else Held(_as_sweep(row), token)


async def renew(tx: Tx, held: Held, lease: timedelta) -> bool:
    return bool(await tx.fetchval(sql("renew_sweep"), *held.key, held.token, lease))


async def advance(
    tx: Tx,
    held: Held,
    lease: timedelta,
    stage: Stage,
    counts: SweepCounts,
    listed_to: datetime | None,
) -> bool:
    """False when it is no longer held."""
    return bool(
        await tx.fetchval(
            sql("advance_sweep"), *held.key, held.token, lease, stage.value, counts.listed,
            counts.matched, counts.elsewhere, counts.settled, counts.unjudged, counts.asked,
            listed_to,
        )
    )  # fmt: skip


async def hand_back(tx: Tx, held: Held) -> bool:
    return bool(await tx.fetchval(sql("hand_back_sweep"), *held.key, held.token))


async def end(tx: Tx, held: Held, state: SweepState, why: str | None) -> bool:
    """False when it is no longer held."""
    return bool(await tx.fetchval(sql("end_sweep"), *held.key, held.token, state.value, why))


async def see(tx: Tx, held: Held, operation_ids: Sequence[uuid.UUID]) -> None:
    await tx.execute(sql("see_operations"), *held.key, operation_ids)


async def forget_seen(tx: Tx, held: Held, limit: int) -> int:
    """Returns how many were forgotten; as many as `limit`: there may be more."""
    return len(await tx.fetch(sql("forget_seen"), *held.key, limit))


async def forget_sightings(tx: Tx, held: Held, limit: int) -> int:
    """As above, of what it found before it was begun anew."""
    return len(await tx.fetch(sql("forget_sightings"), *held.key, limit))


# ---- what is recorded --------------------------------------------------------------------------


async def recorded(
    database: Database, scope_id: str, operation_ids: Sequence[uuid.UUID]
) -> dict[uuid.UUID, Recorded]:
    rows = await database.fetch("operations_listed", scope_id, operation_ids)
    return {
        row["operation_id"]: Recorded(as_operation(row), bool(row["run_goes_on"])) for row in rows
    }


async def elsewhere(
    database: Database, scope_id: str, operation_ids: Sequence[uuid.UUID]
) -> set[uuid.UUID]:
    """Which of them are operations of other scopes."""
    rows = await database.fetch("listed_elsewhere", scope_id, operation_ids)
    return {row["operation_id"] for row in rows}


async def by_ref(database: Database, effect: str, refs: Sequence[str]) -> list[Operation]:
    """The operations of all scopes whose receipts have these names."""
    rows = await database.fetch("operations_by_ref", effect, refs)
    return [as_operation(row) for row in rows]


async def doubts(database: Database, effect: str, limit: int) -> list[Doubt]:
    """Operations of all scopes that are in doubt or on their way; of each at most `limit`. The ones
    on their way first: what is doubted in between is found as well."""
    rows = [
        *await database.fetch("submitting_of_effect", effect, limit),
        *await database.fetch("unknown_of_effect", effect, limit),
    ]
    return [Doubt(row["first_begun_at"], row["digest"]) for row in rows]


async def unlisted(
    database: Database,
    held: Held,
    until: datetime,
    after: Unlisted | None,
    limit: int,
) -> list[Unlisted]:
    """A page of what the list ought to name and does not."""
    at, operation_id = (None, None) if after is None else (after.submitted_at, after.operation_id)
    sweep = held.sweep
    rows = await database.fetch(
        "unlisted_operations", sweep.scope_id, sweep.effect, sweep.sweep_id, sweep.since, until,
        at, operation_id, limit,
    )  # fmt: skip
    return [
        Unlisted(
            row["operation_id"],
            row["external_ref"],
            row["first_begun_at"],
            row["submitted_at"],
            row["known"],
        )
        for row in rows
    ]


# ---- differences -------------------------------------------------------------------------------


async def report(tx: Tx, held: Held, found: Sequence[NewDifference]) -> None:
    """Each kind and subject comes once among them."""
    ordered = sorted(found, key=lambda one: (one.kind, one.subject))
    await tx.execute(
        sql("report_differences"),
        *held.key,
        held.sweep.effect,
        [ids.new_id() for _ in ordered],
        [one.kind.value for one in ordered],
        [one.why.value for one in ordered],
        [one.subject for one in ordered],
        [one.operation_id for one in ordered],
        [one.listed_id for one in ordered],
        [one.external_ref for one in ordered],
        [one.happened_at for one in ordered],
    )


async def see_known(tx: Tx, held: Held, kind: DifferenceKind, subjects: Sequence[str]) -> None:
    """What could not be judged is not taken for vanished."""
    await tx.execute(
        sql("see_known_differences"), *held.key, held.sweep.effect, kind.value, subjects
    )


async def vanish(tx: Tx, held: Held) -> None:
    sweep = held.sweep
    await tx.execute(sql("vanish_differences"), *held.key, sweep.effect, sweep.since)


async def close(
    tx: Tx, scope_id: str, difference_id: uuid.UUID, version: int | None, by: str, note: str
) -> bool:
    """False when it is not open, or not in that version."""
    return bool(
        await tx.fetchval(sql("close_difference"), scope_id, difference_id, version, by, note)
    )


async def find_difference(
    source: Database, scope_id: str, difference_id: uuid.UUID
) -> Difference | None:
    row = await source.fetchrow("find_difference", scope_id, difference_id)
    return None if row is None else _as_difference(row)


async def differences_of(
    database: Database,
    scope_id: str,
    sweep_id: uuid.UUID,
    after: uuid.UUID | None,
    limit: int,
) -> list[Difference]:
    rows = await database.fetch("differences_of_sweep", scope_id, sweep_id, after, limit)
    return [_as_difference(row) for row in rows]


async def list_differences(
    database: Database,
    scope_id: str,
    only: DifferenceFilter,
    after: uuid.UUID | None,
    limit: int,
) -> list[Difference]:
    rows = await database.fetch(
        "list_differences", scope_id, only.state, only.effect, only.kind, after, limit
    )
    return [_as_difference(row) for row in rows]


async def open_counts(
    database: Database, scope_id: str, sweep_id: uuid.UUID
) -> dict[DifferenceKind, int]:
    """How many of those that a sweep found are open."""
    rows = await database.fetch("open_difference_counts", scope_id, sweep_id)
    counted = {row["kind"]: row["differences"] for row in rows}
    return {kind: counted.get(kind.value, 0) for kind in DifferenceKind}


def _as_sweep(row: Record) -> Sweep:
    return Sweep(
        scope_id=row["scope_id"],
        sweep_id=row["sweep_id"],
        effect=row["effect"],
        since=row["since"],
        state=SweepState(row["state"]),
        why=row["why"],
        stage=None if row["stage"] is None else Stage(row["stage"]),
        takes=row["takes"],
        asked_at=row["asked_at"],
        listed_to=row["listed_to"],
        counts=SweepCounts(
            row["listed"], row["matched"], row["elsewhere"], row["settled"], row["unjudged"],
            row["asked"],
        ),
        created_by=row["created_by"],
        created_at=row["created_at"],
        started_at=row["started_at"],
        finished_at=row["finished_at"],
        fingerprint=row["fingerprint"],
    )  # fmt: skip


def _as_difference(row: Record) -> Difference:
    found = NewDifference(
        kind=DifferenceKind(row["kind"]),
        why=Why(row["why"]),
        subject=row["subject"],
        happened_at=row["happened_at"],
        operation_id=row["operation_id"],
        listed_id=row["listed_id"],
        external_ref=row["external_ref"],
    )
    return Difference(
        scope_id=row["scope_id"],
        difference_id=row["difference_id"],
        effect=row["effect"],
        found=found,
        state=DifferenceState(row["state"]),
        found_at=row["found_at"],
        seen_at=row["seen_at"],
        ended_at=row["ended_at"],
        closed_by=row["closed_by"],
        note=row["note"],
        version=row["version"],
    )
