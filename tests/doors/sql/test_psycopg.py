"""Submitting from SQL with psycopg 3, without and with asyncio."""

from __future__ import annotations

import asyncio

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.doors.sql.conftest import Orders

SUBMIT = "SELECT earnest.submit('demo', 'order.ship', %s, %s)"


def place(connection: psycopg.Connection, number: int, gift: bool = False) -> str:
    """An order and its run, in whatever transaction the connection has."""
    connection.execute("INSERT INTO orders VALUES (%s)", [number])
    row = connection.execute(
        SUBMIT, [Jsonb({"order": number, "gift": gift}), f"order-{number}"]
    ).fetchone()
    assert row is not None
    return str(row[0])


async def test_row_and_run_are_committed_together(orders: Orders) -> None:
    def work() -> None:
        with psycopg.connect(orders.url) as connection:
            place(connection, 17)
            place(connection, 18)

    await asyncio.to_thread(work)
    assert await orders.numbers() == [17, 18]
    assert await orders.shipped() == ["shipped 17", "shipped 18"]


async def test_row_and_run_are_committed_together_with_asyncio(orders: Orders) -> None:
    async with (
        await psycopg.AsyncConnection.connect(orders.url) as connection,
        connection.transaction(),
    ):
        await connection.execute("INSERT INTO orders VALUES (17)")
        await connection.execute(SUBMIT, [Jsonb({"order": 17}), "order-17"])
    assert (await orders.numbers(), await orders.shipped()) == ([17], ["shipped 17"])


async def test_neither_is_there_after_a_rollback(orders: Orders) -> None:
    def work() -> None:
        with psycopg.connect(orders.url) as connection:
            place(connection, 17)
            raise LookupError("out of stock")

    with pytest.raises(LookupError):
        await asyncio.to_thread(work)
    assert (await orders.numbers(), await orders.shipped()) == ([], [])


async def test_a_conflict_is_told_by_its_sqlstate(orders: Orders) -> None:
    def work() -> None:
        with psycopg.connect(orders.url, autocommit=True) as connection:
            place(connection, 17)
            with connection.transaction():
                connection.execute("DELETE FROM orders")
                place(connection, 17, gift=True)

    with pytest.raises(psycopg.DatabaseError) as refusal:
        await asyncio.to_thread(work)
    assert refusal.value.sqlstate == "RK409"
    assert not isinstance(refusal.value, psycopg.IntegrityError)
    assert await orders.numbers() == [17]


async def test_an_older_snapshot_is_told_to_run_again(orders: Orders) -> None:
    asked = [Jsonb({"order": 17}), "order-17"]

    def work() -> None:
        with psycopg.connect(orders.url) as one, psycopg.connect(orders.url) as other:
            one.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            one.execute("SELECT FROM orders")
            first = other.execute(SUBMIT, asked).fetchone()
            other.commit()
            with pytest.raises(psycopg.errors.SerializationFailure):
                one.execute(SUBMIT, asked)
            one.rollback()
            assert one.execute(SUBMIT, asked).fetchone() == first

    await asyncio.to_thread(work)


async def test_the_lesser_arguments_are_given_by_name(orders: Orders) -> None:
    def work() -> None:
        with psycopg.connect(orders.url) as connection:
            connection.execute(
                """SELECT earnest.submit('demo', 'order.ship', %s, priority => %s, labels => %s,
                                         lane => %s)""",
                [Jsonb({"order": 17}), 10, Jsonb({"from": "shop"}), "reports"],
            )

    await asyncio.to_thread(work)
    assert await orders.shop.value("SELECT priority FROM execution") == 10
    assert await orders.shop.value("SELECT labels ->> 'from' FROM run") == "shop"
