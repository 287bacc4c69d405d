"""Rehearsing: replays on a stage of their own, a thread with an event loop, each in bounded time.

A handler that blocks its event loop would block whoever replays it. Here it blocks its stage only;
the stage is left to it then, and the next replay gets a new one. One loop serves for many replays,
since a client that handlers share belongs to the loop that it was first used on.
"""

from __future__ import annotations

import asyncio
import threading
from types import TracebackType
from typing import Any

from earnest.engine.inspection.replaying import History, Replayed, on_nothing, replay
from earnest.engine.process.engine import Engine
from earnest.engine.process.kinds import RunKind

_GRACE = 3.0


class Stage:
    """Plays one replay after the other; use it as a context. `seconds` is what each may take."""

    def __init__(self, engine: Engine, seconds: float) -> None:
        self.seconds = seconds
        self.max_result_bytes = engine.settings.max_result_bytes
        self._engine = on_nothing(engine)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Stage:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._leave()
        if self._thread is not None:
            self._thread.join(_GRACE)

    async def play(self, kind: RunKind[Any, Any], value: Any, past: History) -> Replayed | None:
        """How the replay ended; `None` when it took too long. Then what its handler does goes on
        beside, if it cannot be cancelled, until this process ends."""
        work = self._bounded(kind, value, past)
        future = asyncio.run_coroutine_threadsafe(work, self._begin())
        try:
            async with asyncio.timeout(self.seconds + _GRACE):
                return await asyncio.wrap_future(future)
        except TimeoutError:
            self._leave()
            self._thread = None
            return None

    async def _bounded(self, kind: RunKind[Any, Any], value: Any, past: History) -> Replayed | None:
        try:
            async with asyncio.timeout(self.seconds):
                return await replay(self._engine, kind, value, past)
        except TimeoutError:
            return None

    def _begin(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._loop.set_exception_handler(_say_nothing)
            self._thread = threading.Thread(
                target=_run, args=[self._loop], name="earnest-stage", daemon=True
            )
            self._thread.start()
        return self._loop

    def _leave(self) -> None:
        """A loop that is not blocked ends; one that is ends when it is free again."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._loop = None


def _run(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    loop.run_forever()
    _end_all(loop)
    loop.close()


def _end_all(loop: asyncio.AbstractEventLoop) -> None:
    """Lets cancelled tasks unwind, without one of our own among them: a replay that is left ends
    every task that was begun since it began."""
    left = asyncio.all_tasks(loop)

    def ended(task: asyncio.Task[Any]) -> None:
        left.discard(task)
        if not left:
            loop.stop()

    for task in list(left):
        task.add_done_callback(ended)
        task.cancel()
    if left:
        loop.call_later(_GRACE, loop.stop)
        loop.run_forever()


def _say_nothing(_loop: asyncio.AbstractEventLoop, _about: dict[str, Any]) -> None:
    """What a handler leaves behind when it is left in the middle is no news."""
