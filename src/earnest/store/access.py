"""Scopes, principals, tokens and small settings as rows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from earnest.domain.access import NewToken, Principal, RequestKey, Scope, Token
from earnest.store.database import Database, Tx
from earnest.store.statements import sql


@dataclass(frozen=True, slots=True)
class StoredToken:
    """A token that is neither revoked nor expired. `digest` is the SHA-256 of its text, `remaining`
    how many seconds it is still good by the database's clock (`None`: until it is revoked).
    `of_first_scope`: its scope was made before all others. `first_use_today`: nobody has noted yet
    that it was used today."""

    token_id: str
    scope_id: str
    principal_id: str
    digest: bytes
    roles: frozenset[str]
    remaining: float | None
    of_first_scope: bool
    first_use_today: bool


@dataclass(frozen=True, slots=True)
class LockedToken:
    """What is asked of a token before it is changed: whose it is, its name, for how long it was
    made, and whether it opens something now."""

    principal_id: str
    name: str | None
    lifetime: timedelta | None
    live: bool


# ---- scopes ------------------------------------------------------------------------------------


async def put_scope(
    tx: Tx, scope_id: str, created_by: str = "local", asked: RequestKey | None = None
) -> Scope | None:
    """`None` when it was there, or when the key was used for another one."""
    key, fingerprint = _of_key(asked)
    row = await tx.fetchrow(sql("put_scope"), scope_id, created_by, key, fingerprint)
    return None if row is None else Scope(**dict(row))


async def scope_by_key(tx: Tx, created_by: str, key: str) -> tuple[Scope, bytes] | None:
    """The scope made under that key, and the fingerprint of what was asked."""
    row = await tx.fetchrow(sql("find_scope_by_key"), created_by, key)
    if row is None:
        return None
    return Scope(row["scope_id"], row["created_by"], row["created_at"]), row["fingerprint"]


async def visible_scopes(
    database: Database, asked_from: str | None, after: str | None, limit: int
) -> list[Scope]:
    """By name. `asked_from` is the asker's scope, `None` for whoever opened the database."""
    rows = await database.fetch("visible_scopes", asked_from, after, limit)
    return [Scope(**dict(row)) for row in rows]


async def lock_scope(tx: Tx, scope_id: str) -> bool:
    """Who rules it is changed by one at a time. False when there is no such scope."""
    return await tx.fetchval(sql("lock_scope"), scope_id) is not None


async def scopes(database: Database, limit: int) -> list[str]:
    """The first scopes by name."""
    return [row["scope_id"] for row in await database.fetch("list_scopes", limit)]


async def has_scope(database: Database, scope_id: str) -> bool:
    """Whether there is such a scope, or anything in it."""
    row = await database.fetchrow("has_scope", scope_id)
    return row is not None and bool(row[0])


# ---- principals --------------------------------------------------------------------------------


async def put_new_principal(tx: Tx, scope_id: str, principal_id: str) -> bool:
    """One without roles. The scope must be there. False when the principal was."""
    return await tx.fetchval(sql("put_new_principal"), scope_id, principal_id) is not None


async def put_principal(
    tx: Tx, scope_id: str, principal_id: str, roles: Iterable[str], *, disabled: bool = False
) -> Principal:
    """Makes it, or gives it exactly these roles. The scope must be locked."""
    wanted = sorted(roles)
    row = await tx.fetchrow(sql("put_principal"), scope_id, principal_id, wanted, disabled)
    assert row is not None, "it is made or changed"
    return Principal(**dict(row))


async def find_principal(tx: Tx, scope_id: str, principal_id: str) -> Principal | None:
    row = await tx.fetchrow(sql("find_principal"), scope_id, principal_id)
    return None if row is None else Principal(**dict(row))


async def principals(
    database: Database, scope_id: str, after: str | None, limit: int
) -> list[Principal]:
    """By name."""
    rows = await database.fetch("list_principals", scope_id, after, limit)
    return [Principal(**dict(row)) for row in rows]


