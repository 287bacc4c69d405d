"""Settling: an attempt's ending is stored, under its fence.

Plain successes go in groups, one statement for all that finished in the last moment. Everything
that needs to look twice (a parent to wake, operations reserved or in doubt, parking, retries,
failures) goes alone in its own transaction. When the reply of a commit was lost, the attempt's row
tells by owner token what became of it before anyone says that the fence was lost.
"""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Sequence
from enum import StrEnum
from typing import Any

from msgspec import Struct

from earnest.domain.event import NewEvent
from earnest.domain.run import AttemptOutcome, RetryPolicy, RunStatus, Wait
from earnest.engine.approvals import requesting
from earnest.engine.process.doorbells import QUESTION, WORK
from earnest.engine.process.engine import Engine
from earnest.engine.runs import moving
from earnest.engine.runs.grouping import Group
from earnest.store import executions, facts
from earnest.store.database import Tx
from earnest.store.executions import Claimed, Execution
from earnest.store.statements import sql


class Wish(StrEnum):
    """What an ending asks for; the locked row decides what it becomes."""

    SUCCEED = "succeed"
    FAIL = "fail"
    RETRY = "retry"
    PARK = "park"
    HAND_BACK = "hand_back"
    BLOCK = "block"
    STOP = "stop"


class Ending(Struct, frozen=True):
    """How a handler's execution ended. `output` is canonical JSON; `timed_out` tells a time-out
    from another failure; `retry` says when a failed attempt is followed by the next."""

    wish: Wish
    output: bytes | None = None
    error: dict[str, Any] | None = None
    waits: tuple[Wait, ...] = ()
    timed_out: bool = False
    retry: RetryPolicy = RetryPolicy()


class Settled(StrEnum):
    """What became of an ending; `fenced` means that the run was no longer this attempt's."""

    FENCED = "fenced"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    BLOCKED = "blocked"
    QUEUED = "queued"
    WAITING = "waiting"
    UNKNOWN = "unknown"


class Settler:
    """Stores endings for one process."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._successes: Group[tuple[Claimed, bytes], bool] = Group(self._succeed)

    async def settle(self, claimed: Claimed, ending: Ending) -> Settled:
        """Raises `DatabaseUnavailable` when the database stays away; the reaper takes over then."""
        if self.takes(claimed, ending) and await self.join(claimed, ending):
            return Settled.SUCCEEDED
        return await settle_alone(self._engine, claimed, ending)

    def takes(self, claimed: Claimed, ending: Ending) -> bool:
        """Whether it is a success that nobody else waits for: it joins others."""
        return ending.wish is Wish.SUCCEED and claimed.parent_run_id is None

    def join(self, claimed: Claimed, ending: Ending) -> asyncio.Future[bool]:
        """Whether it was stored, together with others; what was not may be settled alone, where
        one looks twice."""
        return self._successes.join((claimed, ending.output or b"null"))

    async def _succeed(self, batch: Sequence[tuple[Claimed, bytes]]) -> list[bool]:
        async def work(tx: Tx) -> set[tuple[str, uuid.UUID, int]]:
            rows = await tx.fetch(
                sql("succeed_runs"),
                [claimed.scope_id for claimed, _ in batch],
                [claimed.run_id for claimed, _ in batch],
                [claimed.fence for claimed, _ in batch],
                [claimed.owner_token for claimed, _ in batch],
                [output for _, output in batch],
            )
            return {(row["scope_id"], row["run_id"], row["fence"]) for row in rows}

        # Repeating it after a lost reply settles nothing twice: what was stored is no longer
        # running and falls to `settle_alone`, which reads the traces first.
        stored = await self._engine.database.promise("settle", work, one_statement=True)
        self._engine.bells.moved(*(run_id for _, run_id, _ in stored))
        return [(*claimed.key, claimed.fence) in stored for claimed, _ in batch]


async def settle_alone(engine: Engine, claimed: Claimed, ending: Ending) -> Settled:
    """Settles one attempt in its own transaction."""

    async def work(tx: Tx) -> Settled:
        return await _settle(engine, tx, claimed, ending)

    async def reread(tx: Tx) -> Settled | None:
        return await _settled_before(tx, claimed)

    name = "park" if ending.wish is Wish.PARK else "settle"
    settled = await engine.database.promise(name, work, reread=reread)
    engine.bells.moved(claimed.run_id)
    if settled is not Settled.WAITING:
        engine.bells.ring(WORK, QUESTION)
    return settled


async def _settle(engine: Engine, tx: Tx, claimed: Claimed, ending: Ending) -> Settled:
    locked = await executions.lock_with_parents(tx, claimed.scope_id, [claimed.run_id])
    row = locked.get(claimed.run_id)
    if row is None or not row.owned_by(claimed.fence, claimed.owner_token):
        return await _settled_before(tx, claimed) or Settled.FENCED
    if row.doubts:
        return await _doubt(engine, tx, locked, row, ending)
    if row.cancel_requested and ending.wish is not Wish.SUCCEED:
        return await _finish(
            engine, tx, locked, row, RunStatus.CANCELLED, AttemptOutcome.CANCELLED, ending
        )
    return await _MOVES[ending.wish](engine, tx, locked, row, ending)


async def _settled_before(tx: Tx, claimed: Claimed) -> Settled | None:
    """Whether this owner's ending is stored already (its reply was lost)."""
    row = await tx.fetchrow(
        sql("settled_as"), claimed.scope_id, claimed.run_id, claimed.fence, claimed.owner_token
    )
    return None if row is None else _AS_SETTLED.get(AttemptOutcome(row["outcome"]))


