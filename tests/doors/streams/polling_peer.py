"""A plain loop that many write: Starlette, and for each reader a query of the table every second.

    python -m tests.doors.streams.polling_peer DATABASE_URL

It prints its address as one JSON line, asks nobody for a token and has neither limits nor
heartbeats. It is what the streams are measured beside.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route

from earnest.domain import ids
from earnest.doors.api.serving import address_of, listen

POLL = 1.0
_NEW = """
SELECT seq, type, created_at, payload FROM event WHERE run_id = $1 AND seq > $2 ORDER BY seq
"""


async def _events(request: Request) -> StreamingResponse:
    pool: asyncpg.Pool = request.app.state.pool
    run_id = ids.read("run", request.path_params["run_id"])
    after = int(request.query_params.get("after_seq", "0"))

    async def frames() -> AsyncIterator[str]:
        last = after
        yield ": hello\n\n"
        while not await request.is_disconnected():
            for row in await pool.fetch(_NEW, run_id, last):
                last = row["seq"]
                told = {"seq": last, "type": row["type"], "payload": json.loads(row["payload"])}
                written = row["created_at"].isoformat()
                data = json.dumps({**told, "created_at": written}, separators=(",", ":"))
                yield f"id: {last}\ndata: {data}\n\n"
            await asyncio.sleep(POLL)

    return StreamingResponse(frames(), media_type="text/event-stream")


@asynccontextmanager
async def _lifespan(app: Starlette) -> AsyncIterator[None]:
    async with asyncpg.create_pool(sys.argv[1], min_size=10, max_size=10) as app.state.pool:
        yield


def main() -> None:
    app = Starlette(routes=[Route("/v1/runs/{run_id}/events", _events)], lifespan=_lifespan)
    listener = listen("127.0.0.1", 0)
    sys.stdout.write(json.dumps({"url": address_of(listener)}) + "\n")
    sys.stdout.flush()
    config = uvicorn.Config(app, log_level="warning", access_log=False)
    asyncio.run(uvicorn.Server(config).serve([listener]))


if __name__ == "__main__":
    main()
