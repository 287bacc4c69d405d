"""Runs, called over HTTP: submit, read, wait, watch, cancel, retry, signal."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from datetime import datetime
from typing import Any

from earnest.client.calling import Caller, keyed, path_of
from earnest.client.errors import Unreachable, output_of
from earnest.client.following import follow
from earnest.client.reading import FeedEvents, RunEvents, TextOfRun
from earnest.client.values import (
    Cancelled,
    Event,
    Explanation,
    Operation,
    Resync,
    Run,
    RunSummary,
    Signalled,
    TextPiece,
    TextReset,
)
from earnest.domain.errors import Busy
from earnest.domain.run import RunStatus

_A_MOMENT = (1.0, 2.0)  # seconds


class RunCalls:
    """What is done with runs."""

    _caller: Caller

    async def submit(
        self,
        kind: str,
        input: Any = None,
        *,
        key: str | None = None,
        lane: str | None = None,
        priority: int = 0,
        not_before: datetime | None = None,
        conversation_id: str | None = None,
        context: Mapping[str, Any] | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> Run:
        """Submits a run; the same key and request give the same run, however often they are sent.

        Without a key one is made, and is the same for all tries. When it raises `OutcomeUnknown`,
        it is not known whether the run was taken: its field `key` is the one to submit it with
        again. Everything else that is raised is a refusal.
        `IdempotencyConflict`: the key was used for another request.
        """
        body = {
            "kind": kind,
            "input": input,
            "lane": lane,
            "priority": priority or None,
            "not_before": not_before,
            "conversation_id": conversation_id,
            "context": context,
            "labels": labels,
        }
        # What is not said is not sent: a key is compared by what was.
        sent = {name: value for name, value in body.items() if value is not None}
        return await self._caller.write(Run, path_of("runs"), sent, headers=keyed(key))

    async def get(self, run_id: str) -> Run:
        """The run as it stands. Raises `NotFound`."""
        return await self._caller.read(Run, path_of("runs", run_id))

    def runs(
        self,
        *,
        status: RunStatus | str | None = None,
        kind: str | None = None,
        lane: str | None = None,
        labels: Mapping[str, str] | None = None,
        conversation_id: str | None = None,
        created_after: datetime | None = None,
        created_before: datetime | None = None,
        search: str | None = None,
    ) -> AsyncGenerator[RunSummary, None]:
        """All runs that one may see and that fit, newest first."""
        query = {
            "status": status,
            "kind": kind,
            "lane": lane,
            "label": [f"{name}:{value}" for name, value in (labels or {}).items()] or None,
            "conversation_id": conversation_id,
            "created_after": created_after,
            "created_before": created_before,
            "q": search,
        }
        return self._caller.pages(RunSummary, path_of("runs"), query)

    def operations_of(self, run_id: str) -> AsyncGenerator[Operation, None]:
        """The operations of a run, oldest first."""
        return self._caller.pages(Operation, path_of("runs", run_id, "operations"))

    async def wait(self, run_id: str, *, timeout: float | None = None) -> Any:
        """The run's output, once it has one. Raises `RunFailed`, `RunCancelled` or `RunBlocked`,
        which carry the run, when it ended as that; `TimeoutError` after so many seconds: it goes
        on. A restart of the server is waited out; so is a run that is `unknown`, until somebody
        settles it."""
        try:
            async with asyncio.timeout(timeout):
                run = await self._ended(run_id)
        except TimeoutError:
            raise TimeoutError(f"{run_id} had not ended after {timeout:g} s; it goes on") from None
        return output_of(run)

    def events(self, run_id: str, *, after: int | str = 0) -> AsyncGenerator[Event | Resync, None]:
        """A run's events after a number, or after the `id` of one that was read before: what there
        is, and then as they happen, until the run has ended. Each comes once and in order, over as
        many connections as it takes.

        A `Resync` comes where events cannot be told any more: take its snapshot of the run; the
        next event is the one after that.
        """
        return follow(self._caller, RunEvents(run_id, after))

    def feed(self, cursor: str | None = None) -> AsyncGenerator[Event | Resync, None]:
        """The events of all runs that one may see, as `events`, without an end: after the `id` of
        one that was read before; `now` for only what is new; without a cursor, from the oldest that
        is kept."""
        return follow(self._caller, FeedEvents(cursor))

    def text(self, run_id: str, *, after: int = 0) -> AsyncGenerator[TextPiece | TextReset, None]:
        """A run's text as it is written, after a sequence, until the run has ended. After a
        `TextReset` what was written before is void: another attempt begins."""
        return follow(self._caller, TextOfRun(run_id, after))

    async def cancel(self, run_id: str) -> Cancelled:
        """Cancels a run, and tells what came of it: `cancelled`, `requested` or `too_late`."""
        path = path_of("runs", run_id, "cancel")
        return await self._caller.write(Cancelled, path, headers=keyed(None))

    async def retry(
        self, run_id: str, *, key: str | None = None, repeat_submitted: bool = False
    ) -> Run:
        """Retries a run that ended badly: a new run of the same lineage. Raises `Conflict`; also
        where something was submitted before and might be sent again, unless `repeat_submitted`.
        """
        path = path_of("runs", run_id, "retry")
        body = {"repeat_submitted": True} if repeat_submitted else None
        return await self._caller.write(Run, path, body, headers=keyed(key))

    async def signal(
        self, run_id: str, name: str, payload: Any = None, *, key: str | None = None
    ) -> Signalled:
        """Sends a run a signal; it wakes if it waits for it."""
        path = path_of("runs", run_id, "signals", name)
        body = {"payload": payload}
        return await self._caller.write(Signalled, path, body, headers=keyed(key))

    async def explain(self, run_id: str) -> Explanation:
        """Why a run does not move, and what would move it."""
        return await self._caller.read(Explanation, path_of("runs", run_id, "explain"))

    async def _ended(self, run_id: str) -> Run:
        run = await self.get(run_id)
        while not run.final:
            await self._until_something(run)
            run = await self.get(run_id)
        return run

    async def _until_something(self, run: Run) -> None:
        """Until the run has ended, or it is time to look. Where there is no place for a stream, it
        is looked at now and then."""
        events = RunEvents(run.id, run.last_seq)
        try:
            async with aclosing(follow(self._caller, events, patience=_A_MOMENT[1])) as told:
                async for _ in told:
                    pass
        except (Busy, Unreachable):
            await asyncio.sleep(random.uniform(*_A_MOMENT))
