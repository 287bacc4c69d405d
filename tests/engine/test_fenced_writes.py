"""What an attempt writes is written under its fence, or not at all (P5)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import pytest

from earnest import App, Child, Context
from earnest.domain import ids
from earnest.domain.errors import FencedOut
from earnest.engine.attempts.remembering import Rememberer
from earnest.engine.runs.leasing import Leases, boot_seconds
from earnest.store import facts
from earnest.store.executions import Claimed
from earnest.testing.clock import ManualClock
from tests.engine.bench import SCOPE, Bench
from tests.engine.conftest import MakeBench
from tests.engine.provider import Provider, shop


def idle() -> App:
    app = App("idle")

    @app.run("idle")
    async def idle(ctx: Context, value: int) -> int:
        return value

    return app


async def stale_and_newer(bench: Bench, clock: ManualClock) -> tuple[Claimed, Claimed]:
    await bench.submit("idle", 1)
    (stale,) = await bench.claim()
    await clock.advance(seconds=46)
    await bench.worker._reaper.look()
    (newer,) = await bench.claim()
    return stale, newer


async def steps_of(bench: Bench, run: Claimed) -> dict[str, tuple[int, object]]:
    found = await facts.steps(bench.engine.database, SCOPE, run.run_id)
    return {step.name: (step.attempt, step.result) for step in found}


async def test_a_stale_write_does_not_slip_in_with_the_group_of_a_newer_attempt(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P5: both attempts write through one process in the same moment."""
    bench = make_bench(idle())
    stale, newer = await stale_and_newer(bench, clock)
    rememberer = Rememberer(bench.engine, Leases(bench.engine.settings.lease))

    async def write(claimed: Claimed, name: str, value: bytes) -> None:
        await rememberer.write(claimed, "step.completed", b"{}", name, "step", b"", value)

    answers = await asyncio.gather(
        write(stale, "of the stale one", b"1"),
        write(newer, "of the newer one", b"2"),
        write(stale, "again of the stale one", b"3"),
        return_exceptions=True,
    )
    assert [type(answer) for answer in answers] == [FencedOut, type(None), FencedOut]
    assert await steps_of(bench, newer) == {"of the newer one": (2, 2)}


# ---- rows on which somebody sits ---------------------------------------------------------------


async def test_a_row_on_which_somebody_sits_holds_up_no_other_runs_steps(
    make_bench: MakeBench,
) -> None:
    app, calls, stored = App("idle"), list[int](), set[int]()

    @app.run("idle", max_attempts=1)
    async def idle(ctx: Context, value: int) -> None:
        calls.append(value)
        if len(calls) == 8:
            all_begun.set()
        await go_on.wait()
        await ctx.text(f"{value}")
        await ctx.step("count", calls.append, value)
        stored.add(value)
        if len(stored) == 7:
            others_done.set()

    bench = make_bench(app)
    all_begun, go_on, others_done = asyncio.Event(), asyncio.Event(), asyncio.Event()
    runs = [await bench.submit("idle", value) for value in range(8)]
    draining = asyncio.create_task(bench.drain())
    await all_begun.wait()
    async with bench.holding(runs[3]):
        go_on.set()
        async with asyncio.timeout(8):  # a lock is waited for longer than that
            await others_done.wait()
        assert stored == {0, 1, 2, 4, 5, 6, 7}
    await draining
    assert [await bench.outcomes(run_id) for run_id in runs] == [["succeeded"]] * 8
    assert sorted(calls) == sorted(2 * list(range(8)))
    assert await bench.value("SELECT count(*) FROM text_delta") == 8


async def test_who_writes_to_a_row_on_which_somebody_sits_ends_with_its_lease(
    make_bench: MakeBench,
) -> None:
    """P5."""
    bench = make_bench(idle())
    await bench.submit("idle", 1)
    (claimed,) = await bench.claim()
    leases = Leases(bench.engine.settings.lease)
    held = leases.hold(claimed, boot_seconds(), lambda: None, lambda: None)
    rememberer = Rememberer(bench.engine, leases)
    async with bench.holding(claimed.run_id):
        held.lose()
        with pytest.raises(FencedOut):
            await rememberer.write(claimed, "shop.sold", b"{}")


# ---- every verb of the context -----------------------------------------------------------------


Verb = Callable[[Context, App], Awaitable[object]]


