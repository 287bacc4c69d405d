"""Announcing: SQL submits by the terms that the process which started last has told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from earnest import App, Context
from earnest.assembly import open_app
from earnest.engine.attempts.working import Worker
from earnest.engine.process import announcing
from earnest.engine.process.engine import Engine
from earnest.store.database import Database
from tests.sql_shop import Order, SqlShop, make_app

ROWS = """SELECT name, lane, max_attempts, deadline, fails_on_doubt, input_schema, announced_at,
                 xmin::text FROM run_kind ORDER BY name"""


async def announced(database: Database) -> dict[str, dict[str, Any]]:
    async with database.connection() as connection:
        rows = await connection.fetch(ROWS)
    return {row["name"]: dict(row) for row in rows}


def app_of(*names: str, **terms: Any) -> App:
    app = App("some")
    for name in names:

        async def handler(ctx: Context, value: Any) -> Any:
            return value

        app.run(name, **terms)(handler)
    return app


async def test_all_terms_of_a_kind_are_announced(
    database: Database, make_engine: Callable[..., Engine]
) -> None:
    found = await announcing.announce(make_engine(make_app()))
    assert found == ["echo", "order.ship", "report.make"]
    kinds = await announced(database)
    report, ship = kinds["report.make"], kinds["order.ship"]
    assert (report["lane"], report["max_attempts"], report["fails_on_doubt"]) == (
        "reports",
        7,
        True,
    )
    assert report["deadline"] == timedelta(days=3)
    assert ship["input_schema"] == Order.model_json_schema()
    assert kinds["echo"]["input_schema"] == {}
    assert kinds["echo"]["deadline"] is None


async def test_terms_that_stand_already_are_not_written_again(
    database: Database, make_engine: Callable[..., Engine]
) -> None:
    await announcing.announce(make_engine(make_app()))
    before = await announced(database)
    assert await announcing.announce(make_engine(make_app())) == []
    after = await announced(database)
    times = {name: kind["announced_at"] for name, kind in before.items()}
    assert {name: kind["announced_at"] for name, kind in after.items()} == times


@pytest.mark.parametrize(
    "terms", [{"lane": "slow"}, {"max_attempts": 9}, {"deadline": "1h"}, {"on_unknown": "fail"}]
)
async def test_terms_that_changed_are_announced_again(
    database: Database, make_engine: Callable[..., Engine], terms: dict[str, Any]
) -> None:
    await announcing.announce(make_engine(app_of("one", "two")))
    assert await announcing.announce(make_engine(app_of("two", **terms))) == ["two"]
    assert set(await announced(database)) == {"one", "two"}


async def test_a_process_without_kinds_announces_nothing(
    database: Database, make_engine: Callable[..., Engine]
) -> None:
    assert await announcing.announce(make_engine()) == []


async def test_a_type_without_a_schema_takes_anything(
    database: Database, make_engine: Callable[..., Engine]
) -> None:
    app = App("some")

    @app.run("odd")
    async def odd(ctx: Context, value: Callable[[], None]) -> None:
        """No JSON is one of these, and no schema says so."""

    await announcing.announce(make_engine(app))
    assert (await announced(database))["odd"]["input_schema"] == {}


async def test_processes_that_start_at_once_announce_beside_each_other(
    database: Database, make_engine: Callable[..., Engine]
) -> None:
    names = [f"kind{n}" for n in range(40)]
    engines = [make_engine(app_of(*names, max_attempts=n)) for n in range(1, 9)]
    engines += [make_engine(app_of(*reversed(names), max_attempts=n)) for n in range(9, 17)]
    await asyncio.gather(*map(announcing.announce, engines))
    counts = {kind["max_attempts"] for kind in (await announced(database)).values()}
    assert len(counts) == 1, "each announces all of its kinds in one statement"


async def test_a_worker_announces_when_it_starts(
    database: Database, make_engine: Callable[..., Engine]
) -> None:
    worker = Worker(make_engine(make_app()), keeper=False)
    working = asyncio.create_task(worker.run())
    await worker.ready.wait()
    worker.stop()
    await working
    assert "order.ship" in await announced(database)


async def test_a_program_that_opens_an_app_announces_its_kinds(
    database: Database, database_url: str
) -> None:
    async with open_app(make_app(), database_url=database_url):
        assert "order.ship" in await announced(database)


async def test_a_kind_can_be_submitted_once_it_is_announced(
    shop: SqlShop, make_engine: Callable[..., Engine]
) -> None:
    with pytest.raises(asyncpg.InvalidParameterValueError, match="no run kind 'new' is announced"):
        await shop.submit_sql("new", 1)
    await announcing.announce(make_engine(app_of("new")))
    assert await shop.submit_sql("new", 1)
