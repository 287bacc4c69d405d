"""Promises: done once or not at all, whatever becomes of the connection."""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from earnest.domain import crash_points
from earnest.domain.errors import Busy, DatabaseUnavailable, EarnestError, StaleVersion
from earnest.engine.app import App
from earnest.engine.process.engine import Engine
from earnest.engine.runs import submitting
from earnest.engine.runs.submitting import Request
from earnest.store import executions
from earnest.store.database import SAT_ON, Database, Tx, not_the_hooks_fault
from tests.store.given import SCOPE, submitted
from tests.store.wire import COMMIT, EXECUTE, Wire

_app = App("promises")


@_app.run("work")
async def _work(ctx: object, value: str) -> str:
    """Never called."""
    return value


class Deed:
    """Work that leaves a row each time it is committed, and knows how often it was tried."""

    def __init__(self, name: str = "deed") -> None:
        self.name = name
        self.tried = 0
        self.reread = 0

    async def work(self, tx: Tx) -> str:
        self.tried += 1
        await tx.execute("INSERT INTO setting VALUES ($1, 'done')", f"{self.name}-{uuid.uuid4()}")
        return "done"

    async def traces(self, tx: Tx) -> str | None:
        self.reread += 1
        return "found" if await self.done(tx) else None

    async def done(self, tx: Tx) -> int:
        count: int = await tx.fetchval(
            "SELECT count(*) FROM setting WHERE name LIKE $1 || '-%'", self.name
        )
        return count


async def _times_done(database: Database, deed: Deed) -> int:
    """Asked on a connection of its own: one of the pool may have ended and not know it yet."""
    tx = await database.connect()
    try:
        return await deed.done(tx)
    finally:
        await tx.close()


def _elsewhere(url: str, query: str, *arguments: Any) -> Any:
    """What another connection is told meanwhile; for hooks, which cannot wait for the loop."""
    answers: list[Any] = []

    async def ask() -> None:
        connection = await asyncpg.connect(url, server_settings={"search_path": "earnest"})
        try:
            answers.append(await connection.fetchval(query, *arguments))
        finally:
            await connection.close()

    thread = threading.Thread(target=lambda: asyncio.run(ask()))
    thread.start()
    thread.join()
    return answers[0]


@pytest.fixture
def at_point() -> Iterator[Callable[[str, Callable[[], None]], None]]:
    """Does something once, at one crash point."""

    def install(point: str, act: Callable[[], None]) -> None:
        def hook(passed: str) -> None:
            if passed == point:
                crash_points.install(None)
                act()

        crash_points.install(hook)

    yield install
    crash_points.install(None)


@pytest.fixture
async def wire(database_url: str, tmp_path: Path) -> AsyncIterator[Wire]:
    async with Wire(database_url, tmp_path) as made:
        yield made


@pytest.fixture
async def wired(wire: Wire) -> AsyncIterator[Database]:
    """A database at the other end of the wire."""
    async with Database(wire.url, size=2, patience=10) as opened:
        yield opened


# ---- a transaction ------------------------------------------------------------------------------


async def test_a_promise_is_kept_once_and_answers_with_its_result(database: Database) -> None:
    deed = Deed()
    assert await database.promise("deed", deed.work, reread=deed.traces) == "done"
    assert (deed.tried, deed.reread, await _times_done(database, deed)) == (1, 0, 1)


@pytest.mark.parametrize(
    "error", [StaleVersion("x"), KeyError("x"), ValueError("x"), asyncpg.UniqueViolationError("x")]
)
async def test_an_error_undoes_all_and_is_raised_at_once(
    database: Database, error: Exception
) -> None:
    deed = Deed()

    async def work(tx: Tx) -> None:
        await deed.work(tx)
        raise error

    with pytest.raises(type(error)):
        await database.promise("deed", work)
    assert (deed.tried, await _times_done(database, deed)) == (1, 0)


async def test_an_argument_that_does_not_fit_is_no_lost_connection(database: Database) -> None:
    tried = 0

    async def work(tx: Tx) -> None:
        nonlocal tried
        tried += 1
        await tx.execute("SELECT $1::int", "seven")

    with pytest.raises(asyncpg.exceptions.DataError, match="seven"):
        await database.promise("deed", work)
    assert tried == 1


async def test_its_points_are_passed_before_and_after_the_commit(
    database: Database, database_url: str
) -> None:
    deed, seen = Deed(), {}

    def hook(point: str) -> None:
        seen[point] = _elsewhere(database_url, "SELECT count(*) FROM setting")

    crash_points.install(hook)
    try:
        await database.promise("deed", deed.work, one_statement=True)
    finally:
        crash_points.install(None)
    assert seen == {"deed.before": 0, "deed.after": 1}


@pytest.mark.parametrize("nothing", [[], 0, False, ""])
async def test_what_finds_nothing_to_do_passes_no_point(database: Database, nothing: Any) -> None:
    passed: list[str] = []

    async def work(tx: Tx) -> Any:
        return nothing

    crash_points.install(passed.append)
    try:
        await database.promise("deed", work)
    finally:
        crash_points.install(None)
    assert passed == []


