"""Reaping: what has run out is moved on, by whoever is alive.

Lapsed leases (the attempt is lost), calls whose sender is gone (doubt), deadlines and approvals
(expired), times that parked runs wait for (woken). Any number of processes may reap at once; each
move is judged again under the row's lock.
"""

from __future__ import annotations

import time
import uuid
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from functools import partial

import asyncpg

from earnest.domain import ids
from earnest.domain.event import NewEvent
from earnest.domain.ids import Prefix
from earnest.domain.operation import Operation, OperationState, Recovery, may_send_again
from earnest.domain.run import AttemptOutcome, RunStatus
from earnest.engine.approvals import expiring
from earnest.engine.operations import recording
from earnest.engine.process import instances
from earnest.engine.process.doorbells import QUESTION, WORK
from earnest.engine.process.engine import Engine
from earnest.engine.process.instances import DeadWatch
from earnest.engine.process.logs import get_logger
from earnest.engine.runs import moving
from earnest.store import executions, operations
from earnest.store.database import Record, Tx, let_wait
from earnest.store.executions import Execution, Key

log = get_logger("earnest.reaping")

BATCH = 200
# Many rows on which somebody sits must not make a round long; the next one finds them again.
LOCK_TIMEOUT = "100ms"
Aside = set[Key]
"""What a process could not move when it tried last."""
LOST = {"code": "lost", "detail": "the worker was lost and no attempts are left"}
EXPIRED = {"code": "deadline_exceeded", "detail": "the run's deadline has passed"}


class ClockWatch:
    """Notices when the database's clock and this process's monotonic clock diverge: somebody set
    the wall clock. Leases cannot be judged then; reaping pauses for one lease."""

    def __init__(self, lease: timedelta, tolerance: float = 2.0) -> None:
        self._lease = lease.total_seconds()
        self._tolerance = tolerance
        self._last: tuple[datetime, float] | None = None
        self._paused_until = 0.0

    def trusts(self, database_now: datetime, monotonic_now: float) -> bool:
        """Whether leases may be judged now. Call it at every look."""
        if self._last is not None:
            there = (database_now - self._last[0]).total_seconds()
            here = monotonic_now - self._last[1]
            if abs(there - here) > self._tolerance:
                log.warning("reaper.paused", jump_s=round(there - here, 1))
                self._paused_until = monotonic_now + self._lease
        self._last = (database_now, monotonic_now)
        return monotonic_now >= self._paused_until


