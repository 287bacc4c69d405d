"""Feeding: one hub per process tells the feeds of scopes to however many people watch.

What a watcher sees and what the hub holds of it is told in `tails`; those who see the same (an
operator the scope's runs, a member its own) share a tail. Who sees what is decided in the query.

Before it looks, the hub has the feed caught up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from itertools import accumulate, takewhile

from earnest.domain.event import Event
from earnest.engine.process.doorbells import Moved
from earnest.engine.process.engine import Engine
from earnest.engine.process.logs import get_logger
from earnest.engine.streams.sequencing import Sequencer
from earnest.engine.streams.tails import LOOKED_AT_ONCE, PAGE, PAGE_BYTES, Frame, Tail, TailHub
from earnest.store import feed
from earnest.store.feed import Bounds, Fed, Page, Place

log = get_logger("earnest.feeding")

# Seconds between two looks: what happens in between is told together.
PACE = 0.01

Key = tuple[str, str | None]
"""A scope, and whose runs of it: the principal that asked for them, `None` for everybody's."""

Encode = Callable[[int, Event], bytes]


FeedTail = Tail[Key]
"""Its places are positions of the scope; between two frames others' events may lie."""


class FeedHub(TailHub[Key, FeedTail]):
    """Feeds the watchers of one process. `encode` gives an event at its position the bytes that are
    sent."""

    def __init__(
        self, engine: Engine, encode: Encode, *, poll: timedelta = timedelta(seconds=1)
    ) -> None:
        super().__init__(engine, poll)
        self.sequencer = Sequencer(engine)
        self._encode = encode

    @contextmanager
    def watch(self, key: Key, bounds: Bounds, flag: asyncio.Event) -> Iterator[FeedWatch]:
        """Watches a feed that was just read to be as `bounds` says: whenever there is more, `flag`
        is set."""
        with self._watched(FeedTail(key, bounds.head), flag) as tail:
            yield FeedWatch(self._engine, self._encode, tail)

    # ---- looking ---------------------------------------------------------------------------

    def _heard(self, _: Moved) -> None:
        self._bell.set()

    async def _until_due(self) -> None:
        await self._until_rung(asyncio.get_running_loop().time() + self._poll)
        self._bell.clear()

    async def _look_or_pause(self) -> None:
        await super()._look_or_pause()
        await asyncio.sleep(PACE)

    async def _look(self) -> None:
        """Of all who watch, while these are few, else of scopes that have grown."""
        await self.sequencer.catch_up(self._poll)
        tails = list(self._tails.values())
        if len(tails) > LOOKED_AT_ONCE:
            tails = await self._behind(tails)
        for start in range(0, len(tails), LOOKED_AT_ONCE):
            await self._read(tails[start : start + LOOKED_AT_ONCE])

    async def _behind(self, tails: list[FeedTail]) -> list[FeedTail]:
        scopes = sorted({tail.key[0] for tail in tails})
        bounds = await feed.bounds(self._engine.database, scopes)
        return [tail for tail in tails if tail.head < bounds[tail.key[0]].head]

    async def _read(self, tails: list[FeedTail]) -> None:
        places = [Place(*tail.key, tail.head) for tail in tails]
        pages = await feed.after(self._engine.database, places, PAGE)
        for tail, page in zip(tails, pages, strict=True):
            if self._tails.get(tail.key) is tail and tail.head < page.bounds.head:
                self._grow(tail, page)

    def _grow(self, tail: FeedTail, page: Page) -> None:
        tail.grow(_encoded(self._encode, page.fed), _reached(page, PAGE))
        if any(fed.event is None for fed in page.fed):
            # Some are gone: the watchers are to find that out from the table.
            tail.empty()
        self._grew(tail)
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
    _tail: FeedTail

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
