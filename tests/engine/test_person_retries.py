"""An explicit retry: a person starts a run that ended badly once more, as a new revision (P22)."""

from __future__ import annotations

import asyncio

import pytest

from earnest import App, Blocked, Context, Failed
from earnest.domain import ids
from earnest.domain.errors import Conflict, IdempotencyConflict, NotFound, UnderReview
from earnest.domain.ids import new_id
from earnest.engine.runs import retrying
from earnest.testing.clock import ManualClock
from tests.engine.bench import MEMBER, SCOPE
from tests.engine.conftest import MakeBench
from tests.engine.provider import Provider, shop


def failing() -> App:
    app = App("failing")

    @app.run("fails")
    async def fails(ctx: Context, value: int) -> int:
        raise Failed("for good")

    @app.run("waits")
    async def waits(ctx: Context, value: int) -> None:
        await ctx.wait_signal("go")

    @app.run("blocked")
    async def blocked(ctx: Context, value: int) -> None:
        raise Blocked("no credits")

    @app.run("works")
    async def works(ctx: Context, value: int) -> int:
        return value

    return app


async def test_a_retry_is_a_new_run_of_the_same_lineage_with_the_next_revision(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P22: and the finished one does not change, nor does its history."""
    bench = make_bench(failing())
    old = await bench.done("fails", 7, labels={"order": "17"}, priority=5)
    events, attempts = await bench.events(old.run_id), await bench.attempts(old.run_id)
    new = await bench.retry(old.run_id)
    assert new.run_id != old.run_id
    assert (new.lineage_id, new.revision, new.retry_of) == (old.run_id, 2, old.run_id)
    assert (new.kind, new.input, new.labels, new.priority) == ("fails", 7, {"order": "17"}, 5)
    assert (new.status, new.failures, new.attempt) == ("queued", 0, 0)
    await bench.drain()
    assert await bench.find(old.run_id) == old
    assert await bench.events(old.run_id) == events
    assert await bench.attempts(old.run_id) == attempts
    third = await bench.retry(new.run_id)
    assert (third.lineage_id, third.revision, third.retry_of) == (old.run_id, 3, new.run_id)


async def test_a_retry_of_an_older_revision_goes_on_from_the_newest(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P22."""
    bench = make_bench(failing())
    old = await bench.done("fails", 7)
    await bench.retry(old.run_id)
    await bench.drain()
    assert (await bench.retry(old.run_id)).revision == 3


@pytest.mark.parametrize("status", ["queued", "running", "waiting"])
async def test_a_lineage_has_one_active_run(
    make_bench: MakeBench, clock: ManualClock, status: str
) -> None:
    """P22: a retry is refused while the newest revision is active, whichever run is named."""
    bench = make_bench(failing())
    run_id = await bench.submit("waits", 1)
    if status == "running":
        await bench.claim()
    if status == "waiting":
        await bench.drain()
    assert await bench.status(run_id) == status
    with pytest.raises(Conflict, match=f"is {status}; cancel it or wait"):
        await bench.retry(run_id)


async def test_the_retry_of_an_older_run_is_refused_while_its_retry_is_active(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P22."""
    bench = make_bench(failing())
    old = await bench.done("fails", 7)
    await bench.retry(old.run_id)
    with pytest.raises(Conflict, match="is queued"):
        await bench.retry(old.run_id)


async def test_what_succeeded_is_not_retried(make_bench: MakeBench, clock: ManualClock) -> None:
    """P22."""
    bench = make_bench(failing())
    run = await bench.done("works", 1)
    with pytest.raises(Conflict, match="has succeeded"):
        await bench.retry(run.run_id)


async def test_what_was_cancelled_or_blocked_can_be_retried(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P22."""
    bench = make_bench(failing())
    run_id = await bench.submit("works", 1)
    await bench.cancel(run_id)
    assert (await bench.retry(run_id)).revision == 2
    blocked = await bench.done("blocked", 1)
    assert (await bench.retry(blocked.run_id)).revision == 2


async def test_a_run_with_a_doubt_is_not_retried_until_the_doubt_is_settled(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P22, P3: it might pay a second time; the operations are named."""
    provider = Provider()
    bench = make_bench(shop(provider))
    provider.drops(does=True)
    run = await bench.done("buy", {"by": "hold"})
    with pytest.raises(Conflict, match="is unknown"):
        await bench.retry(run.run_id)
    await bench.cancel(run.run_id)
    with pytest.raises(UnderReview, match="is in doubt; settle it before") as refused:
        await bench.retry(run.run_id)
    assert len(refused.value.fields["operation_ids"]) == 1
    await bench.resolve(await bench.operation(run.run_id), "released")
    assert (await bench.retry(run.run_id)).revision == 2


async def test_what_was_submitted_is_sent_again_only_when_that_is_asked_for(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P22; also for what an earlier revision than the one that is retried has submitted."""
    provider = Provider()
    bench = make_bench(shop(provider))
    provider.drops(does=True)
    run = await bench.done("buy", {"by": "hold"})
    await bench.cancel(run.run_id)
    operation = await bench.operation(run.run_id)
    await bench.resolve(operation, "submitted", receipt={"id": "r-1"})
    with pytest.raises(Conflict, match=r"was submitted .*repeat_submitted") as refused:
        await bench.retry(run.run_id, "again")
    assert refused.value.fields["operation_ids"] == [ids.show("op", operation.operation_id)]
    second = await bench.retry(run.run_id, "again", repeat=True)
    assert (await bench.retry(run.run_id, "again")).run_id == second.run_id
    await bench.cancel(second.run_id)
    with pytest.raises(Conflict, match="was submitted"):
        await bench.retry(second.run_id)
    assert (await bench.retry(second.run_id, repeat=True)).revision == 3


async def test_a_kind_that_fails_on_doubt_may_be_retried_beside_it(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P22: the new revision has an operation of its own; the old doubt stays on the desk."""
    provider = Provider()
    bench = make_bench(shop(provider, on_unknown="fail"))
    provider.drops(does=False)
    run = await bench.done("buy", {"by": "hold"})
    assert run.status == "failed"
    new = await bench.retry(run.run_id)
    await bench.drain()
    assert await bench.status(new.run_id) == "succeeded"
    assert (await bench.operation(run.run_id)).state == "unknown"
    first, second = await bench.operation(run.run_id), await bench.operation(new.run_id)
    assert first.operation_id != second.operation_id


async def test_two_people_who_retry_at_once_make_one_revision(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P22: both have read the old run before either has written."""
    bench = make_bench(failing())
    old = await bench.done("fails", 7)
    async with bench.holding(old.run_id):
        both = [asyncio.create_task(bench.retry(old.run_id)) for _ in range(2)]
        await bench.wait_for_lock_waiters(2)
    answers = await asyncio.gather(*both, return_exceptions=True)
    assert sorted(type(answer).__name__ for answer in answers) == ["Conflict", "Run"]
    assert await bench.value("SELECT count(*) FROM run WHERE lineage_id = $1", old.run_id) == 2


async def test_a_retry_with_a_key_repeated_gives_the_same_run(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P7, P22: also when both are under way at once."""
    bench = make_bench(failing())
    old = await bench.done("fails", 7)
    async with bench.holding(old.run_id):
        both = [asyncio.create_task(bench.retry(old.run_id, "again-1")) for _ in range(2)]
        await bench.wait_for_lock_waiters(2)
    first, second = await asyncio.gather(*both)
    assert first == second
    assert await bench.retry(old.run_id, "again-1") == first
    await bench.drain()
    assert (await bench.retry(old.run_id, "again-1")).run_id == first.run_id


async def test_a_key_of_another_request_is_a_conflict(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P7."""
    bench = make_bench(failing())
    first, second = await bench.done("fails", 7), await bench.done("fails", 8)
    await bench.retry(first.run_id, "again-1")
    with pytest.raises(IdempotencyConflict):
        await bench.retry(second.run_id, "again-1")


async def test_a_key_that_another_request_takes_in_the_same_moment_is_a_conflict(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P7: it is taken after the look for it and before the write."""
    bench = make_bench(failing())
    first, second = await bench.done("fails", 7), await bench.done("fails", 8)
    taker = await bench.engine.database.connect()
    async with taker.transaction():
        await taker.execute(
            "UPDATE run SET idempotency_key = 'again-1' WHERE run_id = $1", second.run_id
        )
        retrying = asyncio.create_task(bench.retry(first.run_id, "again-1"))
        await bench.wait_for_lock_waiters()
    await taker.close()
    with pytest.raises(IdempotencyConflict):
        await retrying


async def test_what_does_not_exist_is_not_retried(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P12."""
    bench = make_bench(failing())
    with pytest.raises(NotFound):
        await bench.retry(new_id())
    old = await bench.done("fails", 7)
    with pytest.raises(NotFound):
        await retrying.retry(bench.engine, "other", old.run_id, by=MEMBER)


async def test_a_retry_by_somebody_else_stays_with_whoever_asked_for_the_run(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P22, P7: an operator takes nobody's run away, and its keys are apart from the owner's."""
    bench = make_bench(failing())
    old = await bench.done("fails", 7, key="order-17")
    made = await retrying.retry(bench.engine, SCOPE, old.run_id, by="operator", key="order-17")
    assert made.run.principal_id == old.principal_id == MEMBER
    again = await retrying.retry(bench.engine, SCOPE, old.run_id, by="operator", key="order-17")
    assert (again.run.run_id, again.replayed) == (made.run.run_id, True)
