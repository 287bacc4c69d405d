"""How long one event takes to all who read its run."""

from __future__ import annotations

import asyncio
import resource
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import UUID

from earnest.apps.bench.app import PAYLOAD, app, nothing
from earnest.apps.bench.bench import APP, PRINCIPAL, SCOPE, Bench
from earnest.apps.bench.figures import Values, percentiles
from earnest.apps.bench.http import NotAnswered, Reading, connect, request
from earnest.apps.bench.processes import earnest_words, running
from earnest.domain import ids
from earnest.engine.process import principals, tokens
from earnest.engine.process.actors import Role
from earnest.engine.process.engine import Engine
from earnest.engine.runs import signalling

EACH = 25
"""How many streams one principal has open here; a server lets no principal have many."""

_EVENT = b'"signal.received"'
_PATIENCE = 30.0  # seconds


async def measure(bench: Bench) -> Values:
    words = earnest_words("serve", bench.database.url, APP, "--no-worker", "--port", "0")
    async with bench.opened() as engine, running("earnest", *words) as server:
        run_id = await app.submit(nothing, PAYLOAD)
        url = f"{server.url}/v1/runs/{run_id}/events?after_seq=0"
        async with _readers(engine, url, bench.sizes.readers) as readers:
            waits: list[float] = []
            for _ in range(bench.sizes.signals):
                waits += await _told(engine, ids.read("run", run_id), readers)
    return {"stream_fanout_ms": percentiles(waits)}


async def _told(engine: Engine, run_id: UUID, readers: list[Reading]) -> list[float]:
    """Sends one signal; returns after how many seconds each reader had its event."""
    for reader in readers:
        reader.heard.clear()
        reader.times.clear()
    asked = time.monotonic()
    await signalling.signal(engine, SCOPE, run_id, "one", None, by=PRINCIPAL)
    async with asyncio.timeout(_PATIENCE):
        for reader in readers:
            await reader.heard.wait()
    if any(reader.lost for reader in readers):
        raise NotAnswered("a stream of the benchmark ended before its time")
    return [reader.times[0] - asked for reader in readers]


@asynccontextmanager
async def _readers(engine: Engine, url: str, count: int) -> AsyncIterator[list[Reading]]:
    """So many readers that have what the run has."""
    _allow_files(count)
    readers: list[Reading] = []
    try:
        for first in range(0, count, EACH):
            asked = request(url, await _token(engine, first // EACH), "text/event-stream")
            come = await _come(url, asked, min(EACH, count - first))
            readers += come
            await _all_began(come)
        yield readers
    finally:
        for reader in readers:
            reader.close()


async def _come(url: str, asked: bytes, count: int) -> list[Reading]:
    return [await connect(url, lambda: Reading(asked, _EVENT)) for _ in range(count)]


async def _all_began(readers: list[Reading]) -> None:
    async with asyncio.timeout(_PATIENCE):
        for reader in readers:
            await reader.began.wait()
    if any(reader.lost for reader in readers):
        raise NotAnswered("the server refuses a stream of the benchmark")


async def _token(engine: Engine, number: int) -> str:
    """An operator of its own: who reads has a place of its own."""
    principal = f"reader-{number}"
    await principals.ensure_principal(engine, SCOPE, principal, [Role.OPERATOR])
    return await tokens.issue_token(engine, SCOPE, principal)


def _allow_files(count: int) -> None:
    """Every reader is an open file; the usual limit is 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + 500
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
