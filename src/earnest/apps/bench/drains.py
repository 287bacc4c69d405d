"""How many waiting runs a second worker processes bring to their end.

The clock runs from the start of the first run until all have been seen ended, so that starting a
process is not counted; a second one starts beside the first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import asyncpg

from earnest.apps.bench import raw
from earnest.apps.bench.app import nothing, steps
from earnest.apps.bench.bench import APP, Bench, fill
from earnest.apps.bench.figures import Values
from earnest.apps.bench.looking import seconds_to_next_look
from earnest.apps.bench.processes import Running, earnest_words, running
from earnest.domain.errors import EarnestError
from earnest.engine.process.kinds import RunKind

_STUCK = 60.0  # seconds in which nothing more has ended
_STANDING = """
SELECT count(*) FILTER (WHERE status = 'succeeded') AS done, count(*) AS runs,
       min(started_at) AS first, clock_timestamp() AS now
FROM earnest.execution
"""


class NotDrained(EarnestError):
    """Runs of the benchmark did not end."""

    code = "not_drained"


@dataclass(frozen=True, slots=True)
class Drained:
    per_s: float
    peak_rss_mb: float | None


async def measure_one(bench: Bench) -> Values:
    cycled = await raw.cycle_rate(bench.database, bench.sizes.drained)
    drained = await drain(bench, nothing, bench.sizes.drained, workers=1)
    return {
        "raw_batch_cycle_per_s": cycled,
        "drain_per_s": drained.per_s,
        "worker_peak_rss_mb": drained.peak_rss_mb,
    }


async def measure_two(bench: Bench) -> Values:
    """Twice as many runs: each worker has as much to do as one alone."""
    drained = await drain(bench, nothing, 2 * bench.sizes.drained, workers=2)
    return {"drain_2_workers_per_s": drained.per_s}


async def measure_steps(bench: Bench) -> Values:
    drained = await drain(bench, steps, bench.sizes.stepped, workers=1)
    return {"five_step_runs_per_s": drained.per_s}


async def drain(
    bench: Bench, kind: RunKind[dict[str, str], Any], count: int, *, workers: int
) -> Drained:
    """Fills the queue and starts so many workers on it. Raises `NotDrained`."""
    async with bench.opened():
        await fill(kind, count)
    await bench.database.look_over()
    words = earnest_words("worker", bench.database.url, APP)
    async with AsyncExitStack() as stack, bench.database.connection() as connection:
        starting = [stack.enter_async_context(running("earnest", *words)) for _ in range(workers)]
        ended = asyncio.create_task(_until_all_ended(connection, count))
        try:
            started = await _started(starting)
            first, last = await ended
        finally:
            ended.cancel()
        return Drained(count / (last - first).total_seconds(), _most(started))


async def _started(starting: Iterable[Awaitable[Running]]) -> list[Running]:
    """All at once, so that none has the queue to itself for long. Returns, or raises the first
    failure, when each has started or failed."""
    answers = await asyncio.gather(*starting, return_exceptions=True)
    started = []
    for answer in answers:
        if isinstance(answer, BaseException):
            raise answer
        started.append(answer)
    return started


async def _until_all_ended(connection: asyncpg.Connection, count: int) -> tuple[datetime, datetime]:
    """When the first run started, and when all were seen ended, by the database's clock."""
    done, begun, moved_at = 0, 0.0, asyncio.get_running_loop().time()
    while True:
        row = await connection.fetchrow(_STANDING)
        assert row is not None, "a count has a row"
        if row["done"] == count:
            return row["first"], row["now"]
        now = asyncio.get_running_loop().time()
        if row["done"] > done:
            begun = begun or now
            done, moved_at = row["done"], now
        if now - moved_at > _STUCK:
            raise NotDrained(f"only {done} of {count} runs of the benchmark succeeded; then none")
        await asyncio.sleep(seconds_to_next_look(done, count, now - begun))


def _most(workers: list[Running]) -> float | None:
    known = [peak for worker in workers if (peak := worker.peak_rss_mb()) is not None]
    return max(known, default=None)
