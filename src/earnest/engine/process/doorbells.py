"""Doorbells: hints that something happened, rung after a commit and never inside one.

In this process a bell wakes its waiters at once. Across processes rings are gathered for some
milliseconds and sent as one `NOTIFY` from a connection of its own. Losing every ring only makes
things slower: whoever waits for a bell also looks by itself from time to time.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections import defaultdict
from collections.abc import Callable
from datetime import timedelta

import asyncpg

from earnest.domain.errors import EarnestError
from earnest.engine.process.logs import get_logger
from earnest.store.database import LOST, Database

log = get_logger("earnest.doorbells")

CHANNEL = "earnest_bell"
GATHER = 0.01
RECONNECT = 1.0
LAST_RING = 1.0
# How often who listens asks whether the server is still there, and how long it may take to answer.
PING_EVERY, PING_TIMEOUT = 60.0, 10.0

# What a ring says: work may be claimed, a held run was asked to stop, a question is due, and runs
# have something new to read. The last says which runs, as long as they are few enough to name.
WORK, STOP, QUESTION, MOVED = "work", "stop", "question", "moved"
MANY = 200

# Which runs moved; `None` where it does not say: any may have.
Moved = frozenset[uuid.UUID] | None


class Doorbells:
    """The bells of one process. Without `start` it serves this process alone, by itself; so it
    does always if it is not to ring `across` processes, which then look from time to time."""

    def __init__(self, database: Database, *, across: bool = True) -> None:
        self._database = database
        self._across = across
        self._waiters: defaultdict[str, set[asyncio.Event]] = defaultdict(set)
        self._watchers: list[Callable[[Moved], None]] = []
        self._outgoing: set[str] = set()
        self._moved: set[uuid.UUID] = set()
        self._pending = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._users = 0

    def ring(self, *names: str) -> None:
        """Wakes waiters here at once, and soon those in other processes."""
        for name in names:
            self._ring_here(name)
        if self._tasks:
            self._outgoing.update(names)
            self._pending.set()

    def moved(self, *run_ids: uuid.UUID) -> None:
        """These runs, if there are any, have something new to read."""
        if not run_ids:
            return
        self._tell_watchers(frozenset(run_ids))
        if self._tasks and len(self._moved) <= MANY:
            self._moved.update(run_ids)
        self.ring(MOVED)

    def watch_moves(self, watcher: Callable[[Moved], None]) -> Callable[[], None]:
        """Calls `watcher` with what moved, here and elsewhere; returns how to end that."""
        self._watchers.append(watcher)
        return lambda: self._watchers.remove(watcher)

    async def wait(self, name: str, patience: timedelta) -> bool:
        """Waits until the bell rings, at most `patience`. Says whether it rang."""
        event = asyncio.Event()
        self._waiters[name].add(event)
        try:
            # Not `wait_for`: in Python 3.11 it loses a cancel that comes together with the ring.
            async with asyncio.timeout(patience.total_seconds()):
                await event.wait()
            return True
        except TimeoutError:
            return False
        finally:
            self._waiters[name].discard(event)

    async def start(self) -> None:
        """Begins to send to and to listen for other processes. Several in this process may each
        start the bells, a program and its worker; the last one to stop them ends them."""
        self._users += 1
        if not self._across or self._tasks:
            return
        self._tasks = [asyncio.create_task(self._send()), asyncio.create_task(self._listen())]

    async def stop(self) -> None:
        """Ends them for whoever started them. The last one sends what was not sent yet, if that can
        be done quickly. Harmless when nobody has started them."""
        self._users = max(0, self._users - 1)
        if self._users:
            return
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._outgoing:
            with contextlib.suppress(TimeoutError, EarnestError):
                async with asyncio.timeout(LAST_RING):
                    await self._send_gathered()

    def _ring_here(self, name: str) -> None:
        for event in self._waiters.get(name, ()):
            event.set()

    async def _send(self) -> None:
        while True:
            await self._pending.wait()
            await asyncio.sleep(GATHER)
            self._pending.clear()
            await self._send_gathered()

    async def _send_gathered(self) -> None:
        names, self._outgoing = self._outgoing, set()
        runs, self._moved = self._moved, set()
        if MOVED in names:
            names = (names - {MOVED}) | {_moved_as_text(runs)}
        try:
            async with self._database.connection() as connection:
                await connection.execute(
                    "SELECT pg_notify($1, $2)", CHANNEL, " ".join(sorted(names))
                )
        except (EarnestError, asyncpg.PostgresError, *LOST) as error:
            # Whoever would have heard looks by itself; the next rings are sent all the same.
            log.debug("bell.not_sent", error=str(error))

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
            while not await _is_set_within(gone, PING_EVERY):
                # Nobody says goodbye on a way that broke: whoever only listens would wait for ever.
                await connection.execute("SELECT 1", timeout=PING_TIMEOUT)
        finally:
            connection.terminate()

    def _heard(self, _connection: object, _pid: int, _channel: str, payload: object) -> None:
        for word in str(payload).split():
            name, _, runs = word.partition(":")
            self._ring_here(name)
            if name == MOVED and self._watchers:
                self._tell_watchers(_moved_from_text(runs))

    def _tell_watchers(self, moved: Moved) -> None:
        for watcher in self._watchers:
            watcher(moved)


async def _is_set_within(event: asyncio.Event, seconds: float) -> bool:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
    return event.is_set()


def _moved_as_text(run_ids: set[uuid.UUID]) -> str:
    """A notification holds 8,000 bytes; many names are told as `any`."""
    listed = ",".join(run_id.hex for run_id in run_ids)
    return f"{MOVED}:{listed}" if 0 < len(run_ids) <= MANY else MOVED


def _moved_from_text(text: str) -> Moved:
    return frozenset(uuid.UUID(hex=part) for part in text.split(",")) if text else None
