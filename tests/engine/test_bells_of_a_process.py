"""The bells of one process: several parts of it use them, and they ring until the last has left."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

import earnest
from earnest import App, Context
from earnest.engine.process import doorbells
from earnest.engine.process.doorbells import WORK, Doorbells, Moved
from earnest.store.database import Database
from tests.engine.conftest import MakeBench
from tests.store.wire import Wire

ECHO = App("echo")


@ECHO.run("echo")
async def echo(ctx: Context, value: int) -> int:
    return value


def tasks_of(bells: Doorbells) -> list[asyncio.Task[Any]]:
    """Of all that ever ring or listen here; nobody else's."""
    wanted = {"Doorbells._send", "Doorbells._listen"}
    return [
        task
        for task in asyncio.all_tasks()
        if getattr(task.get_coro(), "__qualname__", "") in wanted
        and task.get_coro().cr_frame.f_locals["self"] is bells  # type: ignore[union-attr]
    ]


async def test_bells_that_are_started_twice_ring_once_and_until_both_have_left(
    make_bench: MakeBench,
) -> None:
    """P17, P23: no listener is left behind that nobody stops."""
    bells = make_bench(ECHO).engine.bells
    await bells.start()
    await bells.start()
    assert len(tasks_of(bells)) == 2
    await bells.stop()
    assert len(tasks_of(bells)) == 2
    await bells.stop()
    assert tasks_of(bells) == []


async def test_bells_can_be_started_again(make_bench: MakeBench) -> None:
    bells = make_bench(ECHO).engine.bells
    await bells.stop()
    for _ in range(2):
        await bells.start()
        assert len(tasks_of(bells)) == 2
        await bells.stop()
        assert tasks_of(bells) == []


async def test_a_program_that_also_works_leaves_no_listener_behind(database_url: str) -> None:
    """P23: nothing of it goes on when the program has closed it."""
    async with earnest.open(ECHO, database_url=database_url, worker=True) as opened:
        await ECHO.submit(ECHO.kinds["echo"], 1)
        bells = opened.engine.bells
        assert len(tasks_of(bells)) == 2
    assert tasks_of(bells) == []


async def test_the_bells_of_a_program_ring_on_when_its_worker_has_ended(
    make_bench: MakeBench,
) -> None:
    """P17: what it submits then is still told to the workers elsewhere."""
    bench = make_bench(ECHO)
    await bench.engine.bells.start()
    async with bench.at_work():
        assert len(tasks_of(bench.engine.bells)) == 2
    assert len(tasks_of(bench.engine.bells)) == 2


async def test_a_worker_that_cannot_begin_stops_no_bells_but_its_own(
    make_bench: MakeBench,
) -> None:
    bench = make_bench(ECHO)
    await bench.engine.bells.start()
    await bench.execute("ALTER TABLE execution RENAME COLUMN lease_until TO lease_away")
    ended = await asyncio.gather(bench.worker.run(), return_exceptions=True)
    await bench.execute("ALTER TABLE execution RENAME COLUMN lease_away TO lease_until")
    assert isinstance(ended[0], Exception)
    assert len(tasks_of(bench.engine.bells)) == 2


# ---- what is sent ------------------------------------------------------------------------------


async def test_bells_ring_on_after_a_ring_that_could_not_be_sent(
    make_bench: MakeBench, database_url: str
) -> None:
    """P9: a hint may be lost, those after it are not."""
    far = make_bench(ECHO)
    await far.engine.bells.start()
    await far.wait_until_true(
        "SELECT count(*) = 1 FROM pg_stat_activity WHERE query LIKE 'LISTEN%'"
        " AND datname = current_database() AND state = 'idle'"
    )
    async with Database(database_url) as own, asyncio.timeout(20):
        bells = Doorbells(own)
        await bells.start()
        await own.close()
        with capture_logs() as told:
            bells.ring(WORK)
            while "bell.not_sent" not in [line["event"] for line in told]:  # noqa: ASYNC110
                await asyncio.sleep(0)
        await own.open()
        hearing = asyncio.create_task(far.engine.bells.wait(WORK, timedelta(seconds=10)))
        await asyncio.sleep(0)
        bells.ring(WORK)
        assert await hearing
        await bells.stop()


async def test_when_nothing_moved_nobody_is_told(make_bench: MakeBench) -> None:
    """Told without a name, any run may have moved: every hub would look at all that is watched."""
    bells = make_bench(ECHO).engine.bells
    told: list[Moved] = []
    stop = bells.watch_moves(told.append)
    await bells.start()
    bells.moved()
    assert (told, bells._outgoing) == ([], set())
    stop()


async def test_a_listener_notices_that_its_way_to_the_server_broke_without_a_word(
    make_bench: MakeBench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A half-open connection: nothing comes, and nobody says that nothing will."""
    monkeypatch.setattr(doorbells, "PING_EVERY", 0.05)
    monkeypatch.setattr(doorbells, "PING_TIMEOUT", 0.2)
    monkeypatch.setattr(doorbells, "RECONNECT", 0.01)
    bench = make_bench(ECHO)
    ours = "FROM pg_stat_activity WHERE application_name = 'earnest bells'"
    async with Wire(bench.engine.database.url, tmp_path) as wire:
        listening = Doorbells(Database(wire.url))
        await listening.start()
        try:
            await bench.wait_until_true(f"SELECT count(*) = 1 {ours} AND query = 'SELECT 1'")
            first = await bench.value(f"SELECT pid {ours}")
            wire.hush()
            await bench.wait_until_true(f"SELECT count(*) = 1 {ours} AND pid <> {first}")
            heard = asyncio.create_task(listening.wait(WORK, timedelta(minutes=1)))
            async with asyncio.timeout(10):
                while not heard.done():
                    await bench.execute("SELECT pg_notify($1, $2)", doorbells.CHANNEL, WORK)
            await heard
        finally:
            await listening.stop()
