"""Submitting from SQL with Django's ORM: inside `transaction.atomic`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

import pytest
from django.db import (  # type: ignore[import-untyped]
    DatabaseError,
    IntegrityError,
    OperationalError,
    connection,
    transaction,
)

from tests.doors.sql.conftest import Orders
from tests.doors.sql.django_shop import Order, in_django


def submit(number: int, gift: bool = False) -> str:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT earnest.submit('demo', 'order.ship', %s, %s)",
            [json.dumps({"order": number, "gift": gift}), f"order-{number}"],
        )
        return str(cursor.fetchone()[0])


def place(number: int, gift: bool = False) -> str:
    """An order and its run in one transaction."""
    with transaction.atomic():
        Order.objects.create(number=number)
        return submit(number, gift)


def place_and_fail(number: int) -> None:
    with transaction.atomic():
        place(number)
        raise LookupError("out of stock")


async def test_row_and_run_are_committed_together(orders: Orders) -> None:
    assert str(await in_django(orders.url, lambda: place(17))).startswith("run_")
    assert (await orders.numbers(), await orders.shipped()) == ([17], ["shipped 17"])


async def test_neither_is_there_after_a_rollback(orders: Orders) -> None:
    with pytest.raises(LookupError):
        await in_django(orders.url, lambda: place_and_fail(17))
    assert (await orders.numbers(), await orders.shipped()) == ([], [])


async def test_a_rolled_back_inner_block_takes_its_run_along(orders: Orders) -> None:
    def work() -> None:
        with transaction.atomic():
            place(17)
            with pytest.raises(LookupError):
                place_and_fail(18)

    await in_django(orders.url, work)
    assert (await orders.numbers(), await orders.shipped()) == ([17], ["shipped 17"])


async def test_a_conflict_is_told_by_its_sqlstate(orders: Orders) -> None:
    await in_django(orders.url, lambda: submit(17))
    with pytest.raises(DatabaseError) as refusal:
        await in_django(orders.url, lambda: place(17, gift=True))
    assert refusal.value.__cause__.sqlstate == "RK409"
    assert not isinstance(refusal.value, IntegrityError)
    assert await orders.numbers() == []


async def test_an_older_snapshot_is_told_to_run_again(orders: Orders) -> None:
    ask = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"

    def older(first_look: Callable[[], str]) -> str:
        with transaction.atomic():
            with connection.cursor() as cursor:
                cursor.execute(ask)
            Order.objects.count()
            first_look()
            return submit(17)

    def elsewhere() -> str:
        """Another process of the same shop."""
        return asyncio.run(
            orders.shop.submit_sql("order.ship", {"order": 17, "gift": False}, "order-17")
        )

    def work() -> None:
        with pytest.raises(OperationalError) as refusal:
            older(elsewhere)
        assert refusal.value.__cause__.sqlstate == "40001"
        assert older(lambda: "") == submit(17)

    await in_django(orders.url, work)
