"""A worker that is asked to stop loses nothing, whatever it was doing (P19)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from structlog.testing import capture_logs

from earnest.domain.run import RunStatus
from earnest.engine.app import App
from earnest.engine.attempts.context import Context
from earnest.engine.attempts.minding import Minder
from earnest.engine.attempts.working import Worker
from earnest.engine.process.doorbells import QUESTION, WORK, Doorbells
from earnest.engine.process.engine import Engine
from earnest.store import runs
from earnest.store.database import Database
from tests.engine.bench import SCOPE, Bench

MINUTE = timedelta(minutes=1)


def endless(started: asyncio.Event) -> App:
    """An app whose one kind works until it is stopped."""
    app = App("endless")

    @app.run("endless", pure=True)
    async def work(ctx: Context, _: None) -> None:
        started.set()
        await asyncio.Event().wait()

    return app


@pytest.fixture
def started() -> asyncio.Event:
    return asyncio.Event()


@pytest.fixture
def engine(make_engine: Callable[..., Engine], started: asyncio.Event) -> Engine:
    return make_engine(endless(started), drain=MINUTE)


async def status_of(engine: Engine, run_id: Any) -> RunStatus:
    found = await runs.find(engine.database, SCOPE, run_id)
    assert found is not None
    return found.status


async def test_a_claim_that_was_on_its_way_when_a_stop_was_asked_is_handed_back(
    engine: Engine, started: asyncio.Event, at_points: Callable[[Callable[[str], None]], None]
) -> None:
    worker = Worker(engine)
    run_id = await Bench(engine, worker).submit("endless")

    def stop_at_claim(point: str) -> None:
        if point == "claim.before":
            worker.stop()

    at_points(stop_at_claim)
    working = asyncio.create_task(worker.run())
    starting = asyncio.create_task(started.wait())
    await asyncio.wait([working, starting], return_when=asyncio.FIRST_COMPLETED)
    worker.hurry()
    await working
    starting.cancel()
    assert await status_of(engine, run_id) is RunStatus.QUEUED


async def test_a_hurried_worker_hands_back_at_once_what_still_runs(
    engine: Engine, started: asyncio.Event
) -> None:
    worker = Worker(engine)
    run_id = await Bench(engine, worker).submit("endless")
    working = asyncio.create_task(worker.run())
    await started.wait()
    worker.stop()
    await asyncio.sleep(0)
    worker.hurry()
    async with asyncio.timeout(10):
        await working
    assert await status_of(engine, run_id) is RunStatus.QUEUED


async def test_a_worker_that_is_cancelled_hands_back_what_runs(
    engine: Engine, started: asyncio.Event
) -> None:
    """P19: it costs no attempt."""
    bench = Bench(engine, Worker(engine))
    run_id = await bench.submit("endless")
    working = asyncio.create_task(bench.worker.run())
    await started.wait()
    working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await working
    assert await bench.outcomes(run_id) == ["handed_back"]


async def test_a_program_that_ends_without_stopping_its_worker_costs_no_attempt(
    engine: Engine, started: asyncio.Event
) -> None:
    """P19: its event loop cancels the worker, its loops and its handlers at once."""
    others = asyncio.all_tasks()
    bench = Bench(engine, Worker(engine))
    run_id = await bench.submit("endless")
    working = asyncio.create_task(bench.worker.run())
    await started.wait()
    for task in asyncio.all_tasks() - others:
        task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await working
    assert await bench.outcomes(run_id) == ["handed_back"]


async def test_a_hurried_worker_leaves_no_claim_behind_that_comes_too_late(
    engine: Engine, started: asyncio.Event
) -> None:
    """P19: a worker that has ended begins nothing."""
    bench = Bench(engine, Worker(engine))
    run_id = await bench.submit("endless")
    others = asyncio.all_tasks()
    holder = await engine.database.connect(application_name="holder")
    async with holder.transaction():
        await holder.execute("LOCK TABLE event")
        working = asyncio.create_task(bench.worker.run())
        await bench.wait_for_lock_waiters()
        bench.worker.hurry()
        await working
        assert asyncio.all_tasks() - others == set()
    await holder.close()
    assert await status_of(engine, run_id) is RunStatus.QUEUED
    assert not started.is_set()


@pytest.mark.parametrize("turns", range(4))
async def test_a_cancel_that_comes_with_the_ring_is_not_lost(
    database: Database, turns: int
) -> None:
    bells = Doorbells(database)
    waiting = asyncio.create_task(bells.wait(WORK, MINUTE))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    bells.ring(WORK)
    for _ in range(turns):
        await asyncio.sleep(0)
    was_cancelled = waiting.cancel()
    await asyncio.wait([waiting])
    assert waiting.cancelled() == was_cancelled


async def test_a_draining_worker_asks_no_new_questions(
    make_engine: Callable[..., Engine], started: asyncio.Event
) -> None:
    """P19: a call that is sent again could not be waited for any more."""
    engine = make_engine(endless(started), drain=MINUTE, poll=MINUTE)
    worker = Worker(engine)
    bench = Bench(engine, worker)
    await bench.submit("endless")
    working = asyncio.create_task(worker.run())
    await started.wait()
    await bench.idle(QUESTION)
    worker.stop()
    async with asyncio.timeout(10):
        while engine.bells._waiters.get(QUESTION):  # noqa: ASYNC110
            await asyncio.sleep(0)
    assert not working.done()
    worker.hurry()
    await working


async def test_a_minder_that_fails_does_not_fall_silent(
    make_engine: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def look() -> int:
        raise ValueError("ours")

    minder = Minder(make_engine(App("minded")))
    monkeypatch.setattr(minder.reaper, "look", look)
    with capture_logs() as told, pytest.raises(ValueError, match="ours"):
        await minder.run()
    assert "minder.failed" in [line["event"] for line in told]
