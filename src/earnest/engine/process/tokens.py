"""Tokens: issued, rotated with an overlap, revoked, listed. How one reads is told in `access`.

Only the holder ever has a token's text: it is returned by the call that makes it and stored
nowhere. Everything that a principal has, its idempotency keys too, belongs to the principal, so a
rotation changes nothing but the secret.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NoReturn

from earnest.domain.access import NewToken, RequestKey, Token
from earnest.domain.canonical import storable
from earnest.domain.errors import Conflict, InvalidRequest, NotFound
from earnest.engine.process import auditing
from earnest.engine.process.access import new_token, read_token
from earnest.engine.process.actors import Actor, By, Role, acting
from earnest.engine.process.engine import Engine
from earnest.store import access
from earnest.store.access import LockedToken
from earnest.store.database import Tx

DEFAULT_OVERLAP = timedelta(minutes=10)
LONGEST_OVERLAP = timedelta(days=7)


@dataclass(frozen=True, slots=True)
class Issue:
    """The text of a token that is about to be made; chosen before the promise, which may be
    repeated after a lost reply."""

    text: str
    token_id: str
    digest: bytes

    @classmethod
    def new(cls) -> Issue:
        text = new_token()
        return cls(text, *read_token(text))


@dataclass(frozen=True, slots=True)
class Issued:
    """A token; its `text` only where this very call made it."""

    token: Token
    text: str | None
    replayed: bool = False


@dataclass(frozen=True, slots=True)
class Rotation:
    """How a token is replaced: the old one ends after `overlap`, or sooner if it was to; the new
    one is good until `expires_at`, else for as long as the old one was made for."""

    overlap: timedelta = DEFAULT_OVERLAP
    expires_at: datetime | None = None


async def issue_token(
    engine: Engine,
    scope_id: str,
    principal_id: str,
    *,
    good_for: timedelta | None = None,
    by: By = "local",
) -> str:
    """The text of a new token, for programs that opened the database themselves. Raises `NotFound`
    for a principal that is not there."""
    made = await issue(engine, acting(scope_id, by), NewToken(principal_id, good_for=good_for))
    assert made.text is not None, "made now"
    return made.text


async def issue(
    engine: Engine, actor: Actor, new: NewToken, asked: RequestKey | None = None
) -> Issued:
    """A new token of a principal of the scope. The same request under the same key gives the same
    token, without its text. Raises `Forbidden` for who is no admin, `InvalidRequest`, and
    `NotFound` for a principal that is not there or is disabled."""
    actor.require(Role.ADMIN)
    _check_name(new.name)
    fresh = Issue.new()

    async def work(tx: Tx) -> Issued:
        known = await _known(tx, actor, fresh, asked)
        if known is None and not await issue_in(tx, actor, new, fresh, asked):
            known = await _known(tx, actor, fresh, asked) or _refuse(actor, new)
        return known or await _issued(tx, actor, fresh)

    return await engine.database.promise("access", work)


async def issue_in(
    tx: Tx, actor: Actor, new: NewToken, fresh: Issue, asked: RequestKey | None = None
) -> bool:
    """As `issue`, as a part of the caller's promise; false when it cannot be made."""
    if not await access.put_token(
        tx, actor.scope_id, fresh.token_id, fresh.digest, new, actor.principal_id, asked
    ):
        return False
    made = await _find(tx, actor, fresh.token_id)
    if new.expires_at is not None and made.expires_at is not None:
        _require_future(made)
    told = {"principal_id": made.principal_id, "name": made.name, **_until(made)}
    await auditing.keep(tx, actor, "token.issued", f"token {made.token_id}", told)
    return True


async def rotate(
    engine: Engine,
    actor: Actor,
    token_id: str,
    rotation: Rotation,
    asked: RequestKey | None = None,
) -> Issued:
    """A new token of the same principal and name; meanwhile both are good. A token is rotated once:
    of several at once one succeeds. The same request under the same key gives the same successor,
    without its text. Raises `Forbidden`, `NotFound`, `InvalidRequest`, and `Conflict` for a token
    that opens nothing any more or was rotated already."""
    actor.require(Role.ADMIN)
    _check_overlap(rotation.overlap)
    fresh = Issue.new()

    async def work(tx: Tx) -> Issued:
        old = await access.lock_token(tx, actor.scope_id, token_id)
        if old is None:
            raise NotFound("there is no such token")
        known = await _known(tx, actor, fresh, asked)
        if known is not None:
            return known
        await _require_rotatable(tx, actor, token_id, old)
        new = _successor_of(token_id, old, rotation)
        if not await issue_in(tx, actor, new, fresh, asked):
            return await _known(tx, actor, fresh, asked) or _refuse(actor, new)
        await access.end_token(tx, actor.scope_id, token_id, rotation.overlap)
        told = {"successor": fresh.token_id, "overlap_seconds": rotation.overlap.total_seconds()}
        await auditing.keep(tx, actor, "token.rotated", f"token {token_id}", told)
        return await _issued(tx, actor, fresh)

    return await engine.database.promise("access", work)


