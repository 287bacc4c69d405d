"""Requesting: asking for a sweep, looking at what it found, and closing a difference.

A sweep is asked for by an operator, and made by a process that knows the effect. A difference is
closed by an operator who has seen to it; nothing is done to records or provider by that.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import datetime, timedelta

from earnest.domain import ids
from earnest.domain.access import RequestKey
from earnest.domain.canonical import storable
from earnest.domain.errors import Conflict, InvalidRequest, NotFound, StaleVersion
from earnest.domain.sweep import Difference, DifferenceKind, DifferenceState, Sweep, SweepState
from earnest.engine.process import auditing
from earnest.engine.process.actors import Actor, Role
from earnest.engine.process.engine import Engine
from earnest.engine.sweeping.sweeping import SweepSettings, listable
from earnest.store import sweeps
from earnest.store.database import Tx
from earnest.store.sweeps import DifferenceFilter, NewSweep

MAY_SEE = (Role.OPERATOR, Role.ADMIN)
SWEEP = "sweep"
"""The bell of sweepers."""

FIRST_LOOK = timedelta(days=7)
"""How far back the first sweep of an effect looks, where nothing is said."""
LONGEST_LAG = timedelta(days=1)
"""How far behind a list is taken to be where the effect is not known here."""
MAX_NOTE = 2000


@dataclass(frozen=True, slots=True)
class Requested:
    sweep: Sweep
    replayed: bool = False


async def request(
    engine: Engine,
    actor: Actor,
    effect: str,
    since: datetime | None = None,
    key: RequestKey | None = None,
) -> Requested:
    """Asks for a sweep of an effect in the actor's scope. Without `since` it goes on where the last
    complete one ended, with all that was settled since. The same key and request give the same
    sweep. Raises `Forbidden`, `InvalidRequest`, `Conflict` while one of that effect is under way,
    and `IdempotencyConflict`."""
    actor.require(Role.OPERATOR)
    await _require_listable(engine, effect)
    sweep_id = ids.new_id()

    known = engine.effect(effect)
    lag = LONGEST_LAG if known is None else SweepSettings().lag_of(known)

    async def work(tx: Tx) -> Requested:
        if key is not None:
            before = await sweeps.by_key(tx, actor.scope_id, actor.principal_id, key.key)
            if before is not None:
                return _replayed(before, key)
        return await _put(tx, actor, sweep_id, effect, since, key, lag)

    async def reread(tx: Tx) -> Requested | None:
        found = await sweeps.find(engine.database, actor.scope_id, sweep_id)
        return None if found is None else Requested(found)

    requested = await engine.database.promise("access", work, reread=reread)
    engine.bells.ring(SWEEP)
    return requested


async def request_all(engine: Engine, actor: Actor, since: datetime | None = None) -> list[Sweep]:
    """Asks for a sweep of each effect that this process can list, in the actor's scope; where one
    is under way already, that one is meant."""
    found = []
    for effect in listable(engine):
        try:
            found.append((await request(engine, actor, effect, since)).sweep)
        except Conflict:
            under_way = await sweeps.listed(engine.database, actor.scope_id, effect, None, None, 1)
            found += under_way
    return found


async def find_sweep(engine: Engine, actor: Actor, sweep_id: uuid.UUID) -> Sweep:
    """Raises `NotFound`, also for actors who may not see sweeps."""
    if actor.roles.isdisjoint(MAY_SEE):
        raise NotFound(f"no such sweep: {ids.show('sweep', sweep_id)}")
    found = await sweeps.find(engine.database, actor.scope_id, sweep_id)
    if found is None:
        raise NotFound(f"no such sweep: {ids.show('sweep', sweep_id)}")
    return found


async def list_sweeps(
    engine: Engine,
    actor: Actor,
    effect: str | None,
    state: SweepState | None,
    before: uuid.UUID | None,
    limit: int,
) -> list[Sweep]:
    """A page of the scope's, the newest first. Raises `Forbidden`."""
    actor.require(*MAY_SEE)
    wanted = state and state.value
    return await sweeps.listed(engine.database, actor.scope_id, effect, wanted, before, limit)


async def differences_of(
    engine: Engine, actor: Actor, sweep: Sweep, after: uuid.UUID | None, limit: int
) -> list[Difference]:
    """A page of what a sweep found, as it stands by now, the oldest first. Raises `Forbidden`."""
    actor.require(*MAY_SEE)
    return await sweeps.differences_of(
        engine.database, actor.scope_id, sweep.sweep_id, after, limit
    )


async def list_differences(
    engine: Engine, actor: Actor, only: DifferenceFilter, after: uuid.UUID | None, limit: int
) -> list[Difference]:
    """A page of the scope's, the oldest first. Raises `Forbidden`."""
    actor.require(*MAY_SEE)
    return await sweeps.list_differences(engine.database, actor.scope_id, only, after, limit)


async def open_counts(engine: Engine, sweep: Sweep) -> dict[DifferenceKind, int]:
    return await sweeps.open_counts(engine.database, sweep.scope_id, sweep.sweep_id)


