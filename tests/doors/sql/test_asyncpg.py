"""Submitting from SQL with asyncpg."""

from __future__ import annotations

import json

import asyncpg
import pytest

from tests.doors.sql.conftest import Orders


async def place(connection: asyncpg.Connection, number: int, gift: bool = False) -> str:
    """An order and its run, in whatever transaction the connection has."""
    await connection.execute("INSERT INTO orders VALUES ($1)", number)
    run_id: str = await connection.fetchval(
        "SELECT earnest.submit('demo', 'order.ship', $1, $2)",
        json.dumps({"order": number, "gift": gift}),
        f"order-{number}",
    )
    return run_id


async def test_row_and_run_are_committed_together(orders: Orders) -> None:
    connection = await asyncpg.connect(orders.url)
    async with connection.transaction():
        await place(connection, 17)
        await place(connection, 18)
    await connection.close()
    assert await orders.numbers() == [17, 18]
    assert await orders.shipped() == ["shipped 17", "shipped 18"]


async def test_neither_is_there_after_a_rollback(orders: Orders) -> None:
    connection = await asyncpg.connect(orders.url)
    transaction = connection.transaction()
    await transaction.start()
    await place(connection, 17)
    await transaction.rollback()
    await connection.close()
    assert (await orders.numbers(), await orders.shipped()) == ([], [])


async def test_a_conflict_is_told_by_its_sqlstate(orders: Orders) -> None:
    connection = await asyncpg.connect(orders.url)
    await place(connection, 17)

    async def place_again() -> None:
        async with connection.transaction():
            await connection.execute("DELETE FROM orders")
            await place(connection, 17, gift=True)

    with pytest.raises(asyncpg.PostgresError) as refusal:
        await place_again()
    await connection.close()
    assert refusal.value.sqlstate == "RK409"
    assert await orders.numbers() == [17]


async def test_an_older_snapshot_is_told_to_run_again(orders: Orders) -> None:
    one, other = await asyncpg.connect(orders.url), await asyncpg.connect(orders.url)
    submit = """SELECT earnest.submit('demo', 'order.ship', '{"order": 17}', 'order-17')"""
    transaction = one.transaction(isolation="serializable")
    await transaction.start()
    await one.fetch("SELECT FROM orders")
    first = await other.fetchval(submit)
    with pytest.raises(asyncpg.SerializationError):
        await one.fetchval(submit)
    await transaction.rollback()
    async with one.transaction(isolation="serializable"):
        assert await one.fetchval(submit) == first
    await one.close()
    await other.close()
