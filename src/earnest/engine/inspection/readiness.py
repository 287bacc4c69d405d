"""Whether a process may be sent work: what it says of itself, and what its database says."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace

import asyncpg

from earnest.domain.errors import EarnestError
from earnest.engine.process.engine import Engine
from earnest.store.database import LOST
from earnest.store.statements import sql

WEAK = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}


@dataclass(frozen=True, slots=True)
class Readiness:
    """`reason` says in a few words why it is not ready; `warnings` are loud lines for people about
    what works and is dangerous."""

    ready: bool
    reason: str = ""
    warnings: tuple[str, ...] = ()


async def examine(engine: Engine, said: Readiness, within: float = 2.0) -> Readiness:
    """What the process said of itself, if its database answers within that many seconds, together
    with what is dangerous about the database's settings. Waits for no restart, revives nothing."""
    try:
        async with asyncio.timeout(within):
            weak = await _weak_settings(engine)
    except (EarnestError, asyncpg.PostgresError, *LOST):
        return Readiness(False, "the database does not answer", said.warnings)
    # What the process itself warned of at its start may be the same.
    return replace(said, warnings=tuple(dict.fromkeys((*said.warnings, *weak))))


async def _weak_settings(engine: Engine) -> list[str]:
    async with engine.database.connection() as tx:
        rows = await tx.fetch(sql("durability"))
    return [
        f"{row['name']} is {row['setting']}: a crash of the machine can lose accepted work and "
        "sent operations; turn it on"
        for row in rows
        if WEAK[row["name"]] == row["setting"]
    ]
