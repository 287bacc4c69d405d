"""Why a run is not moving: one truthful answer, and what it says moves the run on does so."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest

from earnest import App, Blocked, Context
from earnest.domain import ids
from earnest.domain.errors import NotFound, UnderReview
from earnest.domain.explanation import Explanation, MoverBy, Reason
from earnest.engine.inspection import explaining
from earnest.engine.process.instances import Instance, Serves
from earnest.engine.runs import submitting
from earnest.store.visible import Sight
from earnest.testing.clock import ManualClock
from tests.engine.bench import MEMBER, SCOPE, Bench
from tests.engine.conftest import MakeBench
from tests.engine.handlers import work
from tests.engine.provider import Hold, Order, Provider, shop


async def nothing(ctx: Context) -> None:
    return None


async def explain(bench: Bench, run_id: uuid.UUID, asked_by: str | None = MEMBER) -> Explanation:
    return await explaining.explain(bench.engine, Sight(SCOPE, run_id, asked_by))


async def codes(bench: Bench, run_id: uuid.UUID) -> list[str]:
    return [reason.code.value for reason in (await explain(bench, run_id)).reasons]


async def reason(bench: Bench, run_id: uuid.UUID, code: str) -> Reason:
    found = await explain(bench, run_id)
    (one,) = [one for one in found.reasons if one.code == code]
    return one


@asynccontextmanager
async def living(
    bench: Bench,
    *,
    lanes: tuple[str, ...] = ("default",),
    kinds: tuple[str, ...] = ("work",),
    effects: tuple[str, ...] = (),
    slots: int = 10,
    instance: Instance | None = None,
) -> AsyncIterator[Instance]:
    """A worker process that lives, as the database sees it: a session that keeps its lock."""
    one = instance or Instance()
    connection = await bench.engine.database.connect()
    try:
        assert await one.enter(connection, Serves(lanes, kinds, effects, slots))
        yield one
    finally:
        await connection.close()


# ---- queued --------------------------------------------------------------------------------------


async def test_without_any_worker_a_run_waits_for_one(make_bench: MakeBench) -> None:
    bench = make_bench(work(nothing))
    run_id = await bench.submit("work")
    found = await explain(bench, run_id)
    assert (found.run_id, found.kind, found.lane) == (run_id, "work", "default")
    assert (found.status, found.attempt) == ("queued", 0)
    assert found.since <= found.at
    (one,) = found.reasons
    assert one.code == "no_worker"
    assert one.moved_by[0].command == "earnest worker --app MODULE:ATTRIBUTE"
    async with living(bench):
        assert await codes(bench, run_id) == ["claimable"]
    assert await codes(bench, run_id) == ["no_worker"]
    await bench.drain()
    assert await codes(bench, run_id) == ["ended"]


async def test_a_lane_and_a_kind_that_no_living_worker_has_are_named(make_bench: MakeBench) -> None:
    bench = make_bench(work(nothing))
    run_id = await bench.submit("work")
    async with living(bench, lanes=("mail",)):
        one = await reason(bench, run_id, "lane_without_worker")
        assert [(ref.type, ref.id) for ref in one.refs] == [("lane", "default")]
        async with living(bench, kinds=("other",)):
            one = await reason(bench, run_id, "kind_without_worker")
            assert [(ref.type, ref.id) for ref in one.refs] == [("kind", "work")]
            async with living(bench):
                assert await codes(bench, run_id) == ["claimable"]


async def test_a_real_worker_tells_what_it_serves(make_bench: MakeBench) -> None:
    bench = make_bench(work(nothing), keeper=True)
    late = await bench.submit("work", not_before=(await explain_time(bench)) + timedelta(hours=1))
    assert await codes(bench, late) == ["not_before", "no_worker"]
    async with bench.at_work():
        assert await codes(bench, late) == ["not_before"]
    assert await codes(bench, late) == ["not_before", "no_worker"]


async def explain_time(bench: Bench) -> Any:
    return await bench.value("SELECT clock()")


async def test_the_backlog_counts_ones_own_runs_and_not_those_of_others(
    make_bench: MakeBench,
) -> None:
    bench = make_bench(work(nothing))
    first = await bench.submit("work")
    request = submitting.Request("work", None)
    await submitting.submit(bench.engine, "other", "somebody", request)
    run_id = await bench.submit("work")
    async with living(bench):
        assert await codes(bench, first) == ["claimable"]
        one = await reason(bench, run_id, "backlog")
    assert one.detail == (
        "runs come first in the lane default: 1 of this scope's and some of other scopes"
    )


async def test_a_program_that_only_calls_is_no_worker(make_bench: MakeBench) -> None:
    bench = make_bench(work(nothing))
    run_id = await bench.submit("work")
    async with living(bench, lanes=(), kinds=(), effects=("bank.refund",), slots=0):
        assert await codes(bench, run_id) == ["no_worker"]


async def test_workers_whose_places_are_all_taken_are_told(make_bench: MakeBench) -> None:
    bench = make_bench(work(nothing))
    running = await bench.submit("work")
    await bench.claim()
    run_id = await bench.submit("work")
    async with living(bench, slots=1, instance=bench.engine.instance) as instance:
        one = await reason(bench, run_id, "workers_full")
        assert one.refs[0].id == ids.show("inst", instance.instance_id)
        assert await codes(bench, run_id) == ["workers_full"]
        async with living(bench, slots=1):
            assert await codes(bench, run_id) == ["claimable"]
    assert (await bench.find(running)).status == "running"


async def test_a_retry_names_its_time_and_the_error_before(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    async def fails(ctx: Context) -> None:
        raise RuntimeError("the bank is closed")

    bench = make_bench(work(fails, retry_first="1h", max_attempts=5))
    run = await bench.done("work")
    one = await reason(bench, run.run_id, "retry_scheduled")
    assert one.until == run.retry_at
    assert one.moved_by[0].by is MoverBy.TIME
    assert one.detail == (
        "attempt 1 failed (handler_failed: RuntimeError: the bank is closed); 1 of 5 attempts are "
        "used"
    )
    await clock.advance(hours=1)
    assert await codes(bench, run.run_id) == ["no_worker"]


async def test_a_deadline_is_told_as_long_as_it_can_end_the_run(make_bench: MakeBench) -> None:
    bench = make_bench(work(nothing, deadline="1h"))
    run_id = await bench.submit("work")
    one = await reason(bench, run_id, "deadline")
    assert one.until == (await bench.find(run_id)).deadline_at
    await bench.drain()
    assert await codes(bench, run_id) == ["ended"]


# ---- running -------------------------------------------------------------------------------------


async def test_a_running_run_names_who_holds_it_until_when(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    bench = make_bench(work(nothing))
    run_id = await bench.submit("work")
    async with living(bench, instance=bench.engine.instance) as instance:
        await bench.claim()
        one = await reason(bench, run_id, "lease_held")
        assert one.until == await bench.lease_until(run_id)
        assert one.since == clock.now
        assert one.refs[0].id == ids.show("inst", instance.instance_id)
        await bench.cancel(run_id)
        assert await codes(bench, run_id) == ["lease_held", "cancel_requested"]
    assert (await codes(bench, run_id))[0] == "owner_gone"
    await clock.advance(minutes=1)
    found = await codes(bench, run_id)
    assert found == ["lease_lapsed", "cancel_requested", "no_worker"]
    await bench.drain()
    assert await bench.status(run_id) == "cancelled"


async def test_a_call_on_its_way_is_told_with_its_end(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    provider = Provider()
    gate = provider.holds()
    bench = make_bench(shop(provider))
    run_id = await bench.submit("buy", {"by": "hold"})
    task = asyncio.create_task(bench.drain())
    await gate.reached()
    one = await reason(bench, run_id, "call_on_its_way")
    operation = await bench.operation(run_id)
    assert (one.since, one.until) == (operation.submitting_at, operation.call_until)
    assert one.refs[0].id == ids.show("op", operation.operation_id)
    gate.open()
    await task


# ---- waiting -------------------------------------------------------------------------------------


async def test_a_sleep_names_its_end_and_who_would_wake_it(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    async def sleeps(ctx: Context) -> None:
        await ctx.sleep("1h")

    bench = make_bench(work(sleeps))
    run = await bench.done("work")
    found = await explain(bench, run.run_id)
    assert [one.code for one in found.reasons] == ["waits_for_time", "no_worker"]
    assert found.reasons[0].until == clock.now + timedelta(hours=1)
    assert found.since == (await bench.events(run.run_id, "run.waiting"))[0].created_at
    async with living(bench):
        assert await codes(bench, run.run_id) == ["waits_for_time"]


async def test_a_signal_is_named_with_the_call_that_sends_it(make_bench: MakeBench) -> None:
    async def waits(ctx: Context) -> None:
        await ctx.wait_signal("paid in full")

    bench = make_bench(work(waits))
    run = await bench.done("work")
    one = await reason(bench, run.run_id, "waits_for_signal")
    shown = ids.show("run", run.run_id)
    assert one.moved_by[0].call == f"POST /v1/runs/{shown}/signals/paid%20in%20full"
    assert one.moved_by[0].command == f"earnest runs signal {shown} 'paid in full'"
    assert one.until is None
    await bench.signal(run.run_id, "paid in full")
    await bench.drain()
    assert await bench.status(run.run_id) == "succeeded"


async def test_a_decision_is_named_with_whose_it_is_until_when_and_how_it_is_made(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P11, P21: not with what it is about."""

    async def asks(ctx: Context) -> None:
        await ctx.approve("discount", {"percent": 4711}, role="operator", expires_in="1h")

    bench = make_bench(work(asks))
    run = await bench.done("work")
    one = await reason(bench, run.run_id, "waits_for_approval")
    shown = ids.show("apr", ids.approval_id(run.run_id, "discount"))
    assert "the role operator" in one.detail
    assert "4711" not in str(one)
    assert one.until == clock.now + timedelta(hours=1)
    approve, reject, time = one.moved_by
    assert (approve.by, approve.call, approve.command) == (
        "approver", f"POST /v1/approvals/{shown}/decision", f"earnest approvals approve {shown}",
    )  # fmt: skip
    assert (reject.command, time.by) == (f"earnest approvals reject {shown}", "time")
    assert await codes(bench, run.run_id) == ["waits_for_approval", "no_worker"]
    async with living(bench):
        assert await codes(bench, run.run_id) == ["waits_for_approval"]


