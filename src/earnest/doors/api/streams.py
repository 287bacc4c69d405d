"""What the streams of one process share: their settings, how many are open, and the epoch of the
positions that they give out, with the hub that feeds them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Annotated

import msgspec
from fastapi import Depends, Request

from earnest.domain.errors import SettingInvalid
from earnest.domain.event import Event
from earnest.domain.text import TextDelta
from earnest.doors.api import shapes, sse
from earnest.doors.api.showing import show_event, show_piece
from earnest.engine.process.engine import Engine
from earnest.engine.process.epoch import find_epoch
from earnest.engine.streams.feeding import FeedHub
from earnest.engine.streams.streaming import Hub
from earnest.engine.streams.text_streaming import TextHub

_LONGEST_HEARTBEAT = timedelta(seconds=15)
# How many of a process's readers ask the table for what was before at the same time. When many come
# at once, what is new does not queue behind what each of them missed: there are more sessions.
PAGES_AT_ONCE = 2


@dataclass(frozen=True, slots=True)
class StreamSettings:
    """`heartbeat`: how often a stream says that it lives, and asks whether its reader still may
    read; `send_deadline`: within what a reader must take what it is sent; a stream ends after a
    time between `shortest` and `longest`, and its reader comes again; `per_principal` and
    `per_process` bound how many are open; `poll`: how often events are looked for without a
    bell."""

    heartbeat: timedelta = _LONGEST_HEARTBEAT
    send_deadline: timedelta = timedelta(seconds=sse.SEND_DEADLINE)
    shortest: timedelta = timedelta(minutes=10)
    longest: timedelta = timedelta(minutes=15)
    per_principal: int = 32
    per_process: int = 5_000
    poll: timedelta = timedelta(seconds=1)

    def __post_init__(self) -> None:
        if not timedelta(0) < self.heartbeat <= _LONGEST_HEARTBEAT:
            raise SettingInvalid(
                f"a heartbeat every {self.heartbeat} cannot be: use at most {_LONGEST_HEARTBEAT}, "
                "so that a revoked token ends a stream in time"
            )


class Places:
    """How many streams are open, for each principal and in this process."""

    def __init__(self, per_principal: int, per_process: int) -> None:
        self._per_principal = per_principal
        self._per_process = per_process
        self._taken: Counter[tuple[str, str]] = Counter()
        self.open = 0

    @contextmanager
    def take(self, who: tuple[str, str]) -> Iterator[bool]:
        """Whether there is room for one more."""
        if self.open >= self._per_process or self._taken[who] >= self._per_principal:
            yield False
            return
        self.open += 1
        self._taken[who] += 1
        try:
            yield True
        finally:
            self.open -= 1
            self._taken[who] -= 1
            if not self._taken[who]:
                del self._taken[who]


@dataclass(frozen=True, slots=True)
class Life:
    """One epoch of the database, the hubs that give a run's and a scope's events with its
    positions, and the one that gives text."""

    epoch: str
    hub: Hub
    texts: TextHub
    feed: FeedHub


class Streams:
    """What the streams of one process share."""

    def __init__(self, engine: Engine, settings: StreamSettings | None = None) -> None:
        self.settings = settings or StreamSettings()
        self.paging = asyncio.Semaphore(PAGES_AT_ONCE)
        self.places = Places(self.settings.per_principal, self.settings.per_process)
        self._engine = engine
        self._life: Life | None = None
        self._look_at = 0.0
        self._looking = asyncio.Lock()

    async def life(self) -> Life:
        """The epoch of now, looked up once within a heartbeat. Another epoch has another hub:
        streams of the one before end at their next heartbeat."""
        async with self._looking:
            now = asyncio.get_running_loop().time()
            if self._life is None or now >= self._look_at:
                epoch = await find_epoch(self._engine)
                if self._life is None or self._life.epoch != epoch:
                    self._life = self._begin(epoch)
                self._look_at = now + self.settings.heartbeat.total_seconds() / 2
            return self._life

    def _begin(self, epoch: str) -> Life:
        engine, poll = self._engine, self.settings.poll
        return Life(
            epoch,
            Hub(engine, partial(encode, epoch), poll=poll),
            TextHub(engine, encode_text, poll=poll),
            FeedHub(engine, partial(encode_fed, epoch), poll=poll),
        )


def encode(epoch: str, event: Event) -> bytes:
    """The frame of an event, the same for everybody."""
    return sse.message(msgspec.json.encode(show_event(event)), show_position(epoch, event.seq))


def encode_fed(epoch: str, position: int, event: Event) -> bytes:
    """The same frame with a place in the feed of the event's scope."""
    return sse.message(msgspec.json.encode(show_event(event)), show_position(epoch, position))


def encode_text(delta: TextDelta) -> bytes:
    """The frames of a piece of text. Where it replaces what was written before, that is told with
    it: who comes again after the piece before hears of it too."""
    told = sse.control("delta", show_piece(delta), str(delta.sequence))
    reset: shapes.TextReset = {"attempt": delta.attempt}
    return sse.control("reset", reset) + told if delta.resets else told


def show_position(epoch: str, seq: int) -> str:
    return f"{epoch}-{seq}"


async def _streams_of(request: Request) -> Streams:
    found: Streams = request.app.state.streams
    return found


Streaming = Annotated[Streams, Depends(_streams_of)]
