"""Whether what the migrations made is still there: their tables, indexes, views and functions.

What they make is read from their own text. Names are compared, and whether an index is valid;
columns and bodies are not.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import asyncpg

from earnest.domain.errors import SchemaMismatch
from earnest.store.database import Record
from earnest.store.migrate import Migration, engine_migrations
from earnest.store.statements import sql

# A statement begins a line; what functions say within their bodies is indented.
_STATEMENT = re.compile(
    r"^(CREATE|DROP) (?:OR REPLACE )?(?:UNIQUE )?(TABLE|INDEX|VIEW|FUNCTION)"
    r" (?:IF (?:NOT )?EXISTS )?(?:earnest\.)?(\w+)",
    re.MULTILINE,
)
MEND = "make it again as `earnest migrate --sql` has it, or restore a backup"

Part = tuple[str, str]
"""What it is (`table`, `index`, `view`, `function`) and its name."""


def made_by(migrations: Iterable[Migration]) -> dict[Part, Migration]:
    """What these migrations leave in the schema, each with the one that made it last."""
    made: dict[Part, Migration] = {}
    for migration in migrations:
        for verb, sort, name in _STATEMENT.findall(migration.text):
            part = sort.lower(), name
            if verb == "CREATE":
                made[part] = migration
            else:
                made.pop(part, None)
    return made


def lacking(rows: Sequence[Record], migrations: Iterable[Migration]) -> list[str]:
    """What is not there although these migrations made it. `rows` are those of `schema_parts`."""
    there = {(row["sort"], row["name"]) for row in rows}
    return [
        f"the {sort} {name} of {migration}"
        for (sort, name), migration in made_by(migrations).items()
        if (sort, name) not in there
    ]


async def require_whole(url: str) -> None:
    """Raises `SchemaMismatch` if something is missing that the engine's migrations made. All of
    them are applied."""
    connection = await asyncpg.connect(url, timeout=10)
    try:
        lost = lacking(await connection.fetch(sql("schema_parts")), engine_migrations())
    finally:
        await connection.close()
    if lost:
        raise SchemaMismatch(f"the database lacks {', '.join(lost)}; {MEND}")