async def test_a_parent_names_the_children_that_are_not_done_and_how_they_stand(
    make_bench: MakeBench,
) -> None:
    app = App("family")

    @app.run("child")
    async def child(ctx: Context, name: str) -> None:
        if name != "done":
            await ctx.wait_signal("go")

    @app.run("parent")
    async def parent(ctx: Context, _: None) -> None:
        names = ("done", "waits")
        await ctx.wait(*[await ctx.submit(child, name, key=name) for name in names])

    bench = make_bench(app)
    run = await bench.done("parent")
    one = await reason(bench, run.run_id, "waits_for_child")
    left = await bench.value(
        "SELECT run_id FROM execution WHERE kind = 'child' AND status = 'waiting'"
    )
    assert [(ref.type, ref.id, ref.status) for ref in one.refs] == [
        ("run", ids.show("run", left), "waiting")
    ]
    assert one.moved_by[0].command == f"earnest runs explain {ids.show('run', left)}"
    assert await codes(bench, left) == ["waits_for_signal"]


# ---- unknown -------------------------------------------------------------------------------------


async def test_a_doubt_that_nobody_can_be_asked_about_waits_for_a_person(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P3: it is told with its age."""
    provider = Provider()
    provider.drops(does=True)
    bench = make_bench(shop(provider))
    run = await bench.done("buy", {"by": "hold"})
    operation = await bench.operation(run.run_id)
    await clock.advance(hours=5)
    found = await explain(bench, run.run_id)
    assert found.status == "unknown"
    (one,) = found.reasons
    assert one.code == "operation_in_doubt"
    assert one.since == operation.unknown_since
    assert "is not known for 5 hours; its provider cannot be asked; a person decides" in one.detail
    shown = ids.show("op", operation.operation_id)
    assert [(mover.by, mover.command) for mover in one.moved_by] == [
        ("operator", f"earnest operations resolve {shown}")
    ]
    await bench.resolve(operation, "released")
    await bench.drain()
    assert await codes(bench, run.run_id) == ["ended"]


async def test_a_doubt_that_is_asked_about_names_the_next_question_and_who_could_ask(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    provider = Provider()
    provider.drops(does=False)
    bench = make_bench(shop(provider))
    run = await bench.done("buy", {"by": "never"})
    operation = await bench.operation(run.run_id)
    assert operation.lookup_count > 0
    found = await explain(bench, run.run_id)
    assert [one.code for one in found.reasons] == ["operation_in_doubt", "effect_without_worker"]
    assert found.reasons[0].until == operation.lookup_due_at
    assert f"asked {operation.lookup_count} times so far" in found.reasons[0].detail
    assert [mover.by for mover in found.reasons[0].moved_by] == ["worker", "operator", "operator"]
    async with living(bench, effects=("test.lookup.never",)):
        assert await codes(bench, run.run_id) == ["operation_in_doubt"]


# ---- ended, and who may know ---------------------------------------------------------------------


async def test_a_run_that_ended_badly_says_how_it_may_be_tried_again(make_bench: MakeBench) -> None:
    async def refuses(ctx: Context) -> None:
        raise Blocked("over the budget")

    bench = make_bench(work(refuses))
    run = await bench.done("work")
    one = await reason(bench, run.run_id, "blocked")
    assert one.detail == "it is blocked (blocked: over the budget), and moves no more"
    assert one.since == run.finished_at
    assert one.moved_by[0].command == f"earnest runs retry {ids.show('run', run.run_id)}"
    assert await codes(bench, (await bench.retry(run.run_id)).run_id) == ["no_worker"]
    good = await make_bench(work(nothing)).done("work")
    assert (await reason(bench, good.run_id, "ended")).moved_by == ()


def shown_operations(one: Reason) -> list[str]:
    return [ref.id for ref in one.refs if ref.type == "operation"]


async def test_an_ended_run_that_submitted_something_is_not_told_to_retry(
    make_bench: MakeBench,
) -> None:
    """A new revision would pay a second time."""
    app = shop(Provider())

    @app.run("buy and fail", max_attempts=1)
    async def buys(ctx: Context, _: None) -> None:
        await ctx.operation("pay", Hold, Order(number=17))
        raise Blocked("out of stock")

    @app.run("order", max_attempts=1)
    async def orders(ctx: Context, _: None) -> None:
        await ctx.wait(await ctx.submit(buys, None, key="one"))

    bench = make_bench(app)
    run = await bench.done("buy and fail")
    operation = await bench.operation(run.run_id)
    one = await reason(bench, run.run_id, "blocked")
    assert one.detail.endswith(
        "operation 'pay' (test.hold) was submitted: a retry is a new revision, which sends again "
        "what it asks for"
    )
    assert shown_operations(one) == [ids.show("op", operation.operation_id)]
    assert one.moved_by == ()
    parent = await bench.done("order")  # fails with its child
    one = await reason(bench, parent.run_id, "ended")
    assert one.moved_by == ()
    assert len(shown_operations(one)) == 1


async def test_a_cancelled_run_with_a_doubt_is_told_to_settle_it_and_not_to_retry(
    make_bench: MakeBench,
) -> None:
    provider = Provider()
    provider.drops(does=True)
    bench = make_bench(shop(provider))
    run = await bench.done("buy", {"by": "hold"})
    await bench.cancel(run.run_id)
    assert await bench.status(run.run_id) == "cancelled"
    with pytest.raises(UnderReview):
        await bench.retry(run.run_id)
    operation = await bench.operation(run.run_id)
    shown = ids.show("op", operation.operation_id)
    one = await reason(bench, run.run_id, "ended")
    assert [mover.command for mover in one.moved_by] == [f"earnest operations resolve {shown}"]
    await bench.resolve(operation, "released")
    one = await reason(bench, run.run_id, "ended")
    assert one.moved_by[0].command == f"earnest runs retry {ids.show('run', run.run_id)}"


async def test_an_old_revision_refers_to_the_newest_one(make_bench: MakeBench) -> None:
    bench = make_bench(work(nothing))
    old = await bench.submit("work")
    await bench.cancel(old)
    new = (await bench.retry(old)).run_id
    one = await reason(bench, old, "ended")
    assert [(ref.type, ref.id) for ref in one.refs] == [("run", ids.show("run", new))]
    assert "look at revision 2 of its lineage" in one.detail
    assert one.moved_by == ()


async def test_whoever_may_not_see_a_run_is_told_that_there_is_none(make_bench: MakeBench) -> None:
    """P12."""
    bench = make_bench(work(nothing))
    run_id = await bench.submit("work")
    with pytest.raises(NotFound):
        await explain(bench, run_id, "somebody")
    with pytest.raises(NotFound):
        await explaining.explain(bench.engine, Sight("other", run_id, None))
    assert (await explain(bench, run_id, None)).run_id == run_id


async def test_an_explanation_names_neither_inputs_nor_requests(make_bench: MakeBench) -> None:
    """P21."""
    provider = Provider()
    provider.drops(does=True)
    bench = make_bench(shop(provider))
    run = await bench.done("buy", {"by": "hold", "number": 471147})
    assert "471147" in str((await bench.operation(run.run_id)).request)
    assert "471147" not in str(await explain(bench, run.run_id))
