"""The sequencer of one process: who asks gets what was committed before, and no look too many."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from earnest.domain.errors import DatabaseUnavailable
from earnest.engine.process.engine import Engine
from earnest.engine.streams.sequencing import Sequencer
from earnest.store import epochs, feed
from earnest.store.database import Database
from tests.store.given import SCOPE, submitted

MakeEngine = Callable[..., Engine]


class Gate:
    """Holds each look at the feed until it is let go on, and counts them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.looks = 0
        self.begun, self.open = asyncio.Event(), asyncio.Event()
        self._is_behind = feed.is_behind
        monkeypatch.setattr(feed, "is_behind", self.is_behind)

    async def is_behind(self, database: Database) -> bool:
        self.looks += 1
        self.begun.set()
        found = await self._is_behind(database)
        await self.open.wait()
        return found


async def head(database: Database) -> int:
    return (await feed.bounds(database, [SCOPE]))[SCOPE].head


async def test_what_was_committed_before_is_there_when_it_returns(
    database: Database, make_engine: MakeEngine
) -> None:
    """P9: also while others keep it busy."""
    sequencer = Sequencer(make_engine())

    async def write_and_ask() -> None:
        for _ in range(10):
            (run_id,) = await submitted(database)
            await sequencer.catch_up()
            async with database.connection() as tx:
                assert await tx.fetchval("SELECT 1 FROM feed WHERE run_id = $1", run_id)

    await asyncio.gather(*(write_and_ask() for _ in range(4)))
    assert await head(database) == 40


async def test_who_comes_while_a_look_is_under_way_shares_the_next(
    database: Database, make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one under way may have looked before."""
    sequencer, gate = Sequencer(make_engine()), Gate(monkeypatch)
    first = asyncio.create_task(sequencer.catch_up())
    await gate.begun.wait()
    await submitted(database)
    others = [asyncio.create_task(sequencer.catch_up()) for _ in range(20)]
    gate.open.set()
    await asyncio.gather(first, *others)
    assert gate.looks == 2
    assert await head(database) == 1


async def test_who_does_not_want_to_wait_does_not_end_the_look(
    database: Database, make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    sequencer, gate = Sequencer(make_engine()), Gate(monkeypatch)
    await submitted(database)
    await sequencer.catch_up(0.01)
    assert await head(database) == 0
    gate.open.set()
    await sequencer.catch_up()
    assert (await head(database), gate.looks) == (1, 2)


async def test_a_look_that_fails_is_told_and_the_next_one_is_made(
    database: Database, make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    sequencer = Sequencer(make_engine())
    await submitted(database)
    with monkeypatch.context() as broken:

        async def fails(_: Database) -> bool:
            raise DatabaseUnavailable("away")

        broken.setattr(feed, "is_behind", fails)
        with pytest.raises(DatabaseUnavailable):
            await sequencer.catch_up()
    await sequencer.catch_up()
    assert await head(database) == 1


async def test_a_server_that_may_not_be_asked_who_it_is_is_sequenced_too(
    database: Database, make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def says_nothing(_: Database) -> None:
        return None

    monkeypatch.setattr(epochs, "server_identity", says_nothing)
    await submitted(database)
    await Sequencer(make_engine()).catch_up()
    assert await head(database) == 1


async def test_two_processes_tell_each_event_once(
    database: Database, make_engine: MakeEngine
) -> None:
    sequencers = [Sequencer(make_engine()) for _ in range(2)]
    for _ in range(10):
        await submitted(database, 3)
        await asyncio.gather(*(sequencer.catch_up() for sequencer in sequencers))
    async with database.connection() as tx:
        told = await tx.fetchval("SELECT count(*) FROM feed")
    assert (await head(database), told) == (30, 30)