async def _doubt(
    engine: Engine, tx: Tx, locked: moving.Locked, row: Execution, ending: Ending
) -> Settled:
    """Whatever the handler made of it, a run with a doubt does not end (P3)."""
    await moving.doubt_submitting(tx, locked, row, "owner")
    await moving.doubt(engine, tx, locked, row.run_id, AttemptOutcome.DOUBTED)
    return Settled.FAILED if row.fails_on_doubt else Settled.UNKNOWN


async def _finish(
    engine: Engine,
    tx: Tx,
    locked: moving.Locked,
    row: Execution,
    status: RunStatus,
    outcome: AttemptOutcome,
    ending: Ending,
    failures: int | None = None,
    before: Sequence[NewEvent] = (),
) -> Settled:
    await moving.finish(
        engine, tx, locked, row.run_id, status, outcome=outcome, output=ending.output,
        error=ending.error, failures=failures, before=before,
    )  # fmt: skip
    return Settled(status.value)


async def _succeed(
    engine: Engine, tx: Tx, locked: moving.Locked, row: Execution, ending: Ending
) -> Settled:
    status, outcome = RunStatus.SUCCEEDED, AttemptOutcome.SUCCEEDED
    return await _finish(engine, tx, locked, row, status, outcome, ending)


async def _stop(
    engine: Engine, tx: Tx, locked: moving.Locked, row: Execution, ending: Ending
) -> Settled:
    status, outcome = RunStatus.CANCELLED, AttemptOutcome.CANCELLED
    return await _finish(engine, tx, locked, row, status, outcome, ending)


async def _block(
    engine: Engine, tx: Tx, locked: moving.Locked, row: Execution, ending: Ending
) -> Settled:
    status, outcome = RunStatus.BLOCKED, AttemptOutcome.BLOCKED
    return await _finish(engine, tx, locked, row, status, outcome, ending)


def _failure(row: Execution, ending: Ending) -> tuple[AttemptOutcome, NewEvent]:
    outcome = AttemptOutcome.TIMEOUT if ending.timed_out else AttemptOutcome.FAILED
    told = {"attempt": row.fence, "outcome": outcome.value, "error": ending.error}
    return outcome, NewEvent("attempt.failed", told)


