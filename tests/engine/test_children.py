"""Children: runs that a run submits and waits for (P7, P20, P25)."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import pytest

from earnest import App, ChildFailed, Context, Failed
from earnest.domain import ids
from earnest.domain.errors import FencedOut
from earnest.domain.run import Wait
from earnest.engine.attempts.settling import Settled, Wish
from earnest.testing.clock import ManualClock
from tests.engine.bench import SCOPE, Bench
from tests.engine.conftest import MakeBench
from tests.engine.handlers import fails_once
from tests.engine.provider import Provider, shop


def family(**terms: Any) -> App:
    """`gather` submits children of `echo` and waits for them; `start` only submits one."""
    app = App("family")

    @app.run("echo", lane="children")
    async def echo(ctx: Context, value: Any) -> Any:
        if value == "fails":
            raise Failed("as asked")
        if value == "waits":
            await ctx.wait_signal("go")
        return value

    @app.run("gather", retry_first="0s", **terms)
    async def gather(ctx: Context, values: list[Any]) -> list[Any]:
        children = [await ctx.submit(echo, value, key=str(n)) for n, value in enumerate(values)]
        fails_once(ctx)
        return await ctx.wait(*children)

    @app.run("start")
    async def start(ctx: Context, detached: bool) -> str:
        child = await ctx.submit(echo, "waits", detached=detached)
        await ctx.wait_signal("go")
        return str(child.run_id)

    return app


async def children_of(bench: Bench, parent: uuid.UUID) -> list[uuid.UUID]:
    async with bench.engine.database.connection() as connection:
        rows = await connection.fetch(
            "SELECT run_id FROM run WHERE scope_id = $1 AND parent_run_id = $2 ORDER BY child_name",
            SCOPE, parent,
        )  # fmt: skip
    return [row["run_id"] for row in rows]


async def test_a_parent_gathers_what_its_children_return_in_order(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P25: it waits without a worker, and every attempt finds the same children."""
    bench = make_bench(family())
    run_id = await bench.submit("gather", [1, {"two": 2}, "three"])
    await bench.drain()
    run = await bench.find(run_id)
    assert (run.status, run.output) == ("succeeded", [1, {"two": 2}, "three"])
    children = await children_of(bench, run_id)
    assert len(children) == 3
    assert (await bench.outcomes(run_id))[0] == "failed"
    for child in children:
        assert await bench.told(child) == ["run.submitted", "attempt.started", "run.succeeded"]


async def test_what_is_no_run_kind_is_no_child(make_bench: MakeBench, clock: ManualClock) -> None:
    app = App("odd")

    @app.run("odd", max_attempts=1)
    async def odd(ctx: Context, value: Any) -> None:
        await ctx.submit("echo", 1, name="child")  # type: ignore[arg-type]

    run = await make_bench(app).done("odd", 1)
    assert run.error is not None
    assert "'echo' is no run kind; give the handler" in run.error["detail"]


