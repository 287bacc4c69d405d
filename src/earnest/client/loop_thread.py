"""A thread with an event loop, for callers that have none: what they call is done there.

It begins at the first use. A process that was forked begins one of its own, and never touches what
it inherited.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar
from weakref import WeakSet

from earnest.domain.errors import InvalidRequest

T = TypeVar("T")
UsedT = TypeVar("UsedT")

_NAME = "earnest-client"
_NOTHING: Any = object()


@dataclass(frozen=True)
class _Opened(Generic[UsedT]):
    """What one process has opened."""

    used: UsedT
    loop: asyncio.AbstractEventLoop
    thread: threading.Thread


class LoopThread(Generic[UsedT]):
    """What `make` makes is used in a thread of its own, and closed there by `close`. Any number of
    threads may call at once."""

    def __init__(
        self, make: Callable[[], UsedT], close: Callable[[UsedT], Coroutine[Any, Any, None]]
    ) -> None:
        self._make = make
        self._close = close
        self._lock = threading.Lock()
        self._opened: _Opened[UsedT] | None = None
        _all.add(self)

    def call(self, work: Callable[[UsedT], Coroutine[Any, Any, T]]) -> T:
        """What it comes to. Who stops waiting (a signal) cancels it."""
        opened = self._open_here()
        return _wait(work(opened.used), opened.loop)

    def each(self, source: Callable[[UsedT], AsyncGenerator[T, None]]) -> Generator[T, None, None]:
        """What the generator gives, one by one; it is closed with this one."""
        opened = self._open_here()
        given = source(opened.used)
        try:
            while (found := _wait(_next_of(given), opened.loop)) is not _NOTHING:
                yield found
        finally:
            if opened is self._opened:
                closing = asyncio.run_coroutine_threadsafe(given.aclose(), opened.loop)
                # Where it is collected in that very thread, nobody can wait for it.
                if threading.current_thread() is not opened.thread:
                    closing.result()

    def close(self) -> None:
        """Ends it all. The next use begins anew. Harmless when nothing is open."""
        with self._lock:
            opened, self._opened = self._opened, None
        if opened is not None:
            _wait(self._close(opened.used), opened.loop)
            opened.loop.call_soon_threadsafe(opened.loop.stop)
            opened.thread.join()

    def leave_behind(self) -> None:
        """In a process that was just forked: another thread may have held the lock meanwhile."""
        self._lock = threading.Lock()
        if self._opened is not None:
            _inherited.append(self._opened)
            self._opened = None

    def _open_here(self) -> _Opened[UsedT]:
        _refuse_event_loops()
        with self._lock:
            if self._opened is None:
                used, loop = self._make(), asyncio.new_event_loop()
                # A program that forgot to close it still ends.
                thread = threading.Thread(target=_run, args=(loop,), name=_NAME, daemon=True)
                thread.start()
                self._opened = _Opened(used, loop, thread)
            return self._opened


def _wait(work: Coroutine[Any, Any, T], loop: asyncio.AbstractEventLoop) -> T:
    doing = asyncio.run_coroutine_threadsafe(work, loop)
    try:
        return doing.result()
    except BaseException:
        doing.cancel()
        raise


def _run(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.run_until_complete(loop.shutdown_default_executor())
    finally:
        asyncio.set_event_loop(None)
        loop.close()


async def _next_of(source: AsyncGenerator[T, None]) -> T:
    found: T = await anext(source, _NOTHING)
    return found


def _refuse_event_loops() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise InvalidRequest(
        "this would block the event loop; in async code use `earnest.Client`, or call this in a "
        "thread: `await asyncio.to_thread(...)`"
    )


# ---- forks -------------------------------------------------------------------------------------

_all: WeakSet[LoopThread[Any]] = WeakSet()

_inherited: list[_Opened[Any]] = []
"""What a forked process found open. Never used, closed or collected there."""


def _leave_all_behind() -> None:
    for one in list(_all):
        one.leave_behind()


os.register_at_fork(after_in_child=_leave_all_behind)
