"""Submitting from SQL with SQLAlchemy 2: a session's own transaction, on three drivers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest
from sqlalchemy import Engine, String, create_engine, func, select, type_coerce
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.exc import DBAPIError, IntegrityError, OperationalError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from tests.doors.sql.conftest import Orders


class Table(DeclarativeBase):
    pass


class Order(Table):
    __tablename__ = "orders"
    number: Mapped[int] = mapped_column(primary_key=True)


def submit(number: int, gift: bool = False) -> Any:
    """The statement that submits the run of an order."""
    asked = type_coerce({"order": number, "gift": gift}, JSONB)
    return select(func.earnest.submit("demo", "order.ship", asked, f"order-{number}", type_=String))


@contextmanager
def engine(orders: Orders, **options: Any) -> Iterator[Engine]:
    made = create_engine(orders.url.replace("postgresql:", "postgresql+psycopg:"), **options)
    yield made
    made.dispose()


@asynccontextmanager
async def async_engine(orders: Orders, driver: str) -> AsyncIterator[AsyncEngine]:
    made = create_async_engine(orders.url.replace("postgresql:", f"postgresql+{driver}:"))
    yield made
    await made.dispose()


async def test_row_and_run_are_committed_together(orders: Orders) -> None:
    def work() -> None:
        with engine(orders) as made, Session(made) as session, session.begin():
            for number in (17, 18):
                session.add(Order(number=number))
                assert str(session.scalar(submit(number))).startswith("run_")

    await asyncio.to_thread(work)
    assert await orders.numbers() == [17, 18]
    assert await orders.shipped() == ["shipped 17", "shipped 18"]


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
async def test_row_and_run_are_committed_together_with_asyncio(orders: Orders, driver: str) -> None:
    async with async_engine(orders, driver) as made, AsyncSession(made) as session, session.begin():
        session.add(Order(number=17))
        assert str(await session.scalar(submit(17))).startswith("run_")
    assert (await orders.numbers(), await orders.shipped()) == ([17], ["shipped 17"])


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
async def test_neither_is_there_after_a_rollback(orders: Orders, driver: str) -> None:
    async with async_engine(orders, driver) as made, AsyncSession(made) as session:
        session.add(Order(number=17))
        await session.scalar(submit(17))
        await session.rollback()
    assert (await orders.numbers(), await orders.shipped()) == ([], [])


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
async def test_a_conflict_is_told_by_its_sqlstate(orders: Orders, driver: str) -> None:
    async def place(made: AsyncEngine, gift: bool) -> None:
        async with AsyncSession(made) as session, session.begin():
            session.add(Order(number=17 + gift))
            await session.scalar(submit(17, gift))

    async with async_engine(orders, driver) as made:
        await place(made, gift=False)
        with pytest.raises(DBAPIError) as refusal:
            await place(made, gift=True)
    assert getattr(refusal.value.orig, "sqlstate", None) == "RK409"
    assert not isinstance(refusal.value, IntegrityError)
    assert await orders.numbers() == [17]


async def test_an_older_snapshot_is_told_to_run_again(orders: Orders) -> None:
    def work() -> None:
        with (
            engine(orders, isolation_level="REPEATABLE READ") as made,
            Session(made) as one,
            Session(made) as other,
        ):
            one.scalars(select(Order)).all()
            first = other.scalar(submit(17))
            other.commit()
            with pytest.raises(OperationalError) as refusal:
                one.scalar(submit(17))
            assert getattr(refusal.value.orig, "sqlstate", None) == "40001"
            one.rollback()
            assert one.scalar(submit(17)) == first

    await asyncio.to_thread(work)
