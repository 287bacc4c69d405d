"""Submitting from SQL on the oldest and the newest servers: its functions are written for all."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest

from earnest.domain import ids
from earnest.engine.process.engine import Engine
from earnest.store.database import Database
from earnest.store.embedded import EmbeddedPostgres
from earnest.store.migrate import migrate
from earnest.testing.databases import FAST
from tests.sql_shop import make_app, open_shop, submitted

DEBIAN_15 = Path("/usr/lib/postgresql/15/bin")
with_15 = pytest.mark.skipif(not DEBIAN_15.exists(), reason="PostgreSQL 15 is not installed")

MAJORS = [pytest.param(15, marks=with_15), 16, 18]


@pytest.fixture(scope="module", params=MAJORS)
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[int, str]]:
    """A migrated database on a server of one version."""
    major: int = request.param
    bin_dir = DEBIAN_15 if major == 15 else None
    home = tmp_path_factory.mktemp(f"postgres-{major}")
    with EmbeddedPostgres(home, major=major, bin_dir=bin_dir, settings=FAST) as started:
        asyncio.run(migrate(started.url))
        yield major, started.url


async def test_all_of_it_works_on_this_version(server: tuple[int, str]) -> None:
    major, url = server
    async with Database(url, size=4, patience=5) as database:
        shop = await open_shop(Engine(database, kinds=make_app().kinds))
        assert await shop.value("SELECT current_setting('server_version_num')::int / 10000") == (
            major
        )
        run_id = await shop.submit_sql("order.ship", {"order": 17}, "order-17")
        assert await shop.submit_sql("order.ship", {"order": 17}, "order-17") == run_id
        by_python = await shop.submit("order.ship", {"order": 17}, "order-17")
        assert ids.show("run", by_python.run_id) == run_id
        with pytest.raises(asyncpg.PostgresError) as refusal:
            await shop.submit_sql("order.ship", {"order": 18}, "order-17")
        assert refusal.value.sqlstate == "RK409"
        await shop.worker.drain_once()
        assert (await shop.find(run_id)).output == "shipped 17"
        async with shop.connected() as connection:
            for arguments in (
                "'demo', 'none', '1'",
                "'demo', 'echo', to_jsonb(repeat('x', 262145))",
                "'demo', 'echo', jsonb_build_array(repeat('9', 400), 1e308)",
                "'demo', 'echo', '1', not_before => 'infinity'",
                "'demo', 'echo', '1', labels => '{\"n\": 1}'",
            ):
                with pytest.raises(asyncpg.InvalidParameterValueError):
                    await connection.fetchval(f"SELECT earnest.submit({arguments})")
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await connection.fetchval("SELECT earnest.submit('other', 'echo', '1')")
            transaction = connection.transaction(isolation="repeatable_read")
            await transaction.start()
            await connection.execute("SELECT count(*) FROM pg_class")
            await shop.submit_sql("echo", 1, "k")
            with pytest.raises(asyncpg.SerializationError):
                await submitted(connection, "echo", 1, "k")
