"""Prints what streams cost and how quick they are under load, one JSON line for each figure.

    python -m tests.doors.streams.load stalled      200 readers that read nothing beside 20 that do
    python -m tests.doors.streams.load idle         5,000 readers of a run to which nothing happens
    python -m tests.doors.streams.load fan-out      one event to 1,000 readers, beside a plain loop

The server is a process of its own, with the settings that it has by itself; events are written by a
worker in this one, which also reads. Times are from the statement that wrote an event, by the
database's clock. Exit code 1 when a figure is not what is promised.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil  # type: ignore[import-untyped]
import structlog
import uvloop

from earnest import App
from earnest.doors.api.serving import allow_many_connections
from earnest.engine.process import principals, tokens
from earnest.store.embedded import EmbeddedPostgres
from earnest.store.migrate import migrate
from tests.doors.streams.clients.playing import House, open_house
from tests.doors.streams.load_reading import LoadReader, Notes, connect_readers
from tests.doors.streams.stage import FIRST, ScriptedRun, make_run

ROOT = Path(__file__).parents[3]
PER_PRINCIPAL = 32
SMALL = 4096
app = App("load")

Figure = dict[str, Any]


@dataclass
class Served:
    """A server in a process of its own."""

    url: str
    process: psutil.Process

    def cpu(self) -> float:
        """Seconds."""
        used = self.process.cpu_times()
        return float(used.user + used.system)

    def memory(self) -> float:
        """MiB."""
        return float(self.process.memory_info().rss) / 2**20


@asynccontextmanager
async def serving(*words: str) -> AsyncIterator[Served]:
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        *words,
        cwd=ROOT,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        stdout=asyncio.subprocess.PIPE,
        stderr=None if os.environ.get("LOAD_LOG") else asyncio.subprocess.DEVNULL,
    )
    try:
        assert child.stdout is not None, "opened as a pipe"
        ready = json.loads(await asyncio.wait_for(child.stdout.readline(), 60))
        yield Served(ready["url"], psutil.Process(child.pid))
    finally:
        child.terminate()
        await child.wait()


@dataclass
class Ground:
    """What is measured on: a database, a worker, a server, and operators with tokens."""

    database_url: str
    house: House
    served: Served
    tokens: list[str]

    def sharing(self, count: int) -> list[str]:
        """Tokens for so many readers."""
        return list(islice(cycle(self.tokens), count))

    async def run(self) -> ScriptedRun:
        return await make_run(self.house.engine, self.house.scripts)


@asynccontextmanager
async def standing(readers: int) -> AsyncIterator[Ground]:
    serve = (
        "earnest",
        "serve",
        "--port",
        "0",
        "--no-worker",
        "--json",
        "--app",
        f"{__spec__.name}:app",
    )
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(TemporaryDirectory(prefix="earnest-load-"))
        started = stack.enter_context(EmbeddedPostgres(Path(folder) / "home"))
        await migrate(started.url)
        house = await stack.enter_async_context(open_house(started.url))
        await house.engine.bells.start()
        served = await stack.enter_async_context(serving(*serve, "--database-url", started.url))
        tokens = [await _operator(house, number) for number in range(-(-readers // PER_PRINCIPAL))]
        yield Ground(started.url, house, served, tokens)


async def _operator(house: House, number: int) -> str:
    name = f"watcher{number}"
    await principals.ensure_principal(house.engine, "demo", name, ["operator"])
    return await tokens.issue_token(house.engine, "demo", name)


def stream_of(served: Served, run: ScriptedRun) -> str:
    return f"{served.url}/v1/runs/{run.id}/events?after_seq={FIRST}"


async def tell(run: ScriptedRun, count: int, every: float, **payload: Any) -> None:
    """An event at each beat, whether or not the one before took its time."""
    loop = asyncio.get_running_loop()
    begun = loop.time()
    for number in range(count):
        await asyncio.sleep(begun + number * every - loop.time())
        await run.append(1, **payload)


def at(took: list[float], share: float) -> float:
    """Milliseconds within which that share of the events came."""
    return round(sorted(took)[int(share * (len(took) - 1))] * 1000, 1)


# ---- readers that do not read ------------------------------------------------------------------

LIVE, STALLED = 20, 200
BEATS, EVERY = 500, 0.05
TEXT = "x" * 12_000


async def stalled() -> tuple[Figure, bool]:
    async with standing(LIVE + STALLED) as ground:
        run, notes = await ground.run(), Notes()
        url = stream_of(ground.served, run)
        live = await connect_readers(url, ground.sharing(LIVE), notes)
        await tell(run, BEATS // 10, EVERY, text=TEXT)  # all has been done once
        await notes.has(LIVE * BEATS // 10)
        undisturbed = await _beats(run, notes)
        memory = ground.served.memory()
        silent = await _stall(ground, url)
        freeing = asyncio.create_task(_until_freed(ground.served))
        disturbed = await _beats(run, notes)
        freed, most = await freeing
        lost = sum(notes.ended.values())
        for reader in (*live, *silent):
            reader.close()
        run.let_end()
    if os.environ.get("LOAD_LOG"):
        for part in (undisturbed, disturbed):
            beats = [max(part[i : i + LIVE]) * 1000 for i in range(0, len(part), LIVE)]
            print([(i, round(x)) for i, x in enumerate(beats) if x > 30])
    quick = at(undisturbed, 0.99), at(disturbed, 0.99)
    figure = {
        "figure": "stalled",
        "live readers": LIVE,
        "stalled readers": STALLED,
        "p99 undisturbed ms": quick[0],
        "p99 beside stalled ms": quick[1],
        "p50 undisturbed ms": at(undisturbed, 0.5),
        "p50 beside stalled ms": at(disturbed, 0.5),
        "memory before MiB": round(memory),
        "memory at most MiB": round(most),
        "sockets freed after s": round(freed, 1),
        "live readers lost": lost,
    }
    kept = quick[1] <= 1.5 * quick[0] and freed <= 30 and most - memory <= 64
    return figure, kept and not lost


async def _beats(run: ScriptedRun, notes: Notes) -> list[float]:
    before = len(notes.took)
    await tell(run, BEATS, EVERY, text=TEXT)
    await notes.has(before + LIVE * BEATS)
    return notes.took[before:]


async def _stall(ground: Ground, url: str) -> list[LoadReader]:
    readers = await connect_readers(
        f"{url}&after_seq=0".replace(f"after_seq={FIRST}&", ""),
        ground.sharing(LIVE + STALLED)[LIVE:],
        Notes(),
        buffer=SMALL,
    )
    for reader in readers:
        reader.stall()
    return readers


async def _until_freed(served: Served) -> tuple[float, float]:
    """After how many seconds the server has no more connections than those of the live ones, and
    how much memory it had at most meanwhile."""
    begun, most = time.monotonic(), 0.0
    while _streams(served) > LIVE:
        most = max(most, served.memory())
        await asyncio.sleep(0.2)
    return time.monotonic() - begun, most


def _streams(served: Served) -> int:
    port = int(served.url.rpartition(":")[2])
    return sum(
        one.status == "ESTABLISHED" and bool(one.laddr) and one.laddr.port == port
        for one in served.process.net_connections("tcp")
    )


# ---- readers to whom nothing happens -----------------------------------------------------------

IDLE, WATCHED = 5_000, 45.0


async def idle(count: int = IDLE) -> tuple[Figure, bool]:
    async with standing(count) as ground:
        run, notes = await ground.run(), Notes()
        memory, connecting = ground.served.memory(), time.monotonic()
        url = stream_of(ground.served, run)
        readers = await connect_readers(url, ground.sharing(count), notes)
        took = time.monotonic() - connecting
        await asyncio.sleep(15)  # each has had its first heartbeat
        cpu, heartbeats, begun = ground.served.cpu(), notes.heartbeats, time.monotonic()
        await asyncio.sleep(WATCHED)
        seconds = time.monotonic() - begun
        cpu = ground.served.cpu() - cpu
        heartbeats = notes.heartbeats - heartbeats
        used = ground.served.memory() - memory
        await run.append(1)
        await notes.has(count - sum(notes.ended.values()))
        lost = dict(notes.ended)
        for reader in readers:
            reader.close()
        run.let_end()
    figure = {
        "figure": "idle",
        "streams": count,
        "lost": sum(lost.values()),
        "why": lost or "none was lost",
        "connected within s": round(took, 1),
        "memory without them MiB": round(memory),
        "memory of them MiB": round(used),
        "memory of each KiB": round(used * 1024 / count, 1),
        "processor %": round(100 * cpu / seconds, 1),
        "heartbeats a second": round(heartbeats / seconds),
        "an event then reaches all within ms": at(notes.took, 1),
    }
    return figure, not lost


# ---- one event to many -------------------------------------------------------------------------

MANY, TOLD = 1_000, 20


async def fan_out(count: int = MANY) -> tuple[Figure, bool]:
    async with standing(count) as ground:
        ours = await _fan_out(ground, ground.served, count)
        words = ("tests.doors.streams.polling_peer", ground.database_url)
        async with serving(*words) as peer:
            theirs = await _fan_out(ground, peer, count)
    figure: Figure = {"figure": "fan_out", "readers": count, "events": TOLD}
    for name, (took, cpu) in {"": ours, "a loop that polls: ": theirs}.items():
        figure[f"{name}p50 ms"] = at(took, 0.5)
        figure[f"{name}p99 ms"] = at(took, 0.99)
        figure[f"{name}processor %"] = cpu
    return figure, at(ours[0], 0.99) <= at(theirs[0], 0.99)


async def _fan_out(ground: Ground, served: Served, count: int) -> tuple[list[float], float]:
    """How long each event took to each reader, and how busy the server was."""
    run, notes = await ground.run(), Notes()
    readers = await connect_readers(stream_of(served, run), ground.sharing(count), notes)
    cpu, begun = served.cpu(), time.monotonic()
    await tell(run, TOLD, 1 + 1 / TOLD)  # at all moments of a loop of one second
    await notes.has(TOLD * count)
    busy = 100 * (served.cpu() - cpu) / (time.monotonic() - begun)
    for reader in readers:
        reader.close()
    run.let_end()
    return notes.took, round(busy, 1)


FIGURES: dict[str, Callable[..., Awaitable[tuple[Figure, bool]]]] = {
    "stalled": stalled,
    "idle": idle,
    "fan-out": fan_out,
}


def main() -> None:
    name, *rest = sys.argv[1:] or ["--help"]
    if name not in FIGURES or len(rest) > 1:
        sys.exit(__doc__)
    logging.disable(logging.WARNING)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    allow_many_connections()

    async def measure() -> tuple[Figure, bool]:
        return await FIGURES[name](*map(int, rest))

    figure, kept = uvloop.run(measure())
    sys.stdout.write(json.dumps(figure) + "\n")
    sys.exit(0 if kept else 1)


if __name__ == "__main__":
    main()
