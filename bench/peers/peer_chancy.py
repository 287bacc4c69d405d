"""Chancy: a job queue over psycopg that batches claims and completions."""

from __future__ import annotations

import asyncio
import logging

from chancy import Chancy, Queue, Worker, job
from work import PAYLOAD, URL, asked, note_start, setting, timed_async


@job(queue="default")
async def noop(*, pad: str) -> dict[str, bool]:
    note_start()
    return {"ok": True}


async def submit(chancy: Chancy, count: int) -> None:
    one = noop.job.with_kwargs(**PAYLOAD)
    for _ in range(count):
        await chancy.push(one)


async def bulk(chancy: Chancy, count: int) -> None:
    async for _ in chancy.push_many([noop.job.with_kwargs(**PAYLOAD)] * count):
        pass


async def setup(chancy: Chancy) -> None:
    await chancy.migrate()
    queue = Queue(
        "default",
        concurrency=int(setting("CONCURRENCY", "100")),
        executor=Chancy.Executor.Async,
        eager_polling=True,
    )
    await chancy.declare(queue, upsert=True)


async def main() -> None:
    command, count = asked()
    log = logging.getLogger("chancy")
    log.setLevel(logging.ERROR)
    async with Chancy(URL, log=log) as chancy:
        if command == "setup":
            await setup(chancy)
        elif command == "submit":
            await timed_async(count, submit(chancy, count))
        elif command == "bulk":
            await timed_async(count, bulk(chancy, count))
        elif command == "worker":
            async with Worker(chancy) as worker:
                await worker.wait_for_shutdown()


if __name__ == "__main__":
    import peer_chancy  # a worker finds its jobs by the name of their module

    asyncio.run(peer_chancy.main())
