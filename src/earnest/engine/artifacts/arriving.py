"""Arriving: bytes on their way to their place, under a name that the database knows first."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Coroutine
from datetime import timedelta
from typing import Any

from earnest.domain import ids
from earnest.domain.artifact import BlobKey
from earnest.domain.crash_points import reach
from earnest.domain.errors import Conflict, EarnestError, StorageUnavailable
from earnest.engine.artifacts.places import mark, place_of
from earnest.engine.process.engine import Engine
from earnest.engine.process.logs import get_logger
from earnest.store import artifacts
from earnest.store.database import Tx

log = get_logger("earnest.artifacts")

ALIVE = timedelta(minutes=5)
"""So long after its last sign of life an upload is given up."""
_SIGN_EVERY = 30.0  # seconds

_leaving: set[asyncio.Task[None]] = set()


class Arrival:
    """One name and the bytes that come to it."""

    def __init__(self, engine: Engine, key: BlobKey) -> None:
        self.key = key
        self._engine = engine
        self._signed_at = time.monotonic()

    @classmethod
    async def announce(cls, engine: Engine, scope_id: str) -> Arrival:
        await mark(engine)
        key = BlobKey(scope_id, ids.new_id())

        async def work(tx: Tx) -> None:
            await artifacts.announce(tx, key, ALIVE)

        await engine.database.promise("announce", work, one_statement=True)
        return cls(engine, key)

    async def write(self, pieces: AsyncIterator[bytes]) -> None:
        """Stores the bytes; gives signs of life meanwhile. Raises `StorageUnavailable`, `Conflict`
        where it was given up, and what `pieces` raises."""
        reach("write.before")
        try:
            await place_of(self._engine).write(self.key, self._signed(pieces))
        except StorageUnavailable as error:
            await self._sign()  # what was given up is taken away under its writer's hands
            log.warning("artifacts.unavailable", error=error.detail)
            raise
        reach("write.after")
        await self.sign()

    async def _signed(self, pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        async for piece in pieces:
            await self.sign()
            yield piece

    async def sign(self) -> None:
        """A sign of life, if the last one was some time ago. Raises `Conflict`."""
        if time.monotonic() - self._signed_at < _SIGN_EVERY:
            return
        await self._sign()

    async def _sign(self) -> None:
        async def work(tx: Tx) -> bool:
            return await artifacts.keep_arriving(tx, self.key, ALIVE)

        if not await self._engine.database.promise("announce", work, one_statement=True):
            raise given_up()
        self._signed_at = time.monotonic()

    async def leave(self) -> None:
        """It comes to nothing, or others have the bytes already: they are taken away, also if the
        caller is cancelled meanwhile. Where that cannot be now, a collector does it."""
        await _to_its_end(self._leave())

    async def _leave(self) -> None:
        async def discard(tx: Tx) -> bool:
            return await artifacts.discard_arriving(tx, self.key)

        async def forget(tx: Tx) -> None:
            await artifacts.forget_blobs(tx, [self.key])

        try:
            await self._engine.database.promise("discard", discard, patience=5)
            # What was stored after all stays.
            if not await artifacts.is_stored(self._engine.database, self.key):
                await place_of(self._engine).remove(self.key)
                await self._engine.database.promise("collect", forget, patience=5)
        except EarnestError as error:
            log.warning("artifact.left_behind", blob=self.key.blob_id.hex, error=error.detail)


def given_up() -> Conflict:
    return Conflict(
        "nothing was heard of this upload for too long, so it was given up; send it again"
    )


async def _to_its_end(work: Coroutine[Any, Any, None]) -> None:
    task = asyncio.create_task(work)
    _leaving.add(task)
    task.add_done_callback(_leaving.discard)
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.shield(task)
