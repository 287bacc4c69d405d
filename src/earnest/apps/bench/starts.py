"""How long a run waits for its handler where a worker is free."""

from __future__ import annotations

import asyncio
import random
import time
from datetime import timedelta

from earnest.apps.bench.app import PAYLOAD, app, start
from earnest.apps.bench.bench import APP, SCOPE, Bench
from earnest.apps.bench.figures import Values, percentiles
from earnest.apps.bench.processes import earnest_words, running
from earnest.domain import ids
from earnest.engine.process.doorbells import MOVED
from earnest.engine.process.engine import Engine
from earnest.store import runs

_PAUSE = (0.02, 0.07)
"""Seconds between two: the worker is idle then, and a poll would be met at any moment."""


async def measure(bench: Bench) -> Values:
    words = earnest_words("worker", bench.database.url, APP)
    async with bench.opened() as engine, running("earnest", *words):
        await _waited(engine)
        waits = [await _waited(engine) for _ in range(bench.sizes.started)]
    return {"start_latency_ms": percentiles(waits)}


async def _waited(engine: Engine) -> float:
    """Seconds from before the submit to the handler's first line."""
    await asyncio.sleep(random.uniform(*_PAUSE))
    asked = time.monotonic()
    run_id = ids.read("run", await app.submit(start, PAYLOAD))
    while True:
        run = await runs.find(engine.database, SCOPE, run_id)
        if run is not None and run.output is not None:
            return float(run.output) - asked
        await engine.bells.wait(MOVED, timedelta(milliseconds=5))
