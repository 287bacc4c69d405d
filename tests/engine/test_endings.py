"""How an attempt ends, and what that makes of its run: the owner's rows of the table of moves."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from datetime import timedelta
from typing import Any

import pytest
from structlog.testing import capture_logs

from earnest import App, Blocked, Context, Failed, NotSent, Refused
from earnest.domain import canonical
from earnest.domain.errors import (
    ChildFailed,
    EarnestError,
    NameNeeded,
    NotDone,
    ResultInvalid,
    SignalTimedOut,
)
from earnest.domain.event import MAX_PAYLOAD_BYTES
from earnest.domain.run import Wait
from earnest.engine.attempts import attempting
from earnest.engine.attempts.context import Parked
from earnest.engine.attempts.settling import Wish
from earnest.store.database import Database
from earnest.testing.clock import ManualClock
from tests.engine.conftest import MakeBench
from tests.engine.handlers import work


async def nothing(ctx: Context) -> None:
    pass


async def test_a_run_is_submitted_claimed_and_succeeds(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P4, P5: submit, claim, succeed, each with its event."""

    async def handler(ctx: Context) -> Any:
        return {"attempt": ctx.attempt, "run_id": ctx.run_id}

    bench = make_bench(work(handler))
    run_id = await bench.submit("work")
    queued = await bench.find(run_id)
    assert (queued.status, queued.attempt, queued.started_at) == ("queued", 0, None)
    await clock.advance(seconds=1)
    (claimed,) = await bench.claim()
    running = await bench.find(run_id)
    assert (running.status, running.attempt, running.started_at) == ("running", 1, clock.now)
    await bench.settle(claimed, Wish.HAND_BACK)
    await clock.advance(seconds=1)
    await bench.drain()
    run = await bench.find(run_id)
    assert (run.status, run.finished_at, run.error) == ("succeeded", clock.now, None)
    assert run.output["attempt"] == 2
    assert await bench.told(run_id) == [
        "run.submitted", "attempt.started", "run.resumed", "attempt.started", "run.succeeded",
    ]  # fmt: skip
    assert await bench.outcomes(run_id) == ["handed_back", "succeeded"]


async def test_an_error_is_tried_again_later(make_bench: MakeBench, clock: ManualClock) -> None:
    """P4: the failed attempt, its error and the time of the next one are there to be seen."""

    async def handler(ctx: Context) -> None:
        raise RuntimeError(f"attempt {ctx.attempt}")

    bench = make_bench(work(handler, retry_first="1m", max_attempts=2))
    run = await bench.done("work")
    assert (run.status, run.failures) == ("queued", 1)
    assert run.error == {"code": "handler_failed", "detail": "RuntimeError: attempt 1"}
    assert run.retry_at is not None
    assert timedelta(seconds=30) <= run.retry_at - clock.now <= timedelta(seconds=60)
    assert await bench.drain() == 0
    await clock.advance(seconds=60)
    assert await bench.drain() == 1
    run = await bench.find(run.run_id)
    assert (run.status, run.failures, run.retry_at) == ("failed", 2, None)
    assert run.error == {"code": "handler_failed", "detail": "RuntimeError: attempt 2"}
    assert await bench.told(run.run_id) == [
        "run.submitted", "attempt.started", "attempt.failed", "run.retry_scheduled",
        "attempt.started", "attempt.failed", "run.failed",
    ]  # fmt: skip
    assert await bench.outcomes(run.run_id) == ["failed", "failed"]


