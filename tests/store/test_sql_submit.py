"""Submitting from SQL: a run in the caller's transaction, like one from any other door."""

from __future__ import annotations

import asyncio
import time
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

from earnest.domain import ids
from earnest.engine.process import announcing
from earnest.store import facts
from tests.sql_shop import SCOPE, SqlShop, submitted

EVERYTHING = """
    SELECT submit(scope => 'demo', kind => 'report.make', input => '{"of": 2029}', key => 'k',
                  priority => 5, not_before => '2035-01-31T12:00Z', labels => '{"of": "2029"}')
"""


async def row(shop: SqlShop, table: str, run_id: str) -> dict[str, Any]:
    async with shop.as_owner() as owner:
        found = await owner.fetchrow(
            f"SELECT * FROM {table} WHERE run_id = $1", ids.read("run", run_id)
        )
    assert found is not None
    return dict(found)


def differing(one: dict[str, Any], other: dict[str, Any]) -> set[str]:
    assert one.keys() == other.keys()
    return {name for name in one if one[name] != other[name]}


# ---- what it makes -----------------------------------------------------------------------------


async def test_a_run_from_sql_is_run_like_any_other(shop: SqlShop) -> None:
    run_id = await shop.submit_sql("order.ship", {"order": 17}, "order-17")
    assert await shop.worker.drain_once() == 1
    run = await shop.find(run_id)
    assert (run.status, run.output, run.principal_id) == ("succeeded", "shipped 17", "shop")


async def test_a_run_from_sql_differs_from_one_from_python_in_its_ids_times_and_fingerprint(
    shop: SqlShop,
) -> None:
    """The function and the statement of the other doors are two texts; this holds them together."""
    async with shop.connected() as connection:
        await connection.execute("SET search_path = earnest")
        by_sql = await connection.fetchval(EVERYTHING)
    run = await shop.submit(
        "report.make",
        {"of": 2029},
        "other key",
        priority=5,
        not_before=datetime(2035, 1, 31, 12, tzinfo=UTC),
        labels={"of": "2029"},
    )
    by_python = ids.show("run", run.run_id)
    of_run = differing(await row(shop, "run", by_sql), await row(shop, "run", by_python))
    of_execution = differing(
        await row(shop, "execution", by_sql), await row(shop, "execution", by_python)
    )
    of_event = differing(await row(shop, "event", by_sql), await row(shop, "event", by_python))
    unlike = {"run_id", "lineage_id", "idempotency_key", "fingerprint", "created_at"}
    assert of_run == unlike
    assert of_execution == {"run_id", "deadline_at"}
    assert of_event == {"run_id", "created_at", "written_by"}


async def test_a_run_from_sql_has_the_terms_that_were_announced_for_its_kind(
    shop: SqlShop,
) -> None:
    run_id = await shop.submit_sql("report.make", 1)
    found = await row(shop, "execution", run_id)
    assert (found["lane"], found["max_attempts"], found["fails_on_doubt"]) == ("reports", 7, True)
    run = await shop.find(run_id)
    assert run.deadline_at == run.created_at + timedelta(days=3)
    assert [event.type for event in await facts.events(
        shop.engine.database, SCOPE, run.run_id, 0, 10
    )] == ["run.submitted"]  # fmt: skip


async def test_a_delayed_run_from_sql_waits_for_its_time(shop: SqlShop) -> None:
    async with shop.connected() as connection:
        run_id = await connection.fetchval(
            "SELECT earnest.submit('demo', 'echo', '1', not_before => now() + interval '1 hour')"
        )
    assert await shop.worker.drain_once() == 0
    assert (await shop.find(run_id)).status == "queued"


async def test_its_ids_are_time_ordered_and_written_as_everywhere_else(shop: SqlShop) -> None:
    async with shop.as_owner() as owner:
        rows = await owner.fetch(
            """SELECT run_id, show_run_id(run_id) AS shown, clock_timestamp() AS at
               FROM (SELECT new_run_id() AS run_id FROM generate_series(1, 500)) AS made"""
        )
        edges = [uuid.UUID(int=0), uuid.UUID(int=2**128 - 1), uuid.UUID(int=2**64 + 2**63 + 33)]
        shown = [await owner.fetchval("SELECT show_run_id($1)", edge) for edge in edges]
    assert shown == [ids.show("run", edge) for edge in edges]
    for made in rows:
        assert made["shown"] == ids.show("run", made["run_id"])
        assert (made["run_id"].version, made["run_id"].variant) == (7, uuid.RFC_4122)
        assert abs((made["run_id"].int >> 80) / 1000 - made["at"].timestamp()) < 1
    assert len({made["run_id"] for made in rows}) == 500


# ---- in the caller's transaction ---------------------------------------------------------------


async def test_a_rollback_takes_the_run_back(shop: SqlShop) -> None:
    async with shop.connected() as connection:
        transaction = connection.transaction()
        await transaction.start()
        run_id = await submitted(connection, "echo", 1, "k")
        await transaction.rollback()
    assert not await shop.exists(run_id)
    assert await shop.value("SELECT count(*) FROM execution") == 0
    assert await shop.value("SELECT count(*) FROM event") == 0
    assert await shop.submit_sql("echo", 2, "k") != run_id


async def test_a_rolled_back_savepoint_takes_only_its_own_run_back(shop: SqlShop) -> None:
    async with shop.connected() as connection, connection.transaction():
        kept = await submitted(connection, "echo", 1)
        savepoint = connection.transaction()
        await savepoint.start()
        dropped = await submitted(connection, "echo", 2)
        await savepoint.rollback()
    assert await shop.exists(kept)
    assert not await shop.exists(dropped)


