"""Removing: artifacts that somebody deletes or whose time is over, and the bytes nobody names."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial

from earnest.domain import ids
from earnest.domain.artifact import KEY_KEPT, BlobKey
from earnest.domain.errors import Conflict, NotFound, StorageUnavailable
from earnest.engine.artifacts.places import place_of, require_alone
from earnest.engine.process import auditing
from earnest.engine.process.actors import Actor
from earnest.engine.process.engine import Engine
from earnest.engine.process.logs import get_logger
from earnest.store import artifacts, executions
from earnest.store.blobs import Listed
from earnest.store.database import Tx

log = get_logger("earnest.artifacts")

_BATCH = 100
UNKNOWN_FOR = timedelta(hours=24)
"""So old is what nobody knows before an order to collect removes it."""


async def delete(engine: Engine, actor: Actor, artifact_id: uuid.UUID) -> None:
    """Deletes it; its room is free at once if no other names the same bytes. Raises `NotFound`, and
    `Conflict` while its run goes on."""
    asked = (actor.scope_id, artifact_id, actor.sees_only())
    found = await artifacts.find(engine.database, *asked)
    if found is None:
        raise NotFound("no such artifact, or not this actor's to see")
    run_id = found.run_id

    async def work(tx: Tx) -> list[BlobKey] | None:
        if run_id is not None:
            row = (await executions.lock(tx, actor.scope_id, [run_id])).get(run_id)
            if row is not None and not row.final:
                raise Conflict(f"its run is {row.status}; wait for its end, or cancel it")
        await artifacts.lock_room(tx, actor.scope_id)
        doomed = await artifacts.lock_doomed(tx, actor.scope_id, [artifact_id], asked[2])
        if not doomed:
            return None
        shown = ids.show("art", artifact_id)
        await auditing.keep(tx, actor, "artifact.deleted", shown, {"name": found.name})
        return await artifacts.delete(tx, actor.scope_id, doomed)

    discarded = await engine.database.promise("discard", work)
    await _remove_now(engine, discarded or [])


async def expire(engine: Engine, limit: int = _BATCH) -> int:
    """Deletes artifacts whose time is over, `limit` of them at most; returns how many."""
    due: dict[str, list[uuid.UUID]] = defaultdict(list)
    for scope_id, artifact_id in await artifacts.expired(engine.database, limit):
        due[scope_id].append(artifact_id)
    return sum([await _expire(engine, scope_id, sorted(due[scope_id])) for scope_id in sorted(due)])


async def _expire(engine: Engine, scope_id: str, artifact_ids: Sequence[uuid.UUID]) -> int:
    async def work(tx: Tx) -> int:
        await artifacts.lock_room(tx, scope_id)
        doomed = await artifacts.lock_doomed(tx, scope_id, artifact_ids, only_expired=True)
        await artifacts.delete(tx, scope_id, doomed)
        return len(doomed)

    return await engine.database.promise("prune", work)


async def collect(engine: Engine, told: Callable[[], None] = lambda: None) -> int:
    """Gives up uploads of which nothing was heard, removes all bytes that are discarded, forgets
    deleted artifacts; returns how many blobs were removed. Several may collect at once. Bytes that
    cannot be removed now hold up no others, and are tried again by the next."""
    while await engine.database.promise(
        "discard", partial(artifacts.give_up_arriving, limit=_BATCH)
    ):
        pass
    while await engine.database.promise("prune", _forget) == _BATCH:
        pass
    removed, after = 0, None
    while found := await artifacts.discarded(engine.database, after, _BATCH):
        removed += await _remove(engine, found, told)
        after = found[-1]
    return removed


async def _forget(tx: Tx) -> int:
    return await artifacts.forget(tx, KEY_KEPT, _BATCH)


async def _remove(
    engine: Engine, found: Sequence[BlobKey], told: Callable[[], None] = lambda: None
) -> int:
    """Bytes first, then the row that knows of them."""
    gone: list[BlobKey] = []
    for key in found:
        try:
            await place_of(engine).remove(key)
        except StorageUnavailable as error:
            log.warning("blob.not_removed", blob=key.blob_id.hex, error=error.detail)
        else:
            gone.append(key)
        told()

    async def forget(tx: Tx) -> None:
        await artifacts.forget_blobs(tx, gone)

    if gone:
        await engine.database.promise("collect", forget)
    return len(gone)


async def _remove_now(engine: Engine, found: Sequence[BlobKey]) -> None:
    """A collector would do it soon; whoever deletes something expects it gone."""
    if engine.blobs is not None:
        await _remove(engine, found)


# ---- bytes that nobody knows -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Unknown:
    """How many things lie in a place, how many of them nobody knows, and how many were removed."""

    looked_at: int
    unknown: int
    removed: int


async def collect_unknown(
    engine: Engine,
    *,
    older_than: timedelta = UNKNOWN_FOR,
    removes: bool = True,
    told: Callable[[int], None] = lambda _: None,
) -> Unknown:
    """Looks through the place for bytes that the database does not know, as after it was restored,
    and removes those that have lain there for so long. A name is in the database before its bytes
    are in the place, so bytes on their way are never among them. Raises `SettingInvalid` where
    another database's may be."""
    await require_alone(engine)
    looked_at = unknown = removed = 0
    async for page in place_of(engine).pages():
        strange = await _strange(engine, page)
        old = [one for one in strange if datetime.now(UTC) - one.modified_at >= older_than]
        for one in old if removes else ():
            await place_of(engine).remove_listed(one)
            removed += 1
        looked_at, unknown = looked_at + len(page), unknown + len(strange)
        told(len(page))
    return Unknown(looked_at, unknown, removed)


async def _strange(engine: Engine, page: Sequence[Listed]) -> list[Listed]:
    """What is named as we name blobs, and is not one."""
    ours = {one.key: one for one in page if one.key is not None}
    known = await artifacts.known(engine.database, list(ours))
    return [one for key, one in ours.items() if key not in known]
