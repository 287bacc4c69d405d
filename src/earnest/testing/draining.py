"""Draining: a test lets everything happen that is due, and is told what does not move and why.

Nothing is waited for that only time would bring: a test moves the clock, or lets `drain` do so with
`ahead`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from datetime import datetime

from earnest.domain.duration import Duration, duration
from earnest.engine.attempts.working import Worker
from earnest.engine.process.engine import Engine
from earnest.testing.any_loop import AnyLoopDatabase
from earnest.testing.clock import HeldClock
from earnest.testing.left import Left, endings, what_is_left

PATIENCE = "20s"
_LOOK_AGAIN = 0.05
_MOVING = ("running", "submitting")


class Stuck(AssertionError):
    """Something moves without end, or is due and nothing moves it."""


@dataclass(frozen=True)
class Drained:
    """What came of it: the attempts that were run, all runs of the database that have ended, by
    their status, and what has not ended and why."""

    attempts: int
    ended: dict[str, int]
    left: tuple[Left, ...]


async def drain(
    engine: Engine,
    clock: HeldClock | None = None,
    *,
    ahead: Duration = 0,
    to_the_end: bool = False,
    patience: Duration = PATIENCE,
) -> Drained:
    """Runs all that is due until nothing moves. `ahead`: then moves the clock to what is due next,
    up to so far from now, and goes on. `to_the_end`: everything has to end by that.

    Raises `Stuck` after `patience` of real time, or when something that is due cannot be moved
    here; it says what and why.
    """
    until = clock.now + duration(ahead) if clock is not None and ahead else None
    draining = _Draining(engine, clock, until)
    async with _kept_connections(engine):
        try:
            async with asyncio.timeout(duration(patience).total_seconds()):
                drained = await draining.run()
        except TimeoutError:
            raise await draining.give_up(f"something still moves after {patience}") from None
    if to_the_end and drained.left:
        raise Stuck(_told("nothing moves any more", drained.left))
    return drained


def _kept_connections(engine: Engine) -> AbstractAsyncContextManager[None]:
    database = engine.database
    return database.pooled() if isinstance(database, AnyLoopDatabase) else nullcontext()


class _Draining:
    """One call of `drain`: a worker without loops, and how far the clock may be moved."""

    def __init__(self, engine: Engine, clock: HeldClock | None, until: datetime | None) -> None:
        self._engine = engine
        self._clock = clock
        self._until = until
        self._worker = Worker(engine, keeper=False)
        self._attempts = 0

    async def run(self) -> Drained:
        while True:
            moved = await self._worker.drain_once()
            self._attempts += moved
            left = await what_is_left(self._engine)
            if any(one.state in _MOVING for one in left):
                # Somebody else is at it, or was: that a process is gone is seen at a second look.
                await asyncio.sleep(_LOOK_AGAIN)
            elif not moved and any(one.stuck for one in left):
                raise Stuck(_told("nothing here moves what is due", left))
            elif not moved and not self._moves_the_clock(left):
                return await self._drained(left)

    def _moves_the_clock(self, left: Sequence[Left]) -> bool:
        next_due = min((one.due_at for one in left if one.due_at is not None), default=None)
        if self._clock is None or self._until is None or next_due is None or next_due > self._until:
            return False
        self._clock.move_to(next_due)
        return True

    async def _drained(self, left: Sequence[Left]) -> Drained:
        async with self._engine.database.connection() as tx:
            return Drained(self._attempts, await endings(tx), tuple(left))

    async def give_up(self, what: str) -> Stuck:
        """Tells what is left, and hands back what this worker still runs."""
        left = await what_is_left(self._engine)
        await self._worker.hand_back()
        return Stuck(_told(f"{what} and {self._attempts} attempts", left))


def _told(what: str, left: Sequence[Left]) -> str:
    lines = [f"{what}; not ended:", *(f"  {one}" for one in left)]
    return "\n".join(lines)
