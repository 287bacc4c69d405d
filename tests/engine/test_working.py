"""A worker's life: recovery before dispatch, its loops, its drain (P18, P19, P23)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from earnest import App, Context
from earnest.engine.attempts import attempting
from earnest.engine.process.doorbells import STOP
from earnest.engine.runs import leasing
from earnest.store.statements import sql
from earnest.testing.clock import ManualClock
from tests.engine.conftest import MakeBench
from tests.engine.handlers import work
from tests.engine.provider import Gate

SELDOM = timedelta(seconds=60)
# Only the bells wake such a worker in time; each of its loops looks by itself once a minute.
DEAF_TO_TIME: dict[str, Any] = {"poll": SELDOM, "watch_every": SELDOM}

AtPoints = Callable[[Callable[[str], None]], None]


async def nothing(ctx: Context) -> None:
    pass


def gated(gate: Gate, **terms: Any) -> App:
    """Work that lasts until the gate is opened."""

    async def handler(ctx: Context) -> int:
        await gate.pass_through()
        return ctx.attempt

    return work(handler, **terms)


# ---- start -------------------------------------------------------------------------------------


async def test_recovery_is_finished_before_anything_is_claimed(
    make_bench: MakeBench, clock: ManualClock, at_points: AtPoints
) -> None:
    """P18."""
    bench = make_bench(work(nothing))
    lapsed = await bench.submit("work")
    await bench.claim()
    await clock.advance(seconds=45)
    fresh = await bench.submit("work")
    passed: list[str] = []
    at_points(passed.append)
    async with bench.at_work():
        await bench.until(lapsed, "succeeded")
        await bench.until(fresh, "succeeded")
    assert passed.index("reap.after") < passed.index("claim.before")


async def test_if_recovery_fails_nothing_is_claimed(
    make_bench: MakeBench, clock: ManualClock, at_points: AtPoints
) -> None:
    """P18: the worker ends with the error, and its keeper with it."""
    bench = make_bench(work(nothing), keeper=True)
    run_id = await bench.submit("work")
    passed: list[str] = []
    at_points(passed.append)
    await bench.execute("ALTER TABLE execution RENAME COLUMN lease_until TO lease_away")
    with pytest.raises(asyncpg.UndefinedColumnError):
        await bench.worker.run()
    assert not bench.worker.ready.is_set()
    assert not any(point.startswith("claim") for point in passed)
    assert await bench.status(run_id) == "queued"
    assert not any(thread.name == "earnest-keeper" for thread in threading.enumerate())


# ---- the loops ---------------------------------------------------------------------------------


async def test_a_bell_starts_a_submitted_run_at_once(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P17: nobody waits for a poll; and losing a bell would only make it slower."""
    bench = make_bench(work(nothing), **DEAF_TO_TIME)
    async with bench.at_work():
        await bench.idle()
        run_id = await bench.submit("work")
        await bench.until(run_id, "succeeded")


