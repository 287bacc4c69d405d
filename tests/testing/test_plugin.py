"""The fixtures of the pytest plugin, as a project's tests use them."""

from __future__ import annotations

import asyncio
import os
import re
from datetime import timedelta
from typing import Any

import pytest
from pydantic import BaseModel

import earnest
from earnest import App, Context
from earnest.domain import ids
from earnest.domain.errors import SettingInvalid
from earnest.engine.attempts.working import Worker
from earnest.engine.process import binding, principals, scopes
from earnest.engine.process.engine import Engine
from earnest.testing.any_loop import AnyLoopDatabase, on_a_loop_aside
from earnest.testing.clock import HeldClock
from earnest.testing.draining import Drained, Stuck
from earnest.testing.dying import StillAlive
from earnest.testing.engines import awaited
from earnest.testing.verbs import AssertSubmitted, CrashAt, Drain, RunNow

app = App("plugin")
attempts: list[int] = []
never = asyncio.Event()


class Greeting(BaseModel):
    name: str
    loud: bool = False


@app.run("greet")
async def greet(ctx: Context, greeting: Greeting) -> str:
    return await ctx.step("greeting", hello, greeting.name)


async def hello(name: str) -> str:
    return f"hello {name}"


@app.run("fail.once", retry_first="1m")
async def fail_once(ctx: Context, name: str) -> int:
    if ctx.attempt == 1:
        raise RuntimeError("not today")
    return ctx.attempt


@app.run("wait.for")
async def wait_for(ctx: Context, name: str) -> Any:
    return await ctx.wait_signal(name)


@app.run("hang")
async def hang(ctx: Context, name: str) -> None:
    await asyncio.Event().wait()


@pytest.fixture
def earnest_app() -> App:
    return app


# ---- the engine and its database ---------------------------------------------------------------


async def test_a_run_that_is_submitted_is_done_when_the_test_says_so(drain: Drain) -> None:
    await app.submit(greet, Greeting(name="Ada"))
    assert await drain() == Drained(attempts=1, ended={"succeeded": 1}, left=())


async def test_each_test_has_an_empty_database(drain: Drain) -> None:
    assert (await drain()).ended == {}


def test_the_engine_is_bound_as_long_as_the_test(earnest_engine: Engine) -> None:
    bound = binding.current()
    assert (bound.engine, bound.scope_id, bound.principal_id) == (earnest_engine, "default", "app")


def test_the_program_under_test_finds_the_database_in_its_environment(
    earnest_database_url: str,
) -> None:
    assert os.environ["EARNEST_DATABASE_URL"] == earnest_database_url


async def test_a_program_that_opens_earnest_by_itself_works_beside_the_fixtures(
    drain: Drain, assert_submitted: AssertSubmitted
) -> None:
    async with earnest.open(app):
        await app.submit(greet, Greeting(name="Ada"))
    assert_submitted(greet)
    assert (await drain(to_the_end=True)).attempts == 1


async def test_a_kind_can_be_submitted_from_sql(
    earnest_engine: Engine, drain: Drain, assert_submitted: AssertSubmitted
) -> None:
    await scopes.ensure_scope(earnest_engine, "demo")
    await principals.ensure_principal(earnest_engine, "demo", "web", ["member"])
    async with earnest_engine.database.connection() as owner:
        await owner.execute("SELECT map_role(session_user::text, 'demo', 'web')")
        await owner.execute("SELECT submit('demo', 'greet', '{\"name\": \"Ada\"}', 'ada')")
    assert_submitted(greet, input=Greeting(name="Ada"), key="ada")
    assert (await drain(to_the_end=True)).ended == {"succeeded": 1}


async def test_the_engine_serves_several_event_loops_at_once(
    earnest_engine: Engine, assert_submitted: AssertSubmitted
) -> None:
    async def both() -> None:
        await app.submit(greet, Greeting(name="Ada"))

    here = asyncio.create_task(both())
    await asyncio.to_thread(on_a_loop_aside, both)
    await here
    assert_submitted(greet, count=2)


async def test_no_more_connections_are_opened_than_allowed(earnest_database_url: str) -> None:
    database = AnyLoopDatabase(earnest_database_url, size=2)
    counted = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
    seen: list[int] = []

    async def use() -> None:
        async with database.connection() as tx:
            seen.append(await tx.fetchval(counted))

    async with database.pooled(), database.pooled():
        await asyncio.gather(*(use() for _ in range(6)))
    assert max(seen) == 2
    await asyncio.gather(*(use() for _ in range(6)))
    assert len(seen) == 12


# ---- time --------------------------------------------------------------------------------------


