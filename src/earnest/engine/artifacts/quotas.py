"""The room that a scope has for artifacts: how much of it is taken, and who may change it."""

from __future__ import annotations

from earnest.domain.artifact import Room
from earnest.domain.errors import InvalidRequest, NotFound
from earnest.engine.process import auditing, scopes
from earnest.engine.process.actors import Actor, Role
from earnest.engine.process.engine import Engine
from earnest.store import artifacts
from earnest.store.database import Tx

MOST = 2**53 - 1  # what every JSON reader can hold


async def find_room(engine: Engine, actor: Actor, scope_id: str) -> Room:
    """The room of the actor's scope, or for the first scope's admins of any. Raises `NotFound`."""
    rules_all = actor.of_first_scope and Role.ADMIN in actor.roles
    if scope_id != actor.scope_id and not rules_all:
        raise NotFound("no such scope, or not this actor's to see")
    await scopes.require_scope(engine, scope_id)
    return await artifacts.find_room(engine.database, scope_id, engine.settings.artifact_quota)


async def set_quota(engine: Engine, actor: Actor, scope_id: str, quota: int | None) -> Room:
    """Gives a scope so many bytes, or the default (`None`). What it has beyond them stays, and
    nothing is added before there is room again. Only for the first scope's admins: a scope does not
    give itself more. Raises `Forbidden`, `NotFound`, `InvalidRequest`."""
    actor.require_first_scope()
    if quota is not None and not 0 <= quota <= MOST:
        raise InvalidRequest("a quota is a number of bytes, from 0")
    await scopes.require_scope(engine, scope_id)

    async def work(tx: Tx) -> Room:
        await artifacts.lock_room(tx, scope_id)
        room = await artifacts.set_quota(tx, scope_id, quota, engine.settings.artifact_quota)
        subject = f"scope {scope_id}"
        await auditing.keep(tx, actor, "quota.changed", subject, {"quota_bytes": quota})
        return room

    return await engine.database.promise("access", work)
