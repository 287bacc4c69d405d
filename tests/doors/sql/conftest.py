"""A shop with a table of its own, for tests with other people's database libraries."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from tests.sql_shop import SqlShop, shop

__all__ = ["shop"]


@dataclass
class Orders:
    """What a test asks afterwards: which orders there are, and which runs."""

    shop: SqlShop

    @property
    def url(self) -> str:
        return self.shop.url

    async def numbers(self) -> list[int]:
        async with self.shop.connected() as connection:
            rows = await connection.fetch("SELECT number FROM orders ORDER BY number")
        return [row["number"] for row in rows]

    async def shipped(self) -> list[str]:
        """Runs what is due and returns what all runs came to."""
        await self.shop.worker.drain_once()
        async with self.shop.as_owner() as owner:
            rows = await owner.fetch("SELECT output FROM execution ORDER BY run_id")
        return [row["output"] for row in rows]


@pytest.fixture
async def orders(shop: SqlShop) -> Orders:
    async with shop.as_owner() as owner:
        await owner.execute(f"CREATE SCHEMA AUTHORIZATION {shop.role}")
    async with shop.connected() as connection:
        await connection.execute("CREATE TABLE orders (number integer PRIMARY KEY)")
    return Orders(shop)
