"""A database that is emptied after a test and used again by the next one.

Copying the template for each of many hundred tests takes longer than the tests. One whose schema a
test has changed is thrown away; so is one that somebody still uses.
"""

from __future__ import annotations

import asyncpg

from earnest.testing.databases import ThrowawayCluster

_SCHEMA = """
SELECT md5(string_agg(part, E'\\n' ORDER BY part)) FROM (
    SELECT format('column %s %s %s', attrelid::regclass, attname, atttypid::regtype) AS part
    FROM pg_attribute JOIN pg_class ON attrelid = pg_class.oid
    WHERE relnamespace = 'earnest'::regnamespace AND attnum > 0
    UNION ALL
    SELECT format('constraint %s %s', conrelid::regclass, conname) FROM pg_constraint
    WHERE connamespace = 'earnest'::regnamespace
    UNION ALL
    SELECT format('function %s %s', oid::regprocedure, md5(prosrc)) FROM pg_proc
    WHERE pronamespace = 'earnest'::regnamespace
    UNION ALL
    SELECT format('trigger %s %s', tgrelid::regclass, tgname) FROM pg_trigger
    WHERE NOT tgisinternal
) AS parts
"""

_TABLES = """
SELECT relname FROM pg_class
WHERE relkind = 'r' AND relnamespace = 'earnest'::regnamespace AND relname <> 'migration'
"""

_CLOCK = "SELECT pg_get_functiondef('earnest.clock'::regproc)"

_OTHERS = """
SELECT count(pg_terminate_backend(pid, 1000)) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'
"""


class SpareDatabase:
    """Hands out one empty database at a time."""

    def __init__(self, cluster: ThrowawayCluster) -> None:
        self._cluster = cluster
        self._url: str | None = None
        self._schema = self._clock = ""

    async def take(self) -> str:
        """The one that was given back last, or a new copy."""
        url, self._url = self._url, None
        if url is not None:
            return url
        url = await self._cluster.copy()
        connection = await asyncpg.connect(url)
        self._schema = await connection.fetchval(_SCHEMA)
        self._clock = await connection.fetchval(_CLOCK)
        await connection.close()
        return url

    async def give_back(self, url: str) -> None:
        """Empties it for the next test, or drops it."""
        if await self._is_empty_again(url):
            self._url = url
        else:
            await self._cluster.drop(url)

    async def _is_empty_again(self, url: str) -> bool:
        connection = await asyncpg.connect(url)
        try:
            await connection.fetchval(_OTHERS)
            await connection.execute(f"{self._clock}; DROP TABLE IF EXISTS earnest.manual_clock")
            if await connection.fetchval(_SCHEMA) != self._schema:
                return False
            tables = [row["relname"] for row in await connection.fetch(_TABLES)]
            deletes = "; ".join(f"DELETE FROM earnest.{table}" for table in tables)
            await connection.execute(f"SET session_replication_role = replica; {deletes}")
            return True
        finally:
            await connection.close()
