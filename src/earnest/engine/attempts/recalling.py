"""Recalling: what stands behind a context. An attempt knows who it is and whether it still owns its
run, recalls by name what earlier attempts left, and writes what later ones shall find.

What a handler may ask for is `context.py`; how facts reach the database is `remembering.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Any, TypeVar

from earnest.domain import canonical, ids
from earnest.domain.errors import CodeChanged, FencedOut
from earnest.domain.run import Step
from earnest.engine.attempts.logging import Line, LogWriter
from earnest.engine.attempts.names import Names
from earnest.engine.attempts.remembering import Memory, Rememberer
from earnest.engine.attempts.texting import TextWriter
from earnest.engine.process.engine import Engine
from earnest.engine.runs import publishing
from earnest.engine.runs.fencing import patiently
from earnest.engine.runs.leasing import HeldLease
from earnest.store.executions import Claimed

T = TypeVar("T")


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


@dataclass(eq=False)
class Recalling:
    """One attempt at one run, without the verbs of its handler."""

    engine: Engine
    claimed: Claimed
    lease: HeldLease
    rememberer: Rememberer
    _names: Names = field(default_factory=Names)
    _memory: Memory | None = None
    _writer: TextWriter | None = None
    _log_writer: LogWriter | None = None
    _home: asyncio.AbstractEventLoop | None = field(default_factory=_running_loop)
    _closed: bool = False
    _calls: set[asyncio.Task[Any]] = field(default_factory=set)

    # ---- who and where ---------------------------------------------------------------------

    @property
    def scope_id(self) -> str:
        return self.claimed.scope_id

    @property
    def run_id(self) -> str:
        return ids.show("run", self.claimed.run_id)

    @property
    def attempt(self) -> int:
        """The number of this attempt; it is the fence."""
        return self.claimed.fence

    @property
    def fence(self) -> int:
        """A number that grows with every claim; hand it to systems that can refuse older ones."""
        return self.claimed.fence

    @property
    def labels(self) -> dict[str, str]:
        return self.claimed.labels

    @property
    def submitted_context(self) -> dict[str, Any]:
        """What was handed over as `context` when the run was submitted."""
        return self.claimed.context

    # ---- its end ---------------------------------------------------------------------------

    def close(self) -> None:
        """The attempt is over; whatever still holds this context changes nothing any more."""
        self._closed = True

    def has_loose_ends(self) -> bool:
        """Whether calls are on their way, or text or log lines may wait to be stored."""
        return bool(self._calls) or self._writer is not None or self._log_writer is not None

    async def finish_calls(self) -> None:
        """Waits for calls that are on their way; each ends as stored, released or in doubt."""
        while self._calls:
            await asyncio.gather(*self._calls, return_exceptions=True)

    async def flush_text(self) -> None:
        """Stores the text that waits."""
        if self._writer is not None:
            await self._writer.flush()

    async def flush_logs(self) -> None:
        """Stores the log lines that wait."""
        if self._log_writer is not None:
            await self._log_writer.flush()

    async def _finish_even_if_left(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs to its end although the handler may be cancelled meanwhile; `finish_calls` waits."""
        task = asyncio.create_task(work)
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)
        return await asyncio.shield(task)

    # ---- what it recalls -------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._closed or not self.lease.valid():
            raise FencedOut(f"attempt {self.attempt} of {self.run_id} is over; nothing was changed")

    def _name(self, room: str, name: str, key: str | None = None) -> str:
        self._check_open()
        return self._names.resolve(room, name, key)

    async def _remembered(self, name: str, digest: bytes) -> Step | None:
        memory = await self._remember_all()
        known = memory.steps.get(name)
        if known is not None and known.digest != digest:
            raise CodeChanged(
                f"{spoken(name)} was called with other arguments in an earlier attempt; bring the "
                "old code back, or submit a new run"
            )
        return known

    async def _remember_all(self, *, fresh: bool = False) -> Memory:
        """What earlier attempts left. A first attempt has nothing to remember and reads nothing."""
        if self._memory is None or fresh:
            first = self.attempt == 1 and not fresh
            self._memory = (
                Memory.empty()
                if first
                else await Memory.read(self.engine.database, self.scope_id, self.claimed.run_id)
            )
        return self._memory

    async def _timer(self, name: str, span: timedelta) -> datetime:
        digest = canonical.digest(str(span).encode())
        known = await self._remembered(name, digest)
        if known is None:
            start = partial(self.rememberer.start_timer, self.claimed, name, digest, span)
            known = await patiently(self.lease.valid, start)
            (await self._remember_all()).steps[name] = known
        return datetime.fromisoformat(known.result["until"])

    # ---- what it writes; a replay writes nothing -------------------------------------------

    async def _write(
        self,
        type: str,
        payload: bytes,
        name: str | None = None,
        kind: str | None = None,
        digest: bytes | None = None,
        result: bytes | None = None,
    ) -> None:
        """An event, with a step to remember where there is a `name`; text before it goes first."""
        await self.flush_text()
        await self.rememberer.write(self.claimed, type, payload, name, kind, digest, result)

    async def _publish(self, name: str, type: str, payload: bytes) -> None:
        await self.flush_text()
        store = partial(publishing.publish_owned, self.engine, self.claimed, name, type, payload)
        await patiently(self.lease.valid, store)

    async def _write_text(self, piece: str) -> None:
        if self._writer is None:
            self._writer = TextWriter(self.rememberer.texts, self.claimed, self.lease)
        await self._writer.add(piece)

    def _keep_line(self, line: Line) -> None:
        """Keeps a log line with the attempt; from any thread, and without waiting."""
        if self._home is None or self._home.is_closed():
            return
        if _running_loop() is self._home:
            self._add_line(line)
        else:
            self._home.call_soon_threadsafe(self._add_line, line)

    def _add_line(self, line: Line) -> None:
        if self._closed:
            return
        if self._log_writer is None:
            self._log_writer = LogWriter(self.rememberer.logs, self.claimed, self.lease)
        self._log_writer.add(line)


def kept_beside_steps(room: str, name: str) -> str:
    """Events and timers are kept in the table of steps, under names that no step can have."""
    return f"#{room}:{name}"


_SPOKEN = {"signal": "time-out of signal", "timed out": "time-out of signal", "timer": "sleep"}


def spoken(name: str) -> str:
    """A remembered thing as its handler's author would name it: `#emit:order.priced` was written as
    `ctx.emit("order.priced")`."""
    if not name.startswith("#"):
        return f"step {name!r}"
    room, _, own = name.removeprefix("#").partition(":")
    verb = _SPOKEN.get(room, room)
    return verb if own == verb else f"{verb} {own!r}"
