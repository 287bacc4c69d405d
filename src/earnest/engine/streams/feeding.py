"""Feeding: one hub per process tells the feeds of scopes to however many people watch.

As `streaming` does for runs: a watcher has nothing but a position, what is new is read and encoded
once for all who see the same (an operator the scope's runs, a member its own), and what the hub
does not hold any more is read from the table. Who sees what is decided in the query.

Before it looks, the hub has the feed caught up. Bells say when; without any it looks all the same,
every `poll`. A hub that nobody watches does nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import accumulate, takewhile

import asyncpg

from earnest.domain.errors import EarnestError
from earnest.domain.event import Event
from earnest.engine.process.doorbells import Moved
from earnest.engine.process.engine import Engine
from earnest.engine.process.logs import get_logger
from earnest.engine.streams.sequencing import Sequencer
from earnest.engine.streams.streaming import (
    KEPT_BYTES,
    KEPT_EVENTS,
    KEPT_TAILS,
    LOOKED_AT_ONCE,
    PAGE,
    PAGE_BYTES,
    PAUSE,
    Frame,
)
from earnest.store import feed
from earnest.store.database import LOST
from earnest.store.feed import Bounds, Fed, Page, Place

log = get_logger("earnest.feeding")

# Seconds between two looks: what happens in between is told together.
PACE = 0.01

Key = tuple[str, str | None]
"""A scope, and whose runs of it: the principal that asked for them, `None` for everybody's."""

Encode = Callable[[int, Event], bytes]


@dataclass(slots=True, eq=False)
class Tail:
    """The newest part of what is seen of one feed: everything after `floor` up to `head`, which are
    positions of the scope. Between two frames others' events may lie."""

    key: Key
    head: int
    floor: int
    frames: deque[Frame] = field(default_factory=deque)
    size: int = 0
    flags: set[asyncio.Event] = field(default_factory=set)

    def grow(self, frames: Sequence[Frame], head: int) -> None:
        """Takes what comes next, up to the position `head`."""
        self.frames.extend(frames)
        self.size += sum(len(frame.data) for frame in frames)
        self.head = head
        while len(self.frames) > KEPT_EVENTS or self.size > KEPT_BYTES:
            dropped = self.frames.popleft()
            self.size -= len(dropped.data)
            self.floor = dropped.seq

    def after(self, position: int) -> list[Frame] | None:
        """What comes after a position; `None` when the tail does not reach back that far."""
        if position < self.floor:
            return None
        newer = takewhile(lambda frame: frame.seq > position, reversed(self.frames))
        return list(newer)[::-1]

    def empty(self) -> None:
        self.frames.clear()
        self.size, self.floor = 0, self.head

    def wake(self) -> None:
        for flag in self.flags:
            flag.set()


