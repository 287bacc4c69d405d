"""PgQueuer: an asyncio job queue on LISTEN/NOTIFY that batches claims and completions."""

from __future__ import annotations

import asyncio
import json

import asyncpg
import uvloop
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver
from pgqueuer.queries import Queries
from work import PAYLOAD, URL, asked, note_start, setting, timed_async

DATA = json.dumps(PAYLOAD).encode()


async def submit(queries: Queries, count: int) -> None:
    for _ in range(count):
        await queries.enqueue("noop", DATA)


async def work(connection: asyncpg.Connection) -> None:
    queuer = PgQueuer.from_asyncpg_connection(connection)

    @queuer.entrypoint("noop")
    async def noop(job) -> None:
        json.loads(job.payload)
        note_start()

    await queuer.run(batch_size=int(setting("CONCURRENCY", "10")))


async def main() -> None:
    command, count = asked()
    connection = await asyncpg.connect(URL)
    queries = Queries(AsyncpgDriver(connection))
    if command == "setup":
        await queries.install()
    elif command == "submit":
        await timed_async(count, submit(queries, count))
    elif command == "bulk":
        many = queries.enqueue(["noop"] * count, [DATA] * count, [0] * count)
        await timed_async(count, many)
    elif command == "worker":
        await work(connection)


if setting("UVLOOP"):
    uvloop.run(main())
else:
    asyncio.run(main())
