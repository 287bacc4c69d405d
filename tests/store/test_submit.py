"""What a submit writes, and what stands in its way."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from earnest.store import runs
from earnest.store.database import Database
from earnest.store.runs import Lineage
from earnest.testing.clock import START, ManualClock
from tests.store.given import ALICE, SCOPE, blocked, event_types, execution, insert, new_run


async def test_a_submit_writes_the_run_its_execution_and_its_first_event(
    database: Database, clock: ManualClock
) -> None:
    new = new_run(priority=3, deadline=timedelta(minutes=5))
    async with database.connection() as tx:
        answered = await runs.insert(tx, new, Lineage(new.run_id), fails_on_doubt=True)
    assert answered == await runs.find(database, SCOPE, new.run_id)
    row = await execution(database, new.run_id)
    assert (row["status"], row["ready"], row["fails_on_doubt"]) == ("queued", True, True)
    assert (row["due_at"], row["turn_at"]) == (START, START - timedelta(minutes=3))
    assert row["deadline_at"] == START + timedelta(minutes=5)
    assert await event_types(database, new.run_id) == ["run.submitted"]


@pytest.mark.usefixtures("clock")
async def test_a_delayed_run_stays_out_of_the_queue(database: Database) -> None:
    later = START + timedelta(seconds=10)
    new = new_run(not_before=later)
    async with database.connection() as tx:
        assert await insert(tx, new)
    row = await execution(database, new.run_id)
    assert (row["ready"], row["due_at"]) == (False, later)


@pytest.mark.usefixtures("clock")
async def test_a_time_that_has_passed_delays_nothing(database: Database) -> None:
    new = new_run(not_before=START - timedelta(days=1))
    async with database.connection() as tx:
        assert await insert(tx, new)
    row = await execution(database, new.run_id)
    assert (row["ready"], row["due_at"]) == (True, START)


async def test_a_key_that_is_taken_writes_nothing_at_all(database: Database) -> None:
    first, second = new_run(idempotency_key="k"), new_run(idempotency_key="k")
    async with database.connection() as tx:
        assert await insert(tx, first)
        assert not await insert(tx, second)
        for table in ("run", "execution", "event"):
            assert await tx.fetchval(f"SELECT count(*) FROM {table}") == 1
        assert await runs.find_by_key(tx, SCOPE, ALICE, "k") == (first.run_id, b"")


async def test_a_key_belongs_to_one_principal_of_one_scope(database: Database) -> None:
    async with database.connection() as tx:
        assert await insert(tx, new_run(idempotency_key="k"))
        assert await insert(tx, new_run(idempotency_key="k", principal_id="bob"))
        assert await insert(tx, new_run(idempotency_key="k", scope_id="other"))
        assert await runs.find_by_key(tx, SCOPE, "carol", "k") is None


async def test_runs_without_a_key_never_collide(database: Database) -> None:
    async with database.connection() as tx:
        assert await insert(tx, new_run())
        assert await insert(tx, new_run())


async def test_an_id_that_is_taken_writes_nothing(database: Database) -> None:
    first = new_run()
    async with database.connection() as tx:
        assert await insert(tx, first)
        assert not await insert(tx, new_run(run_id=first.run_id, kind="another"))
    assert await event_types(database, first.run_id) == ["run.submitted"]


async def test_two_retries_of_one_run_make_one_revision(database: Database) -> None:
    first = new_run()
    again = Lineage(first.run_id, 2, first.run_id)
    async with database.connection() as tx:
        assert await insert(tx, first)
        second, third = new_run(), new_run()
        assert await runs.insert(tx, second, again, fails_on_doubt=False)
        assert not await runs.insert(tx, third, again, fails_on_doubt=False)
        assert await runs.newest_revision(tx, SCOPE, first.run_id) == (second.run_id, 2)


async def test_a_submit_waits_for_one_of_the_same_key_and_finds_it(database: Database) -> None:
    first, second = new_run(idempotency_key="k"), new_run(idempotency_key="k")
    async with database.connection() as one, database.connection() as other:
        transaction = one.transaction()
        await transaction.start()
        assert await insert(one, first)
        waiting = asyncio.create_task(insert(other, second))
        await blocked(database, other)
        await transaction.commit()
        assert not await waiting
        assert await runs.find_by_key(other, SCOPE, ALICE, "k") == (first.run_id, b"")


async def test_a_submit_that_waited_for_one_that_was_undone_stands(database: Database) -> None:
    first, second = new_run(idempotency_key="k"), new_run(idempotency_key="k")
    async with database.connection() as one, database.connection() as other:
        transaction = one.transaction()
        await transaction.start()
        assert await insert(one, first)
        waiting = asyncio.create_task(insert(other, second))
        await blocked(database, other)
        await transaction.rollback()
        assert await waiting


async def test_many_submits_answer_with_those_that_are_new(database: Database) -> None:
    taken = new_run(idempotency_key="taken")
    batch = [
        new_run(idempotency_key=None),
        new_run(idempotency_key="taken"),
        new_run(idempotency_key="twice"),
        new_run(idempotency_key="twice"),
        new_run(run_id=taken.run_id),
    ]
    async with database.connection() as tx:
        assert await insert(tx, taken)
        fresh = await runs.insert_many(tx, batch, fails_on_doubt=False)
        assert fresh == {batch[0].run_id, batch[2].run_id}
    for run_id in fresh:
        assert await event_types(database, run_id) == ["run.submitted"]


async def test_many_submits_are_as_one_by_one(database: Database, clock: ManualClock) -> None:
    alone = new_run(deadline=timedelta(hours=1), max_attempts=7)
    together = new_run(deadline=timedelta(hours=1), max_attempts=7)
    async with database.connection() as tx:
        assert await insert(tx, alone, fails_on_doubt=True)
        await runs.insert_many(tx, [together], fails_on_doubt=True)
    rows = [dict(await execution(database, new.run_id)) for new in (alone, together)]
    for row in rows:
        del row["run_id"]
    assert rows[0] == rows[1]


async def test_no_submits_are_none(database: Database) -> None:
    async with database.connection() as tx:
        assert await runs.insert_many(tx, [], fails_on_doubt=False) == set()