async def find_difference(engine: Engine, actor: Actor, difference_id: uuid.UUID) -> Difference:
    """Raises `NotFound`, also for actors who may not see differences."""
    shown = ids.show("diff", difference_id)
    if actor.roles.isdisjoint(MAY_SEE):
        raise NotFound(f"no such difference: {shown}")
    found = await sweeps.find_difference(engine.database, actor.scope_id, difference_id)
    if found is None:
        raise NotFound(f"no such difference: {shown}")
    return found


async def close(
    engine: Engine,
    actor: Actor,
    difference_id: uuid.UUID,
    note: str,
    version: int | None = None,
) -> Difference:
    """Somebody has seen to it; `note` says how. The same again is harmless. Raises `Forbidden`,
    `NotFound`, `InvalidRequest`, `StaleVersion`, and `Conflict` for one that is over already."""
    found = await find_difference(engine, actor, difference_id)
    actor.require(Role.OPERATOR)
    _check_note(note)
    if found.state is not DifferenceState.OPEN:
        return _already(found, note)

    async def work(tx: Tx) -> bool:
        closed = await sweeps.close(
            tx, actor.scope_id, difference_id, version, actor.principal_id, note
        )
        if closed:
            told = {"kind": found.found.kind.value, "effect": found.effect}
            subject = ids.show("diff", difference_id)
            await auditing.keep(tx, actor, "difference.closed", subject, told)
        return closed

    closed = await engine.database.promise("resolve", work)
    found = await find_difference(engine, actor, difference_id)
    if closed or found.state is not DifferenceState.OPEN:
        return _already(found, note)
    raise StaleVersion(
        f"{ids.show('diff', difference_id)} is in version {found.version} now; look at it again",
        fields={"version": found.version},
    )


# ---- inside ------------------------------------------------------------------------------------


async def _require_listable(engine: Engine, effect: str) -> None:
    """Raises `InvalidRequest` where no process could make it."""
    if engine.effect(effect) is not None:
        if effect in listable(engine):
            return
        raise InvalidRequest(f"{effect} cannot be listed: its effect has no `list_since`")
    served = await engine.database.fetchrow("is_effect_served", effect)
    if served is None or not served["served"]:
        raise InvalidRequest(f"no effect {effect[:80]!r} is known here; name its app (--app)")


async def _put(
    tx: Tx,
    actor: Actor,
    sweep_id: uuid.UUID,
    effect: str,
    since: datetime | None,
    key: RequestKey | None,
    lag: timedelta,
) -> Requested:
    now: datetime = await tx.fetchval("SELECT clock()")
    if since is not None and since > now:
        raise InvalidRequest("`since` lies in the future; name a time that is over")
    begin = since or await _goes_on_from(tx, actor.scope_id, effect, now, lag)
    new = NewSweep(
        actor.scope_id, sweep_id, effect, begin, actor.principal_id,
        None if key is None else key.key, None if key is None else key.fingerprint,
    )  # fmt: skip
    made = await sweeps.put(tx, new)
    if made is None:
        return await _in_the_way(tx, actor, effect, key)
    told = {"effect": effect, "since": begin.isoformat()}
    await auditing.keep(tx, actor, "sweep.requested", ids.show("sweep", sweep_id), told)
    return Requested(made)


async def _in_the_way(tx: Tx, actor: Actor, effect: str, key: RequestKey | None) -> Requested:
    if key is not None:
        before = await sweeps.by_key(tx, actor.scope_id, actor.principal_id, key.key)
        if before is not None:
            return _replayed(before, key)
    active = await sweeps.active(tx, actor.scope_id, effect)
    named = "" if active is None else f": {ids.show('sweep', active.sweep_id)}"
    raise Conflict(f"a sweep of {effect} is under way{named}; wait for its end")


def _replayed(before: Sweep, key: RequestKey) -> Requested:
    key.require_same(before.fingerprint or b"")
    return Requested(before, replayed=True)


async def _goes_on_from(
    tx: Tx, scope_id: str, effect: str, now: datetime, lag: timedelta
) -> datetime:
    """Where the last complete list could not be held to what was recorded: it may have lagged, and
    what was begun before may have got its receipt after it."""
    last = await sweeps.last_complete(tx, scope_id, effect)
    if last is None:
        return now - FIRST_LOOK
    overlap = last - lag - SweepSettings().skew
    begun = await sweeps.oldest_begin(tx, scope_id, effect, overlap)
    return min(overlap, begun or overlap)


def _check_note(note: str) -> None:
    if not note.strip():
        raise InvalidRequest("a note is needed: say what you found out or did")
    if len(note) > MAX_NOTE or not storable(note):
        raise InvalidRequest(f"a note has at most {MAX_NOTE} characters, none of them NUL")


def _already(found: Difference, note: str) -> Difference:
    if found.state is DifferenceState.CLOSED and found.note == note:
        return found
    raise Conflict(
        f"{ids.show('diff', found.difference_id)} is {found.state} already",
        fields={"state": found.state.value},
    )