async def test_the_id_of_a_child_derives_from_its_parent_and_name(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P7: whoever asks and however often."""
    bench = make_bench(family())
    run_id = await bench.submit("gather", [1, 2])
    await bench.drain()
    assert await children_of(bench, run_id) == [
        ids.child_id(run_id, "echo#0"), ids.child_id(run_id, "echo#1"),
    ]  # fmt: skip
    child = await bench.find(ids.child_id(run_id, "echo#0"))
    assert (child.parent_run_id, child.lane, child.principal_id) == (run_id, "children", "member")


async def test_a_child_that_failed_is_told_to_the_handler_with_its_error(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P22: unhandled it ends the parent as `child_failed`, for good."""
    bench = make_bench(family())
    run_id = await bench.submit("gather", [1, "fails", 3])
    await bench.drain()
    run = await bench.find(run_id)
    assert (run.status, run.failures) == ("failed", 2)
    assert run.error is not None
    assert run.error["code"] == "child_failed"
    assert run.error["status"] == "failed"
    assert run.error["run_id"] == ids.show("run", ids.child_id(run_id, "echo#1"))
    assert run.error["error"] == {"code": "failed", "detail": "as asked"}


async def test_a_handler_may_go_on_without_a_child(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P22."""
    app = family()

    @app.run("tolerant")
    async def tolerant(ctx: Context, value: str) -> str:
        try:
            return await ctx.run(app.kinds["echo"], value)
        except ChildFailed as failed:
            return f"went on: {failed.fields['status']}"

    bench = make_bench(app)
    assert (await bench.done("tolerant", "fails")).output == "went on: failed"


async def test_a_child_that_is_cancelled_wakes_its_parent(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P25."""
    bench = make_bench(family())
    run_id = await bench.submit("gather", ["waits"])
    await bench.drain()
    assert await bench.status(run_id) == "waiting"
    (child,) = await children_of(bench, run_id)
    await bench.cancel(child)
    await bench.drain()
    run = await bench.find(run_id)
    assert (run.status, (run.error or {})["status"]) == ("failed", "cancelled")


async def test_a_child_that_runs_out_of_time_or_attempts_wakes_its_parent(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P25: also when the reaper ends it."""
    app = App("family")

    @app.run("mortal", lane="children", deadline="1h")
    async def mortal(ctx: Context, value: int) -> None:
        await ctx.wait_signal("go")

    @app.run("parent")
    async def parent(ctx: Context, value: int) -> Any:
        return await ctx.run(mortal, 1)

    bench = make_bench(app)
    run = await bench.done("parent", 1)
    assert run.status == "waiting"
    await clock.advance(hours=1)
    await bench.drain()
    after = await bench.find(run.run_id)
    assert (after.error or {})["error"]["code"] == "deadline_exceeded"


async def test_a_child_in_doubt_keeps_its_parent_waiting(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P3, P25: it is not over."""
    provider = Provider()
    app = shop(provider)

    @app.run("parent")
    async def parent(ctx: Context, value: int) -> Any:
        return await ctx.run(app.kinds["buy"], {"by": "hold"})

    bench = make_bench(app)
    provider.drops(does=True)
    run = await bench.done("parent", 1)
    (child,) = await children_of(bench, run.run_id)
    assert (await bench.status(child), run.status) == ("unknown", "waiting")
    await bench.resolve(await bench.operation(child), "submitted", {"id": "found"})
    await bench.drain()
    assert (await bench.find(run.run_id)).output == {"id": "found"}


# ---- the last one ------------------------------------------------------------------------------


async def test_the_parent_sleeps_until_the_last_child_has_ended(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P25: and is woken once."""
    bench = make_bench(family())
    run_id = await bench.submit("gather", ["waits", "waits"])
    await bench.drain()
    first, second = await children_of(bench, run_id)
    await bench.signal(first, "go")
    await bench.drain()
    assert await bench.status(run_id) == "waiting"
    await bench.signal(second, "go")
    await bench.drain()
    assert await bench.status(run_id) == "succeeded"
    assert (await bench.told(run_id)).count("run.woken") == 1


async def test_when_the_last_two_children_end_together_one_of_them_wakes_the_parent(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P25: each would think that the other still goes on; both wait for the parent's lock."""
    bench = make_bench(family())
    run_id = await bench.submit("gather", [1, 2, 3])
    bench.worker.lanes = ["default"]
    await bench.drain()
    assert await bench.status(run_id) == "waiting"
    claimed = await bench.claim(lane="children")
    assert len(claimed) == 3
    async with bench.holding(run_id):
        settling = [
            asyncio.create_task(bench.settle(one, Wish.SUCCEED, output=b"1")) for one in claimed
        ]
        await bench.wait_for_lock_waiters(3)
    assert await asyncio.gather(*settling) == [Settled.SUCCEEDED] * 3
    assert await bench.status(run_id) == "queued"
    assert (await bench.told(run_id)).count("run.woken") == 1
    await bench.drain()
    assert (await bench.find(run_id)).output == [1, 1, 1]


async def test_a_child_that_ends_while_the_parking_waits_for_the_lock_is_not_missed(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P25: the handler saw it active; the statement that waited has the older snapshot."""
    bench = make_bench(family())
    run_id = await bench.submit("gather", [1])
    await bench.worker._claim_now("default")
    await asyncio.sleep(0)  # what was claimed is begun in the loop's next turn
    await asyncio.wait(set(bench.worker._attempts))  # fails once, after it has made the child
    (parent,) = await bench.claim()
    child = ids.child_id(run_id, "echo#0")
    wait = Wait("children", run_ids=(child,))
    async with bench.holding(run_id) as mover:
        parking = asyncio.create_task(bench.settle(parent, Wish.PARK, waits=(wait,)))
        await bench.wait_for_lock_waiters()
        await mover.execute(
            "UPDATE execution SET status = 'cancelled', finished_at = clock() WHERE run_id = $1",
            child,
        )
    assert await parking is Settled.QUEUED


async def test_an_input_that_is_too_large_for_a_run_is_too_large_for_a_child(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P7: no door is wider than another."""
    app = family()

    @app.run("grow", max_attempts=1)
    async def grow(ctx: Context, size: int) -> None:
        await ctx.submit(app.kinds["echo"], "x" * size)

    bench = make_bench(app, max_input_bytes=100)
    fits, too_large = await bench.done("grow", 98), await bench.done("grow", 99)
    assert fits.status == "succeeded"
    assert (too_large.error or {})["code"] == "payload_too_large"
    assert await children_of(bench, too_large.run_id) == []


# ---- names and code that changed ---------------------------------------------------------------


@pytest.mark.parametrize(("kind", "value"), [("echo", 2), ("other", 1)])
async def test_another_kind_or_input_under_a_childs_name_is_refused(
    make_bench: MakeBench, clock: ManualClock, kind: str, value: int
) -> None:
    """P5, P7: `CodeChanged`; the child that is there stays."""
    app = family()

    @app.run("other")
    async def other(ctx: Context, value: int) -> int:
        return value

    @app.run("changes", retry_first="1m")
    async def changes(ctx: Context, _: int) -> Any:
        if ctx.attempt == 1:
            await ctx.submit(app.kinds["echo"], 1, name="child")
            raise RuntimeError("once")
        return await ctx.run(app.kinds[kind], value, name="child")

    bench = make_bench(app)
    run_id = (await bench.done("changes", 1)).run_id
    await clock.advance(minutes=1)
    await bench.drain()
    run = await bench.find(run_id)
    assert (run.error or {})["code"] == "code_changed"
    assert len(await children_of(bench, run_id)) == 1


async def test_an_output_that_no_longer_fits_its_kind_is_told_as_changed_code(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P5."""
    app = App("family")

    @app.run("number", lane="children")
    async def number(ctx: Context, value: int) -> int:
        return value

    @app.run("parent", max_attempts=1)
    async def parent(ctx: Context, value: int) -> Any:
        return await ctx.run(number, value)

    bench = make_bench(app)
    bench.worker.lanes = ["default"]
    run_id = (await bench.done("parent", 1)).run_id
    (child,) = await children_of(bench, run_id)
    bench.worker.lanes = ["children"]
    await bench.drain()
    await bench.execute("UPDATE execution SET output = '\"older\"' WHERE run_id = $1", child)
    bench.worker.lanes = ["default"]
    await bench.drain()
    run = await bench.find(run_id)
    assert (run.error or {})["code"] == "code_changed"
    assert "the output of child 'number' no longer fits number" in (run.error or {})["detail"]


async def test_children_in_parallel_branches_need_keys(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P7."""
    app = family()

    @app.run("beside", max_attempts=1)
    async def beside(ctx: Context, value: int) -> Any:
        echo = app.kinds["echo"]
        return await asyncio.gather(ctx.submit(echo, 1), ctx.submit(echo, 2))

    bench = make_bench(app)
    run = await bench.done("beside", 1)
    assert (run.error or {})["code"] == "name_needed"


async def test_an_input_that_does_not_fit_a_child_makes_none(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P7: as for any other submit."""
    app = App("family")

    @app.run("strict")
    async def strict(ctx: Context, value: int) -> int:
        return value

    @app.run("parent", max_attempts=1)
    async def parent(ctx: Context, value: int) -> Any:
        return await ctx.run(app.kinds["strict"], "many")

    bench = make_bench(app)
    run = await bench.done("parent", 1)
    assert (run.error or {})["code"] == "invalid_request"
    assert await children_of(bench, run.run_id) == []


async def test_an_attempt_that_lost_its_run_makes_no_children(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P5."""
    errors: list[BaseException] = []
    app = family()

    @app.run("late")
    async def late(ctx: Context, value: int) -> None:
        if ctx.attempt > 1:
            return
        await clock.advance(seconds=46)
        try:
            await ctx.submit(app.kinds["echo"], 1)
        except FencedOut as error:
            errors.append(error)

    bench = make_bench(app)
    run = await bench.done("late", 1)
    assert len(errors) == 1
    assert await children_of(bench, run.run_id) == []


# ---- cancelling --------------------------------------------------------------------------------


@pytest.mark.parametrize(("detached", "status"), [(False, "cancelled"), (True, "waiting")])
async def test_cancelling_goes_down_to_children_that_are_not_detached(
    make_bench: MakeBench, clock: ManualClock, detached: bool, status: str
) -> None:
    """P20."""
    bench = make_bench(family())
    run_id = (await bench.done("start", detached)).run_id
    (child,) = await children_of(bench, run_id)
    assert (await bench.cancel(run_id)).outcome == "cancelled"
    assert await bench.status(child) == status


async def test_cancelling_goes_down_however_deep(make_bench: MakeBench, clock: ManualClock) -> None:
    """P20: and asks those that run."""
    app = App("deep")

    @app.run("deep")
    async def deep(ctx: Context, depth: int) -> None:
        if depth:
            await ctx.run(app.kinds["deep"], depth - 1)
        await ctx.wait_signal("go")

    bench = make_bench(app)
    run_id = (await bench.done("deep", 3)).run_id
    assert await bench.value("SELECT count(*) FROM execution WHERE status = 'waiting'") == 4
    await bench.cancel(run_id)
    assert await bench.value("SELECT count(*) FROM execution WHERE status = 'cancelled'") == 4


async def test_a_child_that_is_made_while_its_parent_is_cancelled_is_cancelled_too(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P20: the family is read again under its locks."""
    app = family()
    inside, go_on = asyncio.Event(), asyncio.Event()

    @app.run("makes")
    async def makes(ctx: Context, value: int) -> None:
        inside.set()
        await go_on.wait()
        await ctx.submit(app.kinds["echo"], "waits")
        await ctx.wait_signal("go")

    bench = make_bench(app)
    bench.worker.lanes = ["default"]
    run_id = await bench.submit("makes", 1)
    working = asyncio.create_task(bench.drain())
    await inside.wait()
    async with bench.holding(run_id):
        go_on.set()
        await bench.wait_for_lock_waiters(1)  # the child that is about to be made
        cancelling = asyncio.create_task(bench.cancel(run_id))
        await bench.wait_for_lock_waiters(2)
    await asyncio.gather(working, cancelling)
    for child in await children_of(bench, run_id):
        assert await bench.status(child) == "cancelled"
    assert await bench.status(run_id) == "cancelled"
    assert await bench.value("SELECT count(*) FROM execution WHERE status <> 'cancelled'") == 0