async def revoke(engine: Engine, actor: Actor, token_id: str) -> Token:
    """From now on (within two seconds in processes that know it) the token opens nothing. Harmless
    when repeated. Raises `Forbidden`, `NotFound`, and `Conflict` if no admin of the scope could
    come in any more; who opened the database itself may do that too."""
    actor.require(Role.ADMIN)

    async def work(tx: Tx) -> Token:
        await access.lock_scope(tx, actor.scope_id)
        old = await access.lock_token(tx, actor.scope_id, token_id)
        if old is None:
            raise NotFound("there is no such token")
        if old.live and not actor.is_local:
            await _require_way_in(tx, actor, token_id)
        if await access.revoke_token(tx, actor.scope_id, token_id):
            told = {"principal_id": old.principal_id, "name": old.name}
            await auditing.keep(tx, actor, "token.revoked", f"token {token_id}", told)
        return await _find(tx, actor, token_id)

    return await engine.database.promise("access", work)


async def revoke_token(engine: Engine, scope_id: str, token_id: str, *, by: By = "local") -> None:
    """As `revoke`, for programs that opened the database themselves."""
    await revoke(engine, acting(scope_id, by), token_id)


async def find_token(engine: Engine, actor: Actor, token_id: str) -> Token:
    """Raises `Forbidden` for who is no admin, `NotFound`."""
    actor.require(Role.ADMIN)
    async with engine.database.connection() as tx:
        return await _find(tx, actor, token_id)


async def list_tokens(
    engine: Engine,
    actor: Actor,
    principal_id: str | None,
    before: tuple[datetime, str] | None,
    limit: int,
    *,
    live: bool = False,
) -> list[Token]:
    """A page of the scope's tokens, newest first; `live`: only those that open something. Raises
    `Forbidden` for who is no admin."""
    actor.require(Role.ADMIN)
    return await access.tokens(
        engine.database, actor.scope_id, principal_id, before, limit, live=live
    )


async def _find(tx: Tx, actor: Actor, token_id: str) -> Token:
    found = await access.visible_token(tx, actor.scope_id, token_id)
    if found is None:
        raise NotFound("there is no such token")
    return found


async def _issued(tx: Tx, actor: Actor, fresh: Issue) -> Issued:
    return Issued(await _find(tx, actor, fresh.token_id), fresh.text)


async def _known(tx: Tx, actor: Actor, fresh: Issue, asked: RequestKey | None) -> Issued | None:
    """What this very promise made before its reply was lost, or an earlier one under the key."""
    made = await access.visible_token(tx, actor.scope_id, fresh.token_id)
    if made is not None:
        return Issued(made, fresh.text)
    if asked is None:
        return None
    found = await access.token_by_key(tx, actor.scope_id, actor.principal_id, asked.key)
    if found is None:
        return None
    asked.require_same(found[1])
    return Issued(await _find(tx, actor, found[0]), None, replayed=True)


def _successor_of(token_id: str, old: LockedToken, rotation: Rotation) -> NewToken:
    good_for = old.lifetime if rotation.expires_at is None else None
    return NewToken(old.principal_id, old.name, good_for, rotation.expires_at, token_id)


async def _require_rotatable(tx: Tx, actor: Actor, token_id: str, old: LockedToken) -> None:
    after = await access.successor(tx, actor.scope_id, token_id)
    if after is not None:
        raise Conflict(
            f"this token was rotated already; its successor is {after}: rotate that one",
            fields={"successor": after},
        )
    if not old.live:
        raise Conflict("this token opens nothing any more; issue a new one")


async def _require_way_in(tx: Tx, actor: Actor, token_id: str) -> None:
    token = await _find(tx, actor, token_id)
    if Role.ADMIN in token.roles and not await access.has_other_admin_token(
        tx, actor.scope_id, token_id
    ):
        raise Conflict(
            "no admin could come in any more: issue another admin's token first, or rotate this "
            "one without overlap"
        )


def _check_name(name: str | None) -> None:
    if name is not None and not (1 <= len(name) <= 200 and storable(name)):
        raise InvalidRequest("a token's name has 1 to 200 characters")


def _check_overlap(overlap: timedelta) -> None:
    if not timedelta(0) <= overlap <= LONGEST_OVERLAP:
        raise InvalidRequest(f"the overlap is between 0 and {LONGEST_OVERLAP.days} days")


def _require_future(made: Token) -> None:
    assert made.expires_at is not None
    if made.expires_at <= made.created_at:
        raise InvalidRequest("the token would have expired already; name a later time")


def _until(made: Token) -> dict[str, str | None]:
    return {"expires_at": None if made.expires_at is None else made.expires_at.isoformat()}


def _refuse(actor: Actor, new: NewToken) -> NoReturn:
    raise NotFound(
        f"scope {actor.scope_id[:80]!r} has no principal {new.principal_id[:80]!r} that may have "
        "a token; make it first"
    )
