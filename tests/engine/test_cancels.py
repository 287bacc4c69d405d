"""Cancelling says truthfully what happened: `cancelled`, `requested` or `too_late` (P20)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from earnest import Blocked, Context, Failed
from earnest.domain import ids
from earnest.domain.errors import NotFound
from earnest.domain.ids import new_id
from earnest.engine.runs import cancelling
from earnest.testing.clock import ManualClock
from tests.engine.bench import MEMBER, Bench
from tests.engine.conftest import MakeBench
from tests.engine.handlers import work
from tests.engine.provider import Gate, Provider, shop


async def waits(ctx: Context) -> Any:
    return await ctx.wait_signal("go")


async def test_a_queued_run_is_cancelled_at_once(make_bench: MakeBench, clock: ManualClock) -> None:
    """P20: nobody claims it any more."""
    bench = make_bench(work(waits))
    run_id = await bench.submit("work")
    answer = await bench.cancel(run_id)
    assert (answer.outcome, answer.run.status) == ("cancelled", "cancelled")
    assert await bench.drain() == 0
    asked, last = (await bench.events(run_id))[1:]
    assert (asked.type, asked.payload) == ("run.cancel_requested", {"by": MEMBER})
    assert (last.type, last.payload["operations"]) == ("run.cancelled", [])


async def test_a_delayed_and_a_retried_run_are_cancelled_at_once(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P20."""

    async def fails(ctx: Context) -> None:
        raise RuntimeError("again")

    bench = make_bench(work(fails, retry_first="1m"))
    run = await bench.done("work")
    assert run.status == "queued"
    cancelled = await bench.cancel(run.run_id)
    assert (cancelled.outcome, cancelled.run.retry_at) == ("cancelled", None)
    await clock.advance(minutes=1)
    assert await bench.drain() == 0
    assert await bench.outcomes(run.run_id) == ["failed"]