async def test_a_handler_that_is_cancelled_by_its_own_task_has_failed_and_uses_an_attempt(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P19: it is not handed back, which would go on for ever."""

    async def handler(ctx: Context) -> None:
        part = asyncio.ensure_future(asyncio.sleep(60))
        part.cancel()
        await part

    run = await make_bench(work(handler, max_attempts=2)).done("work")
    assert (run.status, run.failures, run.attempt) == ("failed", 2, 2)
    assert (run.error or {})["detail"].startswith("CancelledError")


async def test_the_pauses_between_attempts_double_up_to_the_longest(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """Retry with backoff: 10, 20, 40, 60, 60 seconds, each spread over its upper half."""

    async def handler(ctx: Context) -> None:
        raise RuntimeError("again")

    bench = make_bench(work(handler, retry_first="10s", retry_longest="60s", max_attempts=6))
    run_id = await bench.submit("work")
    pauses = []
    for _ in range(5):
        await bench.drain()
        retry_at = (await bench.find(run_id)).retry_at
        assert retry_at is not None
        pauses.append((retry_at - clock.now).total_seconds())
        await clock.advance(seconds=pauses[-1])
    shares = [pause / window for pause, window in zip(pauses, (10, 20, 40, 60, 60), strict=True)]
    assert all(0.5 <= share <= 1 for share in shares)
    assert len(set(shares)) > 1
    await bench.drain()
    assert await bench.status(run_id) == "failed"


@pytest.mark.parametrize(
    "error",
    [
        Failed("for good"),
        Refused("no such order"),
        NotDone("a person said so"),
        ChildFailed("child"),
        SignalTimedOut("late"),
        ResultInvalid("odd"),
        NameNeeded("twice"),
    ],
)
async def test_what_a_later_attempt_would_only_meet_again_fails_at_once(
    make_bench: MakeBench, clock: ManualClock, error: EarnestError
) -> None:
    """P22: no attempt is wasted on it."""

    async def handler(ctx: Context) -> None:
        raise error

    bench = make_bench(work(handler, max_attempts=5))
    run = await bench.done("work")
    assert (run.status, run.failures) == ("failed", 1)
    assert run.error == {"code": error.code, "detail": error.detail}
    assert await bench.told(run.run_id) == [
        "run.submitted", "attempt.started", "attempt.failed", "run.failed",
    ]  # fmt: skip


async def test_only_failed_attempts_count_against_the_attempts(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """Parking and handing back cost nothing, however often."""

    async def handler(ctx: Context) -> int:
        for _ in range(4):
            await ctx.wait_signal("go")
        return ctx.attempt

    bench = make_bench(work(handler, max_attempts=1))
    run_id = await bench.submit("work")
    for _ in range(3):
        (claimed,) = await bench.claim()
        await bench.settle(claimed, Wish.HAND_BACK)
    await bench.drain()
    for _ in range(4):
        await bench.signal(run_id, "go")
        await bench.drain()
    run = await bench.find(run_id)
    assert (run.status, run.failures, run.output) == ("succeeded", 0, 8)
    assert await bench.outcomes(run_id) == ["handed_back"] * 3 + ["parked"] * 4 + ["succeeded"]


async def test_a_run_that_was_lost_and_failed_has_no_attempt_left(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """Failed and lost attempts count alike."""

    async def handler(ctx: Context) -> None:
        raise RuntimeError("fails")

    bench = make_bench(work(handler, max_attempts=2))
    run_id = await bench.submit("work")
    await bench.claim()
    await clock.advance(seconds=46)
    await bench.drain()
    run = await bench.find(run_id)
    assert (run.status, run.failures) == ("failed", 2)
    assert await bench.outcomes(run_id) == ["lost", "failed"]


# ---- blocked -----------------------------------------------------------------------------------


async def test_a_refusing_policy_blocks_the_run_with_its_reason_and_a_hint(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """The hint of when it may go triggers nothing."""

    async def handler(ctx: Context) -> None:
        raise Blocked("no credits left", fields={"reason": "budget", "retry_at": "2030-01-02"})

    bench = make_bench(work(handler))
    run = await bench.done("work")
    assert (run.status, run.failures, run.finished_at) == ("blocked", 0, clock.now)
    assert run.error == {
        "code": "blocked", "detail": "no credits left", "reason": "budget",
        "retry_at": "2030-01-02",
    }  # fmt: skip
    assert await bench.told(run.run_id) == ["run.submitted", "attempt.started", "run.blocked"]
    assert await bench.outcomes(run.run_id) == ["blocked"]
    await clock.advance(days=3)
    assert await bench.drain() == 0
    assert await bench.status(run.run_id) == "blocked"


# ---- groups of exceptions ----------------------------------------------------------------------


async def test_branches_of_a_task_group_may_wait_together(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P25: the run parks for what its branches wait for, whatever comes first."""

    async def handler(ctx: Context) -> list[Any]:
        async with asyncio.TaskGroup() as group:
            first = group.create_task(ctx.wait_signal("one"))
            second = group.create_task(ctx.wait_signal("two"))
        return [first.result(), second.result()]

    bench = make_bench(work(handler, max_attempts=1))
    run = await bench.done("work")
    assert (run.status, run.error) == ("waiting", None)
    await bench.signal(run.run_id, "two", 2)
    await bench.drain()
    assert await bench.status(run.run_id) == "waiting"
    await bench.signal(run.run_id, "one", 1)
    await bench.drain()
    assert (await bench.find(run.run_id)).output == [1, 2]


async def test_an_error_in_a_task_group_counts_as_itself(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P22: also beside a branch that only waits."""

    async def fail() -> None:
        raise Failed("for good")

    async def handler(ctx: Context) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(ctx.sleep("1h"))
            group.create_task(fail())

    run = await make_bench(work(handler)).done("work")
    assert (run.status, run.error) == ("failed", {"code": "failed", "detail": "for good"})


async def test_of_an_error_and_a_wait_the_error_counts(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P22: however deep in the group it is."""

    async def handler(ctx: Context) -> None:
        wait = Parked(Wait("signal", name="go", number=1))
        inner = BaseExceptionGroup("inner", [wait, Failed("for good")])
        raise BaseExceptionGroup("outer", [wait, inner])

    run = await make_bench(work(handler)).done("work")
    assert (run.status, run.error) == ("failed", {"code": "failed", "detail": "for good"})


# ---- what an error says ------------------------------------------------------------------------


HUGE = {"body": "x" * 100_000}


@pytest.mark.parametrize(
    "error",
    [
        Failed("too much", fields=HUGE),
        Failed("odd", fields={"thing": object()}),
        Failed("nul", fields={"text": "a\x00b"}),
        Failed("a\x00b" * 10_000),
        Blocked("too much", fields=HUGE),
        Blocked("odd", fields={"thing": object()}),
        Refused("too much", fields=HUGE),
        NotSent("a\x00b\ud800" + "x" * 100_000),
        RuntimeError("a\x00b\ud800" + "x" * 100_000),
    ],
    ids=lambda error: f"{type(error).__name__} {str(error)[:8]!r}",
)
async def test_whatever_an_error_says_is_kept_within_bounds(
    make_bench: MakeBench, clock: ManualClock, error: Exception
) -> None:
    """P4: its run ends, and no event grows over its limit."""

    async def handler(ctx: Context) -> None:
        raise error

    bench = make_bench(work(handler, max_attempts=1))
    run = await bench.done("work")
    assert run.status in ("failed", "blocked")
    assert run.error is not None
    assert len(run.error["detail"]) <= 500
    for event in await bench.events(run.run_id):
        assert len(canonical.encode(event.payload)) <= MAX_PAYLOAD_BYTES


async def test_an_ending_waits_for_a_row_on_which_somebody_sits(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P23: what was done does not end as a lost attempt."""
    sitting = contextlib.AsyncExitStack()

    async def handler(ctx: Context) -> int:
        await sitting.enter_async_context(bench.holding(ctx.claimed.run_id))
        return ctx.attempt

    bench = make_bench(work(handler, max_attempts=1))
    settings = {"lock_timeout": "50ms"}
    url = bench.engine.database.url
    async with sitting, Database(url, settings=settings, sat_on=0) as impatient:
        bench.engine.database = impatient
        run_id = await bench.submit("work")
        with capture_logs() as told:
            draining = asyncio.create_task(bench.drain())
            while len([line for line in told if line["event"] == "attempt.settles_again"]) < 2:
                await asyncio.sleep(0)
                assert not draining.done()
        await sitting.aclose()
        await draining
        assert (await bench.find(run_id)).output == 1
        assert await bench.outcomes(run_id) == ["succeeded"]


async def test_the_error_of_a_lost_attempt_is_nobodys_business_any_more(
    make_bench: MakeBench, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P5: the loop does not complain that it was never asked for."""
    monkeypatch.setattr(attempting, "UNWIND", timedelta(0))
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, about: complaints.append(about))

    async def handler(ctx: Context) -> None:
        ctx.lease.lose()
        raise RuntimeError("too late")

    bench = make_bench(work(handler))
    assert (await bench.done("work")).status == "running"
    await bench.drain()
    gc.collect()
    assert complaints == []


# ---- who may claim -----------------------------------------------------------------------------


async def test_a_worker_claims_no_kind_that_it_does_not_know(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P23: a run of new code waits for a worker that has it."""
    other = App("other")

    @other.run("other")
    async def kind(ctx: Context, value: Any) -> None:
        pass

    knows, knows_not = make_bench(other), make_bench(work(nothing))
    run_id = await knows.submit("other")
    assert await knows_not.drain() == 0
    assert await knows.status(run_id) == "queued"
    assert await knows.drain() == 1


async def test_a_handler_that_no_longer_takes_the_stored_input_says_so(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P5: code changed under a run; it can go on when the code is back."""

    def app(type_: Any) -> App:
        made = App("changing")

        async def handler(ctx: Context, value: Any) -> Any:
            return value

        handler.__annotations__ = {"value": type_, "return": Any}
        made.run("work", retry_first="1m")(handler)
        return made

    before, after = make_bench(app(str)), make_bench(app(int))
    run_id = await before.submit("work", "seventeen")
    await after.drain()
    run = await after.find(run_id)
    assert run.error is not None
    assert run.error["code"] == "code_changed"
    assert "the stored input no longer fits work" in run.error["detail"]
    await clock.advance(minutes=1)
    await before.drain()
    assert (await before.find(run_id)).output == "seventeen"
