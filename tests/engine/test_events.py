"""Events: numbered without gaps, in the transaction of the change they tell (P4)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from earnest import Context
from earnest.domain.errors import InvalidRequest, PayloadTooLarge
from earnest.domain.event import ENGINE_TYPES, MAX_PAYLOAD_BYTES
from earnest.store import facts
from earnest.testing.clock import ManualClock
from tests.engine.bench import SCOPE
from tests.engine.conftest import MakeBench
from tests.engine.handlers import counted, fails_once, work
from tests.engine.provider import Provider, shop


async def test_an_event_of_the_app_is_told_once_however_many_attempts_pass_by(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P4."""

    async def handler(ctx: Context) -> None:
        await ctx.emit("order.paid", {"amount": "20.00"})
        await ctx.emit("order.paid", {"amount": "30.00"})
        fails_once(ctx)
        await ctx.emit("order.shipped", {})

    bench = make_bench(work(handler))
    run = await bench.done("work")
    told = [(event.type, event.payload) for event in await bench.events(run.run_id)]
    assert [one for one in told if one[0].startswith("order.")] == [
        ("order.paid", {"amount": "20.00"}),
        ("order.paid", {"amount": "30.00"}),
        ("order.shipped", {}),
    ]


async def test_progress_is_told_by_each_attempt_anew(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P4: it is not remembered."""

    async def handler(ctx: Context) -> None:
        await ctx.progress(1, 2, "half")
        fails_once(ctx)

    bench = make_bench(work(handler))
    run = await bench.done("work")
    told = [event.payload for event in await bench.events(run.run_id, "run.progress")]
    assert told == [
        {"attempt": attempt, "done": 1, "total": 2, "note": "half"} for attempt in (1, 2)
    ]


async def test_another_payload_under_an_event_that_was_told_is_told_as_changed_code(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P4, P5."""

    async def handler(ctx: Context) -> None:
        await ctx.emit("order.paid", {"attempt": ctx.attempt})
        fails_once(ctx)

    bench = make_bench(work(handler, max_attempts=2))
    run = await bench.done("work")
    assert (run.error or {})["code"] == "code_changed"
    assert len(await bench.events(run.run_id, "order.paid")) == 1


async def test_numbers_have_no_gaps_whoever_writes_beside_whom(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P4: branches of the handler, signals from outside, a cancel: one sequence."""
    _, count = counted()

    async def handler(ctx: Context) -> None:
        writes: list[Awaitable[Any]] = [
            ctx.keyed_step("part", str(number), count) for number in range(10)
        ]
        writes += [ctx.emit("it.happened", {}, key=str(number)) for number in range(10)]
        writes += [bench.signal(ctx.claimed.run_id, "go") for _ in range(10)]
        writes += [ctx.progress(number) for number in range(10)]
        await asyncio.gather(*writes)

    bench = make_bench(work(handler))
    run = await bench.done("work")
    events = await bench.events(run.run_id)
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert run.last_seq == len(events) == 1 + 1 + 40 + 1
    assert [event.type for event in events][-1] == "run.succeeded"


async def test_many_runs_of_one_group_have_each_their_own_numbers(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P4: facts of all runs of a process are written together."""
    _, count = counted()

    async def handler(ctx: Context) -> None:
        await asyncio.gather(*(ctx.keyed_step("part", str(number), count) for number in range(3)))

    bench = make_bench(work(handler))
    run_ids = [await bench.submit("work") for _ in range(20)]
    await bench.drain()
    for run_id in run_ids:
        assert [event.seq for event in await bench.events(run_id)] == [1, 2, 3, 4, 5, 6]
        parts = [event.payload["name"] for event in await bench.events(run_id, "step.completed")]
        assert sorted(parts) == ["part#0", "part#1", "part#2"]


async def test_only_the_last_event_of_a_run_is_final(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P9: a reader knows when to stop."""

    async def handler(ctx: Context) -> None:
        await ctx.emit("it.happened", {})

    bench = make_bench(work(handler))
    run = await bench.done("work")
    *before, last = await bench.events(run.run_id)
    assert (last.type, last.final) == ("run.succeeded", True)
    assert not any(event.final for event in before)


async def test_every_event_of_the_engine_is_one_of_its_types(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P9: outside programs are written against them."""
    provider = Provider()
    bench = make_bench(shop(provider, max_attempts=2, retry_first="0s"))
    provider.is_not_reached()
    provider.drops(does=True)
    run = await bench.done("buy", {"by": "lookup"})
    assert run.status == "succeeded"
    assert set(await bench.told(run.run_id)) <= ENGINE_TYPES


async def test_events_are_read_in_pages_from_any_number(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P9."""

    async def handler(ctx: Context) -> None:
        for number in range(10):
            await ctx.progress(number)

    bench = make_bench(work(handler))
    run_id = (await bench.done("work")).run_id
    page = await facts.events(bench.engine.database, SCOPE, run_id, 5, 3)
    assert [event.seq for event in page] == [6, 7, 8]
    assert await facts.events(bench.engine.database, SCOPE, run_id, 13, 10) == []
    assert await facts.events(bench.engine.database, "other", run_id, 0, 10) == []


async def test_an_event_that_cannot_be_written_takes_its_step_with_it(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P4: together or not at all; the next attempt makes both."""
    calls, count = counted(7)

    async def handler(ctx: Context) -> Any:
        return await ctx.step("count", count)

    bench = make_bench(work(handler, retry_first="1m"))
    await bench.execute(
        "ALTER TABLE event ADD CONSTRAINT no_steps CHECK (type <> 'step.completed')"
    )
    run_id = (await bench.done("work")).run_id
    assert await bench.value("SELECT count(*) FROM step") == 0
    assert await bench.status(run_id) == "queued"
    await bench.execute("ALTER TABLE event DROP CONSTRAINT no_steps")
    await clock.advance(minutes=1)
    await bench.drain()
    assert (await bench.find(run_id)).output == 7
    assert len(calls) == 2
    events = await bench.events(run_id)
    assert [event.seq for event in events] == list(range(1, len(events) + 1))


async def test_a_final_event_that_cannot_be_written_leaves_the_run_running(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P4: the state does not change without its event."""

    async def handler(ctx: Context) -> None:
        pass

    bench = make_bench(work(handler))
    await bench.execute("ALTER TABLE event ADD CONSTRAINT no_end CHECK (type <> 'run.succeeded')")
    run_id = await bench.submit("work")
    await bench.drain()
    assert await bench.status(run_id) == "running"
    assert await bench.outcomes(run_id) == [None]
    await bench.execute("ALTER TABLE event DROP CONSTRAINT no_end")
    await clock.advance(seconds=45)
    await bench.drain()
    assert await bench.status(run_id) == "succeeded"


# ---- what may be told --------------------------------------------------------------------------


Tell = Callable[[Context], Awaitable[None]]


async def refused(make_bench: MakeBench, tell: Tell) -> tuple[str, str]:
    """Code and detail of the error that the handler sees; nothing was written."""
    seen: list[tuple[str, str]] = []

    async def handler(ctx: Context) -> None:
        try:
            await tell(ctx)
        except (InvalidRequest, PayloadTooLarge) as error:
            seen.append((error.code, error.detail))

    bench = make_bench(work(handler))
    run = await bench.done("work")
    assert await bench.told(run.run_id) == ["run.submitted", "attempt.started", "run.succeeded"]
    (found,) = seen
    return found


@pytest.mark.parametrize(
    "type_",
    ["run.succeeded", "operation.submitted", "nodots", "Upper.case", "a..b", "", "a.b\x00", ".a"],
)
async def test_an_app_cannot_tell_what_only_the_engine_tells(
    make_bench: MakeBench, clock: ManualClock, type_: str
) -> None:
    """P4: nor a type that is none."""
    code, detail = await refused(make_bench, lambda ctx: ctx.emit(type_, {}))
    assert code == "invalid_request"
    assert "is no event type for an app" in detail


@pytest.mark.parametrize(
    ("payload", "code", "says"),
    [
        ({"text": "x" * MAX_PAYLOAD_BYTES}, "payload_too_large", "at most 16384 bytes"),
        ({"text": "a\x00b"}, "invalid_request", "a NUL character at $.text"),
        ({"number": float("inf")}, "invalid_request", "is not a JSON number"),
        ({"thing": object()}, "invalid_request", "cannot be stored"),
    ],
    ids=["oversize", "NUL", "infinite", "no JSON"],
)
async def test_a_payload_that_cannot_be_kept_is_refused_in_one_line(
    make_bench: MakeBench, clock: ManualClock, payload: dict[str, Any], code: str, says: str
) -> None:
    """P4."""
    found, detail = await refused(make_bench, lambda ctx: ctx.emit("it.happened", payload))
    assert found == code
    assert says in detail


async def test_a_payload_of_the_largest_size_is_kept(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P4: 16 KiB."""
    text = "x" * (MAX_PAYLOAD_BYTES - len('{"text":""}'))

    async def handler(ctx: Context) -> None:
        await ctx.emit("it.happened", {"text": text})

    bench = make_bench(work(handler))
    run = await bench.done("work")
    (event,) = await bench.events(run.run_id, "it.happened")
    assert event.payload == {"text": text}
