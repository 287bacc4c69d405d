"""Fencing: what the owners of runs write goes in groups, and each item stands or falls alone.

An item that was fenced out raises `FencedOut` in its own attempt. One on whose run somebody else
sits is skipped and tried again for as long as its lease lives: it holds up no other, and no
connection waits for it. Every write that was stored renews its lease, and hears of a cancel.

What has a transaction of its own waits for such a row as any statement does, and then `patiently`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, Protocol, TypeVar

from earnest.domain import ids
from earnest.domain.errors import FencedOut
from earnest.engine.process.logs import get_logger
from earnest.engine.runs.grouping import Group
from earnest.engine.runs.leasing import HeldLease, Leases, boot_seconds
from earnest.store.database import BUSY
from earnest.store.executions import Key, Unwritten

log = get_logger("earnest.fencing")

# Seconds before a row on which somebody sits is tried again: first, and at most.
_SOON, _LATER = 0.002, 0.25


class Owned(Protocol):
    """What an owner wants to write."""

    @property
    def key(self) -> Key: ...
    @property
    def fence(self) -> int: ...


class Heard(Protocol):
    """What the database says of an item that was stored."""

    @property
    def cancel_requested(self) -> bool: ...


T = TypeVar("T")
OwnedT = TypeVar("OwnedT", bound=Owned)
HeardT = TypeVar("HeardT", bound=Heard)


class OwnersGroup(Generic[OwnedT, HeardT]):
    """`flush` stores items and returns one answer each, in order. At most `most` go together."""

    def __init__(
        self,
        leases: Leases,
        flush: Callable[[Sequence[OwnedT]], Awaitable[Sequence[HeardT | Unwritten]]],
        most: int = 500,
    ) -> None:
        self._leases = leases
        self._group: Group[OwnedT, HeardT | Unwritten] = Group(flush, most)

    async def put(self, item: OwnedT) -> HeardT:
        """Stores the item together with others. Raises `FencedOut`, and its own error."""
        wait = _SOON
        while True:
            asked_at = boot_seconds()
            answer = await self._group.put(item)
            held = self._leases.find(item.key, item.fence)
            if not isinstance(answer, Unwritten):
                self._renewed(held, asked_at, answer.cancel_requested)
                return answer
            if answer is Unwritten.FENCED or held is None or not held.valid():
                self._leases.on_fenced()
                raise _fenced_out(item, held)
            await asyncio.sleep(wait)
            wait = min(2 * wait, _LATER)

    def _renewed(self, held: HeldLease | None, asked_at: float, cancel_requested: bool) -> None:
        if held is not None:
            self._leases.extend(held, asked_at)
            if cancel_requested:
                held.tell_cancel()


async def patiently(valid: Callable[[], bool], work: Callable[[], Awaitable[T]]) -> T:
    """Does it, again if somebody sat on a row of it for longer than a statement waits, while it is
    `valid`: nobody's work fails because of that."""
    while True:
        try:
            return await work()
        except BUSY as error:
            if not valid():
                raise
            log.warning("row.waited_for", error=str(error))


def _fenced_out(item: Owned, held: HeldLease | None) -> FencedOut:
    if held is not None:
        held.lose()
    shown = ids.show("run", item.key[1])
    return FencedOut(f"attempt {item.fence} no longer owns run {shown}")
