"""Streaming: one hub per process tells what happens to runs to however many people watch.

What a watcher sees and what the hub holds of it is told in `tails`. Bells say which runs moved;
every watched run is looked at from time to time all the same.
"""

from __future__ import annotations

import asyncio
import uuid
from abc import abstractmethod
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from itertools import islice
from typing import TypeVar

from earnest.domain.event import Event
from earnest.engine.process.doorbells import Moved
from earnest.engine.process.engine import Engine
from earnest.engine.streams.tails import (
    LOOKED_AT_ONCE,
    PAGE,
    PAGE_BYTES,
    PAUSE,
    Frame,
    Tail,
    TailHub,
)
from earnest.store import facts, visible
from earnest.store.visible import Sight

Key = tuple[str, uuid.UUID]

FIRST_PAGE = 20

Encode = Callable[[Event], bytes]


class RunTail(Tail[Key]):
    """The newest of one watched run. Its frames are contiguous."""

    __slots__ = ()

    def add(self, frame: Frame) -> None:
        """Takes the newest one. After a hole, which retention may leave, it begins anew."""
        if frame.seq != self.head + 1:
            self.empty()
            self.floor = frame.seq - 1
        self.grow([frame], frame.seq)


TailT = TypeVar("TailT", bound=RunTail)


class RunHub(TailHub[Key, TailT]):
    """Feeds the watchers of one process with something that runs have more and more of, in order:
    what that is and how it is read is another class's. One statement looks at so many runs of each
    sort, named ones and those whose turn it is."""

    def __init__(self, engine: Engine, poll: timedelta) -> None:
        super().__init__(engine, poll)
        self._by_run: defaultdict[uuid.UUID, set[Key]] = defaultdict(set)
        # What to look at, each in order: first runs that a bell named, then those whose turn it is.
        self._moved: dict[Key, None] = {}
        self._due: dict[Key, None] = {}
        self._sweep_at = self._swept_at = 0.0

    @abstractmethod
    async def _read(self, tails: list[TailT]) -> list[tuple[Key, Frame]]:
        """What is new of these runs; of each in order."""

    def _has_more(self, tail: TailT, count: int) -> bool:
        """Whether there was more than the `count` frames that were just read."""
        return count == PAGE

    def _joined(self, tail: TailT, fresh: TailT) -> None:
        if tail is fresh:
            self._by_run[tail.key[1]].add(tail.key)
        if tail is fresh or tail.head < fresh.head:
            self._look_soon(tail.key)

    def _forget(self, tail: TailT) -> None:
        super()._forget(tail)
        keys = self._by_run[tail.key[1]]
        keys.discard(tail.key)
        if not keys:
            del self._by_run[tail.key[1]]

    # ---- what to look at -------------------------------------------------------------------

    def _begins(self) -> None:
        self._sweep_at = asyncio.get_running_loop().time() + self._poll

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
        now = asyncio.get_running_loop().time
        while self._tails:
            if now() >= self._sweep_at:
                self._due.update(dict.fromkeys(self._tails))
                self._swept_at, self._sweep_at = now(), now() + self._poll
            if self._moved or self._due:
                return
            self._bell.clear()
            await self._until_rung(self._sweep_at)

    def _take(self) -> list[TailT]:
        """The next tails to look at: some that were named, some whose turn it is."""
        taken = [*islice(self._moved, LOOKED_AT_ONCE), *islice(self._due, LOOKED_AT_ONCE)]
        for key in taken:
            self._moved.pop(key, None)
            self._due.pop(key, None)
        return [self._tails[key] for key in dict.fromkeys(taken) if key in self._tails]

    async def _look(self) -> None:
        tails = self._take()
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


class Hub(RunHub[RunTail]):
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
        with self._watched(RunTail((scope_id, run_id), head), flag) as tail:
            yield Watch(self._engine, self._encode, tail)

    async def _read(self, tails: list[RunTail]) -> list[tuple[Key, Frame]]:
        """In one statement."""
        heads = [(tail.key, tail.head) for tail in tails]
        found = await facts.events_after(self._engine.database, heads, PAGE)
        return [(key, Frame(event.seq, self._encode(event), event.final)) for key, event in found]


@dataclass(slots=True)
class Watch:
    """One watcher's view of a run."""

    _engine: Engine
    _encode: Encode
    _tail: RunTail
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
        events = await visible.events(self._engine.database, sight, seq, self._rows, PAGE_BYTES)
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
