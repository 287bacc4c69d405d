"""From replay to live: no gap, whoever writes, and whether or not a bell rings."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from datetime import timedelta

import pytest

from earnest.assembly import Config
from earnest.domain.errors import SettingInvalid
from earnest.doors.api.streams import PAGES_AT_ONCE
from earnest.engine.process.doorbells import Doorbells, Moved
from earnest.engine.process.engine import Engine
from tests.doors.streams.conftest import MakeStage
from tests.doors.streams.stage import ScriptedRun, Stage

FAR = timedelta(seconds=60)


async def _numbers(stage: Stage, run: ScriptedRun, after: int, last: int) -> list[int]:
    stream = await stage.open(run, after=after)
    return [item.data["seq"] for item in await stream.messages(last - after, within=30)]


async def test_a_thousand_events_while_readers_come_leave_no_gap(stage: Stage) -> None:
    """P9."""
    run = await stage.run()
    speaking = asyncio.create_task(run.append(1000))
    readers = []
    for number in range(20):
        await run.reaches(number * 45)
        after = number * 30
        readers.append((after, asyncio.create_task(_numbers(stage, run, after, 1002))))
    await speaking
    for after, reading in readers:
        assert await reading == list(range(after + 1, 1003))


async def test_readers_of_one_run_share_one_look_at_the_table(
    stage: Stage, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = await stage.run()
    streams = [await stage.open(run) for _ in range(20)]
    for stream in streams:
        await stream.messages(2)
    looks: list[int] = []
    fetch = engine.database.fetch

    async def noted(statement: str, *arguments: object) -> object:
        looks.append(statement == "visible_events")
        return await fetch(statement, *arguments)

    monkeypatch.setattr(engine.database, "fetch", noted)
    await run.append(5)
    for stream in streams:
        await stream.messages(5)
    assert looks
    assert not any(looks), "what is new was read once, for all"


async def test_what_is_new_does_not_wait_for_those_who_ask_what_was_before(
    make_stage: MakeStage,
) -> None:
    """P10: many that come at once take turns, and hear meanwhile that their stream lives."""
    stage = await make_stage(heartbeat=timedelta(seconds=0.1))
    run = await stage.run(5)
    live = await stage.open(run, after=5)
    await live.until("heartbeat")
    async with AsyncExitStack() as turns:
        for _ in range(PAGES_AT_ONCE):
            await turns.enter_async_context(stage.streams.paging)
        late = await stage.open(run)
        assert [item.event for item in await late.until("heartbeat")] == ["heartbeat"]
        await run.append()
        assert [item.data["seq"] for item in await live.messages(1)] == [6]
    assert [item.data["seq"] for item in await late.messages(6)] == [1, 2, 3, 4, 5, 6]


# ---- bells -------------------------------------------------------------------------------------


async def test_what_is_written_elsewhere_is_heard_at_once(
    make_stage: MakeStage, make_engine: Callable[..., Engine]
) -> None:
    """Another process of the same database, known by its bell alone."""
    elsewhere = make_engine()
    await elsewhere.bells.start()
    stage = await make_stage(elsewhere, poll=FAR)
    run = await stage.run()
    stream = await stage.open(run)
    await stream.messages(2)
    for _ in range(5):
        # The first rings may come before the other process listens.
        await run.append()
    assert (await stream.messages(5, within=5))[-1].data["seq"] == 7


async def test_without_any_bell_it_is_found_a_little_later(
    make_stage: MakeStage, make_engine: Callable[..., Engine]
) -> None:
    """P9, P17: nothing relies on a bell."""
    deaf = make_engine()
    deaf.bells = Doorbells(deaf.database, across=False)
    await deaf.bells.start()
    stage = await make_stage(deaf)
    run = await stage.run()
    stream = await stage.open(run)
    await stream.messages(2)
    begun = time.monotonic()
    await run.append(3)
    assert [item.data["seq"] for item in await stream.messages(3)] == [3, 4, 5]
    assert time.monotonic() - begun < 1.5


def test_a_process_rings_for_others_unless_it_is_told_not_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for said, bells in (("", True), ("on", True), ("off", False)):
        monkeypatch.setenv("EARNEST_BELLS", said)
        assert Config().bells is bells
    monkeypatch.setenv("EARNEST_BELLS", "no")
    with pytest.raises(SettingInvalid, match="set it to on or to off"):
        Config()


async def test_a_process_without_bells_notifies_nobody(
    make_engine: Callable[..., Engine], engine: Engine
) -> None:
    heard: asyncio.Queue[Moved] = asyncio.Queue()
    engine.bells.watch_moves(heard.put_nowait)
    ringing, silent = make_engine(), make_engine()
    silent.bells = Doorbells(silent.database, across=False)
    for one in (ringing, silent):
        await one.bells.start()
    unheard, known, last = (uuid.uuid4() for _ in range(3))

    async def hear(run_id: uuid.UUID) -> set[uuid.UUID]:
        """Rings until that is heard: a process may not listen yet. Returns all that was heard."""
        runs: set[uuid.UUID] = set()
        while run_id not in runs:
            ringing.bells.moved(run_id)
            with suppress(TimeoutError):
                async with asyncio.timeout(0.1):
                    runs |= await heard.get() or set()
        return runs

    await hear(known)
    silent.bells.moved(unheard)
    assert await hear(last) <= {known, last}
