"""Earnest, by the same commands as the others; its worker is `earnest worker`."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from work import PAYLOAD, STEPS, URL, asked, note_start, setting, timed_async

import earnest
from earnest import App, Context

app = App("peer")
TOGETHER = 1_000


@app.run("noop")
async def noop(ctx: Context, input: dict[str, str]) -> dict[str, bool]:
    note_start()
    return {"ok": True}


@app.run("five")
async def five(ctx: Context, input: dict[str, str]) -> dict[str, int]:
    note_start()
    last = 0
    for number in range(STEPS):
        last = await ctx.step(f"step {number}", same, number)
    return {"ok": last}


async def same(number: int) -> int:
    return number


@asynccontextmanager
async def opened() -> AsyncIterator[None]:
    async with earnest.open(app, database_url=URL):
        yield


async def submit(count: int) -> None:
    for _ in range(count):
        await app.submit(noop, PAYLOAD)


async def bulk(kind: earnest.RunKind, count: int) -> None:
    for first in range(0, count, TOGETHER):
        await app.submit_many(kind, [PAYLOAD] * min(TOGETHER, count - first))


async def main() -> None:
    command, count = asked()
    async with opened():
        if command == "submit":
            await timed_async(count, submit(count))
        elif command != "setup":
            await timed_async(count, bulk(five if command == "steps" else noop, count))


def work() -> None:
    room = setting("CONCURRENCY", "200")
    words = ["worker", "--database-url", URL, "--app", "peer_earnest:app", "--concurrency", room]
    os.execv(sys.executable, [sys.executable, "-m", "earnest", *words])  # noqa: S606


if __name__ == "__main__":
    if asked()[0] == "worker":
        work()
    else:
        import uvloop

        uvloop.run(main())
