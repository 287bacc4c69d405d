"""The hub: what is new is read once, nothing is missed, and nothing is kept without bound."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from earnest import App, Context
from earnest.domain.errors import DatabaseUnavailable
from earnest.domain.event import Event, NewEvent
from earnest.engine.process.engine import Engine
from earnest.engine.runs import submitting
from earnest.engine.runs.submitting import Request
from earnest.engine.streams import streaming, tails
from earnest.engine.streams.streaming import Hub, Watch
from earnest.engine.streams.tails import Frame
from earnest.store import executions, visible
from earnest.store.database import Database

SCOPE, ME = "demo", "ann"
FAR, SOON = timedelta(hours=1), timedelta(milliseconds=20)
PATIENCE = 5.0


def _encode(event: Event) -> bytes:
    return json.dumps([event.seq, event.payload]).encode()


async def _after(watch: Watch, seq: int) -> list[Frame]:
    found = watch.at_hand(seq)
    return await watch.page(seq, ME) if found is None else found


@dataclass
class Watcher:
    """Somebody who watches a run, after the event `after`."""

    watch: Watch
    flag: asyncio.Event
    after: int

    async def next(self) -> list[Frame]:
        """What comes next; waits for it."""
        async with asyncio.timeout(PATIENCE):
            while True:
                self.flag.clear()
                found = await _after(self.watch, self.after)
                if found:
                    self.after = found[-1].seq
                    return found
                await self.flag.wait()

    async def numbers(self, count: int) -> list[int]:
        found: list[int] = []
        while len(found) < count:
            found += [frame.seq for frame in await self.next()]
        return found


class World:
    """Runs of one engine whose events the test writes, and hubs that it looks at."""

    def __init__(self, engine: Engine, stack: AsyncExitStack) -> None:
        self.engine = engine
        self._stack = stack

    def hub(self, poll: timedelta = FAR) -> Hub:
        return Hub(self.engine, _encode, poll=poll)

    async def run(self) -> uuid.UUID:
        """It has one event."""
        return (await submitting.submit(self.engine, SCOPE, ME, Request("idle", None))).run.run_id

    async def write(self, run_id: uuid.UUID, count: int = 1, *, rings: bool, size: int = 0) -> None:
        """More events of a run."""
        events = [NewEvent("said", {"text": "x" * size})] * count
        async with self.engine.database.connection() as tx, tx.transaction():
            await executions.touch(tx, SCOPE, run_id, events)
        if rings:
            self.engine.bells.moved(run_id)

    def watch(
        self, hub: Hub, run_id: uuid.UUID, head: int = 1, after: int | None = None
    ) -> Watcher:
        flag = asyncio.Event()
        watch = self._stack.enter_context(hub.watch(SCOPE, run_id, head, flag))
        return Watcher(watch, flag, head if after is None else after)


@pytest.fixture
async def world(make_engine: Callable[..., Engine]) -> AsyncIterator[World]:
    app = App("idle")

    @app.run("idle")
    async def idle(ctx: Context, _: None) -> None:
        return None

    async with AsyncExitStack() as stack:
        yield World(make_engine(app), stack)


@pytest.fixture
def statements(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the statements that are read from now on."""
    asked: list[str] = []
    fetch = Database.fetch

    async def noted(database: Database, statement: str, *arguments: Any) -> list[Any]:
        asked.append(statement)
        return await fetch(database, statement, *arguments)

    monkeypatch.setattr(Database, "fetch", noted)
    return asked


# ---- nothing is missed -------------------------------------------------------------------------


async def test_what_a_bell_tells_of_is_given(world: World) -> None:
    run_id = await world.run()
    watcher = world.watch(world.hub(), run_id)
    for seq in (2, 3, 4):
        await world.write(run_id, rings=True)
        assert await watcher.numbers(1) == [seq]


async def test_what_came_between_the_look_and_the_watch_is_given_without_a_bell(
    world: World,
) -> None:
    """P9."""
    run_id, hub = await world.run(), world.hub()
    await world.write(run_id, 2, rings=True)
    assert await world.watch(hub, run_id, head=1).numbers(2) == [2, 3]
    await world.write(run_id, rings=False)
    assert await world.watch(hub, run_id, head=4, after=2).numbers(2) == [3, 4]


