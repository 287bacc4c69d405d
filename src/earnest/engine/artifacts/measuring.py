"""Measuring: what passes is cut into pieces of one size, counted and hashed on its way."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterable, AsyncIterator, Callable

from earnest.domain.artifact import PIECE_BYTES, Content


class Measure:
    """Measures one content. `check` is told how many bytes there are so far, and may raise."""

    def __init__(self, check: Callable[[int], None] = lambda _: None) -> None:
        self._check = check
        self._size = 0
        self._whole = hashlib.sha256()
        self._pieces = bytearray()

    async def pieces(self, chunks: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
        """The same bytes in pieces; no more than one and a chunk are held. The event loop is not
        kept from others while they are hashed."""
        async for piece in in_pieces(chunks):
            self._size += len(piece)
            self._check(self._size)
            await asyncio.to_thread(self._take, piece)
            yield piece

    def content(self) -> Content:
        """What it was, once all pieces were taken."""
        return Content(self._size, self._whole.digest(), bytes(self._pieces))

    def _take(self, piece: bytes) -> None:
        self._whole.update(piece)
        self._pieces += hashlib.sha256(piece).digest()


async def in_pieces(chunks: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    """Chunks of any size as pieces of `PIECE_BYTES`; the last one may be smaller."""
    waiting = bytearray()
    async for chunk in chunks:
        rest = memoryview(chunk)
        while rest:
            taken = rest[: PIECE_BYTES - len(waiting)]
            waiting += taken
            rest = rest[len(taken) :]
            if len(waiting) == PIECE_BYTES:
                yield bytes(waiting)
                waiting.clear()
    if waiting:
        yield bytes(waiting)
