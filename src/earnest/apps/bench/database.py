"""The database of a benchmark: a PostgreSQL of its own with the durability that everybody has, or
an empty one that was given. It is empty again at the end, and before each measurement."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import asyncpg

from earnest.domain.errors import DatabaseUnavailable, SettingInvalid
from earnest.store.database import LOST
from earnest.store.embedded import EmbeddedPostgres

# Views of extensions, such as pg_stat_statements, are nobody's data.
_HOLDS_SOMETHING = """
SELECT EXISTS (
    SELECT FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
    WHERE n.nspname !~ '^pg_' AND n.nspname <> 'information_schema'
      AND NOT EXISTS (SELECT FROM pg_depend WHERE objid = c.oid AND deptype = 'e'))
"""
_EMPTY = "DROP SCHEMA IF EXISTS earnest CASCADE; DROP SCHEMA IF EXISTS earnest_bench CASCADE"


class BenchDatabase:
    """The database at an address. What is in it is the benchmark's."""

    def __init__(self, url: str) -> None:
        self.url = url

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[asyncpg.Connection]:
        """One of its own, with the settings that everybody has."""
        connection = await asyncpg.connect(self.url, timeout=10)
        try:
            yield connection
        finally:
            await connection.close()

    async def empty(self) -> None:
        """No table is left. The checkpoint keeps what was written before out of what is next."""
        async with self.connection() as connection:
            await connection.execute(_EMPTY)
            try:
                await connection.execute("CHECKPOINT")
            except asyncpg.InsufficientPrivilegeError:
                return

    async def look_over(self) -> None:
        """What the server does by itself after a while: a table that was just filled is known."""
        async with self.connection() as connection:
            await connection.execute("VACUUM ANALYZE")


@asynccontextmanager
async def bench_database(
    url: str | None, say: Callable[[str], None]
) -> AsyncIterator[BenchDatabase]:
    """The database at `url`, or a server of its own that is gone at the end. Raises
    `SettingInvalid` for a database that is not empty, and `DatabaseUnavailable`."""
    if url is not None:
        database = BenchDatabase(url)
        await _require_empty(database)
        try:
            yield database
        finally:
            await database.empty()
        return
    with tempfile.TemporaryDirectory(prefix="earnest-bench-") as home:
        server = EmbeddedPostgres(Path(home), say=say)
        started = await asyncio.to_thread(server.start)
        try:
            yield BenchDatabase(started.url)
        finally:
            await asyncio.to_thread(server.stop)


async def _require_empty(database: BenchDatabase) -> None:
    try:
        async with database.connection() as connection:
            full = await connection.fetchval(_HOLDS_SOMETHING)
    except (*LOST, ValueError, asyncpg.PostgresError) as error:
        raise DatabaseUnavailable(
            f"the database cannot be reached ({error or type(error).__name__}); look at "
            "--database-url and EARNEST_DATABASE_URL"
        ) from error
    if full:
        raise SettingInvalid(
            "the database given holds something already, and the benchmark would empty it; make a "
            "new one for it, or leave --database-url and EARNEST_DATABASE_URL out"
        )
