"""The guide to submitting from SQL, told from its first block to its last on a real database."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import asyncpg
import psycopg
import pytest
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from earnest.domain import ids
from earnest.engine.attempts.working import Worker
from earnest.engine.process import announcing
from earnest.engine.process.engine import Engine
from earnest.store import runs
from earnest.store.database import Database
from tests.docs.guides import Guide, reading
from tests.doors.sql.django_shop import in_django

WAITING = """SELECT count(*) FROM pg_stat_activity
             WHERE datname = current_database() AND wait_event_type = 'Lock'"""


def run_command(line: str, database_url: str) -> None:
    """A command of the guide, with this environment's `earnest`."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "EARNEST_DATABASE_URL": database_url}
    subprocess.run(["sh", "-ec", line], check=True, env=environment, capture_output=True)


@pytest.fixture
async def role_is_new(database: Database) -> AsyncIterator[None]:
    """Roles are the whole server's; the guide makes one named `shop`."""
    yield
    async with database.connection() as owner:
        await owner.execute("DROP OWNED BY shop CASCADE")
        await owner.execute("DROP ROLE shop")


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(url)
    try:
        yield connection
    finally:
        await connection.close()


async def test_the_guide(
    database: Database, make_engine: Callable[..., Engine], role_is_new: None
) -> None:
    url = database.url.replace("//earnest@", "//shop@")
    with reading("submit-from-sql") as guide:
        engine = make_engine(guide.module("shop.py").app)
        await announcing.announce(engine)
        await let_in(guide, database)
        async with connected(url) as connection:
            await connection.execute(guide.text("order.sql"))
            later = await connection.fetchval(guide.text("named.sql"))
            made = [await guide.module("with_asyncpg.py").place_order(connection, 20)]
        made.append(await asyncio.to_thread(with_psycopg, guide, url))
        made.append(await asyncio.to_thread(with_sqlalchemy, guide, url))
        made.append(await in_django(url, lambda: guide.module("with_django.py").place_order(23)))
        async with connected(url) as connection:
            await connection.execute(guide.text("trigger.sql"))
            await connection.execute("INSERT INTO orders VALUES (24)")
            made.append(await run_again(guide, url, connection))
        await Worker(engine, keeper=False).drain_once()
    assert [await output(database, run_id) for run_id in made] == [
        "shipped 20", "shipped 21", "shipped 22", "shipped 23", "shipped 25"
    ]  # fmt: skip
    assert await output(database, later) is None
    async with database.connection() as owner:
        rows = await owner.fetch("SELECT output FROM execution WHERE status = 'succeeded'")
    assert {row["output"] for row in rows} == {f"shipped {n}" for n in (17, 20, 21, 22, 23, 24, 25)}


async def let_in(guide: Guide, database: Database) -> None:
    await asyncio.to_thread(run_command, guide.text("principal.sh"), database.url)
    async with database.connection() as owner:
        await owner.execute(guide.text("role.sql"))
        await owner.execute(
            """CREATE SCHEMA AUTHORIZATION shop;
               CREATE TABLE shop.orders (number integer PRIMARY KEY);
               ALTER TABLE shop.orders OWNER TO shop"""
        )


def with_psycopg(guide: Guide, url: str) -> str:
    with psycopg.connect(url) as connection:
        return str(guide.module("with_psycopg.py").place_order(connection, 21))


def with_sqlalchemy(guide: Guide, url: str) -> str:
    engine = create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    with Session(engine) as session:
        run_id = guide.module("with_sqlalchemy.py").place_order(session, 22)
    engine.dispose()
    return str(run_id)


async def run_again(guide: Guide, url: str, other: asyncpg.Connection) -> str:
    """While all are shipped, another transaction has just shipped one of them: 40001."""
    ship_all = guide.module("again.py").ship_all

    def ship() -> list[str]:
        with psycopg.connect(url) as connection:
            connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            return list(ship_all(connection))

    await other.execute("ALTER TABLE orders DISABLE TRIGGER ship_order")
    await other.execute("INSERT INTO orders VALUES (25)")
    async with other.transaction():
        run_id: str = await other.fetchval(
            """SELECT earnest.submit('demo', 'order.ship', '{"order": 25}', 'order-25')"""
        )
        shipping = asyncio.create_task(asyncio.to_thread(ship))
        async with connected(url) as watching, asyncio.timeout(10):
            while not await watching.fetchval(WAITING):  # noqa: ASYNC110
                await asyncio.sleep(0)
    shipped = await shipping
    assert (len(shipped), shipped[-1]) == (7, run_id)
    return run_id


async def output(database: Database, run_id: str) -> object:
    run = await runs.find(database, "demo", ids.read("run", run_id))
    assert run is not None
    return run.output
