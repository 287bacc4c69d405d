"""What is stored of the database's epoch, and what the server says of itself."""

from __future__ import annotations

from collections.abc import Callable

import asyncpg

from earnest.store.access import keep_setting
from earnest.store.database import Database, Tx
from earnest.store.statements import sql

SETTING = "epoch"


async def find(database: Database) -> str | None:
    row = await database.fetchrow("find_setting", SETTING)
    return None if row is None else str(row["value"])


async def change(tx: Tx, first: str, change_: Callable[[str], str]) -> str:
    """Stores what `change_` makes of the stored text, or `first` where there is none; others wait.
    Returns what holds then."""
    await keep_setting(tx, SETTING, first)
    held: str = await tx.fetchval(sql("lock_setting"), SETTING)
    wanted = change_(held)
    if wanted != held:
        await tx.execute(sql("change_setting"), SETTING, wanted)
    return wanted


async def server_identity(database: Database) -> str | None:
    """One text for the cluster and its timeline; `None` where the server may not be asked."""
    try:
        row = await database.fetchrow("server_identity")
    except asyncpg.InsufficientPrivilegeError:
        return None
    return None if row is None else str(row["identity"])