def test_the_clock_stands_still_until_the_test_moves_it(
    earnest_clock: HeldClock, earnest_database: AnyLoopDatabase
) -> None:
    async def there() -> Any:
        async with earnest_database.connection() as tx:
            return await tx.fetchval("SELECT clock()")

    before = earnest_clock.now
    assert on_a_loop_aside(there) == before
    earnest_clock.advance("5m")
    assert on_a_loop_aside(there) == before + timedelta(minutes=5)
    assert earnest_clock.advance(hours=1) == before + timedelta(hours=1, minutes=5)
    with pytest.raises(SettingInvalid, match="no duration"):
        earnest_clock.advance("soon")


async def test_a_retry_comes_when_the_clock_says_so(drain: Drain, earnest_clock: HeldClock) -> None:
    await app.submit(fail_once, "x")
    (left,) = (await drain()).left
    assert left.why.startswith("attempt 1 failed (handler_failed: RuntimeError: not today); 1 of 3")
    assert left.due_at is not None
    assert re.search(r"attempts are used, in [\d.]+ s$", left.why)
    earnest_clock.advance("1m")
    assert (await drain(to_the_end=True)).ended == {"succeeded": 1}


async def test_drain_goes_ahead_in_time_as_far_as_it_is_told(
    drain: Drain, earnest_clock: HeldClock
) -> None:
    began = earnest_clock.now
    await app.submit(fail_once, "x")
    assert (await drain(ahead="10s")).ended == {}
    assert (await drain(ahead="1h")).ended == {"succeeded": 1}
    assert earnest_clock.now - began <= timedelta(minutes=1)


# ---- what does not move ------------------------------------------------------------------------


async def test_what_waits_is_left_and_says_for_what(drain: Drain) -> None:
    run_id = await app.submit(wait_for, "paid")
    (left,) = (await drain(ahead="1d")).left
    assert str(left) == f"{run_id} (wait.for) is waiting: it waits for the signal 'paid'"
    with pytest.raises(Stuck, match="nothing moves any more; not ended:\n  run_"):
        await drain(to_the_end=True)


async def test_an_attempt_that_does_not_end_is_named_and_handed_back(
    drain: Drain, earnest_engine: Engine
) -> None:
    run_id = await app.submit(hang, "x")
    with pytest.raises(
        Stuck, match=f"after 0.5s .*\n  {run_id} .hang. is running: attempt 1 is at"
    ):
        await drain(patience="0.5s")
    async with earnest_engine.database.connection() as tx:
        assert await tx.fetchval("SELECT status FROM execution") == "queued"


async def test_a_run_of_a_kind_that_the_app_has_not_is_stuck(
    drain: Drain, earnest_engine: Engine
) -> None:
    await app.submit(greet, Greeting(name="Ada"))
    async with earnest_engine.database.connection() as tx:
        await tx.execute("UPDATE execution SET kind = 'greet.old'")
    with pytest.raises(Stuck, match=r"no such kind; it has: greet, fail\.once"):
        await drain()


async def test_drain_waits_for_another_worker_that_is_at_it(
    drain: Drain, earnest_engine: Engine
) -> None:
    other = Engine(earnest_engine.database, earnest_engine.kinds)
    await app.submit(wait_for, "go")
    taken, go = asyncio.Event(), asyncio.Event()

    async def slow(name: str) -> str:
        taken.set()
        await go.wait()
        return name

    async def work(ctx: Context, name: str) -> str:
        return await ctx.step("slow", slow, name)

    local = App("local")
    kind = local.run("slow")(work)
    other.kinds = local.kinds
    bound = binding.Binding(other, "default", "app")
    binding.bind(bound)
    try:
        await local.submit(kind, "x")
    finally:
        binding.unbind(bound)
    working = asyncio.create_task(Worker(other, keeper=False).drain_once())
    await taken.wait()
    draining = asyncio.ensure_future(drain())
    asyncio.get_running_loop().call_later(0.2, go.set)
    assert (await draining).ended == {"succeeded": 1}
    assert await working == 1


# ---- what was submitted ------------------------------------------------------------------------


async def test_what_was_submitted_is_found_by_kind_input_and_key(
    earnest_engine: Engine, assert_submitted: AssertSubmitted
) -> None:
    run_id = await app.submit(greet, Greeting(name="Ada"), key="ada")
    for asked in (
        {},
        {"input": Greeting(name="Ada")},
        {"input": {"name": "Ada"}, "key": "ada"},
        {"count": 1},
    ):
        (run,) = assert_submitted(greet, **asked)
        assert (ids.show("run", run.run_id), run.input["loud"]) == (run_id, False)
    assert assert_submitted("greet", key=None, count=0) == []


async def test_what_was_not_submitted_is_told_with_what_was(
    earnest_engine: Engine, assert_submitted: AssertSubmitted
) -> None:
    with pytest.raises(AssertionError, match="none of that kind was submitted, nor any other run"):
        assert_submitted(greet)
    await app.submit(greet, Greeting(name="Ada"), key="ada")
    with pytest.raises(AssertionError, match=r"none of that kind .*; there are 1 of greet"):
        assert_submitted(fail_once)
    with pytest.raises(AssertionError) as told:
        assert_submitted(greet, input=Greeting(name="Bob"), key="ada")
    lines = str(told.value).splitlines()
    asked = """with key 'ada' with input {"loud": false, "name": "Bob"}: 0 instead of at least 1"""
    assert asked in lines[0]
    assert '    -   "name": "Bob"' in lines
    assert '    +   "name": "Ada"' in lines
    with pytest.raises(AssertionError, match="1 instead of 2"):
        assert_submitted(greet, count=2)


