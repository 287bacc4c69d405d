"""Claiming and holding: who gets which run, and for how long it stays theirs."""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from earnest.domain.run import AttemptOutcome
from earnest.store import executions
from earnest.store.database import Database, Tx
from earnest.store.executions import Claimed
from earnest.store.statements import sql
from earnest.testing.clock import START, ManualClock
from tests.store.given import (
    LEASE,
    ME,
    SCOPE,
    YOU,
    arrays,
    claim,
    claimed,
    event_types,
    execution,
    locked,
    submitted,
)

pytestmark = pytest.mark.usefixtures("clock")

# ---- claim --------------------------------------------------------------------------------------


async def test_a_claim_gives_a_new_fence_token_lease_and_attempt(database: Database) -> None:
    (run_id,) = await submitted(database)
    async with database.connection() as tx:
        (taken,) = await claim(tx)
        (attempt,) = await tx.fetch("SELECT * FROM attempt WHERE run_id = $1", run_id)
    row = await execution(database, run_id)
    assert (row["status"], row["fence"], row["instance_id"]) == ("running", 1, ME)
    assert (row["owner_token"], row["lease_until"]) == (taken.owner_token, START + LEASE)
    assert (attempt["fence"], attempt["instance_id"], attempt["ended_at"]) == (1, ME, None)
    assert await event_types(database, run_id) == ["run.submitted", "attempt.started"]


async def test_each_claim_of_a_run_has_a_token_of_its_own(database: Database) -> None:
    (first,) = await claimed(database)
    async with database.connection() as tx, tx.transaction():
        await executions.requeue(tx, await locked(tx, first.run_id), [])
        (second,) = await claim(tx)
    assert (first.fence, second.fence) == (1, 2)
    assert first.owner_token != second.owner_token


async def test_a_claim_takes_the_oldest_but_priority_counts_as_minutes(
    database: Database, clock: ManualClock
) -> None:
    (oldest,) = await submitted(database)
    await clock.advance(seconds=30)
    (younger,) = await submitted(database)
    (urgent,) = await submitted(database, priority=1)
    (late,) = await submitted(database, priority=-1)
    async with database.connection() as tx:
        order = [(await claim(tx, 1))[0].run_id for _ in range(4)]
    assert order == [urgent, oldest, younger, late]


async def test_what_waits_long_enough_overtakes_what_is_urgent(
    database: Database, clock: ManualClock
) -> None:
    (patient,) = await submitted(database)
    await clock.advance(seconds=301)
    await submitted(database, priority=5)
    async with database.connection() as tx:
        assert [one.run_id for one in await claim(tx, 1)] == [patient]


async def test_a_claim_takes_only_its_lane_and_the_kinds_it_knows(database: Database) -> None:
    await submitted(database, lane="slow")
    await submitted(database, kind="unknown")
    (mine,) = await submitted(database)
    async with database.connection() as tx:
        assert [one.run_id for one in await claim(tx)] == [mine]


async def test_what_is_delayed_or_past_its_deadline_is_not_claimed(
    database: Database, clock: ManualClock
) -> None:
    await submitted(database, not_before=START + timedelta(seconds=1))
    await submitted(database, deadline=timedelta(seconds=1))
    await clock.advance(seconds=1)
    async with database.connection() as tx:
        assert await claim(tx) == []


async def test_two_claims_at_once_share_the_queue_and_wait_for_nobody(database: Database) -> None:
    run_ids = await submitted(database, 4)
    async with database.connection() as one, database.connection() as other, one.transaction():
        mine = await claim(one, 2)
        yours = await claim(other, 100, instance=YOU)
    assert {run.run_id for run in mine} == set(run_ids[:2])
    assert {run.run_id for run in yours} == set(run_ids[2:])


async def test_a_claim_hands_over_what_the_handler_needs(database: Database) -> None:
    await submitted(database, context={"trace": "x"}, labels={"tier": "gold"}, traceparent="00-1")
    async with database.connection() as tx:
        (taken,) = await claim(tx)
    assert (taken.input, taken.principal_id) == ("in", "alice")
    assert (taken.context, taken.labels, taken.traceparent) == (
        {"trace": "x"},
        {"tier": "gold"},
        "00-1",
    )


