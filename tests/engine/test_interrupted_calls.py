"""Whatever interrupts a call, it ends as confirmed or in doubt, never in silence (P3, P5, P20)."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest

from earnest import Context, Refused
from earnest.domain import crash_points
from earnest.engine.attempts.attempting import Attempting, Stop
from earnest.testing.clock import ManualClock
from tests.engine.bench import Bench
from tests.engine.conftest import MakeBench
from tests.engine.provider import Gate, Order, Provider, shop

Broken = ConnectionError("the line broke")


@asynccontextmanager
async def on_the_wire(
    bench: Bench, provider: Provider, by: str = "hold", **turn: Any
) -> AsyncIterator[tuple[uuid.UUID, Gate]]:
    """A run whose call is on its way; on leaving, the answer has come and the worker is done."""
    gate = provider.holds(**turn)
    run_id = await bench.submit("buy", {"by": by})
    task = asyncio.create_task(bench.drain())
    await gate.reached()
    try:
        yield run_id, gate
    finally:
        gate.open()
        await task


def attempt_of(bench: Bench, run_id: uuid.UUID) -> Attempting:
    (found,) = [one for one in bench.worker._attempts.values() if one.claimed.run_id == run_id]
    return found


# ---- cancelled ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("turn", "state", "status"),
    [
        ({}, "submitted", "cancelled"),
        ({"raises": Broken}, "unknown", "unknown"),
        ({"does": False, "raises": Refused("no")}, "released", "cancelled"),
    ],
    ids=["done", "in doubt", "refused"],
)
async def test_a_cancelled_run_lets_its_call_finish_and_tells_what_came_of_it(
    make_bench: MakeBench, clock: ManualClock, turn: dict[str, Any], state: str, status: str
) -> None:
    """P20: the call is never abandoned on the wire."""
    provider = Provider()
    bench = make_bench(shop(provider))
    async with on_the_wire(bench, provider, **turn) as (run_id, _):
        answer = await bench.cancel(run_id)
        assert (answer.outcome, answer.run.status) == ("requested", "running")
        await bench.worker._stop_round()
        assert attempt_of(bench, run_id)._stopped is Stop.CANCEL
        assert await bench.status(run_id) == "running"
    operation = await bench.operation(run_id)
    assert operation.state == state
    assert await bench.status(run_id) == status


async def test_a_cancelled_run_lists_what_was_submitted_before(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P20."""
    provider = Provider()
    bench = make_bench(shop(provider))
    async with on_the_wire(bench, provider) as (run_id, _):
        await bench.cancel(run_id)
        await bench.worker._stop_round()
    operation = await bench.operation(run_id)
    (last,) = await bench.events(run_id, "run.cancelled")
    (listed,) = last.payload["operations"]
    assert listed["state"] == "submitted"
    assert listed["name"] == operation.name == "pay"


