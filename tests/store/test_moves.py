"""Settling in groups, and the guarded moves of one execution."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from earnest.domain.errors import StaleVersion
from earnest.domain.event import NewEvent
from earnest.domain.run import AttemptOutcome, RunStatus
from earnest.store import executions
from earnest.store.database import Database, Tx
from earnest.store.executions import Claimed, Execution
from earnest.store.statements import sql
from earnest.testing.clock import START, ManualClock
from tests.store.given import (
    LEASE,
    ME,
    SCOPE,
    arrays,
    claim,
    claimed,
    event_types,
    execution,
    locked,
    new_run,
    reserved,
    submitted,
)

pytestmark = pytest.mark.usefixtures("clock")


async def _succeed(tx: Tx, *taken: Claimed) -> set[uuid.UUID]:
    outputs = [f"{one.fence}".encode() for one in taken]
    return {row["run_id"] for row in await tx.fetch(sql("succeed_runs"), *arrays(taken), outputs)}


# ---- group settle -------------------------------------------------------------------------------


async def test_a_success_is_stored_with_output_event_and_closed_attempt(database: Database) -> None:
    (taken,) = await claimed(database)
    async with database.connection() as tx:
        assert await _succeed(tx, taken) == {taken.run_id}
        (attempt,) = await tx.fetch("SELECT * FROM attempt WHERE run_id = $1", taken.run_id)
    row = await execution(database, taken.run_id)
    assert (row["status"], row["output"], row["lease_until"]) == ("succeeded", 1, None)
    assert row["finished_at"] == START
    assert (attempt["outcome"], attempt["ended_at"]) == ("succeeded", START)
    assert (await event_types(database, taken.run_id))[-1] == "run.succeeded"


async def test_a_group_takes_the_good_and_leaves_the_fenced(
    database: Database, clock: ManualClock
) -> None:
    lapsed, renewed, wrong_fence, wrong_token = await claimed(database, 4)
    await clock.advance(seconds=44)
    async with database.connection() as tx:
        rest = [renewed, wrong_fence, wrong_token]
        await tx.fetch(sql("renew_leases"), *arrays(rest), LEASE)
        await clock.advance(seconds=1)
        group = [
            lapsed,
            renewed,
            replace(wrong_fence, fence=2),
            replace(wrong_token, owner_token=uuid.UUID(int=9)),
        ]
        assert await _succeed(tx, *group) == {renewed.run_id}
    for one in (lapsed, wrong_fence, wrong_token):
        assert (await execution(database, one.run_id))["status"] == "running"


async def test_what_needs_a_second_look_is_left_to_the_single_path(database: Database) -> None:
    """A parent to wake, an operation that is reserved, one that is in doubt."""
    parent, with_reserved, in_doubt, plain = await claimed(database, 4)
    await submitted(database, parent_run_id=parent.run_id)
    async with database.connection() as tx:
        (child,) = await claim(tx)
        async with tx.transaction():
            await reserved(tx, run_id=with_reserved.run_id)
            await executions.touch(tx, SCOPE, with_reserved.run_id, [], reserved=1)
            await executions.touch(tx, SCOPE, in_doubt.run_id, [], doubts=1)
        assert await _succeed(tx, child, with_reserved, in_doubt, plain) == {plain.run_id}


async def test_nothing_settles_twice(database: Database) -> None:
    (taken,) = await claimed(database)
    async with database.connection() as tx:
        assert await _succeed(tx, taken) == {taken.run_id}
        assert await _succeed(tx, taken) == set()
    assert (await event_types(database, taken.run_id)).count("run.succeeded") == 1


async def test_a_group_leaves_out_a_row_on_which_somebody_sits(database: Database) -> None:
    """It holds up no other; the settler waits for it alone."""
    taken, free = await claimed(database, 2)
    async with database.connection() as one, database.connection() as other:
        async with one.transaction():
            await locked(one, taken.run_id)
            assert await _succeed(other, taken, free) == {free.run_id}
        assert await _succeed(other, taken) == {taken.run_id}


async def test_whether_an_ending_was_stored_can_be_read_by_fence_and_token(
    database: Database,
) -> None:
    (taken,) = await claimed(database)
    key = (SCOPE, taken.run_id)
    async with database.connection() as tx:
        assert await tx.fetchrow(sql("settled_as"), *key, 1, taken.owner_token) is None
        await _succeed(tx, taken)
        row = await tx.fetchrow(sql("settled_as"), *key, 1, taken.owner_token)
        assert row is not None
        assert row["outcome"] == "succeeded"
        assert await tx.fetchrow(sql("settled_as"), *key, 1, uuid.UUID(int=9)) is None


# ---- the guarded moves --------------------------------------------------------------------------

_TOLD = [NewEvent("test.first", {}), NewEvent("test.second", {"n": 2})]

Move = Callable[[Tx, Execution], Awaitable[None]]
MOVES: dict[str, tuple[Move, str]] = {
    "finish": (lambda tx, row: executions.finish(tx, row, RunStatus.FAILED, _TOLD), "failed"),
    "requeue": (lambda tx, row: executions.requeue(tx, row, _TOLD), "queued"),
    "park": (lambda tx, row: executions.park(tx, row, _TOLD, [{"kind": "time"}], START), "waiting"),
    "doubt": (lambda tx, row: executions.doubt(tx, row, _TOLD), "unknown"),
    "ask to cancel": (lambda tx, row: executions.ask_to_cancel(tx, row, _TOLD), "running"),
}


@pytest.mark.parametrize("name", MOVES)
async def test_a_move_tells_its_events_and_leaves_the_next_version(
    database: Database, name: str
) -> None:
    move, status = MOVES[name]
    (taken,) = await claimed(database)
    async with database.connection() as tx, tx.transaction():
        before = await locked(tx, taken.run_id)
        await move(tx, before)
    row = await execution(database, taken.run_id)
    assert (row["status"], row["version"]) == (status, before.version + 1)
    told = await event_types(database, taken.run_id)
    assert told == ["run.submitted", "attempt.started", "test.first", "test.second"]


@pytest.mark.parametrize("name", MOVES)
async def test_a_move_judged_on_an_older_version_is_refused(database: Database, name: str) -> None:
    move, _ = MOVES[name]
    (taken,) = await claimed(database)
    async with database.connection() as tx, tx.transaction():
        before = await locked(tx, taken.run_id)
        await executions.touch(tx, SCOPE, taken.run_id, [])
        with pytest.raises(StaleVersion):
            await move(tx, before)
    assert (await execution(database, taken.run_id))["status"] == "running"
    assert await event_types(database, taken.run_id) == ["run.submitted", "attempt.started"]


async def test_a_final_move_keeps_error_and_failures_and_ends_the_lease(
    database: Database,
) -> None:
    (taken,) = await claimed(database)
    async with database.connection() as tx, tx.transaction():
        await executions.finish(
            tx,
            await locked(tx, taken.run_id),
            RunStatus.FAILED,
            [],
            error={"code": "x"},
            failures=2,
        )
    row = await execution(database, taken.run_id)
    assert (row["error"], row["failures"]) == ({"code": "x"}, 2)
    assert (row["lease_until"], row["finished_at"]) == (None, START)


async def test_a_run_that_is_queued_again_with_a_delay_is_out_of_the_queue(
    database: Database,
) -> None:
    (taken,) = await claimed(database)
    async with database.connection() as tx, tx.transaction():
        row = await locked(tx, taken.run_id)
        await executions.requeue(tx, row, [], delay=timedelta(seconds=5), failures=1)
    stored = await execution(database, taken.run_id)
    later = START + timedelta(seconds=5)
    assert (stored["ready"], stored["due_at"], stored["retry_at"]) == (False, later, later)
    assert (stored["failures"], stored["lease_until"]) == (1, None)


async def test_a_parked_run_shows_what_it_waits_for_and_forgets_it_when_queued_again(
    database: Database,
) -> None:
    (taken,) = await claimed(database)
    async with database.connection() as tx, tx.transaction():
        await executions.park(tx, await locked(tx, taken.run_id), [], [{"kind": "time"}], START)
        parked = await locked(tx, taken.run_id)
        assert (parked.waiting_on, parked.wake_at) == ([{"kind": "time"}], START)
        await executions.requeue(tx, parked, [])
        queued = await locked(tx, taken.run_id)
        assert (queued.waiting_on, queued.wake_at) == (None, None)


async def test_an_attempt_is_closed_once(database: Database) -> None:
    (taken,) = await claimed(database)
    async with database.connection() as tx, tx.transaction():
        row = await locked(tx, taken.run_id)
        await executions.requeue(tx, row, [])
        await executions.close_attempt(tx, row, AttemptOutcome.LOST, {"code": "lost"})
        (attempt,) = await tx.fetch("SELECT * FROM attempt WHERE run_id = $1", taken.run_id)
    assert (attempt["outcome"], attempt["error"]) == ("lost", {"code": "lost"})
    assert attempt["instance_id"] == ME


async def test_the_count_of_doubts_never_goes_below_zero(database: Database) -> None:
    (taken,) = await claimed(database)
    async with database.connection() as tx:
        with pytest.raises(Exception, match="tally"):
            await executions.touch(tx, SCOPE, taken.run_id, [], doubts=-1)


@pytest.mark.parametrize(
    ("change", "owned"),
    [
        ({}, True),
        ({"fence": 2}, False),
        ({"owner_token": uuid.UUID(int=9)}, False),
        ({"status": RunStatus.QUEUED}, False),
        ({"now": START + LEASE}, False),
        ({"now": START + LEASE - timedelta(microseconds=1)}, True),
    ],
    ids=str,
)
async def test_an_owner_has_the_fence_the_token_and_a_lease_that_has_not_run_out(
    database: Database, change: dict[str, Any], owned: bool
) -> None:
    (taken,) = await claimed(database)
    async with database.connection() as tx:
        row = await locked(tx, taken.run_id)
    assert replace(row, **change).owned_by(taken.fence, taken.owner_token) is owned


# ---- locking and families -----------------------------------------------------------------------


async def test_locking_answers_with_the_rows_there_are(database: Database) -> None:
    run_ids = await submitted(database, 2)
    async with database.connection() as tx, tx.transaction():
        found = await executions.lock(tx, SCOPE, [*run_ids, uuid.UUID(int=9)])
        assert list(found) == sorted(run_ids)
        assert await executions.lock(tx, "other", run_ids) == {}


async def test_a_run_is_locked_with_its_parent(database: Database) -> None:
    parent, stranger = await submitted(database, 2)
    (child,) = await submitted(database, parent_run_id=parent)
    async with database.connection() as tx, tx.transaction():
        assert set(await executions.lock_with_parents(tx, SCOPE, [child])) == {parent, child}
        assert set(await executions.lock_with_parents(tx, SCOPE, [stranger])) == {stranger}


async def test_a_family_is_what_is_below_but_not_what_is_detached(database: Database) -> None:
    (root,) = await submitted(database)
    (child,) = await submitted(database, parent_run_id=root)
    (grandchild,) = await submitted(database, parent_run_id=child)
    (detached,) = await submitted(database, parent_run_id=root, detached=True)
    await submitted(database, parent_run_id=detached)
    async with database.connection() as tx:
        assert await executions.family(tx, SCOPE, root) == {root, child, grandchild}
        assert await executions.family(tx, SCOPE, child) == {child, grandchild}
        assert await executions.family(tx, SCOPE, new_run().run_id) == set()


async def test_active_runs_are_those_that_may_still_move(database: Database) -> None:
    (queued,) = await submitted(database)
    async with database.connection() as tx:
        assert await executions.active_among(tx, SCOPE, [queued]) == 1
        (taken,) = await claim(tx)
        assert await executions.active_among(tx, SCOPE, [queued]) == 1
        await _succeed(tx, taken)
        assert await executions.active_among(tx, SCOPE, [queued]) == 0