async def test_an_open_transaction_holds_up_no_claim_and_no_other_submit(shop: SqlShop) -> None:
    """P17. Every statement here gives up after a moment if it has to wait for a lock."""
    async with shop.connected() as connection, connection.transaction():
        hidden = await submitted(connection, "order.ship", {"order": 1}, "order-1")
        async with shop.connected() as other:
            await other.execute("SET lock_timeout = '300ms'")
            by_sql = await submitted(other, "order.ship", {"order": 2}, "order-2")
        by_python = ids.show("run", (await shop.submit("echo", 3, "order-3")).run_id)
        begun = time.monotonic()
        assert await shop.worker.drain_once() == 2
        await announcing.announce(shop.engine)
        assert time.monotonic() - begun < 5, "lock_timeout of the engine is 10 s"
        assert (await shop.find(by_sql)).status == "succeeded"
        assert (await shop.find(by_python)).status == "succeeded"
        assert not await shop.exists(hidden)
    assert await shop.worker.drain_once() == 1
    assert (await shop.find(hidden)).status == "succeeded"


async def test_it_locks_no_row_but_its_own(shop: SqlShop) -> None:
    """Row locks are not listed while nobody waits for them; so every row that was there before is
    locked in passing by somebody else."""
    await shop.submit_sql("echo", 1, "before")
    async with shop.connected() as connection, connection.transaction():
        await submitted(connection, "echo", 2, "k")
        async with shop.as_owner() as owner, owner.transaction():
            for table in ("run", "execution", "event", "run_kind", "database_role", "principal",
                          "scope"):  # fmt: skip
                await owner.execute(f"SELECT FROM {table} FOR UPDATE NOWAIT")
        modes = await shop.value(
            """SELECT array_agg(DISTINCT l.mode) FROM pg_locks l JOIN pg_stat_activity a USING (pid)
               WHERE a.usename = $1 AND l.locktype = 'relation'""",
            shop.role,
        )
    assert set(modes) == {"AccessShareLock", "RowExclusiveLock"}


async def test_many_runs_are_submitted_by_one_statement(shop: SqlShop) -> None:
    async with shop.connected() as connection:
        rows = await connection.fetch(
            """SELECT earnest.submit('demo', 'order.ship', jsonb_build_object('order', number),
                                     'order-' || number) AS run_id
               FROM generate_series(1, 50) AS number"""
        )
    assert len({found["run_id"] for found in rows}) == 50
    assert await shop.worker.drain_once() == 50


async def test_a_trigger_may_submit(shop: SqlShop) -> None:
    async with shop.as_owner() as owner:
        await owner.execute(f"CREATE SCHEMA AUTHORIZATION {shop.role}")
    async with shop.connected() as connection:
        await connection.execute(
            """CREATE TABLE orders (number int PRIMARY KEY);
               CREATE FUNCTION ship() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                   PERFORM earnest.submit('demo', 'order.ship',
                       jsonb_build_object('order', new.number), 'order-' || new.number);
                   RETURN NULL;
               END $$;
               CREATE TRIGGER ship AFTER INSERT ON orders FOR EACH ROW EXECUTE FUNCTION ship();"""
        )
        await connection.execute("INSERT INTO orders VALUES (1), (2)")
        with pytest.raises(asyncpg.UniqueViolationError):
            await connection.execute("INSERT INTO orders VALUES (3), (2)")
    assert await shop.count() == 2


# ---- older snapshots ---------------------------------------------------------------------------

SNAPSHOTS = pytest.mark.parametrize("isolation", ["repeatable_read", "serializable"])


@SNAPSHOTS
async def test_a_snapshot_older_than_the_key_is_told_so(shop: SqlShop, isolation: Any) -> None:
    """P7: neither a second run nor one that the caller could not see."""
    async with shop.connected() as connection:
        transaction = connection.transaction(isolation=isolation)
        await transaction.start()
        await connection.execute("SELECT count(*) FROM pg_class")  # the snapshot is taken
        first = await shop.submit_sql("echo", 1, "k")
        with pytest.raises(asyncpg.SerializationError) as refusal:
            await submitted(connection, "echo", 1, "k")
        await transaction.rollback()
        assert refusal.value.sqlstate == "40001"
        async with connection.transaction(isolation=isolation):
            assert await submitted(connection, "echo", 1, "k") == first
    assert await shop.count() == 1


@SNAPSHOTS
async def test_a_transaction_with_one_snapshot_finds_its_own_run(
    shop: SqlShop, isolation: Any
) -> None:
    async with shop.connected() as connection, connection.transaction(isolation=isolation):
        first = await submitted(connection, "echo", 1, "k")
        assert await submitted(connection, "echo", 1, "k") == first


@SNAPSHOTS
async def test_of_two_at_once_with_one_snapshot_each_one_makes_the_run(
    shop: SqlShop, isolation: Any
) -> None:
    async with shop.connected() as one, shop.connected() as other:
        transactions = [c.transaction(isolation=isolation) for c in (one, other)]
        for transaction in transactions:
            await transaction.start()
        await other.execute("SELECT count(*) FROM pg_class")
        first = await submitted(one, "echo", 1, "k")
        waiting = asyncio.create_task(submitted(other, "echo", 1, "k"))
        await until_somebody_waits(shop)
        await transactions[0].commit()
        with pytest.raises(asyncpg.SerializationError):
            await waiting
        await transactions[1].rollback()
    assert await shop.exists(first)
    assert await shop.count() == 1


async def until_somebody_waits(shop: SqlShop) -> None:
    async with asyncio.timeout(10):
        while not await shop.value(  # noqa: ASYNC110
            """SELECT count(*) FROM pg_stat_activity
               WHERE datname = current_database() AND wait_event_type = 'Lock'"""
        ):
            await asyncio.sleep(0)
