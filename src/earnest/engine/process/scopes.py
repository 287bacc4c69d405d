"""Scopes: the walls. The one that was made before all others rules what all of them share."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from earnest.domain import ids
from earnest.domain.access import NewToken, RequestKey, Scope
from earnest.domain.errors import Conflict, InvalidRequest, NotFound
from earnest.engine.process import auditing, principals, tokens
from earnest.engine.process.actors import Actor, By, Role, acting
from earnest.engine.process.engine import Engine
from earnest.store import access
from earnest.store.database import Tx

_SCOPE = re.compile(r"[a-z0-9][a-z0-9_.-]{0,62}")
_NOT_ASKED = b""
"""In place of a request's fingerprint, for a key that no caller has given."""


@dataclass(frozen=True, slots=True)
class Made:
    """A scope as it was asked for; `token` is its first admin's, where one was asked for now."""

    scope: Scope
    token: str | None = None
    replayed: bool = False


async def ensure_scope(engine: Engine, scope_id: str, *, by: By = "local") -> None:
    """Makes the scope unless it is there. Raises `InvalidRequest` for an impossible name."""
    check_name(scope_id)
    actor = acting(scope_id, by)
    await engine.database.promise("access", lambda tx: _put(tx, actor, scope_id))


async def register(engine: Engine, scope_id: str, principal_id: str) -> None:
    """Makes the scope and the principal unless they are there; a new principal has no roles. What a
    program does in its scope is seen by whoever looks for it there (P3), whoever made the scope.
    Raises `InvalidRequest` for impossible names."""
    check_name(scope_id)
    principals.check_name(principal_id)
    actor = acting(scope_id, principal_id)

    async def work(tx: Tx) -> None:
        await _put(tx, actor, scope_id)
        if await access.put_new_principal(tx, scope_id, principal_id):
            told: dict[str, Any] = {"roles": [], "were": None}
            await auditing.keep(tx, actor, "principal.created", f"principal {principal_id}", told)

    await engine.database.promise("access", work)


async def require_scope(engine: Engine, scope_id: str) -> None:
    """Raises `NotFound` for a scope that is not there, before anything is done in it, and
    `InvalidRequest` for an impossible name."""
    check_name(scope_id)
    if not await access.has_scope(engine.database, scope_id):
        raise NotFound(
            f"there is no scope {scope_id[:80]!r}, so nothing was done. A scope is made by a "
            f"program that opens Earnest with it, or by `earnest scopes create {scope_id[:80]}`"
        )


async def create_scope(
    engine: Engine,
    actor: Actor,
    scope_id: str,
    *,
    admin: str | None = None,
    asked: RequestKey | None = None,
) -> Made:
    """Makes a scope, for the first scope's admins; with `admin` also its first principal, an admin,
    and a token for it. The same request under the same key gives the same scope, without the token.
    Raises `Forbidden`, `InvalidRequest`, and `Conflict` for one that is there."""
    actor.require(Role.ADMIN)
    actor.require_first_scope()
    check_name(scope_id)
    if admin is not None:
        principals.check_name(admin)
    issue = tokens.Issue.new()
    # Without a caller's key a lost reply could not be told from a scope that was there.
    key = asked or RequestKey(f"once:{ids.new_token()}", _NOT_ASKED)

    async def work(tx: Tx) -> Made:
        known = await _known(tx, actor, key, issue)
        if known is not None:
            return known
        scope = await access.put_scope(tx, scope_id, actor.principal_id, key)
        if scope is None:
            return await _known(tx, actor, key, issue) or _refuse(scope_id)
        await auditing.keep(tx, actor, "scope.created", f"scope {scope_id}")
        if admin is None:
            return Made(scope)
        return Made(scope, await _first_admin(tx, actor, scope_id, admin, issue))

    return await engine.database.promise("access", work)


async def list_scopes(engine: Engine, actor: Actor, after: str | None, limit: int) -> list[Scope]:
    """A page of all scopes, by name, for the first scope's admins. Raises `Forbidden`."""
    actor.require(Role.ADMIN)
    actor.require_first_scope()
    asked_from = None if actor.is_local else actor.scope_id
    return await access.visible_scopes(engine.database, asked_from, after, limit)


def check_name(scope_id: object) -> None:
    """Raises `InvalidRequest` for an impossible name."""
    if not isinstance(scope_id, str) or not _SCOPE.fullmatch(scope_id):
        raise InvalidRequest(
            f"{str(scope_id)[:80]!r} is no name for a scope: 1 to 63 lower-case letters, digits, "
            "`_`, `.` or `-`, the first a letter or digit"
        )


async def _put(tx: Tx, actor: Actor, scope_id: str) -> None:
    if await access.put_scope(tx, scope_id, actor.principal_id) is not None:
        await auditing.keep(tx, actor, "scope.created", f"scope {scope_id}")


async def _first_admin(tx: Tx, actor: Actor, scope_id: str, admin: str, issue: tokens.Issue) -> str:
    """In the new scope's audit, whoever made it carries its own scope's name before its own."""
    there = replace(actor, scope_id=scope_id, principal_id=f"{actor.scope_id}/{actor.principal_id}")
    await principals.put_in(tx, there, admin, [Role.ADMIN])
    await tokens.issue_in(tx, there, NewToken(admin), issue)
    return issue.text


async def _known(tx: Tx, actor: Actor, key: RequestKey, issue: tokens.Issue) -> Made | None:
    """What this very promise made before its reply was lost, or an earlier one under the key."""
    found = await access.scope_by_key(tx, actor.principal_id, key.key)
    if found is None:
        return None
    key.require_same(found[1])
    scope = found[0]
    if await access.visible_token(tx, scope.scope_id, issue.token_id) is not None:
        return Made(scope, issue.text)
    return Made(scope, replayed=key.fingerprint != _NOT_ASKED)


def _refuse(scope_id: str) -> NoReturn:
    raise Conflict(f"there is a scope {scope_id!r} already")