async def text(ctx: Context, app: App) -> None:
    """It is stored a moment later: then the lease shows as lost, and the handler is ended."""
    await ctx.text("late")
    with contextlib.suppress(asyncio.CancelledError):
        await ctx.flush_text()
    await ctx.text("later")


VERBS: dict[str, Verb] = {
    "step": lambda ctx, app: ctx.step("late", int),
    "keyed_step": lambda ctx, app: ctx.keyed_step("late", "key", int),
    "emit": lambda ctx, app: ctx.emit("it.happened", {}),
    "progress": lambda ctx, app: ctx.progress(1),
    "text": text,
    "operation": lambda ctx, app: ctx.operation("pay", app.effects["test.hold"], {"number": 1}),
    "sleep": lambda ctx, app: ctx.sleep("1h"),
    "wait_signal": lambda ctx, app: ctx.wait_signal("go", timeout="1h"),
    "submit": lambda ctx, app: ctx.submit(app.kinds["buy"], {"by": "hold"}),
    "run": lambda ctx, app: ctx.run(app.kinds["buy"], {"by": "hold"}),
}


async def lapses(bench: Bench, clock: ManualClock) -> None:
    await clock.advance(seconds=45)


async def is_taken_over(bench: Bench, clock: ManualClock) -> None:
    await clock.advance(seconds=45)
    await bench.worker._reaper.look()
    assert len(await bench.claim(lane="late")) == 1


async def is_not_believed_in(bench: Bench, clock: ManualClock) -> None:
    for lease in bench.worker._leases.all():
        lease.until = 0.0


@pytest.mark.parametrize("how", [lapses, is_taken_over, is_not_believed_in])
@pytest.mark.parametrize("verb", VERBS)
async def test_an_attempt_that_lost_its_lease_changes_nothing_with_any_verb(
    make_bench: MakeBench, clock: ManualClock, verb: str, how: Callable[..., Awaitable[None]]
) -> None:
    """P5: it is told so, and nothing is stored or sent."""
    provider = Provider()
    app = shop(provider)
    seen: list[type] = []
    before: dict[str, object] = {}

    @app.run("late", lane="late")
    async def late(ctx: Context, value: int) -> None:
        if ctx.attempt > 1:
            return
        await how(bench if how is not is_taken_over else other, clock)
        before.update(await written(bench))
        try:
            await VERBS[verb](ctx, app)
        except BaseException as error:
            seen.append(type(error))
            raise

    bench, other = make_bench(app), make_bench(app)
    bench.worker.lanes = ["late"]
    await bench.submit("late", 1)
    await bench.worker._claim_all()
    await asyncio.sleep(0)  # what was claimed is begun in the loop's next turn
    await asyncio.wait(set(bench.worker._attempts))
    assert seen == [FencedOut]
    assert await written(bench) == before
    assert provider.calls == []


async def written(bench: Bench) -> dict[str, object]:
    """What is stored: how many rows of each, and the executions as they stand."""
    tables = ["run", "event", "step", "operation", "signal"]
    tables += ["text_delta", "text_head", "text_quota"]
    found = {table: await bench.value(f"SELECT count(*) FROM {table}") for table in tables}
    rows = "SELECT string_agg(e::text, '; ' ORDER BY run_id) FROM execution e"
    return {**found, "executions": await bench.value(rows)}


@pytest.mark.parametrize("verb", VERBS)
async def test_a_context_that_was_kept_after_its_attempt_changes_nothing(
    make_bench: MakeBench, clock: ManualClock, verb: str
) -> None:
    """P5: also when the run has succeeded, and when its lease would still last."""
    provider = Provider()
    app = shop(provider)
    kept: list[Context] = []

    @app.run("keeps")
    async def keeps(ctx: Context, value: int) -> None:
        kept.append(ctx)
        await ctx.submit(app.kinds["buy"], {"by": "hold"}, name="child")

    bench = make_bench(app)
    run = await bench.done("keeps", 1)
    calls, before = len(provider.calls), await written(bench)
    with pytest.raises(FencedOut):
        await VERBS[verb](kept[0], app)
    child = Child(ids.child_id(run.run_id, "child"), "child", app.kinds["buy"])
    with pytest.raises(FencedOut):
        await kept[0].wait(child)
    assert await written(bench) == before
    assert len(provider.calls) == calls