async def _fail(
    engine: Engine, tx: Tx, locked: moving.Locked, row: Execution, ending: Ending
) -> Settled:
    outcome, event = _failure(row, ending)
    return await _finish(
        engine, tx, locked, row, RunStatus.FAILED, outcome, ending, row.failures + 1, [event]
    )


async def _retry(
    engine: Engine, tx: Tx, locked: moving.Locked, row: Execution, ending: Ending
) -> Settled:
    failures = row.failures + 1
    if failures >= row.max_attempts:
        return await _fail(engine, tx, locked, row, ending)
    outcome, event = _failure(row, ending)
    delay = ending.retry.delay(failures, random.random())
    scheduled = NewEvent(
        "run.retry_scheduled",
        {"failures": failures, "max_attempts": row.max_attempts, "in_s": delay.total_seconds()},
    )
    await executions.requeue(
        tx, row, [event, scheduled], delay=delay, failures=failures, error=ending.error
    )
    await executions.close_attempt(tx, row, outcome, ending.error)
    return Settled.QUEUED


async def _hand_back(
    engine: Engine, tx: Tx, locked: moving.Locked, row: Execution, ending: Ending
) -> Settled:
    event = NewEvent("run.resumed", {"attempt": row.fence, "why": "handed back"})
    await executions.requeue(tx, row, [event])
    await executions.close_attempt(tx, row, AttemptOutcome.HANDED_BACK)
    return Settled.QUEUED


async def _park(
    engine: Engine, tx: Tx, locked: moving.Locked, row: Execution, ending: Ending
) -> Settled:
    """The row is locked; a second statement looks for what is waited for. In the locking statement
    itself the look-up would keep the older snapshot, and a fact that was committed while the lock
    was waited for would be missed (P25)."""
    await executions.close_attempt(tx, row, AttemptOutcome.PARKED)
    wanted, events = await requesting.request(tx, row, ending.waits)
    waits = [wait.as_json() for wait in wanted]
    waiting = [*events, NewEvent("run.waiting", {"attempt": row.fence, "for": waits})]
    for wait in wanted:
        if await _is_there(tx, row, wait):
            woken = NewEvent("run.woken", {"kind": wait.kind})
            await executions.requeue(tx, row, [*waiting, woken])
            return Settled.QUEUED
    wake_at = min((wait.until for wait in wanted if wait.until is not None), default=None)
    await executions.park(tx, row, waiting, waits, wake_at)
    return Settled.WAITING


async def _is_there(tx: Tx, row: Execution, wait: Wait) -> bool:
    if wait.until is not None and wait.until <= row.now:
        return True
    if wait.kind == "signal":
        return await facts.signal_exists(tx, row.scope_id, row.run_id, wait.name, wait.number)
    if wait.kind == "children":
        return not await executions.active_among(tx, row.scope_id, wait.run_ids)
    return requesting.is_decided(wait)


_MOVES = {
    Wish.SUCCEED: _succeed,
    Wish.FAIL: _fail,
    Wish.RETRY: _retry,
    Wish.PARK: _park,
    Wish.HAND_BACK: _hand_back,
    Wish.BLOCK: _block,
    Wish.STOP: _stop,
}

_AS_SETTLED = {
    AttemptOutcome.SUCCEEDED: Settled.SUCCEEDED,
    AttemptOutcome.FAILED: Settled.QUEUED,
    AttemptOutcome.TIMEOUT: Settled.QUEUED,
    AttemptOutcome.PARKED: Settled.WAITING,
    AttemptOutcome.HANDED_BACK: Settled.QUEUED,
    AttemptOutcome.BLOCKED: Settled.BLOCKED,
    AttemptOutcome.DOUBTED: Settled.UNKNOWN,
    AttemptOutcome.CANCELLED: Settled.CANCELLED,
}
