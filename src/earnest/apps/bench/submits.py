"""How many runs are submitted in a second: one by one, and many at once."""

from __future__ import annotations

import time

from earnest.apps.bench import raw
from earnest.apps.bench.app import PAYLOAD, app, nothing
from earnest.apps.bench.bench import Bench, fill
from earnest.apps.bench.figures import Values


async def measure(bench: Bench) -> Values:
    inserted = await raw.insert_rate(bench.database, bench.sizes.inserts)
    return {
        "raw_insert_per_s": inserted,
        "submit_per_s": await _one_by_one(bench, bench.sizes.inserts),
        "bulk_submit_per_s": await _in_bulk(bench, bench.sizes.bulk),
    }


async def _one_by_one(bench: Bench, count: int) -> float:
    async with bench.opened():
        await app.submit(nothing, PAYLOAD)
        begun = time.perf_counter()
        for _ in range(count):
            await app.submit(nothing, PAYLOAD)
        return count / (time.perf_counter() - begun)


async def _in_bulk(bench: Bench, count: int) -> float:
    async with bench.opened():
        await fill(nothing, 1)
        begun = time.perf_counter()
        await fill(nothing, count)
        return count / (time.perf_counter() - begun)
