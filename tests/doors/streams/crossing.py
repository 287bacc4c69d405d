"""Prints how long an event takes from one process to the reader of another, one JSON line.

    python -m tests.doors.streams.crossing [SECONDS]      how long runs are asked for; else 20

Two servers of the API and two workers, each a process, on one PostgreSQL. Runs are asked for
through one server and the other in turn; a reader of each server's feed notes when it is given an
event. The time is from the statement that wrote the event, by the database's clock, and so holds
its commit. Counted are events of runs that were asked for through the other server. Once with
bells; once with a transaction of a user beside it that asks for a run at the beginning and commits
at the end; and once without any bell. Exit code 1 when an event is missing or out of order, or 99
of 100 do not come within the bounds.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import datetime
from itertools import cycle
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import asyncpg
import httpx

from earnest import App, Context
from earnest.engine.process import principals, scopes, tokens
from earnest.engine.process.engine import Engine
from earnest.store.database import Database
from earnest.store.embedded import EmbeddedPostgres
from earnest.store.migrate import migrate
from tests.doors.streams.reading import Stream, connect

ROOT = Path(__file__).parents[3]
SECONDS = 20.0
PAUSE = 0.05
EMITS = 3
NOBODY = -1  # neither of the servers


@dataclass(frozen=True)
class Round:
    """`bound`: within how many seconds 99 of 100 events come; `held`: beside a transaction that is
    open all the time."""

    name: str
    bells: str
    bound: float
    held: bool = False


ROUNDS = (
    Round("with bells", "on", 0.1),
    Round("beside a long transaction", "on", 0.1, held=True),
    Round("without bells", "off", 1.5),
)

app = App("crossing")


@app.run("crossing.speak")
async def speak(ctx: Context, name: str) -> str:
    for number in range(EMITS):
        await ctx.emit("crossing.said", {"number": number}, key=str(number))
        await asyncio.sleep(PAUSE)
    return name


@dataclass
class Notes:
    """What one reader was given: when, and of which run."""

    numbers: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    took: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    ended: set[str] = field(default_factory=set)
    grew: asyncio.Event = field(default_factory=asyncio.Event)

    async def take(self, stream: Stream) -> None:
        while True:
            (item,) = await stream.messages(1, within=60)
            told, now = item.data, time.time()
            self.numbers[told["run_id"]].append(told["seq"])
            written = datetime.fromisoformat(told["created_at"]).timestamp()
            self.took[told["run_id"]].append(now - written)
            if told.get("final"):
                self.ended.add(told["run_id"])
                self.grew.set()

    async def until_ended(self, run_ids: set[str]) -> None:
        while self.ended != run_ids:
            self.grew.clear()
            await self.grew.wait()


@contextlib.asynccontextmanager
async def process(url: str, bells: str, *words: str) -> AsyncIterator[dict[str, Any]]:
    """A process of Earnest; what it says when it is ready."""
    words = (
        "-m",
        "earnest",
        *words,
        "--json",
        "--database-url",
        url,
        "--app",
        f"{__spec__.name}:app",
    )
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        *words,
        cwd=ROOT,
        env={**os.environ, "EARNEST_BELLS": bells},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        assert child.stdout is not None, "opened as a pipe"
        yield json.loads(await asyncio.wait_for(child.stdout.readline(), 60))
    finally:
        child.terminate()
        await child.wait()


async def token_of(url: str) -> str:
    async with Database(url) as database:
        engine = Engine(database)
        await scopes.ensure_scope(engine, "demo")
        await principals.ensure_principal(engine, "demo", "ann", ["member", "operator"])
        async with database.connection() as tx:
            await tx.execute(
                "INSERT INTO database_role (role_name, scope_id, principal_id, created_at)"
                " VALUES (session_user, 'demo', 'ann', clock())"
            )
        return await tokens.issue_token(engine, "demo", "ann")


async def ask(urls: list[str], token: str, seconds: float) -> dict[str, int]:
    """Asks for runs through one server and the other in turn; which run by which."""
    asked: dict[str, int] = {}
    until = time.monotonic() + seconds
    async with httpx.AsyncClient(headers={"Authorization": f"Bearer {token}"}) as client:
        for place in cycle(range(len(urls))):
            if time.monotonic() >= until:
                return asked
            body, key = (
                {"kind": "crossing.speak", "input": str(len(asked))},
                f"{until}-{len(asked)}",
            )
            answer = await client.post(
                f"{urls[place]}/v1/runs", json=body, headers={"Idempotency-Key": key}
            )
            asked[answer.raise_for_status().json()["run_id"]] = place
            await asyncio.sleep(PAUSE)
    raise AssertionError("a cycle has no end")


@contextlib.asynccontextmanager
async def holding(url: str) -> AsyncIterator[list[str]]:
    """A user's transaction that asks for a run and stays open until the end of the block; then the
    run's id is in the list."""
    asked: list[str] = []
    connection = await asyncpg.connect(url)
    try:
        async with connection.transaction(isolation="repeatable_read"):
            late = "SELECT earnest.submit('demo', 'crossing.speak', '\"late\"')"
            run_id = await connection.fetchval(late)
            yield asked
        asked.append(run_id)
    finally:
        await connection.close()


