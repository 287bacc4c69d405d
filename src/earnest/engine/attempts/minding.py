"""Minding: what any process does so that nothing is left lying, whether or not it takes up runs.

Four rounds. *Watch* moves on what has run out (`reaping.py`) and lets delayed runs join the queue;
*ask* asks providers about the doubts that are due (`reconciling.py`); *prune* removes text and log
lines whose time is over, and what is known of processes that ended long ago; *collect* deletes
artifacts whose time is over, and the bytes that nobody names. A worker has a minder. So has a
program that only calls or submits: in its house there may be no worker at all, and a call whose
program died would otherwise stay `submitting` until somebody asks for it again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from datetime import timedelta
from typing import Any

import asyncpg

from earnest.domain.errors import EarnestError
from earnest.engine.artifacts import removing
from earnest.engine.attempts.logging import prune_logs
from earnest.engine.attempts.reaping import Reaper
from earnest.engine.attempts.texting import prune_texts
from earnest.engine.operations import reconciling
from earnest.engine.process import instances
from earnest.engine.process.doorbells import QUESTION, WORK
from earnest.engine.process.engine import Engine
from earnest.engine.process.logs import get_logger
from earnest.store.database import LOST, Tx
from earnest.store.statements import sql

log = get_logger("earnest.minding")

_RIPEN = 500
_QUESTIONS = 20
_PRUNED = 50
_EXPIRED = 50
_COLLECT_EVERY = timedelta(minutes=1)
_PRUNE_EVERY = timedelta(minutes=10)


class Minder:
    """Looks every `watch_every`; many of them may mind one database beside each other."""

    def __init__(self, engine: Engine, watch_every: timedelta | None = None) -> None:
        self.reaper = Reaper(engine)
        self.questions: set[asyncio.Task[None]] = set()
        self._engine = engine
        self._watch_every = watch_every or engine.settings.watch_every

    async def run(self) -> None:
        """All rounds until it is cancelled; questions that were asked are waited for then."""
        loops = [asyncio.create_task(loop) for loop in self.loops()]
        try:
            await asyncio.gather(*loops)
        except Exception:
            # A mistake of ours. The program around goes on, and has to be told.
            log.exception("minder.failed")
            raise
        finally:
            for loop in loops:
                loop.cancel()
            await asyncio.gather(*loops, *self.questions, return_exceptions=True)

    def loops(self) -> list[Coroutine[Any, Any, None]]:
        """The one that asks comes first."""
        return [
            repeat(self._engine, "ask", self.ask, QUESTION),
            repeat(self._engine, "watch", self.watch, None),
            repeat(self._engine, "prune", self.prune, None),
            repeat(self._engine, "collect", self.collect, None),
        ]

    async def watch(self) -> timedelta:
        # Here too: workers that always find something to claim would leave delayed runs unripe.
        if await ripen(self._engine):
            self._engine.bells.ring(WORK)
        await self.reaper.look()
        return self._watch_every

    async def ask(self) -> timedelta:
        """Questions are asked beside each other: a slow provider holds up nobody else's."""
        free = _QUESTIONS - len(self.questions)
        if free <= 0:
            await asyncio.wait(self.questions, return_when=asyncio.FIRST_COMPLETED)
            return timedelta(0)
        taken = await reconciling.take_due(self._engine, free)
        for key in taken:
            task = asyncio.create_task(reconciling.ask(self._engine, *key))
            self.questions.add(task)
            task.add_done_callback(self.questions.discard)
        return timedelta(0) if len(taken) == free else self._engine.settings.poll

    async def prune(self) -> timedelta:
        """A few runs at a time: nobody waits long for the rows of a principal's quota. And the
        processes that are no proof of anything any more."""
        pruned = await prune_texts(self._engine, limit=_PRUNED)
        forgotten = await self._engine.database.promise(
            "prune", lambda tx: instances.prune(tx, _PRUNED)
        )
        lines = await prune_logs(self._engine, limit=_PRUNED)
        return timedelta(0) if _PRUNED in (pruned, forgotten, lines) else _PRUNE_EVERY

    async def collect(self) -> timedelta:
        """A few artifacts at a time: nobody waits long for the room of a scope."""
        expired = await removing.expire(self._engine, _EXPIRED)
        if self._engine.blobs is not None:
            await removing.collect(self._engine)
        return timedelta(0) if expired == _EXPIRED else _COLLECT_EVERY


async def ripen(engine: Engine) -> int:
    """Delayed runs whose time has come join the queue; returns how many."""
    return await engine.database.promise("wake", _ripen)


async def _ripen(tx: Tx) -> int:
    return len(await tx.fetch(sql("ripen_runs"), _RIPEN))


async def repeat(
    engine: Engine, name: str, round_: Callable[[], Awaitable[timedelta]], bell: str | None
) -> None:
    """Repeats a round; each says how long to wait for the bell before the next. A database that is
    away is waited for; nothing else may end a loop."""
    while True:
        try:
            wait = await round_()
        except (EarnestError, asyncpg.PostgresError, *LOST) as error:
            log.warning("round.failed", round=name, error=str(error))
            wait = engine.settings.poll
        if wait > timedelta(0):
            if bell is None:
                await asyncio.sleep(wait.total_seconds())
            else:
                await engine.bells.wait(bell, wait)
