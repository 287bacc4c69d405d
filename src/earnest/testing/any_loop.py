"""A database for tests, where nobody knows which event loop the next caller runs on.

The runner of async tests has a loop, fixtures may have another one, the test client of a web
framework a third, and a plain test has none. A pool belongs to one loop; here each use has a
connection of its own, which costs some milliseconds and leaves nothing behind. What uses many says
so with `pooled`, on the loop that it runs on. For tests only.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from earnest.store.database import Database, Tx

T = TypeVar("T")


class AnyLoopDatabase(Database):
    """As `Database`, but nobody has to open and to close it. At most `size` connections at a time
    of one loop."""

    def __init__(self, url: str, *, size: int = 10) -> None:
        super().__init__(url, size=size, patience=5)
        self._turns: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore]
        self._turns = WeakKeyDictionary()
        self._pooling: asyncio.AbstractEventLoop | None = None
        self._poolers = 0
        self._opening = asyncio.Lock()

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Tx]:
        loop = asyncio.get_running_loop()
        if self._pooling is loop and self._pool is not None:
            async with super().connection() as connection:
                yield connection
            return
        async with self._turns.setdefault(loop, asyncio.Semaphore(self.size)):
            connection = await self.connect()
            try:
                yield connection
            finally:
                await _close(connection)

    @asynccontextmanager
    async def pooled(self) -> AsyncIterator[None]:
        """Meanwhile connections on this event loop are kept for the next use."""
        loop = asyncio.get_running_loop()
        if self._pooling not in (None, loop):  # one loop at a time; the others do without
            yield
            return
        if self._pooling is None:
            self._pooling, self._opening = loop, asyncio.Lock()
        self._poolers += 1
        try:
            async with self._opening:  # one pool for all who come together
                await self.open()
            yield
        finally:
            self._poolers -= 1
            if not self._poolers:
                self._pooling = None
                await self.close()


async def _close(connection: Tx) -> None:
    """To the end also for a caller that is cancelled: a connection that is left open would be
    found by the garbage collector, in somebody else's test."""
    try:
        await connection.close(timeout=5)
    finally:
        if not connection.is_closed():
            connection.terminate()


def on_a_loop_aside(make: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Runs the coroutine to its end on a loop in a thread of its own, and waits for it: for callers
    that are not async, whether or not a loop runs around them."""
    return in_a_thread(lambda: asyncio.run(make()))


def in_a_thread(call: Callable[[], T]) -> T:
    """The result of a call in a fresh thread, which knows nothing of the caller's event loop."""
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(call())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="earnest-aside")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]
