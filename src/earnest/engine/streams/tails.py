"""Tails: what a hub holds of the newest that its watchers see, and the loop that fills it.

A hub reads what is new once, however many people watch. For each thing that is watched it keeps a
*tail*: the newest frames, encoded once, bounded. A watcher has nothing but a number, the last that
it was given; it asks for what comes after. What the tail still has is served from there, what was
before is read from the table, so replay and live have no seam: the watcher's flag is known here
before its first page is read, and there is no queue per watcher that could overflow. A watcher that
does not ask holds nothing (P10).

Bells say that something moved. A bell is a hint: with all bells lost everything still comes, later
(P9). A hub that nobody watches does nothing. What is watched, and how it is read, is told by each
hub: of runs (`streaming`), of their text (`text_streaming`), of scopes (`feeding`).
"""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import takewhile
from typing import Generic, TypeVar

import asyncpg

from earnest.domain.errors import EarnestError
from earnest.engine.process.doorbells import Moved
from earnest.engine.process.engine import Engine
from earnest.engine.process.logs import get_logger
from earnest.store.database import LOST

log = get_logger("earnest.streams")

KEPT_EVENTS = 256
KEPT_BYTES = 128 * 1024
# So many tails hold frames, those that grew last: with their bytes this bounds the hub's memory.
KEPT_TAILS = 512
# What is read at once for one watcher: as many rows at most, and where it lags as many bytes.
PAGE = 100
PAGE_BYTES = 32 * 1024
# How many one statement looks at; and how many seconds pass until the next after a failure, or
# after a storm of bells that name nothing.
LOOKED_AT_ONCE = 100
PAUSE = 0.1

KeyT = TypeVar("KeyT", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Frame:
    """Something in the form in which it is sent: encoded once for all who watch. `seq` is its place
    among what is watched."""

    seq: int
    data: bytes
    final: bool


@dataclass(slots=True, eq=False)
class Tail(Generic[KeyT]):
    """The newest part of what is seen of one thing: everything after `floor` up to `head`, the
    newest place that the hub knows of."""

    key: KeyT
    head: int
    floor: int = field(init=False)
    frames: deque[Frame] = field(init=False, default_factory=deque)
    size: int = field(init=False, default=0)
    flags: set[asyncio.Event] = field(init=False, default_factory=set)

    def __post_init__(self) -> None:
        self.floor = self.head

    def grow(self, frames: Sequence[Frame], head: int) -> None:
        """Takes what comes next, up to the place `head`."""
        self.frames.extend(frames)
        self.size += sum(len(frame.data) for frame in frames)
        self.head = head
        while len(self.frames) > KEPT_EVENTS or self.size > KEPT_BYTES:
            dropped = self.frames.popleft()
            self.size -= len(dropped.data)
            self.floor = dropped.seq

    def after(self, place: int) -> list[Frame] | None:
        """What comes after a place; `None` when the tail does not reach back that far."""
        if place < self.floor:
            return None
        newer = takewhile(lambda frame: frame.seq > place, reversed(self.frames))
        return list(newer)[::-1]

    def empty(self) -> None:
        self.frames.clear()
        self.size, self.floor = 0, self.head

    def wake(self) -> None:
        for flag in self.flags:
            flag.set()


TailT = TypeVar("TailT", bound=Tail)  # type: ignore[type-arg]


class TailHub(ABC, Generic[KeyT, TailT]):
    """Feeds the watchers of one process. `poll` is how often all that is watched is looked at
    without a bell."""

    def __init__(self, engine: Engine, poll: timedelta) -> None:
        self._engine = engine
        self._poll = poll.total_seconds()
        self._tails: dict[KeyT, TailT] = {}
        # Tails that hold frames, the one that grew last at the end.
        self._warm: dict[KeyT, TailT] = {}
        self._bell = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def watched(self) -> int:
        """How many things are watched."""
        return len(self._tails)

    # ---- what each hub tells ---------------------------------------------------------------

    @abstractmethod
    def _heard(self, moved: Moved) -> None:
        """A bell has rung; whoever waits for the hub's own bell is to hear of it."""

    @abstractmethod
    async def _until_due(self) -> None:
        """Returns when there is something to look at, or nobody watches any more."""

    @abstractmethod
    async def _look(self) -> None:
        """Reads what is new and lets tails grow."""

    def _begins(self) -> None:
        """The first watcher of a while has come."""

    # ---- who watches what ------------------------------------------------------------------

    @contextmanager
    def _watched(self, fresh: TailT, flag: asyncio.Event) -> Iterator[TailT]:
        """The tail of a thing while somebody watches it: the one that there is, else `fresh`, whose
        head was just read."""
        tail = self._tails.setdefault(fresh.key, fresh)
        tail.flags.add(flag)
        self._joined(tail, fresh)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())
        try:
            yield tail
        finally:
            tail.flags.discard(flag)
            if not tail.flags:
                self._forget(tail)

    def _joined(self, tail: TailT, fresh: TailT) -> None:
        """Somebody has come. What came since it looked has rung for nobody."""
        self._bell.set()

    def _forget(self, tail: TailT) -> None:
        del self._tails[tail.key]
        self._warm.pop(tail.key, None)
        if not self._tails:
            self._bell.set()

    # ---- looking ---------------------------------------------------------------------------

    async def _run(self) -> None:
        stop_hearing = self._engine.bells.watch_moves(self._heard)
        self._begins()
        try:
            while self._tails:
                await self._until_due()
                await self._look_or_pause()
        finally:
            stop_hearing()

    async def _look_or_pause(self) -> None:
        """What could not be looked at now is found by the next look."""
        try:
            await self._look()
        except (EarnestError, asyncpg.PostgresError, *LOST) as error:
            log.warning("hub.read_failed", hub=type(self).__name__, error=str(error))
            await asyncio.sleep(PAUSE)
        except Exception:
            # A hub that ends would leave all its watchers in silence.
            log.exception("hub.broken", hub=type(self).__name__)
            await asyncio.sleep(PAUSE)

    async def _until_rung(self, until: float) -> None:
        """Until the hub's bell rings, or that time of the loop has come."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(until):
                await self._bell.wait()

    def _grew(self, tail: TailT) -> None:
        tail.wake()
        self._warm.pop(tail.key, None)
        self._warm[tail.key] = tail
        if len(self._warm) > KEPT_TAILS:
            self._warm.pop(next(iter(self._warm))).empty()