async def test_without_any_bell_every_watched_run_is_looked_at(world: World) -> None:
    """P9, P17."""
    hub = world.hub(SOON)
    runs = [await world.run() for _ in range(3)]
    watchers = [world.watch(hub, run_id) for run_id in runs]
    for run_id in runs:
        await world.write(run_id, rings=False)
    assert [await watcher.numbers(1) for watcher in watchers] == [[2]] * 3


async def test_bells_that_never_cease_keep_no_other_run_from_being_looked_at(
    world: World,
) -> None:
    hub = world.hub(SOON)
    loud, silent = await world.run(), await world.run()
    world.watch(hub, loud)
    watcher = world.watch(hub, silent)

    async def ring() -> None:
        while True:
            world.engine.bells.moved(loud)
            await asyncio.sleep(0)

    ringing = asyncio.create_task(ring())
    await world.write(silent, rings=False)
    assert await watcher.numbers(1) == [2]
    ringing.cancel()


async def test_a_bell_that_names_no_run_has_all_looked_at(world: World) -> None:
    hub = world.hub()
    runs = [await world.run() for _ in range(3)]
    watchers = [world.watch(hub, run_id) for run_id in runs]
    for run_id in runs:
        await world.write(run_id, rings=False)
    hub._heard(None)
    assert [await watcher.numbers(1) for watcher in watchers] == [[2]] * 3


async def test_more_runs_than_one_look_holds_are_all_looked_at(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streaming, "LOOKED_AT_ONCE", 2)
    monkeypatch.setattr(streaming, "PAGE", 3)
    hub = world.hub()
    runs = [await world.run() for _ in range(5)]
    watchers = [world.watch(hub, run_id) for run_id in runs]
    for run_id in runs:
        await world.write(run_id, 8, rings=False)
    world.engine.bells.moved(*runs)
    assert [await watcher.numbers(8) for watcher in watchers] == [list(range(2, 10))] * 5


async def test_a_watcher_of_another_scope_is_told_nothing(world: World) -> None:
    """P12."""
    run_id, hub = await world.run(), world.hub()
    mine = world.watch(hub, run_id)
    with hub.watch("other", run_id, 1, asyncio.Event()) as foreign:
        await world.write(run_id, rings=True)
        assert await mine.numbers(1) == [2]
        assert await foreign.page(0, None) == []
        assert foreign.head == 1


# ---- from the table and from the tail ----------------------------------------------------------


async def test_watchers_of_one_run_share_what_is_read(world: World, statements: list[str]) -> None:
    run_id, hub = await world.run(), world.hub()
    watchers = [world.watch(hub, run_id) for _ in range(50)]
    await world.write(run_id, 3, rings=True)
    assert [await watcher.numbers(3) for watcher in watchers] == [[2, 3, 4]] * 50
    assert set(statements) == {"events_after"}
    assert len(statements) <= 2