class FeedHub:
    """Feeds the watchers of one process. `encode` gives an event at its position the bytes that are
    sent; `poll` is how often it is looked without a bell."""

    def __init__(
        self, engine: Engine, encode: Encode, *, poll: timedelta = timedelta(seconds=1)
    ) -> None:
        self.sequencer = Sequencer(engine)
        self._engine = engine
        self._encode = encode
        self._poll = poll.total_seconds()
        self._tails: dict[Key, Tail] = {}
        # Tails that hold events, the one that grew last at the end.
        self._warm: dict[Key, Tail] = {}
        self._bell = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @contextmanager
    def watch(self, key: Key, bounds: Bounds, flag: asyncio.Event) -> Iterator[FeedWatch]:
        """Watches a feed that was just read to be as `bounds` says: whenever there is more, `flag`
        is set."""
        tail = self._tails.get(key)
        if tail is None:
            tail = self._tails[key] = Tail(key, bounds.head, bounds.head)
        tail.flags.add(flag)
        # What came since the caller looked has rung for nobody.
        self._bell.set()
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())
        try:
            yield FeedWatch(self._engine, self._encode, tail)
        finally:
            tail.flags.discard(flag)
            if not tail.flags:
                self._forget(tail)

    def _forget(self, tail: Tail) -> None:
        del self._tails[tail.key]
        self._warm.pop(tail.key, None)
        if not self._tails:
            self._bell.set()

    # ---- looking ---------------------------------------------------------------------------

    def _heard(self, _: Moved) -> None:
        self._bell.set()

    async def _run(self) -> None:
        stop_hearing = self._engine.bells.watch_moves(self._heard)
        try:
            while self._tails:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._poll):
                        await self._bell.wait()
                self._bell.clear()
                await self._look_or_pause()
                await asyncio.sleep(PACE)
        finally:
            stop_hearing()

    async def _look_or_pause(self) -> None:
        """What could not be looked at now is found by the next look."""
        try:
            await self.sequencer.catch_up(self._poll)
            await self._look()
        except (EarnestError, asyncpg.PostgresError, *LOST) as error:
            log.warning("feed.read_failed", error=str(error))
            await asyncio.sleep(PAUSE)
        except Exception:
            # A hub that ends would leave all its watchers in silence.
            log.exception("feed.broken")
            await asyncio.sleep(PAUSE)

    async def _look(self) -> None:
        """Reads what is new: of all who watch, while these are few, else of scopes that have
        grown."""
        tails = list(self._tails.values())
        if len(tails) > LOOKED_AT_ONCE:
            tails = await self._behind(tails)
        for start in range(0, len(tails), LOOKED_AT_ONCE):
            await self._read(tails[start : start + LOOKED_AT_ONCE])

    async def _behind(self, tails: list[Tail]) -> list[Tail]:
        scopes = sorted({tail.key[0] for tail in tails})
        bounds = await feed.bounds(self._engine.database, scopes)
        return [tail for tail in tails if tail.head < bounds[tail.key[0]].head]

    async def _read(self, tails: list[Tail]) -> None:
        places = [Place(*tail.key, tail.head) for tail in tails]
        pages = await feed.after(self._engine.database, places, PAGE)
        for tail, page in zip(tails, pages, strict=True):
            if self._tails.get(tail.key) is tail and tail.head < page.bounds.head:
                self._grow(tail, page)

    def _grow(self, tail: Tail, page: Page) -> None:
        tail.grow(_encoded(self._encode, page.fed), _reached(page, PAGE))
        if any(fed.event is None for fed in page.fed):
            # Some are gone: the watchers are to find that out from the table.
            tail.empty()
        tail.wake()
        self._warm.pop(tail.key, None)
        self._warm[tail.key] = tail
        if len(self._warm) > KEPT_TAILS:
            self._warm.pop(next(iter(self._warm))).empty()
        if len(page.fed) == PAGE:
            self._bell.set()


def _encoded(encode: Encode, found: list[Fed]) -> list[Frame]:
    return [
        Frame(fed.position, encode(fed.position, fed.event), False)
        for fed in found
        if fed.event is not None
    ]


def _reached(page: Page, limit: int) -> int:
    """Up to which position nothing else is to be seen but what is on the page."""
    return page.fed[-1].position if len(page.fed) == limit else page.bounds.head


@dataclass(frozen=True, slots=True)
class FeedPage:
    """What comes next, and up to which position that is all there is to see. `broken`: something
    before or between is no longer kept."""

    frames: list[Frame]
    reached: int
    broken: bool = False


@dataclass(slots=True)
class FeedWatch:
    """One watcher's view of a feed."""

    _engine: Engine
    _encode: Encode
    _tail: Tail

    @property
    def key(self) -> Key:
        return self._tail.key

    @property
    def head(self) -> int:
        """The newest position that is known here."""
        return self._tail.head

    def at_hand(self, position: int) -> FeedPage | None:
        """All that is known after `position`; `None` when the table must be asked."""
        frames = self._tail.after(position)
        return None if frames is None else FeedPage(frames, max(position, self.head))

    async def page(self, position: int) -> FeedPage:
        """From the table: the next events after `position`, at most `PAGE_BYTES` or one event."""
        page = await read_page(self._engine, Place(*self.key, position), PAGE)
        if page is None:
            return FeedPage([], position, broken=True)
        frames = _encoded(self._encode, page.fed)
        sizes = accumulate(len(frame.data) for frame in frames)
        fitting = max(1, sum(1 for _ in takewhile(lambda size: size <= PAGE_BYTES, sizes)))
        if fitting < len(frames):
            return FeedPage(frames[:fitting], frames[fitting - 1].seq)
        return FeedPage(frames, max(position, _reached(page, PAGE)))


async def read_page(engine: Engine, place: Place, limit: int) -> Page | None:
    """What comes after a place; `None` when something before it, or of it, is no longer kept."""
    (page,) = await feed.after(engine.database, [place], limit)
    is_broken = place.position < page.bounds.minimum - 1
    return None if is_broken or any(fed.event is None for fed in page.fed) else page