# ---- collisions ---------------------------------------------------------------------------------


async def test_a_deadlock_is_tried_again_until_both_are_kept(database: Database) -> None:
    """Two promises lock the same two rows in opposite orders: a circle, on purpose."""
    first, second = await submitted(database, 2)
    met = asyncio.Barrier(2)
    tried = 0

    async def lock_both(tx: Tx, one: uuid.UUID, other: uuid.UUID) -> bool:
        nonlocal tried
        tried += 1
        await tx.execute("SET LOCAL deadlock_timeout = '5ms'")
        await tx.execute("SELECT FROM execution WHERE run_id = $1 FOR UPDATE", one)
        if tried <= 2:
            await met.wait()
        await tx.execute("SELECT FROM execution WHERE run_id = $1 FOR UPDATE", other)
        return True

    kept = await asyncio.gather(
        database.promise("deed", lambda tx: lock_both(tx, first, second)),
        database.promise("deed", lambda tx: lock_both(tx, second, first)),
    )
    assert all(kept)
    assert tried == 3


async def _serialization_fails(tx: Tx) -> None:
    await tx.execute("DO $$ BEGIN RAISE EXCEPTION 'no' USING ERRCODE = '40001'; END $$")


async def test_a_serialization_failure_is_tried_again(database: Database) -> None:
    deed = Deed()

    async def work(tx: Tx) -> str:
        done = await deed.work(tx)
        if deed.tried < 3:
            await _serialization_fails(tx)
        return done

    assert await database.promise("deed", work, reread=deed.traces) == "done"
    assert (deed.tried, deed.reread, await _times_done(database, deed)) == (3, 0, 1)


async def test_what_collides_for_ever_is_given_up_when_patience_ends(database: Database) -> None:
    with pytest.raises(Busy, match="try again"):
        await database.promise("deed", _serialization_fails, patience=0.1)


async def _lock(tx: Tx, run_id: uuid.UUID) -> uuid.UUID:
    await executions.lock(tx, SCOPE, [run_id])
    return run_id


async def test_rows_on_which_somebody_sits_keep_no_connections_from_the_others(
    database: Database, database_url: str
) -> None:
    """As many as the pool is large; they are moved all the same when nobody sits there any more."""
    *sat_on, free = await submitted(database, 3)
    holder = await database.connect()
    async with Database(database_url, size=2) as small:
        async with holder.transaction():
            await executions.lock(holder, SCOPE, sat_on)
            waiting = [
                asyncio.create_task(small.promise("deed", partial(_lock, run_id=run_id)))
                for run_id in sat_on
            ]
            while len(await holder.fetch("SELECT FROM pg_locks WHERE NOT granted")) < 2:
                pass
            async with asyncio.timeout(5):
                assert await small.promise("deed", partial(_lock, run_id=free)) == free
            assert not any(task.done() for task in waiting)
        assert await asyncio.gather(*waiting) == sat_on
    await holder.close()


async def test_a_row_on_which_somebody_sits_for_too_long_is_told(
    database: Database, database_url: str
) -> None:
    (run_id,) = await submitted(database, 1)
    tried = 0

    async def lock(tx: Tx) -> None:
        nonlocal tried
        tried += 1
        await _lock(tx, run_id)

    settings = {"lock_timeout": "20ms"}
    async with (
        Database(database_url, settings=settings, sat_on=0.1) as impatient,
        database.connection() as holder,
        holder.transaction(),
    ):
        await _lock(holder, run_id)
        with pytest.raises(SAT_ON):
            await impatient.promise("deed", lock)
        assert tried == 2
        with pytest.raises(SAT_ON):
            await impatient.promise("deed", lock, sat_on=0)
        assert tried == 3


async def test_only_the_databases_own_errors_in_a_hook_are_tried_again(database: Database) -> None:
    async with database.connection() as tx:
        assert not_the_hooks_fault(tx, asyncpg.DeadlockDetectedError("x"))
        assert not not_the_hooks_fault(tx, TimeoutError("the app's own"))
        assert not not_the_hooks_fault(tx, asyncpg.UniqueViolationError("x"))
    assert not_the_hooks_fault(await _closed(database), TimeoutError("x"))


async def _closed(database: Database) -> Tx:
    connection = await database.connect()
    await connection.close()
    return connection


# ---- lost connections ---------------------------------------------------------------------------


def _end_backends(url: str) -> None:
    """Ends every connection to the database, as an administrator would."""
    _elsewhere(
        url,
        "SELECT count(pg_terminate_backend(pid, 5000)) FROM pg_stat_activity "
        "WHERE datname = current_database() AND pid <> pg_backend_pid()",
    )