class Reaper:
    """Looks for what has run out. `recover` is the look before anything is dispatched (P18)."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._dead = DeadWatch(engine.settings.dead_after)
        self._clocks = ClockWatch(engine.settings.lease)
        self._aside: defaultdict[str, Aside] = defaultdict(set)

    async def recover(self, *, alone: bool = False) -> int:
        """What an earlier life left behind. `alone`: nobody else is connected, so every lease of
        the earlier life is void at once. Raises what the database raises: then nothing may be
        dispatched."""
        return await self._reap(await self._dead.dead(self._engine.database, at_once=alone))

    async def look(self) -> int:
        """One round over everything that can run out; returns how much was moved."""
        aside = self._aside
        moved = await wake_timed(self._engine, aside["wake"])
        moved += await expire(self._engine, aside["expire"])
        moved += await expire_approvals(self._engine, aside["approvals"])
        clock = await self._engine.database.fetchrow("database_clock")
        assert clock is not None, "a SELECT without FROM has a row"
        if not self._clocks.trusts(clock["wall"], time.monotonic()):
            return moved
        return moved + await self._reap(await self._dead.dead(self._engine.database))

    async def _reap(self, dead: Sequence[uuid.UUID]) -> int:
        moved = await self._reap_leases(dead) + await self._reap_calls(dead)
        if dead:
            await self._engine.database.promise("reap", partial(instances.bury, dead))
        return moved

    async def _reap_leases(self, dead: Sequence[uuid.UUID]) -> int:
        return await _each(
            self._engine,
            lambda most: executions.keys(self._engine.database, "lapsed_runs", dead, most),
            "reap",
            lambda tx, key: lose(self._engine, tx, key, dead),
            self._aside["leases"],
        )

    async def _reap_calls(self, dead: Sequence[uuid.UUID]) -> int:
        grace = self._engine.settings.call_grace
        rows: dict[Key, Record] = {}

        async def find(most: int) -> list[Key]:
            found = await self._engine.database.fetch("overdue_calls", grace, dead, most)
            rows.update(((row["scope_id"], row["operation_id"]), row) for row in found)
            return [(row["scope_id"], row["operation_id"]) for row in found]

        return await _in_turn(find, lambda key: self._doubt(rows[key]), self._aside["calls"])

    async def _doubt(self, row: Record) -> bool:
        proof = recording.Proof("reaper", token=row["send_token"])

        async def move(tx: Tx, key: Key) -> bool:
            why = "the caller ended during the call"
            doubted = await recording.doubt_in(tx, *key, proof, why)
            return doubted.state is OperationState.UNKNOWN

        key = (row["scope_id"], row["operation_id"])
        if not await _tried(self._engine, "doubt", ("op", key), move):
            return False
        self._engine.bells.ring(WORK, QUESTION)
        if row["run_id"] is not None:
            self._engine.bells.moved(row["run_id"])
        return True


async def wake_timed(engine: Engine, aside: Aside | None = None) -> int:
    """Parked runs whose time has come go on (P25)."""
    return await _each(
        engine,
        lambda most: executions.keys(engine.database, "timed_runs", most),
        "wake",
        _wake_if_due,
        aside,
    )


async def expire(engine: Engine, aside: Aside | None = None) -> int:
    """Queued and waiting runs past their deadline fail; those in doubt become unknown instead."""
    return await _each(
        engine,
        lambda most: executions.keys(engine.database, "expiring_runs", most),
        "expire",
        lambda tx, key: _expire(engine, tx, key),
        aside,
    )


async def expire_approvals(engine: Engine, aside: Aside | None = None) -> int:
    """What nobody decided in time is over, and its run hears of it (P25)."""
    return await _each(
        engine,
        lambda most: executions.keys(engine.database, "expiring_approvals", most),
        "expire",
        expiring.expire,
        aside,
    )


async def lose(engine: Engine, tx: Tx, key: Key, dead: Sequence[uuid.UUID] = ()) -> bool:
    """The attempt is lost. A call that was on its way decides first, then a requested cancel, then
    the attempts left."""
    scope_id, run_id = key
    locked = await executions.lock_with_parents(tx, scope_id, [run_id])
    row = locked[run_id]
    if not _has_lapsed(row, dead):
        return False
    failures = row.failures + 1
    goes_on = failures < row.max_attempts and not row.cancel_requested
    keep = await _sent_again_later(tx, row) if goes_on and row.doubts else []
    lost = NewEvent("attempt.lost", {"attempt": row.fence})
    if row.doubts and await moving.doubt_submitting(tx, locked, row, "reaper", keep=keep):
        await moving.doubt(
            engine, tx, locked, run_id, AttemptOutcome.LOST, failures=failures, before=[lost]
        )
    elif row.cancel_requested:
        await moving.finish(
            engine, tx, locked, run_id, RunStatus.CANCELLED, outcome=AttemptOutcome.LOST,
            failures=failures, before=[lost],
        )  # fmt: skip
    elif not goes_on:
        await moving.finish(
            engine, tx, locked, run_id, RunStatus.FAILED, outcome=AttemptOutcome.LOST, error=LOST,
            failures=failures, before=[lost],
        )  # fmt: skip
    else:
        row = locked[run_id]
        again = NewEvent(
            "run.retry_scheduled",
            {"failures": failures, "max_attempts": row.max_attempts, "in_s": 0},
        )
        await executions.requeue(tx, row, [lost, again], failures=failures)
        await executions.close_attempt(tx, row, AttemptOutcome.LOST)
    return True


def _has_lapsed(row: Execution, dead: Sequence[uuid.UUID]) -> bool:
    if row.status is not RunStatus.RUNNING or row.lease_until is None:
        return False
    return row.lease_until <= row.now or row.instance_id in dead


async def _sent_again_later(tx: Tx, row: Execution) -> list[uuid.UUID]:
    """Calls on their way that the next attempt may send again: `resend` inside the window. They
    stay `submitting`; but where anything else is in doubt there is no next attempt, and nothing
    is kept for it."""
    doubtful = [
        operation
        for operation in await operations.of_run(tx, row.scope_id, row.run_id)
        if operation.in_doubt
    ]
    if not all(_is_resendable(operation, row.now) for operation in doubtful):
        return []
    return [operation.operation_id for operation in doubtful]


def _is_resendable(operation: Operation, now: datetime) -> bool:
    return (
        operation.state is OperationState.SUBMITTING
        and operation.recovery is Recovery.RESEND
        and operation.first_begun_at is not None
        and operation.window is not None
        and may_send_again(operation.first_begun_at, now, operation.window, operation.timeout)
    )


async def _wake_if_due(tx: Tx, key: Key) -> bool:
    scope_id, run_id = key
    locked = await executions.lock(tx, scope_id, [run_id])
    row = locked[run_id]
    if row.status is not RunStatus.WAITING or row.wake_at is None or row.wake_at > row.now:
        return False
    await moving.wake(tx, locked, run_id, {"kind": "time"})
    return True


async def _expire(engine: Engine, tx: Tx, key: Key) -> bool:
    scope_id, run_id = key
    locked = await executions.lock_with_parents(tx, scope_id, [run_id])
    row = locked[run_id]
    due = row.deadline_at is not None and row.deadline_at <= row.now
    if not due or row.status not in (RunStatus.QUEUED, RunStatus.WAITING):
        return False
    if row.doubts and await moving.doubt_submitting(tx, locked, row, "engine"):
        await moving.doubt(engine, tx, locked, run_id, None)
    else:
        await moving.finish(engine, tx, locked, run_id, RunStatus.FAILED, error=EXPIRED)
    return True


async def _each(
    engine: Engine,
    find: Callable[[int], Awaitable[list[Key]]],
    name: str,
    move: Callable[[Tx, Key], Awaitable[bool]],
    aside: Aside | None = None,
) -> int:
    """Moves the runs that are found, one transaction each."""

    async def try_one(key: Key) -> bool:
        if not await _tried(engine, name, ("run", key), move):
            return False
        engine.bells.ring(WORK, QUESTION)
        engine.bells.moved(key[1])
        return True

    return await _in_turn(find, try_one, set() if aside is None else aside)


async def _in_turn(
    find: Callable[[int], Awaitable[list[Key]]],
    try_one: Callable[[Key], Awaitable[bool]],
    aside: Aside,
) -> int:
    """Tries what is found, and looks again while there is more; after a batch of failures the rest
    is for the next look. What could not be moved is put aside, and comes again when all others had
    their turn: however many they are, they do not hold up the others."""
    moved = failed = 0
    while failed < BATCH:
        most = BATCH + len(aside)
        keys = await find(most)
        turn = [key for key in keys if key not in aside][:BATCH]
        if not turn:
            if moved or failed or not keys:
                break
            aside.clear()  # all had their turn
            continue
        for key in turn:
            if await try_one(key):
                moved += 1
            else:
                failed += 1
                aside.add(key)
        if len(keys) < most:
            break
    return moved


async def _tried(
    engine: Engine, name: str, item: tuple[Prefix, Key], move: Callable[[Tx, Key], Awaitable[bool]]
) -> bool:
    """One that cannot be moved (the app's own hook fails, somebody sits on its row) does not hold
    up the others; it is found again by the next look."""
    noun, key = item

    async def work(tx: Tx) -> bool:
        await let_wait(tx, LOCK_TIMEOUT)
        return await move(tx, key)

    try:
        return await engine.database.promise(name, work, sat_on=0)
    except moving.HookNotHere as error:
        _leave_to_others(engine, error)
        return False
    except (moving.HookFailed, asyncpg.PostgresError) as error:
        log.warning("reaper.skipped", move=name, id=ids.show(noun, key[1]), error=str(error))
        return False


def _leave_to_others(engine: Engine, error: moving.HookNotHere) -> None:
    """A process that knows the effect will find it too. Told once for each effect."""
    effect = error.fields["effect"]
    if effect not in engine.left_to_others:
        engine.left_to_others.add(effect)
        log.warning("reaper.left_to_others", effect=effect, why=error.detail)
