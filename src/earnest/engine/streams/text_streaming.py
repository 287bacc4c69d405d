"""Streaming text: the hub that tells what runs write, and how they stand, to however many watch.

As `streaming` does for events: a watcher has nothing but a sequence, what is new is read and
encoded once for all, and what the hub does not hold any more is read from the table. Beside the
text a tail has how its run stands, so that nobody asks for that alone.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta

from earnest.domain.text import Standing, TextDelta
from earnest.engine.process.engine import Engine
from earnest.engine.streams.streaming import Key, RunHub, RunTail
from earnest.engine.streams.tails import PAGE, PAGE_BYTES, Frame
from earnest.store import texts
from earnest.store.visible import Sight

Encode = Callable[[TextDelta], bytes]


@dataclass(slots=True, eq=False)
class TextTail(RunTail):
    """The newest text of one watched run, and how the run stands."""

    standing: Standing = field(kw_only=True)

    def stand(self, found: Standing) -> None:
        """Takes how the run stands now. Text that is still to come wakes by itself."""
        before, self.standing = self.standing, found.after(self.standing)
        if self.standing.told != before.told:
            self.wake()


class TextHub(RunHub[TextTail]):
    """Feeds the watchers of one process with the text of runs. `encode` gives a delta the bytes
    that are sent."""

    def __init__(
        self, engine: Engine, encode: Encode, *, poll: timedelta = timedelta(seconds=1)
    ) -> None:
        super().__init__(engine, poll)
        self._encode = encode

    @contextmanager
    def watch(
        self, scope_id: str, run_id: uuid.UUID, standing: Standing, flag: asyncio.Event
    ) -> Iterator[TextWatch]:
        """Watches a run that was just read to stand so: whenever it stands otherwise or has more
        text, `flag` is set."""
        fresh = TextTail((scope_id, run_id), standing.last_sequence, standing=standing)
        with self._watched(fresh, flag) as tail:
            yield TextWatch(self._engine, self._encode, tail)

    def _has_more(self, tail: TextTail, count: int) -> bool:
        return tail.head < tail.standing.last_sequence

    async def _read(self, tails: list[TextTail]) -> list[tuple[Key, Frame]]:
        database = self._engine.database
        stand = await texts.standings(
            database, [(tail.key, tail.standing.looked_at) for tail in tails]
        )
        heads = [
            (tail.key, tail.head)
            for tail in tails
            if tail.key in stand and stand[tail.key].last_sequence > tail.head
        ]
        found = await texts.after(database, heads, PAGE, PAGE_BYTES) if heads else []
        for tail in tails:
            if tail.key in stand:
                tail.stand(stand[tail.key])
        return [(key, _framed(delta, self._encode)) for key, delta in found]


@dataclass(slots=True)
class TextWatch:
    """One watcher's view of a run's text."""

    _engine: Engine
    _encode: Encode
    _tail: TextTail

    @property
    def head(self) -> int:
        """The newest sequence that is known here."""
        return self._tail.head

    @property
    def standing(self) -> Standing:
        return self._tail.standing

    def at_hand(self, sequence: int) -> list[Frame] | None:
        """All that is known after `sequence`, in order; `None` when the table must be asked."""
        return self._tail.after(sequence)

    async def page(self, sequence: int, asked_by: str | None) -> list[Frame]:
        """From the table: the next text after `sequence`, about `PAGE_BYTES` of it. There is none
        below the head when it is no longer kept, or the run is not one that the principal
        `asked_by` asked for (`None`: whoever did)."""
        sight = Sight(*self._tail.key, asked_by)
        found = await texts.visible(self._engine.database, sight, sequence, PAGE, PAGE_BYTES)
        return [_framed(delta, self._encode) for delta in found]


def _framed(delta: TextDelta, encode: Encode) -> Frame:
    return Frame(delta.sequence, encode(delta), final=False)