async def watch(
    urls: list[str], token: str, seconds: float, database_url: str | None
) -> tuple[dict[str, int], list[Notes]]:
    """Which run was asked for by which server, and what the readers of both noted."""
    headers = {"Authorization": f"Bearer {token}", "Accept": "text/event-stream"}
    streams = [await connect(f"{url}/v1/events?cursor=now", headers) for url in urls]
    notes = [Notes() for _ in streams]
    taking = [
        asyncio.create_task(note.take(stream)) for note, stream in zip(notes, streams, strict=True)
    ]
    beside: contextlib.AbstractAsyncContextManager[list[str]] = (
        contextlib.nullcontext([]) if database_url is None else holding(database_url)
    )
    async with beside as late:
        asked = await ask(urls, token, seconds)
    asked |= dict.fromkeys(late, NOBODY)
    async with asyncio.timeout(60):
        for note in notes:
            await note.until_ended(set(asked))
    for task, stream in zip(taking, streams, strict=True):
        task.cancel()
        stream.close()
    return asked, notes


async def play(url: str, token: str, round_: Round, seconds: float) -> list[float]:
    """How long each event took to the reader at the other server. Raises `AssertionError` when one
    is missing or out of order."""
    bells = round_.bells
    async with contextlib.AsyncExitStack() as stack:
        start = [stack.enter_async_context(process(url, bells, "worker")) for _ in range(2)]
        serve = ("serve", "--port", "0", "--no-worker")
        start += [stack.enter_async_context(process(url, bells, *serve)) for _ in range(2)]
        *_, first, second = [await one for one in start]
        urls = [first["url"], second["url"]]
        asked, notes = await watch(urls, token, seconds, url if round_.held else None)
    took: list[float] = []
    for place, note in enumerate(notes):
        for run_id, other in asked.items():
            numbers = note.numbers[run_id]
            assert numbers == list(range(1, 4 + EMITS)), f"{run_id}: {numbers}"
            took += note.took[run_id] if other not in (place, NOBODY) else []
    return sorted(took)


def shown(took: list[float], share: float) -> str:
    return f"{took[int(share * (len(took) - 1))] * 1000:.0f} ms"


async def measure(seconds: float) -> tuple[dict[str, Any], bool]:
    figure: dict[str, Any] = {"figure": "crossing", "processes": "2 servers, 2 workers"}
    kept = True
    with TemporaryDirectory() as folder, EmbeddedPostgres(Path(folder) / "home") as started:
        await migrate(started.url)
        token = await token_of(started.url)
        for round_ in ROUNDS:
            took = await play(started.url, token, round_, seconds)
            figure[f"{round_.name}: events"] = len(took)
            figure[f"{round_.name}: p50"] = shown(took, 0.5)
            figure[f"{round_.name}: p99"] = shown(took, 0.99)
            kept = kept and took[int(0.99 * (len(took) - 1))] < round_.bound
    return figure, kept


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else SECONDS
    figure, kept = asyncio.run(measure(seconds))
    sys.stdout.write(json.dumps(figure) + "\n")
    sys.exit(0 if kept else 1)


if __name__ == "__main__":
    main()
