"""The way to the database: when it counts as away, and what a server's settings may not change."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest

from earnest.domain.errors import DatabaseUnavailable
from earnest.store.database import Database, lend


async def test_a_server_whose_name_is_not_resolved_counts_as_away() -> None:
    """P23: it is waited for like any other; neither a loop nor a keeper ends over it."""
    nowhere = Database("postgresql://nobody@earnest.invalid/nothing", patience=0.1)
    with pytest.raises(DatabaseUnavailable, match="the database does not answer"):
        await nowhere.open()


async def test_a_database_with_another_default_isolation_does_not_blind_the_second_look(
    database_url: str,
) -> None:
    """P25: in an older snapshot a parking run would miss what came while it waited for its lock."""
    owner = await asyncpg.connect(database_url)
    name = await owner.fetchval("SELECT current_database()")
    await owner.execute(
        f"ALTER DATABASE {name} SET default_transaction_isolation = 'repeatable read'"
    )
    try:
        async with Database(database_url) as database, database.connection() as tx:
            assert await tx.fetchval("SHOW transaction_isolation") == "read committed"
    finally:
        await owner.execute(f"ALTER DATABASE {name} RESET default_transaction_isolation")
        await owner.close()


# ---- what a session keeps ----------------------------------------------------------------------


async def test_a_connection_is_handed_on_without_a_message_to_the_server(
    database_url: str,
) -> None:
    async with Database(database_url, size=1) as database:
        async with database.connection() as tx:
            await tx.execute("SET my.mark = 'kept'")
        async with database.connection() as tx:
            assert await tx.fetchval("SHOW my.mark") == "kept"


async def test_a_connection_that_nobody_needs_goes_back_to_the_pool_and_one_in_use_stays(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pool closes it after a while; a firewall may have forgotten it before."""
    monkeypatch.setattr("earnest.store.database._TIDIED_EVERY", 0.02)
    async with Database(database_url, size=3) as database:
        async with database.connection(), database.connection(), database.connection():
            pass
        pool = database._pool
        assert pool is not None
        async with asyncio.timeout(10), database.connection() as tx:
            while pool.get_idle_size() < 2:
                await tx.fetchval("SELECT 1")
            await tx.execute("SET my.mark = 'kept'")
        for _ in range(20):
            async with database.connection() as tx:
                assert await tx.fetchval("SHOW my.mark") == "kept"
                await tx.fetchval("SELECT pg_sleep(0.01)")
        async with asyncio.timeout(10):
            while pool.get_idle_size() < 3:  # noqa: ASYNC110
                await asyncio.sleep(0)
        assert database._tidying is None


async def test_what_an_apps_own_code_did_to_a_session_ends_with_its_turn(
    database_url: str,
) -> None:
    async with Database(database_url, size=1) as database:
        async with database.connection() as tx:
            lend(tx)
            await tx.execute("SET search_path = elsewhere; SET my.mark = 'left'")
            await tx.fetchval("SELECT pg_advisory_lock(17)")
        async with database.connection() as tx:
            assert await tx.fetchval("SHOW search_path") == "earnest"
            assert await tx.fetchval("SELECT current_setting('my.mark', true)") in {None, ""}
            locks = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = 17"
            assert await tx.fetchval(locks) == 0
