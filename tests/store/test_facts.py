"""What an owner writes while it works, and what is sent to a run."""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from earnest.store import executions, facts
from earnest.store.database import Database
from earnest.store.executions import Claimed, Unwritten
from earnest.testing.clock import START, ManualClock
from tests.store.given import (
    LEASE,
    SCOPE,
    claim,
    claimed,
    event_types,
    execution,
    locked,
    submitted,
)

pytestmark = pytest.mark.usefixtures("clock")


def _fact(taken: Claimed, name: str | None = None, **changed: Any) -> facts.Fact:
    made = facts.Fact(
        taken.scope_id, taken.run_id, taken.fence, taken.owner_token,
        "step.completed" if name else "shop.sold", b"{}", name,
        "step" if name else None, b"digest" if name else None, b"1" if name else None,
    )  # fmt: skip
    return replace(made, **changed)


async def test_several_facts_of_several_runs_are_numbered_without_a_gap(
    database: Database,
) -> None:
    one, two = await claimed(database, 2)
    batch = [_fact(one, "a"), _fact(two), _fact(one), _fact(two, "b"), _fact(one, "c")]
    async with database.connection() as tx:
        written = await facts.write(tx, batch, LEASE)
    assert written == [facts.Written(cancel_requested=False)] * 5
    assert (await event_types(database, one.run_id))[2:] == [
        "step.completed",
        "shop.sold",
        "step.completed",
    ]
    assert (await event_types(database, two.run_id))[2:] == ["shop.sold", "step.completed"]
    steps = await facts.steps(database, SCOPE, one.run_id)
    assert [(step.name, step.result, step.attempt) for step in steps] == [("a", 1, 1), ("c", 1, 1)]


async def test_a_fenced_fact_is_left_out_and_the_others_stand(database: Database) -> None:
    good, fenced = await claimed(database, 2)
    batch = [_fact(fenced, "a", owner_token=uuid.UUID(int=9)), _fact(good, "a")]
    async with database.connection() as tx:
        written = await facts.write(tx, batch, LEASE)
    assert written == [Unwritten.FENCED, facts.Written(cancel_requested=False)]
    assert await facts.steps(database, SCOPE, fenced.run_id) == []


async def test_a_stale_attempts_fact_does_not_ride_along_with_the_owners(
    database: Database,
) -> None:
    (stale,) = await claimed(database)
    async with database.connection() as tx:
        async with tx.transaction():
            await executions.requeue(tx, await locked(tx, stale.run_id), [])
        (owner,) = await claim(tx)
        for batch in ([_fact(stale, "a"), _fact(owner, "b")], [_fact(owner, "c"), _fact(stale)]):
            written = await facts.write(tx, batch, LEASE)
            fenced = [one is Unwritten.FENCED for one in written]
            assert fenced == [fact.fence == 1 for fact in batch]
    steps = await facts.steps(database, SCOPE, owner.run_id)
    assert [step.name for step in steps] == ["b", "c"]
    await event_types(database, owner.run_id)


async def test_writing_renews_the_lease_and_hears_of_a_cancel(
    database: Database, clock: ManualClock
) -> None:
    (taken,) = await claimed(database)
    await clock.advance(seconds=44)
    async with database.connection() as tx:
        async with tx.transaction():
            await executions.ask_to_cancel(tx, await locked(tx, taken.run_id), [])
        assert await facts.write(tx, [_fact(taken)], LEASE) == [
            facts.Written(cancel_requested=True)
        ]
    row = await execution(database, taken.run_id)
    assert row["lease_until"] == START + timedelta(seconds=44) + LEASE


async def test_an_expired_lease_writes_nothing(database: Database, clock: ManualClock) -> None:
    (taken,) = await claimed(database)
    await clock.advance(seconds=45)
    async with database.connection() as tx:
        assert await facts.write(tx, [_fact(taken, "a")], LEASE) == [Unwritten.FENCED]


async def test_facts_of_a_run_on_which_somebody_sits_hold_up_no_others(database: Database) -> None:
    held, free = await claimed(database, 2)
    async with database.connection() as sitting, sitting.transaction():
        await locked(sitting, held.run_id)
        async with database.connection() as tx:
            written = await facts.write(tx, [_fact(held, "a"), _fact(free, "a")], LEASE)
    assert written == [Unwritten.BUSY, facts.Written(cancel_requested=False)]
    assert await facts.steps(database, SCOPE, held.run_id) == []


async def test_a_timer_is_fixed_by_the_first_who_asks(
    database: Database, clock: ManualClock
) -> None:
    (taken,) = await claimed(database)
    async with database.connection() as tx:
        for _ in range(2):
            span = timedelta(seconds=7)
            await facts.put_timer(tx, SCOPE, taken.run_id, "nap", b"digest", span, 1)
            await clock.advance(seconds=1)
    (step,) = await facts.steps(database, SCOPE, taken.run_id)
    assert step.result == {"until": "2030-01-01T12:00:07+00:00"}


async def test_signals_are_numbered_by_name(database: Database) -> None:
    (run_id,) = await submitted(database)
    async with database.connection() as tx:
        for name, number in (("go", 1), ("stop", 1), ("go", 2)):
            key = f"{name}-{number}"
            put = await facts.put_signal(tx, SCOPE, run_id, name, b"{}", "bob", key)
            assert put == number
        assert await facts.signal_exists(tx, SCOPE, run_id, "go", 2)
        assert not await facts.signal_exists(tx, SCOPE, run_id, "go", 3)
        known = await facts.signal_by_key(tx, SCOPE, run_id, "bob", "stop-1")
        assert known == facts.Signal("stop", 1, {})
        assert await facts.signal_by_key(tx, SCOPE, run_id, "alice", "stop-1") is None


async def test_a_key_sends_one_signal(database: Database) -> None:
    (run_id,) = await submitted(database)
    async with database.connection() as tx:
        await facts.put_signal(tx, SCOPE, run_id, "go", b"{}", "bob", "k")
        with pytest.raises(Exception, match="signal_key"):
            await facts.put_signal(tx, SCOPE, run_id, "go", b"{}", "bob", "k")