async def has_other_admin(tx: Tx, scope_id: str, principal_id: str) -> bool:
    return bool(await tx.fetchval(sql("has_other_admin"), scope_id, principal_id))


# ---- tokens ------------------------------------------------------------------------------------


async def put_token(
    tx: Tx,
    scope_id: str,
    token_id: str,
    digest: bytes,
    new: NewToken,
    created_by: str,
    asked: RequestKey | None = None,
) -> bool:
    """False when there is no such principal or it is disabled, when the key is used, or when the
    token that it replaces has a successor."""
    found = await tx.fetchval(
        sql("put_token"), token_id, scope_id, new.principal_id, digest, new.good_for,
        new.expires_at, new.name, created_by, new.replaces, *_of_key(asked),
    )  # fmt: skip
    return found is not None


async def visible_token(tx: Tx, scope_id: str, token_id: str) -> Token | None:
    row = await tx.fetchrow(sql("visible_token"), scope_id, token_id)
    return None if row is None else Token(**dict(row))


async def tokens(
    database: Database,
    scope_id: str,
    principal_id: str | None,
    before: tuple[datetime, str] | None,
    limit: int,
    *,
    live: bool = False,
) -> list[Token]:
    """Newest first, of one principal or of all; `live`: only those that open something."""
    at, token_id = before or (None, None)
    rows = await database.fetch("list_tokens", scope_id, principal_id, live, at, token_id, limit)
    return [Token(**dict(row)) for row in rows]


async def lock_token(tx: Tx, scope_id: str, token_id: str) -> LockedToken | None:
    row = await tx.fetchrow(sql("lock_token"), scope_id, token_id)
    return None if row is None else LockedToken(**dict(row))


async def token_by_key(
    tx: Tx, scope_id: str, created_by: str, key: str
) -> tuple[str, bytes] | None:
    """The token made under that key, and the fingerprint of what was asked."""
    row = await tx.fetchrow(sql("find_token_by_key"), scope_id, created_by, key)
    return None if row is None else (row["token_id"], row["fingerprint"])


async def successor(tx: Tx, scope_id: str, token_id: str) -> str | None:
    found: str | None = await tx.fetchval(sql("find_successor"), scope_id, token_id)
    return found


async def end_token(tx: Tx, scope_id: str, token_id: str, after: timedelta) -> None:
    await tx.execute(sql("end_token"), scope_id, token_id, after)


async def revoke_token(tx: Tx, scope_id: str, token_id: str) -> bool:
    """False when it was revoked before."""
    return await tx.fetchval(sql("revoke_token"), scope_id, token_id) is not None


async def has_other_admin_token(tx: Tx, scope_id: str, token_id: str) -> bool:
    return bool(await tx.fetchval(sql("has_other_admin_token"), scope_id, token_id))


async def note_use_of_token(tx: Tx, token_id: str) -> None:
    await tx.execute(sql("note_use_of_token"), token_id)


async def find_token(database: Database, token_id: str) -> StoredToken | None:
    row = await database.fetchrow("find_token", token_id)
    if row is None:
        return None
    return StoredToken(
        token_id=token_id,
        scope_id=row["scope_id"],
        principal_id=row["principal_id"],
        digest=row["secret_hash"],
        roles=frozenset(row["roles"]),
        remaining=row["remaining"],
        of_first_scope=row["of_first_scope"],
        first_use_today=row["first_use_today"],
    )


async def keep_setting(tx: Tx, name: str, value: str) -> str:
    """Stores a setting unless there is one; returns the one that holds, whoever stored it."""
    await tx.execute(sql("put_setting"), name, value)
    kept: str = await tx.fetchval(sql("find_setting"), name)
    return kept


def _of_key(asked: RequestKey | None) -> tuple[str | None, bytes | None]:
    return (None, None) if asked is None else (asked.key, asked.fingerprint)
