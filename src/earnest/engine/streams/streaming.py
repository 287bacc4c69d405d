"""Streaming: one hub per process reads new events once, however many people watch.

The hub keeps, for each run that is watched, a *tail*: the newest events, encoded once, bounded.
A watcher has nothing but a number, the last event it was given; it asks for what comes after. What
the tail still has is served from there, older events are read from the table by number, so replay
and live have no seam: the watcher's flag is known here before its first page is read, and there is
no queue per watcher that could overflow. A watcher that does not ask holds nothing (P10).

Bells say which runs moved. A bell is a hint: every watched run is looked at from time to time, so
with all bells lost everything still comes, later (P9). A hub that nobody watches does nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from abc import ABC, abstractmethod
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import islice
from typing import Generic, TypeVar

import asyncpg

from earnest.domain.errors import EarnestError
from earnest.domain.event import Event
from earnest.engine.process.doorbells import Moved
from earnest.engine.process.engine import Engine
from earnest.engine.process.logs import get_logger
from earnest.store import facts, visible
from earnest.store.database import LOST
from earnest.store.visible import Sight

log = get_logger("earnest.streaming")

Key = tuple[str, uuid.UUID]

KEPT_EVENTS = 256
KEPT_BYTES = 128 * 1024
# So many tails hold events, those that grew last: with their bytes this bounds the hub's memory.
KEPT_TAILS = 512
# What is read at once of one run: as many rows at most, and for a watcher that lags as many bytes.
PAGE = 100
PAGE_BYTES = 32 * 1024
FIRST_PAGE = 20
# How many runs one statement looks at of each sort, named ones and those whose turn it is; and how
# many seconds pass until the next after a failure, or after a storm of bells that name no runs.
LOOKED_AT_ONCE = 100
PAUSE = 0.1


@dataclass(frozen=True, slots=True)
class Frame:
    """An event in the form in which it is sent: encoded once for all who watch."""

    seq: int
    data: bytes
    final: bool


Encode = Callable[[Event], bytes]


@dataclass(slots=True, eq=False)
class Tail:
    """The newest events of one watched run. `head` is the newest number that the hub knows of;
    `frames` are contiguous and end there."""

    key: Key
    head: int
    frames: deque[Frame] = field(default_factory=deque)
    size: int = 0
    flags: set[asyncio.Event] = field(default_factory=set)

    def add(self, frame: Frame) -> None:
        """Takes the newest event. After a hole, which retention may leave, it begins anew."""
        if frame.seq != self.head + 1:
            self.empty()
        self.head = frame.seq
        self.frames.append(frame)
        self.size += len(frame.data)
        while len(self.frames) > KEPT_EVENTS or self.size > KEPT_BYTES:
            self.size -= len(self.frames.popleft().data)

    def after(self, seq: int) -> list[Frame] | None:
        """What comes after `seq`; `None` when the tail does not reach back that far."""
        missing = self.head - seq
        if missing <= 0:
            return []
        if missing > len(self.frames):
            return None
        return list(islice(self.frames, len(self.frames) - missing, None))

    def empty(self) -> None:
        self.frames.clear()
        self.size = 0

    def wake(self) -> None:
        for flag in self.flags:
            flag.set()


TailT = TypeVar("TailT", bound=Tail)


class TailHub(ABC, Generic[TailT]):
    """Feeds the watchers of one process with something that runs have more and more of, in order:
    what that is and how it is read is another class's. `poll` is how often every watched run is
    looked at without a bell."""

    def __init__(self, engine: Engine, poll: timedelta) -> None:
        self._engine = engine
        self._poll = poll.total_seconds()
        self._tails: dict[Key, TailT] = {}
        self._by_run: defaultdict[uuid.UUID, set[Key]] = defaultdict(set)
        # Tails that hold events, the one that grew last at the end.
        self._warm: dict[Key, TailT] = {}
        # What to look at, each in order: first runs that a bell named, then those whose turn it is.
        self._moved: dict[Key, None] = {}
        self._due: dict[Key, None] = {}
        self._bell = asyncio.Event()
        self._sweep_at = self._swept_at = 0.0
        self._task: asyncio.Task[None] | None = None

    @property
    def watched(self) -> int:
        """How many runs are watched."""
        return len(self._tails)

    @abstractmethod
    async def _read(self, tails: list[TailT]) -> list[tuple[Key, Frame]]:
        """What is new of these runs; of each in order."""

    def _has_more(self, tail: TailT, count: int) -> bool:
        """Whether there was more than the `count` frames that were just read."""
        return count == PAGE

    @contextmanager
    def _watched(self, fresh: TailT, flag: asyncio.Event) -> Iterator[TailT]:
        """The tail of a run while somebody watches it: the one that there is, else `fresh`, whose
        head was just read."""
        tail = self._join(fresh)
        tail.flags.add(flag)
        try:
            yield tail
        finally:
            tail.flags.discard(flag)
            if not tail.flags:
                self._forget(tail)

    # ---- who watches what ------------------------------------------------------------------

    def _join(self, fresh: TailT) -> TailT:
        tail = self._tails.setdefault(fresh.key, fresh)
        if tail is fresh:
            self._by_run[tail.key[1]].add(tail.key)
            # What came since the caller looked has rung for nobody.
            self._look_soon(tail.key)
        elif tail.head < fresh.head:
            self._look_soon(tail.key)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())
        return tail

    def _forget(self, tail: TailT) -> None:
        del self._tails[tail.key]
        self._warm.pop(tail.key, None)
        keys = self._by_run[tail.key[1]]
        keys.discard(tail.key)
        if not keys:
            del self._by_run[tail.key[1]]
        if not self._tails:
            self._bell.set()

    # ---- what to look at -------------------------------------------------------------------

    def _look_soon(self, *keys: Key) -> None:
        self._moved.update(dict.fromkeys(keys))
        self._bell.set()

    def _heard(self, moved: Moved) -> None:
        if moved is None:
            self._sweep_at = min(self._sweep_at, self._swept_at + PAUSE)
            self._bell.set()
            return
        keys = [key for run_id in moved for key in self._by_run.get(run_id, ())]
        if keys:
            self._look_soon(*keys)

    async def _until_due(self) -> None:
        """Until there is something to look at, or nobody watches any more."""
        now = asyncio.get_running_loop().time
        while self._tails:
            if now() >= self._sweep_at:
                self._due.update(dict.fromkeys(self._tails))
                self._swept_at, self._sweep_at = now(), now() + self._poll
            if self._moved or self._due:
                return
            self._bell.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(self._sweep_at):
                    await self._bell.wait()

    def _take(self) -> list[TailT]:
        """The next tails to look at: some that were named, some whose turn it is."""
        taken = [*islice(self._moved, LOOKED_AT_ONCE), *islice(self._due, LOOKED_AT_ONCE)]
        for key in taken:
            self._moved.pop(key, None)
            self._due.pop(key, None)
        return [self._tails[key] for key in dict.fromkeys(taken) if key in self._tails]

    # ---- looking ---------------------------------------------------------------------------

    async def _run(self) -> None:
        stop_hearing = self._engine.bells.watch_moves(self._heard)
        self._sweep_at = asyncio.get_running_loop().time() + self._poll
        try:
            while self._tails:
                await self._until_due()
                await self._look_or_pause()
        finally:
            stop_hearing()

    async def _look_or_pause(self) -> None:
        """What could not be looked at now is found by the next sweep."""
        try:
            await self._look(self._take())
        except (EarnestError, asyncpg.PostgresError, *LOST) as error:
            log.warning("hub.read_failed", error=str(error))
            await asyncio.sleep(PAUSE)
        except Exception:
            # A hub that ends would leave all its watchers in silence.
            log.exception("hub.broken")
            await asyncio.sleep(PAUSE)

    async def _look(self, tails: list[TailT]) -> None:
        if not tails:
            return
        grown: Counter[Key] = Counter()
        for key, frame in await self._read(tails):
            tail = self._tails.get(key)
            if tail is not None and frame.seq > tail.head:
                tail.add(frame)
                grown[key] += 1
        for key, count in grown.items():
            tail = self._tails[key]
            self._grew(tail)
            if self._has_more(tail, count):
                self._look_soon(key)

    def _grew(self, tail: TailT) -> None:
        tail.wake()
        self._warm.pop(tail.key, None)
        self._warm[tail.key] = tail
        if len(self._warm) > KEPT_TAILS:
            self._warm.pop(next(iter(self._warm))).empty()


class Hub(TailHub[Tail]):
    """Feeds the watchers of one process with the events of runs. `encode` gives an event the bytes
    that are sent."""

    def __init__(
        self, engine: Engine, encode: Encode, *, poll: timedelta = timedelta(seconds=1)
    ) -> None:
        super().__init__(engine, poll)
        self._encode = encode

    @contextmanager
    def watch(
        self, scope_id: str, run_id: uuid.UUID, head: int, flag: asyncio.Event
    ) -> Iterator[Watch]:
        """Watches a run whose newest event was just read to be `head`: whenever there is more,
        `flag` is set."""
        with self._watched(Tail((scope_id, run_id), head), flag) as tail:
            yield Watch(self._engine, self._encode, tail)

    async def _read(self, tails: list[Tail]) -> list[tuple[Key, Frame]]:
        """In one statement."""
        heads = [(tail.key, tail.head) for tail in tails]
        found = await facts.events_after(self._engine.database, heads, PAGE)
        return [(key, Frame(event.seq, self._encode(event), event.final)) for key, event in found]


@dataclass(slots=True)
class Watch:
    """One watcher's view of a run."""

    _engine: Engine
    _encode: Encode
    _tail: Tail
    _rows: int = FIRST_PAGE

    @property
    def head(self) -> int:
        """The newest number that is known here."""
        return self._tail.head

    def at_hand(self, seq: int) -> list[Frame] | None:
        """All that is known after `seq`, in order and without a hole; `None` when the table must be
        asked."""
        return self._tail.after(seq)

    async def page(self, seq: int, asked_by: str | None) -> list[Frame]:
        """From the table: the next events after `seq`, at most `PAGE_BYTES` or one event. They do
        not begin with the next number when that is no longer kept; there are none below the head
        when nothing is, or the run is not one that the principal `asked_by` asked for (`None`:
        whoever did)."""
        sight = Sight(*self._tail.key, asked_by)
        events = await visible.events(self._engine.database, sight, seq, self._rows)
        frames: list[Frame] = []
        size = 0
        for event in events:
            frame = Frame(event.seq, self._encode(event), event.final)
            size += len(frame.data)
            if frames and size > PAGE_BYTES:
                break
            frames.append(frame)
        if frames:
            # The next page asks for no more rows than are likely to fit.
            self._rows = min(PAGE, 1 + PAGE_BYTES * len(frames) // size)
        return frames