async def test_a_watcher_that_lags_is_served_from_the_table_without_a_gap(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P9."""
    monkeypatch.setattr(tails, "KEPT_EVENTS", 4)
    run_id, hub = await world.run(), world.hub()
    prompt, late = world.watch(hub, run_id), world.watch(hub, run_id)
    await world.write(run_id, 30, rings=True)
    await prompt.numbers(30)
    assert await late.numbers(30) == list(range(2, 32))


async def test_a_page_is_no_larger_than_its_bytes_or_one_event(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P10."""
    monkeypatch.setattr(streaming, "PAGE_BYTES", 2_500)
    run_id = await world.run()
    await world.write(run_id, 5, rings=False, size=1_000)
    await world.write(run_id, 1, rings=False, size=9_000)
    watcher = world.watch(world.hub(), run_id, head=7, after=1)
    pages = [[frame.seq for frame in await watcher.next()] for _ in range(4)]
    assert pages == [[2, 3], [4, 5], [6], [7]]


async def test_a_hole_is_never_closed_in_silence(world: World) -> None:
    """P9: what retention took away between two looks shows as a number that is skipped."""
    run_id, hub = await world.run(), world.hub()
    watcher = world.watch(hub, run_id)
    await world.write(run_id, 1, rings=True)
    assert await watcher.numbers(1) == [2]
    await world.write(run_id, 5, rings=False)
    async with world.engine.database.connection() as tx:
        await tx.execute("DELETE FROM event WHERE seq < 6")
    world.engine.bells.moved(run_id)
    assert await watcher.numbers(2) == [6, 7]
    for after in (2, 4, 5):
        assert [frame.seq for frame in await _after(watcher.watch, after)] == [6, 7]


# ---- nothing is kept without bound -------------------------------------------------------------


async def test_of_large_events_no_more_is_fetched_than_is_sent(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P10: also by the first page, which does not know yet how large they are."""
    run_id, hub = await world.run(), world.hub()
    await world.write(run_id, 20, rings=False, size=16_000)
    watcher = world.watch(hub, run_id, head=21, after=1)
    fetched: list[int] = []

    async def counted(*asked: Any) -> Any:
        found = await visible_events(*asked)
        fetched.append(len(found))
        return found

    visible_events = visible.events
    monkeypatch.setattr(visible, "events", counted)
    page = await watcher.watch.page(1, None)
    assert [frame.seq for frame in page] == [2, 3]
    assert sum(fetched) <= 3


async def test_a_tail_is_bounded_by_events_and_by_bytes(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P10."""
    run_id, hub = await world.run(), world.hub()
    watcher = world.watch(hub, run_id)
    tail = watcher.watch._tail
    await world.write(run_id, 2 * tails.KEPT_EVENTS, rings=True)
    await watcher.numbers(2 * tails.KEPT_EVENTS)
    assert len(tail.frames) == tails.KEPT_EVENTS
    monkeypatch.setattr(tails, "KEPT_BYTES", 10_000)
    await world.write(run_id, 20, rings=True, size=1_000)
    await watcher.numbers(20)
    assert tail.size == sum(len(frame.data) for frame in tail.frames)
    assert 0 < tail.size <= 10_000


async def test_only_the_tails_that_grew_last_hold_events(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P10."""
    monkeypatch.setattr(tails, "KEPT_TAILS", 2)
    hub = world.hub()
    runs = [await world.run() for _ in range(4)]
    watchers = [world.watch(hub, run_id) for run_id in runs]
    for run_id, watcher in zip(runs, watchers, strict=True):
        await world.write(run_id, rings=True)
        await watcher.numbers(1)
    assert [len(watcher.watch._tail.frames) for watcher in watchers] == [0, 0, 1, 1]
    assert [frame.seq for frame in await _after(watchers[0].watch, 1)] == [2]


async def test_a_hub_that_nobody_watches_does_nothing(world: World, statements: list[str]) -> None:
    run_id, hub = await world.run(), world.hub(SOON)
    with hub.watch(SCOPE, run_id, 1, asyncio.Event()):
        assert hub.watched == 1
        task = hub._task
        assert task is not None
    assert hub.watched == 0
    async with asyncio.timeout(PATIENCE):
        await task
    statements.clear()
    assert world.engine.bells._watchers == []
    await world.write(run_id, rings=True)
    assert statements == []
    assert await world.watch(hub, run_id).numbers(1) == [2]


# ---- what goes wrong ---------------------------------------------------------------------------


@pytest.mark.parametrize("error", [DatabaseUnavailable("away"), RuntimeError("a mistake")])
async def test_a_look_that_fails_is_made_again(
    world: World, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    run_id, hub = await world.run(), world.hub(SOON)
    fetch: Callable[..., Awaitable[Any]] = Database.fetch
    failed = asyncio.Event()

    async def fails_once(*arguments: Any) -> Any:
        if not failed.is_set():
            failed.set()
            raise error
        return await fetch(*arguments)

    monkeypatch.setattr(Database, "fetch", fails_once)
    watcher = world.watch(hub, run_id)
    await failed.wait()
    await world.write(run_id, rings=True)
    assert await watcher.numbers(1) == [2]
