"""How soon a run from SQL is begun: no bell rings for it, workers look by themselves."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from earnest.engine.process.doorbells import MOVED
from tests.doors.sql.conftest import Orders
from tests.sql_shop import submitted

MARGIN = 1.0  # for a slow machine; a look itself takes some milliseconds


async def test_an_idle_worker_finds_a_run_from_sql_within_its_poll(orders: Orders) -> None:
    shop = orders.shop
    poll = shop.engine.settings.poll.total_seconds()
    working = asyncio.create_task(shop.worker.run())
    await shop.worker.ready.wait()
    try:
        async with shop.connected() as connection:
            for number in range(5):
                run_id = await submitted(connection, "order.ship", {"order": number})
                async with asyncio.timeout(poll + MARGIN):
                    while (await shop.find(run_id)).status != "succeeded":
                        await shop.engine.bells.wait(MOVED, timedelta(milliseconds=50))
    finally:
        shop.worker.stop()
        await working