async def test_a_connection_that_ends_before_the_commit_has_done_nothing(
    database: Database, database_url: str, at_point: Callable[[str, Callable[[], None]], None]
) -> None:
    deed = Deed()
    at_point("deed.before", lambda: _end_backends(database_url))
    assert await database.promise("deed", deed.work, reread=deed.traces) == "done"
    assert (deed.tried, deed.reread, await _times_done(database, deed)) == (2, 1, 1)


async def test_a_connection_that_ends_after_the_commit_harms_nothing(
    database: Database, database_url: str, at_point: Callable[[str, Callable[[], None]], None]
) -> None:
    deed = Deed()
    at_point("deed.after", lambda: _end_backends(database_url))
    assert await database.promise("deed", deed.work, reread=deed.traces) in ("done", "found")
    assert (deed.tried, await _times_done(database, deed)) == (1, 1)


async def test_when_the_reply_of_a_commit_is_lost_its_traces_are_looked_for(
    wire: Wire, wired: Database
) -> None:
    deed = Deed()
    wire.lose_reply_to(COMMIT)
    assert await wired.promise("deed", deed.work, reread=deed.traces) == "found"
    assert (wire.lost, deed.tried, deed.reread) == (1, 1, 1)
    assert await _times_done(wired, deed) == 1


async def test_without_a_reread_the_work_is_done_again_and_must_be_harmless(
    wire: Wire, wired: Database
) -> None:
    deed = Deed()
    wire.lose_reply_to(COMMIT)
    assert await wired.promise("deed", deed.work) == "done"
    assert (deed.tried, await _times_done(wired, deed)) == (2, 2)


@pytest.mark.parametrize("key", [None, "k"])
async def test_a_submit_whose_reply_is_lost_makes_one_run(
    wire: Wire, wired: Database, key: str | None
) -> None:
    """One statement is its own transaction: the reply that counts is that of the statement."""
    engine = Engine(wired, _app.kinds)
    warm = await submitting.submit(engine, SCOPE, "alice", Request("work", "warm"))
    wire.lose_reply_to(EXECUTE)
    made = await submitting.submit(engine, SCOPE, "alice", Request("work", "in", key))
    assert wire.lost == 1
    assert not made.replayed
    async with wired.connection() as tx:
        rows = await tx.fetch("SELECT run_id FROM run")
    assert {row["run_id"] for row in rows} == {warm.run.run_id, made.run.run_id}


async def test_a_read_survives_a_lost_connection(wire: Wire, wired: Database) -> None:
    wire.lose_reply_to(EXECUTE)
    assert await wired.fetch("count_runs", SCOPE) == []
    assert wire.lost == 1


async def test_connections_that_ended_while_nobody_looked_are_replaced(
    database: Database, database_url: str
) -> None:
    deeds = [Deed(str(number)) for number in range(4)]
    await asyncio.gather(*(database.promise("deed", deed.work) for deed in deeds))
    await asyncio.to_thread(_end_backends, database_url)
    await asyncio.gather(*(database.promise("deed", deed.work) for deed in deeds))
    assert [await _times_done(database, deed) for deed in deeds] == [2, 2, 2, 2]


# ---- a database that is away --------------------------------------------------------------------


async def test_a_promise_outlasts_a_database_that_is_away_for_a_while(
    wire: Wire, database_url: str
) -> None:
    """It calls for its revival, one call at a time, and goes on when it answers again."""
    deeds, calls, at_once = [Deed(str(number)) for number in range(5)], 0, 0

    async def revive() -> None:
        nonlocal calls, at_once
        calls, at_once = calls + 1, at_once + 1
        assert at_once == 1
        await asyncio.sleep(0)
        if calls == 2:
            await wire.let_through()
        at_once -= 1

    async with Database(wire.url, size=5, patience=10, revive=revive) as database:
        await wire.cut()
        works = (database.promise("deed", deed.work, reread=deed.traces) for deed in deeds)
        assert await asyncio.gather(*works) == ["done"] * 5
        assert calls >= 2
        assert [await _times_done(database, deed) for deed in deeds] == [1] * 5


async def test_after_its_patience_a_promise_says_that_the_database_is_away(
    wire: Wire, wired: Database
) -> None:
    deed = Deed()
    await wire.cut()
    with pytest.raises(DatabaseUnavailable) as refusal:
        await wired.promise("deed", deed.work, patience=0.1)
    assert refusal.value.detail.startswith("the database does not answer: ")
    assert "\n" not in refusal.value.detail
    assert deed.tried == 0


async def test_a_database_that_is_not_there_at_the_start_is_told_in_one_line(
    tmp_path: Path,
) -> None:
    database = Database(f"postgresql://nobody@/none?host={tmp_path}", patience=0.1)
    with pytest.raises(DatabaseUnavailable) as refusal:
        await database.open()
    assert "\n" not in str(refusal.value)


async def test_a_database_that_was_not_opened_says_so(database_url: str) -> None:
    with pytest.raises(EarnestError, match="open it before using it"):
        await Database(database_url).promise("deed", Deed().work, patience=0)