async def test_a_bell_starts_a_run_that_another_process_submitted(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P17: across processes too."""
    app = work(nothing)
    worker, client = make_bench(app, **DEAF_TO_TIME), make_bench(app)
    await client.engine.bells.start()
    async with worker.at_work():
        await worker.idle()
        await worker.wait_until_true(
            "SELECT count(*) = 2 FROM pg_stat_activity WHERE query LIKE 'LISTEN%'"
            " AND datname = current_database() AND state = 'idle'"
        )
        run_id = await client.submit("work")
        await client.until(run_id, "succeeded")


async def test_a_bell_tells_a_running_run_at_once_that_a_stop_was_asked(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P20."""
    gate = Gate()
    bench = make_bench(gated(gate), **DEAF_TO_TIME)
    async with bench.at_work():
        run_id = await bench.submit("work")
        await gate.reached()
        await bench.idle(STOP)
        assert (await bench.cancel(run_id)).outcome == "requested"
        await bench.until(run_id, "cancelled")
    assert await bench.outcomes(run_id) == ["cancelled"]


async def test_a_worker_runs_no_more_at_once_than_it_has_room_for(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P19: what it cannot run it does not claim."""
    gate = Gate()
    running: list[int] = []

    async def handler(ctx: Context) -> None:
        running.append(1)
        assert len(running) <= 2
        await gate.pass_through()
        running.pop()

    bench = make_bench(work(handler), concurrency=2)
    async with bench.at_work():
        run_ids = [await bench.submit("work") for _ in range(5)]
        await bench.wait_until_true("SELECT count(*) = 2 FROM execution WHERE status = 'running'")
        gate.open()
        for run_id in run_ids:
            await bench.until(run_id, "succeeded")


async def test_a_worker_serves_the_lanes_that_it_was_given(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P24."""
    app = App("lanes")

    for name in ("fast", "slow"):

        @app.run(name, lane=name)
        async def kind(ctx: Context, value: Any) -> None:
            pass

    bench = make_bench(app)
    bench.worker.lanes = ["fast"]
    fast, slow = await bench.submit("fast"), await bench.submit("slow")
    await bench.drain()
    assert await bench.status(fast) == "succeeded"
    assert await bench.status(slow) == "queued"


async def test_no_lane_waits_until_another_one_is_empty(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P24: each claim begins with another lane."""
    order: list[str] = []
    app = App("lanes")

    for name in ("a", "b"):

        @app.run(name, lane=name)
        async def kind(ctx: Context, value: str) -> None:
            order.append(value)

    bench = make_bench(app, concurrency=1)
    for name in ("a", "a", "a", "b", "b", "b"):
        await bench.submit(name, name)
    await bench.drain()
    assert set(order[:3]) == {"a", "b"}


async def test_a_worker_goes_on_after_every_connection_was_cut(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P23."""
    bench = make_bench(work(nothing), poll=timedelta(milliseconds=20))
    async with bench.at_work():
        first = await bench.submit("work")
        await bench.until(first, "succeeded")
        await bench.cut_connections()
        second = await bench.submit("work")
        await bench.until(second, "succeeded")


async def test_a_loop_that_breaks_ends_the_worker_and_loses_nothing(
    make_bench: MakeBench, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P19: better to end than to look alive; what runs is let end."""
    gate = Gate()
    bench = make_bench(gated(gate))
    run_id = await bench.submit("work")
    rounds: list[int] = []

    async def breaks() -> timedelta:
        rounds.append(1)
        await gate.reached()
        gate.open()
        raise KeyError("a mistake of ours")

    monkeypatch.setattr(bench.worker._minder, "watch", breaks)
    with pytest.raises(KeyError, match="a mistake of ours"):
        await bench.worker.run()
    assert await bench.status(run_id) == "succeeded"


# ---- drain -------------------------------------------------------------------------------------


async def test_a_draining_worker_claims_nothing_and_lets_running_work_end(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P19."""
    gate = Gate()
    bench = make_bench(gated(gate), keeper=True)
    running = await bench.submit("work")
    task = asyncio.create_task(bench.worker.run())
    await gate.reached()
    await bench.idle()
    bench.worker.stop()
    bench.worker.stop()
    await bench.claims_no_more()
    waiting = await bench.submit("work")
    assert not task.done()
    gate.open()
    await task
    assert await bench.outcomes(running) == ["succeeded"]
    assert (await bench.status(waiting), await bench.attempts(waiting)) == ("queued", [])
    left = "SELECT ended_at IS NOT NULL FROM instance WHERE instance_id = $1"
    assert await bench.value(left, bench.engine.instance.instance_id)


async def test_what_does_not_end_in_time_is_handed_back_and_costs_no_attempt(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P19: another worker goes on with it."""
    app = gated(Gate(), max_attempts=1)
    bench = make_bench(app, keeper=True, drain=timedelta(0))
    run_id = await bench.submit("work")
    async with bench.at_work():
        await bench.until(run_id, "running")
    run = await bench.find(run_id)
    assert (run.status, run.failures) == ("queued", 0)
    assert await bench.outcomes(run_id) == ["handed_back"]
    assert (await bench.told(run_id))[-1] == "run.resumed"
    other = make_bench(work(nothing))
    await other.drain()
    assert await other.status(run_id) == "succeeded"


async def test_a_handler_that_turns_its_end_into_an_error_is_handed_back_all_the_same(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P19: it is not its failure."""
    inside = asyncio.Event()

    async def handler(ctx: Context) -> None:
        inside.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise RuntimeError("interrupted") from None

    bench = make_bench(work(handler, max_attempts=1), drain=timedelta(0))
    run_id = await bench.submit("work")
    async with bench.at_work():
        await inside.wait()
    assert await bench.outcomes(run_id) == ["handed_back"]


async def test_a_handler_that_does_not_unwind_is_left_behind_with_a_closed_context(
    make_bench: MakeBench, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P5, P19: the worker ends all the same, and what is left writes nothing any more."""
    monkeypatch.setattr(attempting, "UNWIND", timedelta(milliseconds=20))
    inside, go_on = asyncio.Event(), asyncio.Event()
    late: list[BaseException] = []

    async def handler(ctx: Context) -> None:
        inside.set()
        while not go_on.is_set():
            try:
                await go_on.wait()
            except asyncio.CancelledError:
                continue
        try:
            await ctx.step("late", nothing_at_all)
        except Exception as error:
            late.append(error)

    async def nothing_at_all() -> None:
        pass

    bench = make_bench(work(handler), drain=timedelta(0))
    run_id = await bench.submit("work")
    async with bench.at_work():
        await inside.wait()
    assert await bench.outcomes(run_id) == ["handed_back"]
    events = await bench.told(run_id)
    go_on.set()
    while not late:  # noqa: ASYNC110 - the handler is about to find out
        await asyncio.sleep(0)
    assert type(late[0]).__name__ == "FencedOut"
    assert await bench.told(run_id) == events


# ---- the keeper --------------------------------------------------------------------------------


RENEWS_OFTEN: dict[str, Any] = {"keeper": True, "renew_every": timedelta(milliseconds=20)}


async def test_the_keeper_renews_while_a_handler_blocks_the_event_loop(
    make_bench: MakeBench, clock: ManualClock, database_url: str
) -> None:
    """P6: it has a thread and a connection of its own."""

    async def later_and_renewed() -> bool:
        """Half a minute goes by; waits until the lease is a whole one again."""
        connection = await asyncpg.connect(database_url, server_settings={"search_path": "earnest"})
        await connection.execute("UPDATE manual_clock SET now = now + interval '30s'")
        renewed = "SELECT lease_until = now + interval '45s' FROM execution, manual_clock"
        async with asyncio.timeout(10):
            while not await connection.fetchval(renewed):  # noqa: ASYNC110
                await asyncio.sleep(0)
        await connection.close()
        return True

    async def handler(ctx: Context) -> bool:
        answers: list[bool] = []
        beside = threading.Thread(target=lambda: answers.append(asyncio.run(later_and_renewed())))
        beside.start()
        beside.join(20)  # on purpose: nothing else of this process's loop runs meanwhile
        return answers == [True]

    bench = make_bench(work(handler), **RENEWS_OFTEN)
    async with bench.at_work():
        run_id = await bench.submit("work")
        assert (await bench.until(run_id, "succeeded")).output is True


async def test_an_attempt_whose_renewal_is_refused_is_cancelled_and_settles_nothing(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P5, P6: somebody else owns the run now."""
    inside, ended = asyncio.Event(), asyncio.Event()

    async def handler(ctx: Context) -> None:
        if ctx.attempt > 1:
            return
        inside.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    app = work(handler)
    bench, other = make_bench(app, **RENEWS_OFTEN), make_bench(app)
    run_id = await bench.submit("work")
    async with bench.at_work():
        await inside.wait()
        bench.worker.lanes = []
        await bench.execute(
            "UPDATE execution SET lease_until = clock() - interval '1s' WHERE run_id = $1", run_id
        )
        await asyncio.wait_for(ended.wait(), 10)
        await other.drain()
    assert await bench.outcomes(run_id) == ["lost", "succeeded"]


async def test_a_keeper_takes_its_lock_when_an_older_connection_lets_it_go(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P23: otherwise others would think for ever that this process is gone."""
    bench = make_bench(work(nothing), **RENEWS_OFTEN)
    older = await bench.engine.database.connect()
    assert await bench.engine.instance.enter(older)
    unlocked = sql("unlocked_instances").rstrip(";")
    async with bench.at_work():
        await older.close()
        await bench.wait_until_true(f"SELECT NOT EXISTS ({unlocked})")


async def test_a_keeper_goes_on_whatever_went_wrong(
    make_bench: MakeBench, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P6, P23: a worker without one would look alive and lose every run that it claims."""
    monkeypatch.setattr(leasing, "_RETRY_AFTER", 0.01)
    bench = make_bench(work(nothing))
    database, settings = bench.engine.database, bench.engine.settings
    troubles: list[Exception] = [RuntimeError("a mistake of ours"), OSError("no route to host")]

    async def enter(tx: asyncpg.Connection) -> bool:
        if troubles:
            raise troubles.pop()
        return await bench.engine.instance.enter(tx)

    keeper = leasing.Keeper(database, leasing.Leases(settings.lease), settings, enter)
    assert await asyncio.to_thread(keeper.start, 10)
    assert troubles == []
    await asyncio.to_thread(keeper.stop)


# ---- slots -------------------------------------------------------------------------------------


async def test_an_ending_that_cannot_be_stored_yet_holds_up_nobody(make_bench: MakeBench) -> None:
    """Neither the slot of the handler that is over nor the endings of others wait for it."""
    gate = Gate()
    bench = make_bench(gated(gate), concurrency=1)
    async with bench.at_work():
        first = await bench.submit("work")
        await gate.reached()
        async with bench.holding(first):
            gate.open()
            second = await bench.submit("work")
            await bench.until(second, "succeeded")
            assert await bench.status(first) == "running"
        await bench.until(first, "succeeded")


async def test_no_more_is_claimed_than_can_wait_to_be_stored(make_bench: MakeBench) -> None:
    """P19: as many endings as there is room for handlers wait, beside the handlers."""
    bench = make_bench(work(nothing), concurrency=8)
    run_ids = [await bench.submit("work") for _ in range(40)]
    holder = await bench.engine.database.connect(application_name="holder")
    async with bench.at_work(), asyncio.timeout(10):
        async with holder.transaction():
            await holder.execute("LOCK TABLE past_attempt")
            await bench.has_no_room()
            assert await bench.value("SELECT count(*) FROM execution WHERE fence > 0") == 16
        for run_id in run_ids:
            await bench.until(run_id, "succeeded")
    await holder.close()
