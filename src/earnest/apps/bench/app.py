"""The run kinds of the benchmark: as little work as can be, so that what Earnest costs shows."""

from __future__ import annotations

import time

from earnest.engine.app import App
from earnest.engine.attempts.context import Context

app = App("bench")

PAYLOAD = {"pad": "x" * 189}
"""200 bytes of JSON."""

STEPS = 5


@app.run("bench.nothing")
async def nothing(ctx: Context, input: dict[str, str]) -> dict[str, bool]:
    return {"ok": True}


@app.run("bench.steps")
async def steps(ctx: Context, input: dict[str, str]) -> dict[str, int]:
    """Each step is remembered before the next begins."""
    last = 0
    for number in range(STEPS):
        last = await ctx.step(f"step {number}", _same, number)
    return {"ok": last}


@app.run("bench.start")
async def start(ctx: Context, input: dict[str, str]) -> float:
    """When it started, in seconds of the machine's monotonic clock, which all processes share."""
    return time.monotonic()


async def _same(number: int) -> int:
    return number
