"""Database roles: as whom a program submits that comes with `SELECT earnest.submit(…)`.

A role acts in a scope as one principal, and in no scope that it is not mapped in. It is who logged
in (`session_user`) that counts, not what `SET ROLE` says: that can be taken back within the same
session. Keys belong to the principal, so a program may send the same request through SQL and
through another door.
"""

from __future__ import annotations

import asyncpg

from earnest.domain.errors import Forbidden, NotFound
from earnest.engine.process import auditing
from earnest.engine.process.actors import By, acting
from earnest.engine.process.engine import Engine
from earnest.store.database import Record, Tx
from earnest.store.statements import sql


async def map_role(
    engine: Engine, role: str, scope_id: str, principal_id: str, *, by: By = "local"
) -> None:
    """From now on the role submits in the scope as the principal, and may call `earnest.submit`.
    Makes neither role nor scope nor principal. Raises `NotFound` for one that is not there,
    `Forbidden` when this program's own role does not own the schema."""

    async def work(tx: Tx) -> None:
        rows = await tx.fetch(sql("list_mapped_roles"), scope_id)
        if {"role_name": role, "principal_id": principal_id} in map(dict, rows):
            return
        await tx.execute(sql("map_role"), role, scope_id, principal_id)
        told = {"principal_id": principal_id}
        await auditing.keep(tx, acting(scope_id, by), "role.mapped", f"role {role}", told)

    try:
        await engine.database.promise("access", work)
    except (asyncpg.UndefinedObjectError, asyncpg.NoDataFoundError) as error:
        raise NotFound(str(error)) from error
    except asyncpg.InsufficientPrivilegeError as error:
        raise Forbidden(
            f"only the owner of the schema earnest can map a role ({error}); let it run "
            "SELECT earnest.map_role('<role>', '<scope>', '<principal>')"
        ) from error


async def unmap_role(engine: Engine, role: str, scope_id: str, *, by: By = "local") -> None:
    """From its next call on the role submits nothing more in the scope. Harmless when repeated."""

    async def work(tx: Tx) -> list[Record]:
        gone = await tx.fetch(sql("unmap_role"), role, scope_id)
        if gone:
            await auditing.keep(tx, acting(scope_id, by), "role.unmapped", f"role {role}")
        return gone

    await engine.database.promise("access", work)


async def mapped_roles(engine: Engine, scope_id: str) -> dict[str, str]:
    """The roles that submit in the scope, each with its principal."""
    rows = await engine.database.fetch("list_mapped_roles", scope_id)
    return {row["role_name"]: row["principal_id"] for row in rows}
