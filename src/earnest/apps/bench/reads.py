"""How many requests a second the API answers, beside a route that does nothing."""

from __future__ import annotations

import asyncio
import time

from earnest.apps.bench.app import PAYLOAD, app, nothing
from earnest.apps.bench.bench import APP, PRINCIPAL, SCOPE, Bench
from earnest.apps.bench.figures import Values
from earnest.apps.bench.http import Asking, connect, request
from earnest.apps.bench.processes import earnest_words, running
from earnest.engine.process import tokens

CONNECTIONS = 8
_WARM = 5

PLAIN = "earnest.apps.bench.plain_server"


async def measure(bench: Bench) -> Values:
    each = max(1, bench.sizes.gets // CONNECTIONS)
    words = earnest_words("serve", bench.database.url, APP, "--no-worker", "--port", "0")
    async with bench.opened() as engine:
        token = await tokens.issue_token(engine, SCOPE, PRINCIPAL)
        run_id = await app.submit(nothing, PAYLOAD)
        async with running("earnest", *words) as server:
            ours = await _rate(f"{server.url}/v1/runs/{run_id}", token, each)
    async with running(PLAIN) as server:
        plain = await _rate(f"{server.url}/nothing", "", each)
    return {"api_get_per_s": ours, "plain_get_per_s": plain}


async def _rate(url: str, token: str, each: int) -> float:
    """Answers a second on connections that are kept, each with one request at a time."""
    asked = request(url, token)
    await _ask(url, asked, _WARM)
    begun = time.perf_counter()
    await _ask(url, asked, each)
    return each * CONNECTIONS / (time.perf_counter() - begun)


async def _ask(url: str, asked: bytes, each: int) -> None:
    callers = [await connect(url, lambda: Asking(asked, each)) for _ in range(CONNECTIONS)]
    await asyncio.gather(*(caller.begin() for caller in callers))
