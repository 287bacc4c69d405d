"""Logging: what a handler writes for the people who run it, kept with its attempt for a while.

`ctx.log` waits for nothing and never fails. Lines gather for a moment and are stored in groups,
those of many runs in one statement, under the fence of their attempt (P5); an attempt that ends has
its last lines stored before its ending is. A handler that logs nothing costs nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import Any

from earnest.domain import canonical, ids
from earnest.domain.errors import FencedOut
from earnest.domain.log_line import KEPT, MAX_FIELDS_BYTES, MAX_LINES
from earnest.engine.process.engine import Engine
from earnest.engine.process.logs import get_logger, shown_fields, shown_message
from earnest.engine.runs.fencing import OwnersGroup, patiently
from earnest.engine.runs.leasing import HeldLease, Leases
from earnest.store import logs
from earnest.store.database import Tx
from earnest.store.executions import Claimed, Unwritten
from earnest.store.logs import Lines, Logged

log = get_logger("earnest.logging")

GATHER = 0.5
"""Seconds that lines gather before they are stored."""
_AT_ONCE = 100
LEFT_OUT = {"fields": "left out: too large, or no JSON"}

Line = dict[str, Any]


async def prune_logs(engine: Engine, *, kept: timedelta = KEPT, limit: int = 50) -> int:
    """Removes lines that are older, of `limit` attempts at most; returns of how many."""

    async def work(tx: Tx) -> int:
        return await logs.prune(tx, kept, limit)

    return await engine.database.promise("prune", work, one_statement=True)


class Logs:
    """Stores lines for one process, of many runs in one statement."""

    def __init__(self, engine: Engine, leases: Leases) -> None:
        self._engine = engine
        self._group: OwnersGroup[Lines, Logged] = OwnersGroup(leases, self._store, _AT_ONCE)

    async def write(self, lines: Lines) -> None:
        """Raises `FencedOut`."""
        await self._group.put(lines)

    async def _store(self, batch: Sequence[Lines]) -> list[Logged | Unwritten]:
        lease = self._engine.settings.lease

        async def work(tx: Tx) -> list[Logged | Unwritten]:
            return await logs.write(tx, batch, lease)

        return await self._engine.database.promise("log", work, one_statement=True)


class LogWriter:
    """The lines of one attempt; to be used on its event loop."""

    def __init__(self, stores: Logs, claimed: Claimed, lease: HeldLease) -> None:
        self._logs = stores
        self._claimed = claimed
        self._lease = lease
        self._waiting: list[tuple[float, Line]] = []
        self._count = 0
        self._left_out = 0
        self._told_left_out = 0
        self._hurry = asyncio.Event()
        self._writing: asyncio.Task[None] | None = None

    def add(self, line: Line) -> None:
        """Takes a line; those beyond what is kept are counted."""
        if self._count >= MAX_LINES:
            self._left_out += 1
        else:
            self._count += 1
            self._waiting.append((time.monotonic(), {"number": self._count, **line}))
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write_waiting())

    async def flush(self) -> None:
        """Returns when what was taken until now is stored, or cannot be."""
        if self._writing is not None and not self._writing.done():
            self._hurry.set()
            await asyncio.wait({self._writing})

    @property
    def _has_more(self) -> bool:
        return bool(self._waiting) or self._left_out > self._told_left_out

    async def _write_waiting(self) -> None:
        while self._has_more:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(GATHER):
                    await self._hurry.wait()
            try:
                await self._write()
            except FencedOut:
                self._waiting.clear()
                return
            except Exception as error:  # what is lost is a log; the work goes on
                shown = ids.show("run", self._claimed.run_id)
                log.warning("lines.not_stored", run_id=shown, error=str(error))
        self._hurry.clear()

    async def _write(self) -> None:
        taken, self._waiting = self._waiting, []
        self._told_left_out = self._left_out
        now = time.monotonic()
        data = canonical.encode([{**line, "age": max(now - at, 0.0)} for at, line in taken])
        claimed = self._claimed
        lines = Lines(*claimed.key, claimed.fence, claimed.owner_token, data, self._left_out)
        await patiently(self._lease.valid, partial(self._logs.write, lines))


def make_line(message: object, fields: dict[str, Any]) -> Line:
    """A line as it is stored, whatever it says."""
    shown = shown_fields(fields)
    try:
        fits = len(canonical.encode(shown)) <= MAX_FIELDS_BYTES
    except canonical.NotJson:
        fits = False
    return {"message": shown_message(message), "fields": shown if fits else LEFT_OUT}