async def test_a_cancelled_run_whose_call_is_in_doubt_is_cancelled_when_that_is_settled(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P20: *resolve* leads to `cancelled`, if that was asked, and not back to work."""
    provider = Provider()
    bench = make_bench(shop(provider))
    async with on_the_wire(bench, provider, raises=Broken) as (run_id, _):
        await bench.cancel(run_id)
    await bench.resolve(await bench.operation(run_id), "submitted", {"id": "found"})
    assert await bench.status(run_id) == "cancelled"
    assert await bench.drain() == 0


async def test_a_run_that_was_asked_to_stop_begins_nothing_new(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P20: also if its handler has not heard of it yet."""
    provider = Provider()
    app = shop(provider)

    @app.run("pays twice")
    async def pays_twice(ctx: Context, value: int) -> None:
        for number in (1, 2):
            await ctx.operation("pay", app.effects["test.hold"], Order(number=number))
            await bench.cancel(ctx.claimed.run_id)

    bench = make_bench(app)
    run = await bench.done("pays twice", 1)
    assert run.status == "cancelled"
    assert len(provider.calls) == 1
    assert [one.name for one in await bench.operations(run.run_id)] == ["pay"]


async def test_a_run_that_is_asked_to_stop_while_it_prepares_sends_nothing(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P20: what it had reserved is given up."""
    provider = Provider()

    async def cancels(order: Order) -> None:
        await bench.cancel(run_id)

    provider.on_prepare = cancels
    bench = make_bench(shop(provider))
    run_id = await bench.submit("buy", {"by": "hold"})
    await bench.drain()
    assert await bench.status(run_id) == "cancelled"
    assert (await bench.operation(run_id)).release_reason == "given_up"
    assert provider.calls == []


# ---- the attempt's own time-out ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("turn", "status", "outcome"),
    [({}, "queued", "timeout"), ({"raises": Broken}, "unknown", "doubted")],
    ids=["done", "in doubt"],
)
async def test_an_attempt_that_times_out_during_a_call_waits_for_the_call(
    make_bench: MakeBench, clock: ManualClock, turn: dict[str, Any], status: str, outcome: str
) -> None:
    """P3: the attempt has its end, the call has its own."""
    provider = Provider()
    bench = make_bench(shop(provider, timeout="10m", retry_first="1m"))
    async with on_the_wire(bench, provider, **turn) as (run_id, _):
        attempt_of(bench, run_id).stop(Stop.TIMEOUT)
    run = await bench.find(run_id)
    assert (run.status, await bench.outcomes(run_id)) == (status, [outcome])
    if status == "queued":
        await clock.advance(minutes=1)
        await bench.drain()
        assert await bench.status(run_id) == "succeeded"
        assert len(provider.calls) == 1


# ---- drained -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("turn", "status"), [({}, "queued"), ({"raises": Broken}, "unknown")], ids=["done", "in doubt"]
)
async def test_a_worker_that_ends_during_a_call_waits_for_the_call(
    make_bench: MakeBench, clock: ManualClock, turn: dict[str, Any], status: str
) -> None:
    """P3, P19: the run is handed back with the receipt, or is in doubt."""
    provider = Provider()
    app = shop(provider, max_attempts=1)
    bench = make_bench(app, drain=timedelta(0))
    async with bench.at_work() as worker:
        gate = provider.holds(**turn)
        run_id = await bench.submit("buy", {"by": "hold"})
        await gate.reached()
        worker.stop()
        attempt = attempt_of(bench, run_id)
        while attempt._stopped is None:  # noqa: ASYNC110 - the worker is about to say so
            await asyncio.sleep(0)
        gate.open()
    assert await bench.status(run_id) == status
    if status == "queued":
        other = make_bench(app)
        await other.drain()
        assert await other.status(run_id) == "succeeded"
        assert len(provider.calls) == 1


# ---- the lease is lost -------------------------------------------------------------------------


async def reaped(bench: Bench, clock: ManualClock) -> None:
    """The lease runs out during the call and the reaper notices."""
    await clock.advance(seconds=46)
    await bench.worker._reaper.look()


@pytest.mark.parametrize("by", ["hold", "lookup", "never"])
async def test_a_call_whose_worker_lost_its_lease_is_in_doubt(
    make_bench: MakeBench, clock: ManualClock, by: str
) -> None:
    """P3: the run waits; nobody sends again."""
    provider = Provider()
    app = shop(provider)
    frozen, other = make_bench(app), make_bench(app)
    async with on_the_wire(frozen, provider, by) as (run_id, _):
        await reaped(other, clock)
        run = await other.find(run_id)
        operation = await other.operation(run_id)
        assert (run.status, run.failures, operation.state) == ("unknown", 1, "unknown")
        assert await other.outcomes(run_id) == ["lost"]
        assert (await other.told(run_id))[-3:] == [
            "operation.unknown", "attempt.lost", "run.unknown",
        ]  # fmt: skip
    assert len(provider.calls) == 1


async def test_a_kind_that_fails_over_doubts_fails_when_its_worker_is_lost_in_a_call(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P3: the operation stays on the desk, and a late receipt still counts."""
    provider = Provider()
    app = shop(provider, on_unknown="fail")
    frozen, other = make_bench(app), make_bench(app)
    async with on_the_wire(frozen, provider) as (run_id, _):
        await reaped(other, clock)
        run = await other.find(run_id)
        assert (run.status, (run.error or {})["code"]) == ("failed", "unknown_execution")
        assert (await other.operation(run_id)).state == "unknown"
    assert (await other.operation(run_id)).state == "submitted"
    assert await other.status(run_id) == "failed"


async def test_a_late_receipt_resolves_the_doubt_although_its_attempt_is_fenced(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P5: it is evidence, found by the send token; the run goes on in a new attempt."""
    provider = Provider()
    app = shop(provider)
    frozen, other = make_bench(app), make_bench(app)
    async with on_the_wire(frozen, provider) as (run_id, _):
        await reaped(other, clock)
        assert await other.status(run_id) == "unknown"
    operation = await other.operation(run_id)
    assert operation.state == "submitted"
    assert operation.resolution == {"outcome": "submitted", "by": "late_receipt"}
    assert await other.drain() + await frozen.drain() <= 1
    run = await other.find(run_id)
    assert (run.status, run.output) == ("succeeded", {"id": f"receipt of {provider.done[0]}"})
    assert (await other.outcomes(run_id))[0] == "lost"
    assert await other.findings(operation) == []


async def test_a_late_refusal_settles_the_doubt_too(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P5: what was refused was surely not done."""
    provider = Provider()
    app = shop(provider)
    frozen, other = make_bench(app), make_bench(app)
    turn: dict[str, Any] = {"does": False, "raises": Refused("no such order")}
    async with on_the_wire(frozen, provider, **turn) as (run_id, _):
        await reaped(other, clock)
    operation = await other.operation(run_id)
    assert (operation.state, operation.release_reason) == ("released", "refused")
    assert operation.resolution == {"outcome": "released", "by": "late_receipt"}
    await other.drain()
    run = await other.find(run_id)
    assert (run.status, (run.error or {})["code"]) == ("failed", "refused")


async def test_a_late_receipt_of_what_was_released_since_moves_nothing_and_is_a_finding(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P5: somebody has to look at it: it was done and counts as not done."""
    provider = Provider()
    app = shop(provider)
    frozen, other = make_bench(app), make_bench(app)
    async with on_the_wire(frozen, provider) as (run_id, _):
        await reaped(other, clock)
        released = await other.resolve(await other.operation(run_id), "released")
    operation = await other.operation(run_id)
    assert operation == released
    (finding,) = await other.findings(operation)
    assert finding["kind"] == "late_receipt"
    assert finding["detail"] == {
        "by": "owner", "receipt": {"id": f"receipt of {provider.done[0]}"}, "state": "released",
    }  # fmt: skip


async def test_a_late_receipt_that_contradicts_the_stored_one_is_a_finding(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P5: the person's receipt stays."""
    provider = Provider()
    app = shop(provider)
    frozen, other = make_bench(app), make_bench(app)
    async with on_the_wire(frozen, provider) as (run_id, _):
        await reaped(other, clock)
        settled = await other.resolve(
            await other.operation(run_id), "submitted", {"id": "from the statement"}
        )
    assert await other.again(settled) == settled
    (finding,) = await other.findings(settled)
    assert finding["kind"] == "late_receipt"


async def test_a_late_receipt_of_what_was_sent_again_since_is_a_finding(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P5: the send token is another one; the second call tells its own outcome."""
    provider = Provider()
    app = shop(provider)
    frozen, other = make_bench(app), make_bench(app)
    async with on_the_wire(frozen, provider, "resend", answers={"id": "the first"}) as (run_id, _):
        await reaped(other, clock)
        provider.drops(does=False)
        provider.drops(does=False)  # the reconciler's as well
        await other.drain()
        before = await other.operation(run_id)
        assert (before.state, before.send_count) == ("unknown", 3)
    after = await other.operation(run_id)
    assert after == before
    (finding,) = await other.findings(after)
    assert finding["detail"]["receipt"] == {"id": "the first"}
    assert finding["detail"]["state"] == "unknown"


async def test_the_deadline_of_the_lease_is_looked_at_once_more_before_a_byte_is_sent(
    make_bench: MakeBench, clock: ManualClock, at_points: Any
) -> None:
    """P5: lost between begin and call, nothing is sent, and that is sure."""
    provider = Provider()
    app = shop(provider)
    held: list[Context] = []

    @app.run("late")
    async def late(ctx: Context, value: int) -> Any:
        held.append(ctx)
        return await ctx.operation("pay", app.effects["test.hold"], Order(number=17))

    def lose(point: str) -> None:
        if point == "begin.after" and len(held) == 1:
            held[0].lease.lose()

    bench = make_bench(app)
    at_points(lose)
    run_id = await bench.submit("late", 1)
    await bench.drain()
    operation = await bench.operation(run_id)
    assert provider.calls == []
    assert (operation.state, operation.release_reason) == ("released", "not_sent")
    assert await bench.status(run_id) == "running"
    await clock.advance(seconds=46)
    await bench.drain()
    assert await bench.status(run_id) == "succeeded"
    assert len(provider.done) == 1


async def test_lost_before_it_is_repeated_an_earlier_call_stays_in_doubt(
    make_bench: MakeBench, clock: ManualClock, at_points: Any
) -> None:
    """P3: that the repetition was not sent says nothing of the first call."""
    provider = Provider()
    app = shop(provider)
    frozen, other = make_bench(app), make_bench(app)
    points: list[str] = []

    def lose(point: str) -> None:
        points.append(point)
        if point == "begin.after":
            for lease in other.worker._leases.all():
                lease.lose()

    async with on_the_wire(frozen, provider, "resend") as (run_id, _):
        await reaped(other, clock)
        assert (await other.operation(run_id)).state == "submitting"
        at_points(lose)
        await other.worker._claim_all()
        await asyncio.wait(set(other.worker._attempts))
        crash_points.install(None)
        operation = await other.operation(run_id)
        assert "begin.after" in points
        assert len(provider.calls) == 1
        assert operation.state == "unknown"