async def test_two_that_drain_beside_each_other_leave_no_connection_behind(drain: Drain) -> None:
    for name in ("Ada", "Bob"):
        await app.submit(greet, Greeting(name=name))
    one, other = await asyncio.gather(drain(), drain())
    assert one.attempts + other.attempts == 2


# ---- dying -------------------------------------------------------------------------------------


@pytest.mark.parametrize("point", ["claim.after", "step.before", "step.after", "settle.before"])
async def test_a_worker_is_killed_and_its_run_is_taken_over(
    drain: Drain, crash_at: CrashAt, point: str
) -> None:
    await app.submit(greet, Greeting(name="Ada"))
    await crash_at(point)
    assert (await drain(to_the_end=True)).ended == {"succeeded": 1}


async def test_the_one_that_dies_is_another_process_and_the_test_lives_on(
    crash_at: CrashAt, earnest_engine: Engine
) -> None:
    changed = []

    async def submit_two() -> None:
        changed.append(os.getpid())
        for name in ("Ada", "Bob"):
            await app.submit(greet, Greeting(name=name))

    await crash_at("submit.after", occurrence=2, doing=submit_two)
    assert changed == []
    assert binding.current().engine is earnest_engine
    async with earnest_engine.database.connection() as tx:
        assert await tx.fetchval("SELECT count(*) FROM run") == 2
        process = await tx.fetchval("SELECT process FROM instance")
    assert process.partition(":")[0] != str(os.getpid())


async def test_a_point_that_nobody_comes_to_is_told_with_those_that_were_passed(
    crash_at: CrashAt,
) -> None:
    with pytest.raises(StillAlive, match="ended by itself; it passed no point at all"):
        await crash_at("begin.after")
    await app.submit(greet, Greeting(name="Ada"))
    with pytest.raises(StillAlive, match=r"passing 1 of call.after: .*claim.after \(1\), step"):
        await crash_at("call.after")
    with pytest.raises(SettingInvalid, match="there is no crash point"):
        await crash_at("nowhere")


async def test_one_that_fails_on_its_way_is_not_taken_for_killed(
    crash_at: CrashAt, capfd: pytest.CaptureFixture[str]
) -> None:
    async def fail() -> None:
        raise RuntimeError("a mistake in the code under test")

    with pytest.raises(StillAlive, match="failed, see its output"):
        await crash_at("call.after", doing=fail)
    assert "a mistake in the code under test" in capfd.readouterr().err


async def test_one_that_does_not_come_to_the_point_is_ended(
    crash_at: CrashAt,
) -> None:
    await app.submit(hang, "x")
    with pytest.raises(StillAlive, match=r"has not come to call.after in 0\.5s; it is ended"):
        await crash_at("call.after", patience="0.5s")


async def test_one_does_not_outlive_a_test_that_is_given_up(crash_at: CrashAt) -> None:
    reading, writing = os.pipe()

    async def stay() -> None:
        os.write(writing, b"begun")
        await asyncio.Event().wait()

    dying = asyncio.ensure_future(crash_at("call.after", doing=stay, patience="5m"))
    assert await asyncio.to_thread(os.read, reading, 5) == b"begun"
    os.close(writing)
    dying.cancel()
    await asyncio.wait({dying})
    # The copy had the other end of the pipe; it is closed with the process.
    async with asyncio.timeout(10):
        assert await asyncio.to_thread(os.read, reading, 1) == b""
    os.close(reading)


# ---- a test that could not fail ----------------------------------------------------------------


async def test_a_verb_that_was_not_awaited_fails_the_test() -> None:
    async def drain() -> int:
        return 1

    def forgets() -> None:
        with awaited(drain) as call:
            call()

    with pytest.raises(pytest.fail.Exception, match=r"drain\(\) was called and not awaited"):
        forgets()
    with awaited(drain) as call:
        assert await call() == 1


# ---- tests that are not async ------------------------------------------------------------------


def test_a_plain_test_runs_what_would_be_awaited(
    earnest_run: RunNow, drain: Drain, assert_submitted: AssertSubmitted
) -> None:
    earnest_run(app.submit(greet, Greeting(name="Ada")))
    assert_submitted(greet)
    assert earnest_run(drain(to_the_end=True)).ended == {"succeeded": 1}


async def test_an_async_test_is_told_to_await(earnest_run: RunNow) -> None:
    with pytest.raises(RuntimeError, match="use `await`"):
        earnest_run(asyncio.sleep(0))
