"""When a run starts and until when: delay, priority, deadline, time-out; and how a time-out is told
from a lost lease (P23, P24)."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from earnest import Context
from earnest.testing.clock import ManualClock
from tests.engine.conftest import MakeBench
from tests.engine.handlers import fails_once, work
from tests.engine.provider import Gate, Provider, shop


async def nothing(ctx: Context) -> None:
    pass


# ---- delay -------------------------------------------------------------------------------------


async def test_a_delayed_run_starts_when_its_time_has_come(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P23."""
    bench = make_bench(work(nothing))
    due_at = clock.now + timedelta(hours=1)
    run_id = await bench.submit("work", not_before=due_at)
    assert (await bench.find(run_id)).due_at == due_at
    await clock.advance(minutes=59, seconds=59)
    assert await bench.drain() == 0
    await clock.advance(seconds=1)
    assert await bench.drain() == 1


async def test_a_time_that_has_passed_delays_nothing(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P23: and does not jump the queue."""
    bench = make_bench(work(nothing))
    run_id = await bench.submit("work", not_before=clock.now - timedelta(days=1))
    assert (await bench.find(run_id)).due_at == clock.now
    assert await bench.drain() == 1


async def test_a_worker_at_work_takes_up_a_delayed_run_without_a_bell(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P23: whose time comes rings nowhere."""
    bench = make_bench(work(nothing), poll=timedelta(milliseconds=20))
    run_id = await bench.submit("work", not_before=clock.now + timedelta(hours=1))
    async with bench.at_work():
        await bench.idle()
        await clock.advance(hours=1)
        await bench.until(run_id, "succeeded")


async def test_a_delayed_run_whose_time_has_come_does_not_wait_until_the_queue_is_empty(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P23: a busy worker takes it in its turn."""
    enough = asyncio.Event()

    async def handler(ctx: Context) -> None:
        if "delayed" in ctx.labels:
            enough.set()
        elif not enough.is_set():
            await bench.submit("work")

    bench = make_bench(work(handler), concurrency=1, watch_every=timedelta(milliseconds=20))
    delayed = clock.now + timedelta(hours=1)
    run_id = await bench.submit("work", not_before=delayed, labels={"delayed": "yes"})
    async with bench.at_work():
        await bench.submit("work")
        await clock.advance(hours=1)
        try:
            await bench.until(run_id, "succeeded")
        finally:
            enough.set()


# ---- priority ----------------------------------------------------------------------------------


async def in_order(make_bench: MakeBench, clock: ManualClock, *asked: tuple[int, int]) -> list[int]:
    """Submits runs of (minutes from now, priority) and returns the order they are worked in."""
    order: list[int] = []

    async def handler(ctx: Context) -> None:
        order.append(int(ctx.labels["number"]))

    bench = make_bench(work(handler), concurrency=1)
    start = clock.now
    for number, (minutes, priority) in enumerate(asked):
        await clock.advance(seconds=(start + timedelta(minutes=minutes) - clock.now).seconds)
        await bench.submit("work", priority=priority, labels={"number": str(number)})
    await bench.drain()
    return order


async def test_runs_of_one_priority_are_worked_in_the_order_they_came(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P24."""
    assert await in_order(make_bench, clock, (0, 0), (1, 0), (2, 0)) == [0, 1, 2]


async def test_a_higher_priority_goes_first(make_bench: MakeBench, clock: ManualClock) -> None:
    """P24."""
    assert await in_order(make_bench, clock, (0, 0), (0, 10), (0, -10), (0, 5)) == [1, 3, 0, 2]


async def test_waiting_for_as_many_minutes_outweighs_a_priority(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P24: a stream of urgent runs does not starve an old one."""
    assert await in_order(make_bench, clock, (0, 0), (4, 5), (6, 5)) == [1, 0, 2]


async def test_a_retried_run_keeps_its_priority(make_bench: MakeBench, clock: ManualClock) -> None:
    """P24."""
    order: list[str] = []

    async def handler(ctx: Context) -> None:
        if ctx.labels["name"] == "urgent":
            fails_once(ctx)
        order.append(ctx.labels["name"])

    bench = make_bench(work(handler, retry_first="1m"), concurrency=1)
    await bench.done("work", priority=100, labels={"name": "urgent"})
    await bench.submit("work", labels={"name": "plain"})
    await clock.advance(minutes=1)
    await bench.drain()
    assert order == ["urgent", "plain"]


# ---- deadline ----------------------------------------------------------------------------------


async def test_a_queued_run_past_its_deadline_fails_without_being_worked(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P23: it counts from the submit to the end, and says so."""
    bench = make_bench(work(nothing, deadline="1h"))
    run_id = await bench.submit("work", not_before=clock.now + timedelta(hours=2))
    assert (await bench.find(run_id)).deadline_at == clock.now + timedelta(hours=1)
    await clock.advance(minutes=59)
    await bench.drain()
    assert await bench.status(run_id) == "queued"
    await clock.advance(minutes=1)
    assert await bench.drain() == 0
    run = await bench.find(run_id)
    assert (run.status, (run.error or {})["code"]) == ("failed", "deadline_exceeded")
    assert (run.failures, await bench.attempts(run_id)) == (0, [])
    assert await bench.told(run_id) == ["run.submitted", "run.failed"]


async def test_a_waiting_run_past_its_deadline_fails(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P23: waiting is part of its time."""

    async def waits(ctx: Context) -> None:
        await ctx.wait_signal("go")

    bench = make_bench(work(waits, deadline="1h"))
    run = await bench.done("work")
    await clock.advance(hours=1)
    await bench.drain()
    after = await bench.find(run.run_id)
    assert (after.status, (after.error or {})["code"]) == ("failed", "deadline_exceeded")
    assert (after.waiting_on, after.failures) == (None, 0)


async def test_a_run_that_would_be_tried_again_after_its_deadline_fails_then(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P23."""

    async def fails(ctx: Context) -> None:
        raise RuntimeError("again")

    bench = make_bench(work(fails, retry_first="2h", deadline="1h"))
    run = await bench.done("work")
    await clock.advance(hours=1)
    await bench.drain()
    after = await bench.find(run.run_id)
    assert (after.status, (after.error or {})["code"]) == ("failed", "deadline_exceeded")


async def test_a_running_run_is_not_interrupted_by_its_deadline(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P23: an attempt has a time-out of its own."""
    gate = Gate()

    async def handler(ctx: Context) -> str:
        await gate.pass_through()
        return "done all the same"

    bench = make_bench(work(handler, deadline="30s"))
    run_id = await bench.submit("work")
    task = asyncio.create_task(bench.drain())
    await gate.reached()
    await clock.advance(seconds=40)
    await bench.worker._reaper.look()
    gate.open()
    await task
    assert (await bench.find(run_id)).output == "done all the same"


async def test_a_run_in_doubt_is_not_failed_by_its_deadline(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P3: it is left by a resolution or a cancel only."""
    provider = Provider()
    bench = make_bench(shop(provider, deadline="1h"))
    provider.drops(does=True)
    run = await bench.done("buy", {"by": "hold"})
    await clock.advance(days=1)
    await bench.drain()
    assert await bench.status(run.run_id) == "unknown"


async def test_a_queued_run_with_a_call_on_its_way_is_in_doubt_at_its_deadline(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P3: its lost attempt left it to the next one, which never came."""
    provider = Provider()
    app = shop(provider, deadline="10m")
    frozen, other = make_bench(app), make_bench(app)
    gate = provider.holds()
    run_id = await frozen.submit("buy", {"by": "resend"})
    task = asyncio.create_task(frozen.drain())
    await gate.reached()
    await clock.advance(seconds=46)
    await other.worker._reaper.look()
    assert await other.status(run_id) == "queued"
    await clock.advance(minutes=10)
    await other.worker._reaper.look()
    assert await other.status(run_id) == "unknown"
    assert (await other.operation(run_id)).state == "unknown"
    gate.open()
    await task


# ---- time-out ----------------------------------------------------------------------------------


async def test_an_attempts_own_time_out_ends_as_timeout_and_never_as_a_lost_lease(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P23: the next attempt comes after the usual pause, and it counts."""

    async def hangs(ctx: Context) -> None:
        await asyncio.Event().wait()

    bench = make_bench(work(hangs, timeout="20ms", retry_first="1m", max_attempts=2))
    run = await bench.done("work")
    assert (run.status, run.failures, (run.error or {})["code"]) == ("queued", 1, "timeout")
    assert run.retry_at is not None
    (failed,) = await bench.events(run.run_id, "attempt.failed")
    assert failed.payload["outcome"] == "timeout"
    assert "attempt.lost" not in await bench.told(run.run_id)
    await clock.advance(minutes=1)
    await bench.drain()
    after = await bench.find(run.run_id)
    assert (after.status, (after.error or {})["code"]) == ("failed", "timeout")
    assert await bench.outcomes(run.run_id) == ["timeout", "timeout"]


async def test_a_handler_that_swallows_its_time_out_does_not_succeed(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P23: nor does it choose another error."""

    async def swallows(ctx: Context) -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if ctx.attempt == 2:
                raise KeyError("another error") from None
        return "in time, surely"

    bench = make_bench(work(swallows, timeout="20ms", max_attempts=2))
    run = await bench.done("work")
    assert (run.status, run.output, (run.error or {})["code"]) == ("failed", None, "timeout")
    assert await bench.outcomes(run.run_id) == ["timeout", "timeout"]


async def test_a_lost_lease_beats_a_time_out(make_bench: MakeBench, clock: ManualClock) -> None:
    """P5: the attempt is over and settles nothing."""
    ended: list[Any] = []

    async def hangs(ctx: Context) -> None:
        if ctx.attempt > 1:
            return
        ctx.lease.lose()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(ctx.attempt)

    bench = make_bench(work(hangs, timeout="20ms"))
    run = await bench.done("work")
    assert (run.status, ended) == ("running", [1])
    await clock.advance(seconds=45)
    await bench.drain()
    assert await bench.outcomes(run.run_id) == ["lost", "succeeded"]


@pytest.mark.parametrize("timeout", [None, "1m"])
async def test_without_a_time_out_or_in_time_an_attempt_may_take_what_it_takes(
    make_bench: MakeBench, clock: ManualClock, timeout: str | None
) -> None:
    """P23."""
    bench = make_bench(work(nothing, timeout=timeout))
    assert (await bench.done("work")).status == "succeeded"