# ---- ripen --------------------------------------------------------------------------------------


async def test_a_delayed_run_joins_the_queue_when_its_time_has_come(
    database: Database, clock: ManualClock
) -> None:
    due = START + timedelta(seconds=10)
    (run_id,) = await submitted(database, not_before=due, priority=2)
    async with database.connection() as tx:
        assert await tx.fetchval(sql("next_due")) == 10.0
        assert await tx.fetch(sql("ripen_runs"), 100) == []
        await clock.advance(seconds=10)
        assert [row["lane"] for row in await tx.fetch(sql("ripen_runs"), 100)] == ["default"]
        assert await tx.fetchval(sql("next_due")) is None
    row = await execution(database, run_id)
    assert (row["ready"], row["turn_at"]) == (True, due - timedelta(minutes=2))


async def test_no_more_ripen_at_once_than_asked_for(database: Database, clock: ManualClock) -> None:
    await submitted(database, 3, not_before=START + timedelta(seconds=1))
    await clock.advance(seconds=1)
    async with database.connection() as tx:
        assert len(await tx.fetch(sql("ripen_runs"), 2)) == 2
        assert len(await tx.fetch(sql("ripen_runs"), 2)) == 1


# ---- renew --------------------------------------------------------------------------------------


async def _renew(tx: Tx, *taken: Claimed) -> dict[tuple[uuid.UUID, int], str]:
    rows = await tx.fetch(sql("renew_leases"), *arrays(taken), LEASE)
    return {(row["run_id"], row["fence"]): row["answer"] for row in rows}


async def test_a_renewal_lengthens_the_lease(database: Database, clock: ManualClock) -> None:
    (taken,) = await claimed(database)
    await clock.advance(seconds=44)
    async with database.connection() as tx:
        assert await _renew(tx, taken) == {(taken.run_id, 1): "renewed"}
    row = await execution(database, taken.run_id)
    assert row["lease_until"] == START + timedelta(seconds=44) + LEASE


async def test_an_expired_lease_cannot_be_renewed(database: Database, clock: ManualClock) -> None:
    (taken,) = await claimed(database)
    await clock.advance(seconds=45)
    async with database.connection() as tx:
        assert await _renew(tx, taken) == {(taken.run_id, 1): "refused"}
    assert (await execution(database, taken.run_id))["lease_until"] == START + LEASE


@pytest.mark.parametrize("wrong", [{"fence": 2}, {"owner_token": uuid.UUID(int=9)}], ids=str)
async def test_a_renewal_needs_fence_and_token(database: Database, wrong: dict[str, Any]) -> None:
    (taken,) = await claimed(database)
    stranger = replace(taken, **wrong)
    async with database.connection() as tx:
        assert list((await _renew(tx, stranger)).values()) == ["refused"]
    assert (await execution(database, taken.run_id))["lease_until"] == START + LEASE


async def test_a_run_that_its_owner_settled_is_no_refusal(database: Database) -> None:
    (taken,) = await claimed(database)
    async with database.connection() as tx:
        await tx.fetch(sql("succeed_runs"), *arrays([taken]), [b"1"])
        assert list((await _renew(tx, taken)).values()) == ["settled"]


async def test_a_run_that_was_taken_away_is_a_refusal_even_before_its_next_claim(
    database: Database,
) -> None:
    (taken,) = await claimed(database)
    async with database.connection() as tx:
        async with tx.transaction():
            row = await locked(tx, taken.run_id)
            await executions.requeue(tx, row, [])
            await executions.close_attempt(tx, row, AttemptOutcome.LOST)
        assert list((await _renew(tx, taken)).values()) == ["refused"]


async def test_two_fences_of_one_run_are_answered_each_for_itself(
    database: Database, clock: ManualClock
) -> None:
    (lost,) = await claimed(database)
    async with database.connection() as tx, tx.transaction():
        await executions.requeue(tx, await locked(tx, lost.run_id), [])
    async with database.connection() as tx:
        (taken,) = await claim(tx)
        assert await _renew(tx, lost, taken) == {
            (lost.run_id, 1): "refused",
            (lost.run_id, 2): "renewed",
        }