async def test_a_waiting_run_is_cancelled_at_once(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P20: what it waited for does not wake it any more."""

    async def sleeps(ctx: Context) -> None:
        await ctx.sleep("1m")

    bench = make_bench(work(sleeps))
    run = await bench.done("work")
    answer = await bench.cancel(run.run_id)
    assert (answer.outcome, answer.run.waiting_on) == ("cancelled", None)
    await clock.advance(minutes=1)
    assert await bench.drain() == 0
    assert await bench.status(run.run_id) == "cancelled"


async def test_a_running_run_is_asked_and_its_owner_stops(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P20: the answer says that it was asked, not that it has ended."""
    gate = Gate()
    seen: list[bool] = []

    async def handler(ctx: Context) -> None:
        try:
            await gate.pass_through()
        finally:
            seen.append(ctx.cancelled)

    bench = make_bench(work(handler))
    async with bench.at_work():
        run_id = await bench.submit("work")
        await gate.reached()
        answer = await bench.cancel(run_id)
        assert (answer.outcome, answer.run.status) == ("requested", "running")
        assert answer.run.cancel_requested
        await bench.until(run_id, "cancelled")
    assert seen == [True]
    assert await bench.outcomes(run_id) == ["cancelled"]
    assert (await bench.told(run_id))[-2:] == ["run.cancel_requested", "run.cancelled"]


async def test_asking_a_running_run_twice_is_harmless(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P20."""
    bench = make_bench(work(waits))
    run_id = await bench.submit("work")
    await bench.claim()
    outcomes = [(await bench.cancel(run_id)).outcome for _ in range(3)]
    assert outcomes == ["requested"] * 3
    assert (await bench.told(run_id)).count("run.cancel_requested") == 1


@pytest.mark.parametrize("ends", ["succeeds", "fails", "blocks"])
async def test_a_run_that_has_ended_is_too_late_to_cancel(
    make_bench: MakeBench, clock: ManualClock, ends: str
) -> None:
    """P20, P22: nothing of it changes."""

    async def handler(ctx: Context) -> None:
        if ends == "fails":
            raise Failed("for good")
        if ends == "blocks":
            raise Blocked("no credits")

    bench = make_bench(work(handler))
    run = await bench.done("work")
    answer = await bench.cancel(run.run_id)
    assert answer.outcome == "too_late"
    assert answer.run == run
    assert await bench.find(run.run_id) == run


async def test_a_cancelled_run_says_so_again(make_bench: MakeBench, clock: ManualClock) -> None:
    """P20: it was not too late."""
    bench = make_bench(work(waits))
    run_id = await bench.submit("work")
    first, second = await bench.cancel(run_id), await bench.cancel(run_id)
    assert (first.outcome, second.outcome) == ("cancelled", "cancelled")
    assert first.run == second.run


async def test_a_run_in_doubt_is_cancelled_and_leaves_its_operation_on_the_desk(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P3, P20: the cancelled run lists what may have happened."""
    provider = Provider()
    bench = make_bench(shop(provider))
    provider.drops(does=True)
    run = await bench.done("buy", {"by": "hold"})
    answer = await bench.cancel(run.run_id)
    assert (answer.outcome, answer.run.status, answer.run.in_doubt) == (
        "cancelled", "cancelled", 1,
    )  # fmt: skip
    operation = await bench.operation(run.run_id)
    assert operation.state == "unknown"
    (last,) = await bench.events(run.run_id, "run.cancelled")
    assert last.payload["operations"] == [
        {
            "operation_id": ids.show("op", operation.operation_id),
            "name": "pay",
            "state": "unknown",
        }
    ]


async def test_a_call_that_is_sent_again_for_a_cancelled_run_is_in_doubt_and_its_receipt_counts(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P3, P20: the reconciler was in the middle of it."""
    provider = Provider(dedupes=True)
    bench = make_bench(shop(provider))
    provider.drops(does=True)
    provider.drops(does=True)
    run = await bench.done("buy", {"by": "resend"})
    gate = provider.holds()
    sending = asyncio.create_task(bench.look_up(await bench.operation(run.run_id)))
    await gate.reached()
    assert (await bench.operation(run.run_id)).state == "submitting"
    await bench.cancel(run.run_id)
    assert (await bench.operation(run.run_id)).state == "unknown"
    gate.open()
    await sending
    operation = await bench.operation(run.run_id)
    assert operation.state == "submitted"
    assert (operation.resolution or {})["by"] == "late_receipt"
    assert await bench.status(run.run_id) == "cancelled"


async def test_what_it_did_before_is_listed_when_a_run_is_cancelled(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P20: what was done stays done."""
    provider = Provider()
    app = shop(provider)

    @app.run("pays and waits")
    async def pays_and_waits(ctx: Context, value: int) -> None:
        await ctx.operation("first", app.effects["test.hold"], {"number": 1})
        await ctx.wait_signal("go")

    bench = make_bench(app)
    run = await bench.done("pays and waits", 1)
    await bench.cancel(run.run_id)
    (last,) = await bench.events(run.run_id, "run.cancelled")
    assert [(one["name"], one["state"]) for one in last.payload["operations"]] == [
        ("first", "submitted")
    ]


async def test_a_handler_that_ends_well_although_it_was_asked_to_stop_has_succeeded(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P20: the truth is what happened."""
    bench = await asked_at_the_end(make_bench, "well")
    assert await bench.value("SELECT status FROM execution") == "succeeded"


async def test_a_handler_that_fails_after_it_was_asked_to_stop_is_cancelled(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P20: it is not tried again."""
    bench = await asked_at_the_end(make_bench, "badly")
    assert await bench.value("SELECT status FROM execution") == "cancelled"
    assert await bench.value("SELECT failures FROM execution") == 0


async def test_a_handler_that_parks_after_it_was_asked_to_stop_is_cancelled(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P20: it does not wait for ever."""
    bench = await asked_at_the_end(make_bench, "waiting")
    assert await bench.value("SELECT status FROM execution") == "cancelled"


async def asked_at_the_end(make_bench: MakeBench, ends: str) -> Bench:
    """A run whose handler hears nothing of the stop, and ends in its own way."""

    async def handler(ctx: Context) -> None:
        await bench.cancel(ctx.claimed.run_id)
        if ends == "badly":
            raise RuntimeError("fails")
        if ends == "waiting":
            await ctx.wait_signal("go")

    bench = make_bench(work(handler))
    await bench.done("work")
    return bench


@pytest.mark.parametrize(
    "write",
    [
        lambda ctx: ctx.step("step", int),
        lambda ctx: ctx.emit("it.happened", {}),
        lambda ctx: ctx.progress(1),
    ],
    ids=["step", "emit", "progress"],
)
async def test_every_write_tells_a_busy_handler_that_a_stop_was_asked(
    make_bench: MakeBench, clock: ManualClock, write: Any
) -> None:
    """P20: it need not wait for the keeper."""
    seen: list[bool] = []

    async def handler(ctx: Context) -> None:
        await bench.cancel(ctx.claimed.run_id)
        seen.append(ctx.cancelled)
        try:
            await write(ctx)
            await asyncio.Event().wait()
        finally:
            seen.append(ctx.cancelled)

    bench = make_bench(work(handler))
    run = await bench.done("work")
    assert seen == [False, True]
    assert run.status == "cancelled"


async def test_what_does_not_exist_here_cannot_be_cancelled(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P12."""
    bench = make_bench(work(waits))
    with pytest.raises(NotFound):
        await bench.cancel(new_id())
    run_id = await bench.submit("work")
    with pytest.raises(NotFound):
        await cancelling.cancel(bench.engine, "other", run_id, MEMBER)
    assert await bench.status(run_id) == "queued"
