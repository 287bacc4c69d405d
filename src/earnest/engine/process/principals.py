"""Principals: who acts in a scope, and with which roles.

Who rules a scope is changed by one at a time, under the lock of the scope's row: so its last two
admins cannot take the role from each other at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from earnest.domain.access import Principal
from earnest.domain.errors import (
    Conflict,
    InvalidRequest,
    NotFound,
    PreconditionRequired,
    StaleVersion,
)
from earnest.engine.process import auditing
from earnest.engine.process.actors import Actor, By, Role, acting
from earnest.engine.process.engine import Engine
from earnest.store import access
from earnest.store.database import Tx


@dataclass(frozen=True, slots=True)
class Standing:
    """How a principal shall stand: with exactly these roles, or disabled, which is without any."""

    roles: frozenset[str]
    disabled: bool = False

    def of(self, found: Principal) -> bool:
        return frozenset(found.roles) == self.roles and self.disabled is bool(found.disabled_at)


async def ensure_principal(
    engine: Engine, scope_id: str, principal_id: str, roles: Iterable[str], *, by: By = "local"
) -> Principal:
    """Makes the principal, or gives it exactly these roles, whatever it had. Raises
    `InvalidRequest` for an impossible name or role, `NotFound` for a scope that is not there, and
    `Conflict` as `set_principal`."""
    wanted = _checked(principal_id, Standing(frozenset(roles)))

    async def work(tx: Tx) -> Principal:
        found = await _lock(tx, scope_id, principal_id)
        return await _put(tx, acting(scope_id, by), principal_id, found, wanted)

    return await engine.database.promise("access", work)


async def set_principal(
    engine: Engine, actor: Actor, principal_id: str, wanted: Standing, version: int | None
) -> Principal:
    """Makes the principal, or changes how it stands; `version` is the one that was looked at, of
    one that is there. To ask for what is so already is harmless, whatever the version. Its tokens
    follow within seconds. Raises `Forbidden`, `InvalidRequest`, `PreconditionRequired`,
    `StaleVersion`, and `Conflict` if nobody would be left to rule the scope."""
    actor.require(Role.ADMIN)
    wanted = _checked(principal_id, wanted)

    async def work(tx: Tx) -> Principal:
        found = await _lock(tx, actor.scope_id, principal_id)
        if found is None or not wanted.of(found):
            _require_version(found, version)
        return await _put(tx, actor, principal_id, found, wanted)

    return await engine.database.promise("access", work)


async def find_principal(engine: Engine, actor: Actor, principal_id: str) -> Principal:
    """Raises `Forbidden` for who is no admin, `NotFound`."""
    actor.require(Role.ADMIN)
    async with engine.database.connection() as tx:
        found = await access.find_principal(tx, actor.scope_id, principal_id)
    if found is None:
        raise NotFound(f"scope {actor.scope_id} has no principal {principal_id[:80]!r}")
    return found


async def list_principals(
    engine: Engine, actor: Actor, after: str | None, limit: int
) -> list[Principal]:
    """A page of the scope's principals, by name. Raises `Forbidden` for who is no admin."""
    actor.require(Role.ADMIN)
    return await access.principals(engine.database, actor.scope_id, after, limit)


async def put_in(tx: Tx, actor: Actor, principal_id: str, roles: Iterable[str]) -> Principal:
    """As a part of the caller's promise, in a scope that it has just made."""
    wanted = _checked(principal_id, Standing(frozenset(roles)))
    found = await _lock(tx, actor.scope_id, principal_id)
    return await _put(tx, actor, principal_id, found, wanted)


def check_name(principal_id: str) -> None:
    """Raises `InvalidRequest` for an impossible name."""
    if not 1 <= len(principal_id) <= 100 or not principal_id.isprintable():
        raise InvalidRequest("a principal's name has 1 to 100 printable characters")


def _checked(principal_id: str, wanted: Standing) -> Standing:
    check_name(principal_id)
    for role in sorted(wanted.roles - set(Role)):
        raise InvalidRequest(f"there is no role {role[:80]!r}; there are: {', '.join(Role)}")
    if wanted.disabled and wanted.roles:
        raise InvalidRequest("a disabled principal has no roles: leave them out")
    return wanted


async def _lock(tx: Tx, scope_id: str, principal_id: str) -> Principal | None:
    if not await access.lock_scope(tx, scope_id):
        raise NotFound(f"there is no scope {scope_id[:80]!r}; make it first")
    return await access.find_principal(tx, scope_id, principal_id)


def _require_version(found: Principal | None, version: int | None) -> None:
    now = 0 if found is None else found.version
    if version is None and found is not None:
        raise PreconditionRequired("name the version that you looked at (If-Match)")
    if version not in (None, now):
        told = "is not there" if found is None else f"is in version {now} now"
        raise StaleVersion(f"the principal {told}; look at it again", fields={"version": now})


async def _put(
    tx: Tx, actor: Actor, principal_id: str, found: Principal | None, wanted: Standing
) -> Principal:
    if found is not None and wanted.of(found):
        return found
    if found is not None and Role.ADMIN in found.roles and Role.ADMIN not in wanted.roles:
        await _require_other_admin(tx, actor.scope_id, principal_id)
    made = await access.put_principal(
        tx, actor.scope_id, principal_id, wanted.roles, disabled=wanted.disabled
    )
    told = {"roles": made.roles, "were": None if found is None else found.roles}
    await auditing.keep(tx, actor, _action(found, wanted), f"principal {principal_id}", told)
    return made


def _action(found: Principal | None, wanted: Standing) -> str:
    if found is None:
        return "principal.created"
    return "principal.disabled" if wanted.disabled else "principal.changed"


async def _require_other_admin(tx: Tx, scope_id: str, principal_id: str) -> None:
    if not await access.has_other_admin(tx, scope_id, principal_id):
        raise Conflict(
            f"{principal_id} is the last admin of scope {scope_id}: make another one first"
        )