async def test_one_stuck_row_lets_no_other_lease_lapse(
    database: Database, clock: ManualClock
) -> None:
    """A row that is locked is skipped, and is busy: neither renewed nor refused."""
    stuck, free = await claimed(database, 2)
    await clock.advance(seconds=10)
    async with database.connection() as one, database.connection() as other, one.transaction():
        await locked(one, stuck.run_id)
        assert await _renew(other, stuck, free) == {(free.run_id, 1): "renewed"}


async def test_a_foreign_key_check_does_not_make_a_run_busy(database: Database) -> None:
    (taken,) = await claimed(database)
    async with database.connection() as one, database.connection() as other, one.transaction():
        await one.execute("SELECT FROM execution WHERE run_id = $1 FOR KEY SHARE", taken.run_id)
        assert await _renew(other, taken) == {(taken.run_id, 1): "renewed"}


async def test_a_renewal_hears_of_a_cancel(database: Database) -> None:
    (taken,) = await claimed(database)
    async with database.connection() as tx:
        async with tx.transaction():
            await executions.ask_to_cancel(tx, await locked(tx, taken.run_id), [])
        (row,) = await tx.fetch(sql("renew_leases"), *arrays([taken]), LEASE)
        assert (row["answer"], row["cancel_requested"]) == ("renewed", True)
        rows = await tx.fetch(sql("cancelled_among"), ME)
        assert [(row["run_id"], row["fence"]) for row in rows] == [(taken.run_id, 1)]
        assert await tx.fetch(sql("cancelled_among"), YOU) == []


# ---- watching -----------------------------------------------------------------------------------


async def test_lapsed_runs_are_those_out_of_lease_or_of_dead_instances(
    database: Database, clock: ManualClock
) -> None:
    (mine,) = await claimed(database)
    await clock.advance(seconds=1)
    (yours_id,) = await submitted(database)
    async with database.connection() as tx:
        await claim(tx, instance=YOU)
        assert await tx.fetch(sql("lapsed_runs"), [], 10) == []
        (row,) = await tx.fetch(sql("lapsed_runs"), [YOU], 10)
        assert row["run_id"] == yours_id
        await clock.advance(seconds=44)
        (row,) = await tx.fetch(sql("lapsed_runs"), [], 10)
        assert (row["run_id"], row["fence"]) == (mine.run_id, 1)


async def test_what_an_instance_holds_is_told_with_fence_and_token(database: Database) -> None:
    (taken,) = await claimed(database)
    async with database.connection() as tx:
        (row,) = await tx.fetch(sql("held_by"), ME)
        assert (row["run_id"], row["fence"]) == (taken.run_id, taken.fence)
        assert row["owner_token"] == taken.owner_token
        assert await tx.fetch(sql("held_by"), YOU) == []


async def test_timed_runs_are_waiting_ones_whose_time_has_come(
    database: Database, clock: ManualClock
) -> None:
    timed, untimed = await claimed(database, 2)
    async with database.connection() as tx, tx.transaction():
        until = START + timedelta(seconds=5)
        await executions.park(tx, await locked(tx, timed.run_id), [], [{"kind": "time"}], until)
        await executions.park(tx, await locked(tx, untimed.run_id), [], [{"kind": "signal"}], None)
    assert await executions.keys(database, "timed_runs", 10) == []
    await clock.advance(seconds=5)
    assert await executions.keys(database, "timed_runs", 10) == [(SCOPE, timed.run_id)]


async def test_expiring_runs_are_queued_and_waiting_ones_past_their_deadline(
    database: Database, clock: ManualClock
) -> None:
    running, waiting = await claimed(database, 2, deadline=timedelta(seconds=5))
    (queued,) = await submitted(database, deadline=timedelta(seconds=5))
    await submitted(database, deadline=timedelta(seconds=6))
    async with database.connection() as tx, tx.transaction():
        await executions.park(tx, await locked(tx, waiting.run_id), [], [], None)
    assert await executions.keys(database, "expiring_runs", 10) == []
    await clock.advance(seconds=5)
    found = {run_id for _, run_id in await executions.keys(database, "expiring_runs", 10)}
    assert found == {waiting.run_id, queued}
    assert running.run_id not in found
