"""Parking: a run waits without holding a worker, and cannot miss what it waits for (P25)."""

from __future__ import annotations

import asyncio
import contextlib
from datetime import timedelta
from typing import Any

import pytest

from earnest import App, Context
from earnest.domain.errors import (
    Conflict,
    IdempotencyConflict,
    InvalidRequest,
    NotFound,
    SignalTimedOut,
)
from earnest.domain.ids import new_id
from earnest.domain.run import Wait
from earnest.engine.attempts.settling import Settled, Wish
from earnest.engine.runs import signalling
from earnest.store import facts
from earnest.testing.clock import ManualClock
from tests.engine.bench import MEMBER, SCOPE
from tests.engine.conftest import MakeBench
from tests.engine.handlers import counted, work


async def waits_for_go(ctx: Context) -> Any:
    return await ctx.wait_signal("go")


GO = Wait("signal", name="go", number=1)


# ---- waiting -----------------------------------------------------------------------------------


async def test_a_run_that_waits_holds_no_worker_and_says_what_it_waits_for(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P25: with room for one, another run is worked meanwhile."""

    async def handler(ctx: Context) -> Any:
        if "waits" in ctx.labels:
            return await ctx.wait_signal("go")
        return "worked"

    bench = make_bench(work(handler), concurrency=1)
    waiting = await bench.done("work", labels={"waits": "yes"})
    assert (waiting.status, waiting.waiting_on) == (
        "waiting", [{"kind": "signal", "name": "go", "number": 1}],
    )  # fmt: skip
    assert await bench.outcomes(waiting.run_id) == ["parked"]
    assert await bench.lease_until(waiting.run_id) is None
    assert (await bench.done("work")).output == "worked"
    await bench.signal(waiting.run_id, "go", {"by": "hand"})
    await bench.drain()
    run = await bench.find(waiting.run_id)
    assert (run.status, run.output, run.waiting_on) == ("succeeded", {"by": "hand"}, None)
    assert await bench.told(run.run_id) == [
        "run.submitted", "attempt.started", "run.waiting", "signal.received", "run.woken",
        "attempt.started", "run.succeeded",
    ]  # fmt: skip


async def test_a_sleep_ends_at_its_instant_by_the_clock_of_the_database(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P25: fixed when it is first asked for, however many attempts pass by."""

    async def handler(ctx: Context) -> int:
        await ctx.sleep("1h")
        return ctx.attempt

    bench = make_bench(work(handler))
    run = await bench.done("work")
    assert (run.status, run.waiting_on) == (
        "waiting", [{"kind": "time", "until": (clock.now + timedelta(hours=1)).isoformat()}],
    )  # fmt: skip
    await clock.advance(minutes=59, seconds=59)
    assert await bench.drain() == 0
    await clock.advance(seconds=1)
    assert await bench.drain() == 1
    assert (await bench.find(run.run_id)).output == 2


async def test_sleeps_of_one_run_follow_each_other(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P25: the second counts from the end of the first."""

    async def handler(ctx: Context) -> None:
        await ctx.sleep("1h")
        await ctx.sleep("1h")

    bench = make_bench(work(handler))
    run_id = (await bench.done("work")).run_id
    await clock.advance(hours=1, minutes=30)
    await bench.drain()
    assert await bench.status(run_id) == "waiting"
    await clock.advance(minutes=59)
    assert await bench.drain() == 0
    await clock.advance(minutes=1)
    await bench.drain()
    assert await bench.status(run_id) == "succeeded"


async def test_another_span_under_a_sleep_that_has_begun_is_told_as_changed_code(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P5: the instant was fixed by the old code."""

    def sleeps(span: str) -> App:
        async def handler(ctx: Context) -> None:
            await ctx.sleep(span)

        return work(handler, max_attempts=1)

    before, after = make_bench(sleeps("1h")), make_bench(sleeps("2h"))
    run_id = (await before.done("work")).run_id
    await clock.advance(hours=1)
    await after.drain()
    run = await after.find(run_id)
    assert (run.error or {})["code"] == "code_changed"


async def test_a_sleep_of_less_than_a_second_is_slept_in_place(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P25: parking would cost more than it saves."""

    async def handler(ctx: Context) -> int:
        await ctx.sleep("5ms")
        return ctx.attempt

    assert (await make_bench(work(handler)).done("work")).output == 1


async def test_a_run_that_is_waiting_for_a_past_instant_goes_on_at_once(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P25: it looks again under its lock."""
    bench = make_bench(work(waits_for_go))
    run_id = await bench.submit("work")
    (claimed,) = await bench.claim()
    wait = Wait("time", until=clock.now)
    assert await bench.settle(claimed, Wish.PARK, waits=(wait,)) is Settled.QUEUED
    assert (await bench.told(run_id))[-2:] == ["run.waiting", "run.woken"]


# ---- a wake-up that cannot be missed -----------------------------------------------------------


async def test_a_signal_that_came_before_it_is_waited_for_is_there(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P25: also to a run that is still queued."""
    bench = make_bench(work(waits_for_go))
    run_id = await bench.submit("work")
    await bench.signal(run_id, "go", 1)
    await bench.drain()
    run = await bench.find(run_id)
    assert (run.output, run.attempt) == (1, 1)


async def test_a_signal_between_the_look_and_the_parking_is_not_missed(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P25: the handler saw none, and it came before the run was parked."""
    bench = make_bench(work(waits_for_go))
    run_id = await bench.submit("work")
    (claimed,) = await bench.claim()
    await bench.signal(run_id, "go")
    assert await bench.settle(claimed, Wish.PARK, waits=(GO,)) is Settled.QUEUED


async def test_a_signal_that_commits_while_the_parking_waits_for_the_lock_is_not_missed(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P25: the statement that waited for the lock has the older snapshot; a second one looks."""
    bench = make_bench(work(waits_for_go))
    run_id = await bench.submit("work")
    (claimed,) = await bench.claim()
    async with bench.holding(run_id) as sender:
        parking = asyncio.create_task(bench.settle(claimed, Wish.PARK, waits=(GO,)))
        await bench.wait_for_lock_waiters()
        await facts.put_signal(sender, SCOPE, run_id, "go", b"1", MEMBER, "key")
    assert await parking is Settled.QUEUED
    await bench.drain()
    assert (await bench.find(run_id)).output == 1


async def test_a_signal_that_waits_for_the_parking_wakes_the_run(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P25: the other order of the same two."""
    bench = make_bench(work(waits_for_go))
    run_id = await bench.submit("work")
    (claimed,) = await bench.claim()
    async with bench.holding(run_id):
        parking = asyncio.create_task(bench.settle(claimed, Wish.PARK, waits=(GO,)))
        await bench.wait_for_lock_waiters(1)
        sending = asyncio.create_task(bench.signal(run_id, "go", 1))
        await bench.wait_for_lock_waiters(2)
    await asyncio.gather(parking, sending)
    await bench.drain()
    assert (await bench.find(run_id)).output == 1


# ---- signals -----------------------------------------------------------------------------------


async def test_waits_take_the_signals_of_their_name_in_order(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P25: in every attempt the same one."""
    seen: list[list[Any]] = []

    async def handler(ctx: Context) -> list[Any]:
        found: list[Any] = []
        seen.append(found)
        found.append(await ctx.wait_signal("go"))
        found.append(await ctx.wait_signal("stop"))
        found.append(await ctx.wait_signal("go"))
        return found

    bench = make_bench(work(handler))
    run_id = (await bench.done("work")).run_id
    assert await bench.signal(run_id, "go", 1) == 1
    assert await bench.signal(run_id, "go", 2) == 2
    assert await bench.signal(run_id, "other", 9) == 1
    await bench.drain()
    assert await bench.status(run_id) == "waiting"
    await bench.signal(run_id, "stop", 3)
    await bench.drain()
    assert (await bench.find(run_id)).output == [1, 3, 2]
    assert seen == [[], [1], [1, 3, 2]]


async def test_a_later_signal_does_not_wake_a_run_that_waits_for_an_earlier_number(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P25: nor does one of another name."""
    bench = make_bench(work(waits_for_go))
    run_id = (await bench.done("work")).run_id
    await bench.signal(run_id, "stop")
    assert await bench.status(run_id) == "waiting"
    await bench.signal(run_id, "go")
    assert await bench.status(run_id) == "queued"


async def test_a_signal_that_does_not_come_in_time_is_told_to_the_handler(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P25: unhandled it ends the run as `signal_timed_out`."""

    async def handler(ctx: Context) -> Any:
        return await ctx.wait_signal("go", timeout="1h")

    bench = make_bench(work(handler))
    late = (await bench.done("work")).run_id
    punctual = (await bench.done("work")).run_id
    await clock.advance(minutes=59)
    await bench.signal(punctual, "go", "in time")
    await bench.drain()
    assert (await bench.find(punctual)).output == "in time"
    await clock.advance(minutes=1)
    await bench.drain()
    run = await bench.find(late)
    assert (run.status, (run.error or {})["code"]) == ("failed", "signal_timed_out")
    assert run.failures == 1


async def test_a_signal_that_came_with_the_end_of_its_time_counts(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P25: what is there is taken."""

    async def handler(ctx: Context) -> Any:
        return await ctx.wait_signal("go", timeout="1h")

    bench = make_bench(work(handler))
    run_id = (await bench.done("work")).run_id
    await clock.advance(hours=1)
    await bench.worker._reaper.look()
    await bench.signal(run_id, "go", "just so")
    await bench.drain()
    assert (await bench.find(run_id)).output == "just so"


async def test_a_signal_that_comes_too_late_for_one_wait_is_there_for_the_next(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P25: a wait that was timed out has taken none."""

    async def handler(ctx: Context) -> Any:
        with contextlib.suppress(SignalTimedOut):
            return [1, await ctx.wait_signal("paid", timeout="1h")]
        return [2, await ctx.wait_signal("paid", timeout="1h")]

    bench = make_bench(work(handler))
    run_id = (await bench.done("work")).run_id
    await clock.advance(hours=1)
    await bench.drain()
    assert await bench.status(run_id) == "waiting"
    await bench.signal(run_id, "paid", "at last")
    assert await bench.drain() == 1
    assert (await bench.find(run_id)).output == [2, "at last"]


async def test_a_wait_that_was_timed_out_stays_so_in_every_later_attempt(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P2, P25: a run does not do what follows from a silence, and then what follows from a word."""
    calls, void = counted()

    async def handler(ctx: Context) -> str:
        try:
            await ctx.wait_signal("paid", timeout="1h")
        except SignalTimedOut:
            await ctx.step("void", void)
            await ctx.sleep("1h")
            return "voided"
        return "shipped"

    bench = make_bench(work(handler))
    run_id = (await bench.done("work")).run_id
    await clock.advance(hours=1)
    await bench.drain()
    assert len(calls) == 1
    await bench.signal(run_id, "paid")
    await clock.advance(hours=1)
    await bench.drain()
    assert (await bench.find(run_id)).output == "voided"


async def test_a_signal_sent_again_with_its_key_counts_once(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P7, P25: another payload or name under the key is a conflict."""
    bench = make_bench(work(waits_for_go))
    run_id = (await bench.done("work")).run_id

    async def send(name: str, payload: Any) -> int:
        return await signalling.signal(
            bench.engine, SCOPE, run_id, name, payload, by=MEMBER, key="once"
        )

    assert [await send("go", 1), await send("go", 1)] == [1, 1]
    for name, payload in (("go", 2), ("stop", 1)):
        with pytest.raises(IdempotencyConflict):
            await send(name, payload)
    assert (await bench.told(run_id)).count("signal.received") == 1


async def test_a_run_that_has_ended_takes_no_more_signals(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P22."""
    bench = make_bench(work(waits_for_go))
    run_id = await bench.submit("work")
    await bench.cancel(run_id)
    with pytest.raises(Conflict, match="is cancelled; it takes no more signals"):
        await bench.signal(run_id, "go")
    with pytest.raises(NotFound):
        await bench.signal(new_id(), "go")
    with pytest.raises(NotFound):
        await signalling.signal(bench.engine, "other", run_id, "go", None, by=MEMBER)


@pytest.mark.parametrize(
    ("name", "payload", "says"),
    [
        ("", 1, "a signal's name has 1 to 200 characters"),
        ("n" * 201, 1, "a signal's name has 1 to 200 characters"),
        ("a\x00b", 1, "a signal's name"),
        ("go", "a\x00b", "the signal cannot be stored: a NUL character"),
        ("go", float("nan"), "is not a JSON number"),
        ("go", object(), "cannot be stored: not JSON"),
        ("go", "x" * 16 * 1024, "a signal has at most 16384 bytes"),
    ],
    ids=["empty", "long", "NUL name", "NUL", "NaN", "no JSON", "oversize"],
)
async def test_a_signal_that_cannot_be_kept_is_refused_in_one_line(
    make_bench: MakeBench, clock: ManualClock, name: str, payload: Any, says: str
) -> None:
    """P25: and nothing is stored."""
    bench = make_bench(work(waits_for_go))
    run_id = (await bench.done("work")).run_id
    with pytest.raises(InvalidRequest, match=says):
        await bench.signal(run_id, name, payload)
    assert await bench.value("SELECT count(*) FROM signal") == 0


async def test_what_a_run_waits_for_may_not_be_swallowed_by_the_handler(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P25: `except Exception` does not catch the parking."""

    async def handler(ctx: Context) -> Any:
        try:
            return await ctx.wait_signal("go")
        except Exception:
            return "swallowed"

    run = await make_bench(work(handler)).done("work")
    assert run.status == "waiting"
