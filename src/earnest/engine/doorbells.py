"""Doorbells: hints that something happened, rung after a commit and never inside one.

In this process a bell wakes its waiters at once. Across processes rings are gathered for some
milliseconds and sent as one `NOTIFY` from a connection of its own. Losing every ring only makes
things slower: whoever waits for a bell also looks by itself from time to time.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from datetime import timedelta

import asyncpg
import structlog

from earnest.store.database import LOST, Database

log = structlog.get_logger("earnest.doorbells")

CHANNEL = "earnest_bell"
GATHER = 0.01
RECONNECT = 1.0

# What a ring says: work may be claimed, a held run was asked to stop, a question is due, and a
# run moved (for those who watch).
WORK, STOP, QUESTION, MOVED = "work", "stop", "question", "moved"


class Doorbells:
    """The bells of one process. Without `start` it serves this process alone, by itself."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._waiters: defaultdict[str, set[asyncio.Event]] = defaultdict(set)
        self._outgoing: set[str] = set()
        self._pending = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    def ring(self, *names: str) -> None:
        """Wakes waiters here at once, and soon those in other processes."""
        for name in names:
            self._ring_here(name)
        if self._tasks:
            self._outgoing.update(names)
            self._pending.set()

    async def wait(self, name: str, patience: timedelta) -> bool:
        """Waits until the bell rings, at most `patience`. Says whether it rang."""
        event = asyncio.Event()
        self._waiters[name].add(event)
        try:
            await asyncio.wait_for(event.wait(), patience.total_seconds())
            return True
        except TimeoutError:
            return False
        finally:
            self._waiters[name].discard(event)

    async def start(self) -> None:
        """Begins to send to and to listen for other processes."""
        self._tasks = [asyncio.create_task(self._send()), asyncio.create_task(self._listen())]

    async def stop(self) -> None:
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _ring_here(self, name: str) -> None:
        for event in self._waiters.get(name, ()):
            event.set()

    async def _send(self) -> None:
        while True:
            await self._pending.wait()
            await asyncio.sleep(GATHER)
            self._pending.clear()
            names, self._outgoing = self._outgoing, set()
            with contextlib.suppress(*LOST):
                async with self._database.connection() as connection:
                    await connection.execute(
                        "SELECT pg_notify($1, $2)", CHANNEL, " ".join(sorted(names))
                    )

    async def _listen(self) -> None:
        while True:
            try:
                await self._listen_once()
            except (*LOST, asyncpg.PostgresError) as error:
                log.debug("bell.lost", error=str(error))
            await asyncio.sleep(RECONNECT)

    async def _listen_once(self) -> None:
        connection = await self._database.connect(application_name="earnest bells")
        gone = asyncio.Event()
        try:
            connection.add_termination_listener(lambda _: gone.set())
            await connection.add_listener(CHANNEL, self._heard)
            await gone.wait()
        finally:
            connection.terminate()

    def _heard(self, _connection: object, _pid: int, _channel: str, payload: object) -> None:
        for name in str(payload).split():
            self._ring_here(name)
