"""Procrastinate: a task queue over psycopg with one job a claim."""

from __future__ import annotations

import asyncio

from procrastinate import App, PsycopgConnector
from work import PAYLOAD, URL, asked, note_start, setting, timed_async

app = App(connector=PsycopgConnector(conninfo=URL, max_size=10))


@app.task(name="noop")
async def noop(pad: str) -> dict[str, bool]:
    note_start()
    return {"ok": True}


async def submit(count: int) -> None:
    for _ in range(count):
        await noop.defer_async(**PAYLOAD)


async def main() -> None:
    command, count = asked()
    async with app.open_async():
        if command == "setup":
            await app.schema_manager.apply_schema_async()
        elif command == "submit":
            await timed_async(count, submit(count))
        elif command == "bulk":
            await timed_async(count, noop.batch_defer_async(*[PAYLOAD] * count))
        elif command == "worker":
            await app.run_worker_async(concurrency=int(setting("CONCURRENCY", "10")))


asyncio.run(main())
