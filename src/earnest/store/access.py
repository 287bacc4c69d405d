"""Scopes, principals, tokens and small settings as rows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta

from earnest.store.database import Database, Tx
from earnest.store.statements import sql


@dataclass(frozen=True, slots=True)
class StoredToken:
    """A token that is neither revoked nor expired. `digest` is the SHA-256 of its text, `remaining`
    how many seconds it is still good by the database's clock (`None`: until it is revoked).
    `of_first_scope`: its scope was made before all others."""

    scope_id: str
    principal_id: str
    digest: bytes
    roles: frozenset[str]
    remaining: float | None
    of_first_scope: bool


async def put_scope(tx: Tx, scope_id: str) -> None:
    await tx.execute(sql("put_scope"), scope_id)


async def scopes(database: Database, limit: int) -> list[str]:
    """The first scopes by name."""
    return [row["scope_id"] for row in await database.fetch("list_scopes", limit)]


async def has_scope(database: Database, scope_id: str) -> bool:
    """Whether there is such a scope, or anything in it."""
    row = await database.fetchrow("has_scope", scope_id)
    return row is not None and bool(row[0])


async def put_new_principal(tx: Tx, scope_id: str, principal_id: str) -> None:
    """One without roles, unless it is there. The scope must be."""
    await tx.execute(sql("put_new_principal"), scope_id, principal_id)


async def put_principal(tx: Tx, scope_id: str, principal_id: str, roles: Iterable[str]) -> bool:
    """Gives the principal exactly these roles. False when there is no such scope."""
    found = await tx.fetchval(sql("put_principal"), scope_id, principal_id, sorted(roles))
    return found is not None


async def put_token(
    tx: Tx,
    token_id: str,
    scope_id: str,
    principal_id: str,
    digest: bytes,
    good_for: timedelta | None,
) -> bool:
    """False when there is no such principal."""
    found = await tx.fetchval(sql("put_token"), token_id, scope_id, principal_id, digest, good_for)
    return found is not None


async def revoke_token(tx: Tx, scope_id: str, token_id: str) -> bool:
    """False when the scope has no such token."""
    return await tx.fetchval(sql("revoke_token"), scope_id, token_id) is not None


async def find_token(database: Database, token_id: str) -> StoredToken | None:
    row = await database.fetchrow("find_token", token_id)
    if row is None:
        return None
    return StoredToken(
        scope_id=row["scope_id"],
        principal_id=row["principal_id"],
        digest=row["secret_hash"],
        roles=frozenset(row["roles"]),
        remaining=row["remaining"],
        of_first_scope=row["of_first_scope"],
    )


async def keep_setting(tx: Tx, name: str, value: str) -> str:
    """Stores a setting unless there is one; returns the one that holds, whoever stored it."""
    await tx.execute(sql("put_setting"), name, value)
    kept: str = await tx.fetchval(sql("find_setting"), name)
    return kept
