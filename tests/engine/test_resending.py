"""Sending again: only a declared `resend`, inside its window, with the same bytes (P2)."""

from __future__ import annotations

import asyncio
import uuid
from datetime import timedelta
from itertools import pairwise

import pytest
from pydantic import BaseModel

from earnest import App, Call, Context, Effect
from earnest.engine.runs import cancelling
from earnest.store import operations
from earnest.testing.clock import ManualClock
from tests.engine.bench import MEMBER, SCOPE, Bench
from tests.engine.conftest import MakeBench
from tests.engine.provider import Gate, Provider, Receipt, shop

AT_ONCE = (timedelta(0),)


async def test_a_doubtful_call_is_sent_again_under_the_same_id_with_the_same_bytes(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P2."""
    provider = Provider(dedupes=True)
    bench = make_bench(shop(provider), resend_waits=AT_ONCE)
    provider.drops(does=True)
    run = await bench.done("buy", {"by": "resend"})
    assert run.status == "succeeded"
    assert len(provider.done) == 1
    first, second = provider.calls
    assert (first[0].id, first[1]) == (second[0].id, second[1])
    assert [first[0].sends, second[0].sends] == [1, 2]
    operation = await bench.operation(run.run_id)
    assert await bench.moves(operation) == [
        "reserve", "begin", "doubt", "send again", "confirm",
    ]  # fmt: skip


@pytest.mark.parametrize("second", ["is_not_reached", "refuses"])
async def test_how_a_repetition_failed_proves_nothing_of_the_call_that_it_repeats(
    make_bench: MakeBench, clock: ManualClock, second: str
) -> None:
    """P2, P3: that the second call was refused (an expired password, say) or not sent does not
    release what the first one may have done; the third finds out."""
    provider = Provider(dedupes=True)
    bench = make_bench(shop(provider), resend_waits=AT_ONCE)
    provider.drops(does=True)
    getattr(provider, second)()
    run = await bench.done("buy", {"by": "resend"})
    operation = await bench.operation(run.run_id)
    assert await bench.moves(operation) == [
        "reserve", "begin", "doubt", "send again", "doubt", "send again", "confirm",
    ]  # fmt: skip
    assert run.status == "succeeded"
    assert len(provider.done) == 1


async def in_doubt(bench: Bench, provider: Provider) -> uuid.UUID:
    """A run that waits for a call which broke."""
    provider.drops(does=True)
    provider.drops(does=True)  # the reconciler's repetition as well
    run = await bench.done("buy", {"by": "resend"})
    assert run.status == "unknown"
    return run.run_id


async def test_the_reconciler_sends_again_for_a_run_that_waits_for_it(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P2: the worker of the call is gone; the run goes on with the receipt."""
    provider = Provider(dedupes=True)
    bench = make_bench(shop(provider))
    run_id = await in_doubt(bench, provider)
    await clock.advance(seconds=10)
    await bench.drain()
    run = await bench.find(run_id)
    assert run.status == "succeeded"
    assert len(provider.done) == 1
    assert {call.id for call, _ in provider.calls} == {provider.done[0]}
    assert "run.resumed" in await bench.told(run_id)


async def test_questions_are_asked_with_growing_pauses(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P3: a provider that is down is not stormed, and not forgotten either."""
    provider = Provider()
    bench = make_bench(shop(provider))
    run_id = await in_doubt(bench, provider)
    pauses = []
    for _ in range(14):
        due = (await bench.operation(run_id)).lookup_due_at
        assert due is not None
        pauses.append((due - clock.now).total_seconds())
        provider.drops(does=False)
        await clock.advance(seconds=pauses[-1])
        calls = len(provider.calls)
        await bench.drain()
        assert len(provider.calls) == calls + 1
    assert 0.25 <= pauses[0] <= 0.5
    for earlier, later in pairwise(pauses):
        assert earlier < later or later >= 150
    assert max(pauses) <= 300


@pytest.mark.parametrize(("early", "sent"), [(1, True), (0, False)])
async def test_the_window_counts_from_the_first_begin_less_one_call_and_a_margin(
    make_bench: MakeBench, clock: ManualClock, early: int, sent: bool
) -> None:
    """P2: one hour, less the call's 30 s, less a hundredth of the window for strange clocks."""
    provider = Provider(dedupes=True)
    bench = make_bench(shop(provider))
    began_at = clock.now
    run_id = await in_doubt(bench, provider)
    await clock.advance(seconds=3600 - 30 - 36 - early)
    operation = await bench.operation(run_id)
    assert operation.first_begun_at == began_at
    calls = len(provider.calls)
    after = await bench.look_up(operation)
    assert (len(provider.calls) > calls) is sent
    assert after.state == ("submitted" if sent else "unknown")


async def test_after_its_window_a_resend_is_a_hold(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P2, P3: it is never sent again; a person settles it and the run goes on."""
    provider = Provider()
    bench = make_bench(shop(provider))
    run_id = await in_doubt(bench, provider)
    await clock.advance(hours=2)
    calls = len(provider.calls)
    await bench.drain()
    assert len(provider.calls) == calls
    operation = await bench.operation(run_id)
    assert operation.state == "unknown"
    await bench.resolve(operation, "submitted", {"id": "found on the statement"})
    await bench.drain()
    assert (await bench.find(run_id)).output == {"id": "found on the statement"}
    assert len(provider.calls) == calls


async def frozen_in_its_call(
    bench: Bench, provider: Provider
) -> tuple[uuid.UUID, Gate, asyncio.Task[int]]:
    """A worker that stops in the middle of a call, while the far end has done it."""
    gate = provider.holds()
    run_id = await bench.submit("buy", {"by": "resend"})
    task = asyncio.create_task(bench.drain())
    await gate.reached()
    return run_id, gate, task


async def test_the_attempt_after_a_lost_one_sends_the_same_call_again(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P2: no person is needed for a provider that honours the key; the frozen worker changes
    nothing when it comes back."""
    provider = Provider(dedupes=True)
    app = shop(provider)
    frozen, other = make_bench(app), make_bench(app)
    run_id, gate, task = await frozen_in_its_call(frozen, provider)
    await clock.advance(seconds=46)
    await other.drain()
    run = await other.find(run_id)
    assert (run.status, run.failures) == ("succeeded", 1)
    assert await other.outcomes(run_id) == ["lost", "succeeded"]
    events = await other.told(run_id)
    gate.open()
    await task
    operation = await other.operation(run_id)
    assert await other.moves(operation) == ["reserve", "begin", "send again", "confirm"]
    assert len(provider.done) == 1
    assert await other.told(run_id) == events
    assert await other.findings(operation) == []


async def test_a_lost_call_whose_window_ends_before_the_next_attempt_is_in_doubt(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P2, P3: the reaper left it to the next attempt, and that came too late."""
    provider = Provider()
    app = shop(provider)
    frozen, other = make_bench(app), make_bench(app)
    run_id, gate, task = await frozen_in_its_call(frozen, provider)
    await clock.advance(seconds=46)
    await other.worker._reaper.look()
    assert await other.status(run_id) == "queued"
    assert (await other.operation(run_id)).state == "submitting"
    await clock.advance(hours=2)
    await other.drain()
    assert await other.status(run_id) == "unknown"
    assert (await other.operation(run_id)).state == "unknown"
    assert len(provider.calls) == 1
    gate.open()
    await task


async def test_without_attempts_left_a_lost_call_is_in_doubt_and_not_lost(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P3: the run does not fail over it."""
    provider = Provider()
    app = shop(provider, max_attempts=1)
    frozen, other = make_bench(app), make_bench(app)
    run_id, gate, task = await frozen_in_its_call(frozen, provider)
    await clock.advance(seconds=46)
    await other.worker._reaper.look()
    assert await other.status(run_id) == "unknown"
    assert await other.outcomes(run_id) == ["lost"]
    gate.open()
    await task


# ---- cancelled ---------------------------------------------------------------------------------


async def test_what_a_cancelled_run_left_in_doubt_is_never_sent_again(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P20: the doubt stays on the desk."""
    provider = Provider()
    bench = make_bench(shop(provider))
    run_id = await in_doubt(bench, provider)
    await bench.cancel(run_id)
    calls = len(provider.calls)
    await clock.advance(minutes=1)
    await bench.drain()
    assert len(provider.calls) == calls
    operation = await bench.operation(run_id)
    assert operation.state == "unknown"
    assert await bench.status(run_id) == "cancelled"


async def test_a_cancel_that_commits_while_the_reconciler_waits_to_send_stops_it(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P20: whether the run still wants it is judged under its lock."""
    provider = Provider()
    bench = make_bench(shop(provider))
    run_id = await in_doubt(bench, provider)
    operation = await bench.operation(run_id)
    calls = len(provider.calls)
    async with bench.holding(run_id) as holder:
        sending = asyncio.create_task(bench.look_up(operation))
        await bench.wait_for_lock_waiters()
        await cancelling._cancel_family(bench.engine, SCOPE, run_id, MEMBER, set(), holder)
    await asyncio.gather(sending, return_exceptions=True)
    assert await bench.status(run_id) == "cancelled"
    assert len(provider.calls) == calls


async def test_a_run_that_was_asked_to_stop_sends_nothing_again(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P20: the call on the wire ends in doubt; settled, the run is cancelled."""
    provider = Provider()
    bench = make_bench(shop(provider), resend_waits=AT_ONCE)
    gate = provider.holds(raises=ConnectionError("the line broke"))
    run_id = await bench.submit("buy", {"by": "resend"})
    task = asyncio.create_task(bench.drain())
    await gate.reached()
    assert (await bench.cancel(run_id)).outcome == "requested"
    gate.open()
    await task
    assert len(provider.calls) == 1
    assert await bench.status(run_id) == "unknown"
    operation = await bench.operation(run_id)
    await bench.resolve(operation, "submitted", {"id": "found"})
    assert await bench.status(run_id) == "cancelled"


# ---- the same bytes ----------------------------------------------------------------------------


class Small(BaseModel):
    number: int


class Grown(Small):
    currency: str = "EUR"


class Strict(Small):
    currency: str


def changing(provider: Provider, request: type[Small]) -> App:
    """An app whose request has other bytes after a change of the code."""

    class Changing(Effect[request, Receipt]):  # type: ignore[valid-type]
        kind = "test.resend.changing"
        recovery = "resend"
        window = "1h"

        async def submit(self, call: Call, order: Small) -> Receipt:
            found: Receipt = await provider.call(call, order)  # type: ignore[arg-type]
            return found

    app = App("changing")

    @app.run("buy")
    async def buy(ctx: Context, asked: dict[str, str]) -> Receipt:
        return await ctx.operation("pay", Changing(), {"number": 17})

    return app


@pytest.mark.parametrize("changed", [Grown, Strict])
async def test_code_that_would_send_other_bytes_sends_nothing(
    make_bench: MakeBench, clock: ManualClock, changed: type[Small]
) -> None:
    """P2: the stored digest decides; the doubt stays."""
    provider = Provider()
    before = make_bench(changing(provider, Small))
    run_id = await in_doubt(before, provider)
    after = make_bench(changing(provider, changed))
    calls = len(provider.calls)
    await clock.advance(minutes=1)
    operation = await after.operation(run_id)
    after.engine.effect_of(Effect.find("test.resend.changing"))  # type: ignore[arg-type]
    assert (await after.look_up(operation)).state == "unknown"
    assert len(provider.calls) == calls
    (*_, last) = await operations.lookups(after.engine.database, SCOPE, operation.operation_id)
    assert "other bytes" in last.detail
