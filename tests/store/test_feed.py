"""The feed at its rows: what a pass takes, whoever writes, waits, rolls back or dies."""

from __future__ import annotations

import asyncio
import json
import random
import uuid
from collections import defaultdict
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from earnest.store import feed
from earnest.store.database import Database, Tx
from earnest.store.feed import Bounds, Fed, Place
from earnest.store.statements import sql
from tests.store.given import ALICE, SCOPE, insert, new_run, submitted

BOB = "bob"

Told = tuple[uuid.UUID, int]


@pytest.fixture
async def other(database: Database) -> AsyncIterator[Tx]:
    """A connection of somebody else."""
    connection = await database.connect()
    yield connection
    await connection.close()


@pytest.fixture
async def third(database: Database) -> AsyncIterator[Tx]:
    connection = await database.connect()
    yield connection
    await connection.close()


async def say(tx: Tx, run_id: uuid.UUID, count: int = 1, scope_id: str = SCOPE) -> None:
    """Events as every writer writes them: numbered under the lock of the execution."""
    last = await tx.fetchval(
        "UPDATE execution SET last_seq = last_seq + $3 WHERE scope_id = $1 AND run_id = $2"
        " RETURNING last_seq",
        scope_id,
        run_id,
        count,
    )
    types, payloads = ["test.said"] * count, [b"{}"] * count
    await tx.execute(sql("append_events"), scope_id, run_id, last - count, types, payloads)


async def passes_take(database: Database, at_once: int) -> None:
    async with database.connection() as tx:
        await tx.execute(
            "INSERT INTO sequenced (pass, seen_below, still_open, at_once)"
            " VALUES (1, '1', '{}', $1)",
            at_once,
        )


async def one_pass(database: Database) -> bool:
    return await database.promise("sequence", feed.append, one_statement=True)


async def prune(database: Database, position: int) -> None:
    await database.promise("prune", lambda tx: feed.prune(tx, SCOPE, position))


async def caught_up(database: Database) -> None:
    while await feed.is_behind(database):
        await one_pass(database)


async def told(
    database: Database, after: int = 0, asked_by: str | None = None, scope_id: str = SCOPE
) -> list[Fed]:
    """Everything after a position, page by page."""
    found: list[Fed] = []
    while True:
        (page,) = await feed.after(database, [Place(scope_id, asked_by, after)], 7)
        found += page.fed
        if len(page.fed) < 7:
            return found
        after = page.fed[-1].position


def named(found: list[Fed]) -> list[Told]:
    return [(fed.event.run_id, fed.event.seq) for fed in found if fed.event is not None]


async def hold(database: Database, scope_id: str = SCOPE) -> None:
    """The feed against the events: each once, without a hole in positions, each run in order."""
    found = await told(database, scope_id=scope_id)
    assert [fed.position for fed in found] == list(range(1, len(found) + 1))
    by_run: dict[uuid.UUID, list[int]] = defaultdict(list)
    for run_id, seq in named(found):
        by_run[run_id].append(seq)
    async with database.connection() as tx:
        rows = await tx.fetch(
            "SELECT run_id, max(seq) AS head FROM event WHERE scope_id = $1 GROUP BY run_id",
            scope_id,
        )
    assert by_run == {row["run_id"]: list(range(1, row["head"] + 1)) for row in rows}


# ---- what is new -------------------------------------------------------------------------------


async def test_a_transaction_that_takes_long_to_append_is_appended_all_the_same(
    database_url: str, database: Database
) -> None:
    """It may have written for hundreds of thousands of runs; given up, it would hold up the feed of
    every scope for ever."""
    await submitted(database, 2)
    async with database.connection() as tx:
        await tx.execute(
            "CREATE FUNCTION linger() RETURNS trigger LANGUAGE plpgsql AS"
            " $$ BEGIN PERFORM pg_sleep(0.2); RETURN NEW; END $$;"
            "CREATE TRIGGER linger BEFORE INSERT ON feed FOR EACH ROW EXECUTE FUNCTION linger()"
        )
    settings = {"statement_timeout": "100ms"}
    async with Database(database_url, size=1, settings=settings) as hasty:
        await one_pass(hasty)
        async with hasty.connection() as tx:
            assert await tx.fetchval("SHOW statement_timeout") == "100ms"
    await hold(database)
    assert len(await told(database)) == 2


async def test_what_is_committed_comes_once_in_the_order_of_its_run(database: Database) -> None:
    """P9."""
    first, second = await submitted(database, 2)
    await caught_up(database)
    async with database.connection() as tx:
        await say(tx, second, 3)
        await say(tx, first, 2)
    await caught_up(database)
    assert named(await told(database)) == [
        *((first, 1), (second, 1)),
        *((second, 2), (second, 3), (second, 4)),
        *((first, 2), (first, 3)),
    ]
    assert await feed.bounds(database, [SCOPE, "empty"]) == {
        SCOPE: Bounds(1, 7),
        "empty": Bounds(1, 0),
    }


async def test_a_position_inside_of_a_piece_is_gone_on_from(database: Database) -> None:
    (run_id,) = await submitted(database)
    async with database.connection() as tx:
        await say(tx, run_id, 9)
    await caught_up(database)
    for after in range(11):
        assert named(await told(database, after)) == [(run_id, n) for n in range(after + 1, 11)]


async def test_a_pass_that_finds_nothing_is_not_made(database: Database) -> None:
    await submitted(database)
    await caught_up(database)
    async with database.connection() as tx:
        before = await tx.fetchval("SELECT max(pass) FROM sequenced")
        await tx.execute("SELECT pg_current_xact_id()")  # others come and go
        assert not await feed.is_behind(database)
        assert await tx.fetchval("SELECT max(pass) FROM sequenced") == before


async def test_feeds_of_two_scopes_have_numbers_of_their_own(database: Database) -> None:
    """P12."""
    (mine,) = await submitted(database)
    (theirs,) = await submitted(database, scope_id="other")
    await caught_up(database)
    assert named(await told(database)) == [(mine, 1)]
    assert named(await told(database, scope_id="other")) == [(theirs, 1)]
    assert {bounds.head for bounds in (await feed.bounds(database, [SCOPE, "other"])).values()} == {
        1
    }


async def test_a_principal_is_told_of_its_own_runs_alone(database: Database) -> None:
    """P12."""
    mine: list[Told] = []
    for number in range(20):
        (run_id,) = await submitted(database, principal_id=BOB if number % 3 else ALICE)
        mine += [] if number % 3 else [(run_id, 1)]
        if number % 4 == 0:
            await caught_up(database)
    await caught_up(database)
    assert sorted(named(await told(database, asked_by=ALICE))) == sorted(mine)
    assert await told(database, asked_by="nobody") == []
    (page,) = await feed.after(database, [Place(SCOPE, "nobody", 0)], 7)
    assert page.bounds.head == 20, "nothing is to be seen up to there"


# ---- those who are late ------------------------------------------------------------------------


async def test_a_late_commit_is_told_when_it_comes_and_holds_nothing_up(
    database: Database, other: Tx
) -> None:
    """P9, P17: a transaction that began first commits last."""
    transaction = other.transaction()
    await transaction.start()
    late = new_run()
    assert await insert(other, late)
    between = []
    for _ in range(3):
        between += await submitted(database)
        await caught_up(database)
        assert named(await told(database)) == [(run_id, 1) for run_id in between]
    await transaction.commit()
    assert await feed.is_behind(database)
    await caught_up(database)
    assert named(await told(database, 3)) == [(late.run_id, 1)]
    await hold(database)


async def test_what_was_rolled_back_is_neither_told_nor_waited_for(
    database: Database, other: Tx
) -> None:
    (run_id,) = await submitted(database)
    transaction = other.transaction()
    await transaction.start()
    await insert(other, new_run())
    await say(other, run_id)
    await submitted(database)
    await caught_up(database)
    await transaction.rollback()
    assert not await feed.is_behind(database)
    async with database.connection() as tx:
        await say(tx, run_id)
    await caught_up(database)
    assert await _open_ones(database) == []
    await hold(database)


async def test_an_old_transaction_may_write_the_later_number(
    database: Database, other: Tx, third: Tx
) -> None:
    """Seq 2 is of a transaction that is younger than that of seq 3: neither is told without the
    ones before it."""
    (run_id,) = await submitted(database)
    await caught_up(database)
    old = other.transaction()
    await old.start()
    await insert(other, new_run())  # it has its number now
    await say(third, run_id)
    await say(other, run_id)
    await caught_up(database)
    assert named(await told(database, 1)) == [(run_id, 2)]
    await old.commit()
    await caught_up(database)
    assert named(await told(database, 2))[-1] == (run_id, 3)
    await hold(database)


async def test_a_long_transaction_of_the_user_delays_no_other_event(
    database: Database, other: Tx
) -> None:
    """It holds a snapshot and a number, and keeps old versions of rows alive, for hundreds of
    passes: a look costs as much as at the beginning."""
    holding = other.transaction(isolation="repeatable_read")
    await holding.start()
    await insert(other, new_run())
    (run_id,) = await submitted(database)
    await caught_up(database)
    begun = await _pages_of_a_look(database)
    for _ in range(300):
        async with database.connection() as tx:
            await say(tx, run_id)
        await one_pass(database)
    assert await _pages_of_a_look(database) <= begun + 5
    assert (await told(database))[-1].position == 301
    await holding.commit()
    await caught_up(database)
    await hold(database)


async def test_a_submit_inside_a_savepoint_is_told(database: Database, other: Tx) -> None:
    """Its rows are of a part of a transaction; what counts is the whole one."""
    transaction = other.transaction()
    await transaction.start()
    async with other.transaction():
        kept = new_run()
        await insert(other, kept)
    inner = other.transaction()
    await inner.start()
    await insert(other, new_run())
    await inner.rollback()
    await submitted(database)
    await caught_up(database)
    await transaction.commit()
    await caught_up(database)
    assert (kept.run_id, 1) in named(await told(database))
    await hold(database)


# ---- many at once ------------------------------------------------------------------------------


async def test_much_is_taken_in_pieces_and_each_run_stays_in_order(database: Database) -> None:
    """P9: pieces are cut by transactions, and a run's later event may be in an earlier one."""
    await passes_take(database, 3)
    run_ids = await submitted(database, 10)
    for _ in range(5):
        for run_id in random.sample(run_ids, 4):
            async with database.connection() as tx:
                await say(tx, run_id)
    passes = 1
    while await one_pass(database):
        passes += 1
    assert passes > 2
    assert not await feed.is_behind(database)
    await hold(database)


async def test_one_transaction_with_much_is_taken_whole(database: Database) -> None:
    await passes_take(database, 3)
    async with database.connection() as tx, tx.transaction():
        for _ in range(10):
            await insert(tx, new_run())
    await submitted(database, 2)
    assert await one_pass(database)
    assert len(await told(database)) == 10
    await caught_up(database)
    await hold(database)


async def test_many_writers_and_many_sequencers_tell_each_event_once(database: Database) -> None:
    """P9: transactions of all lengths, some of which fail, on runs that they share."""
    await passes_take(database, 20)
    shared = await submitted(database, 6)
    writing = [asyncio.create_task(_write(database, shared, seed)) for seed in range(6)]
    sequencing = [asyncio.create_task(_sequence(database)) for _ in range(3)]
    watched: list[Told] = []
    watching = asyncio.create_task(_watch(database, watched))
    await asyncio.gather(*writing)
    for task in (*sequencing, watching):
        task.cancel()
    await asyncio.gather(*sequencing, watching, return_exceptions=True)
    await caught_up(database)
    await hold(database)
    assert watched == named(await told(database))[: len(watched)], "what was told once holds"
    assert len(watched) > 50


async def _write(database: Database, shared: list[uuid.UUID], seed: int) -> None:
    dice = random.Random(seed)
    connection = await database.connect()
    try:
        for _ in range(30):
            transaction = connection.transaction()
            await transaction.start()
            try:
                await _write_some(connection, shared, dice)
            except asyncpg.DeadlockDetectedError:
                await transaction.rollback()
                continue
            await (transaction.rollback() if dice.random() < 0.2 else transaction.commit())
    finally:
        await connection.close()


async def _write_some(tx: Tx, shared: list[uuid.UUID], dice: random.Random) -> None:
    for _ in range(dice.randint(1, 4)):
        if dice.random() < 0.3:
            await insert(tx, new_run())
        else:
            await say(tx, dice.choice(shared), dice.randint(1, 3))
        if dice.random() < 0.3:
            await tx.fetchval("SELECT pg_sleep($1)", dice.random() / 20)


async def _sequence(database: Database) -> None:
    while True:
        if await feed.is_behind(database):
            await one_pass(database)
        await asyncio.sleep(0)


async def _watch(database: Database, seen: list[Told]) -> None:
    """Reads on after what it was told last, and never looks back."""
    after = 0
    while True:
        for fed in await told(database, after):
            seen += named([fed])
            after = fed.position
        await asyncio.sleep(0.001)


# ---- what breaks -------------------------------------------------------------------------------


async def test_a_pass_that_dies_has_done_nothing(database: Database, other: Tx) -> None:
    await submitted(database, 3)
    transaction = other.transaction()
    await transaction.start()
    await feed.append(other)
    dying = asyncio.create_task(one_pass(database))
    await _until_locked_out(database)
    other.terminate()
    await dying
    assert len(await told(database)) == 3
    await hold(database)


async def test_a_pass_needs_nothing_of_its_process_to_end(database: Database) -> None:
    """Lock and pass are one message: there is no moment in which a process that is stopped would
    hold the lock."""
    await submitted(database)
    heard: list[str] = []
    connection = await database.connect()
    connection.add_query_logger(lambda record: heard.append(record.query))
    try:
        await feed.append(connection)
    finally:
        await connection.close()
    assert len(heard) == 1
    assert len(await told(database)) == 1


async def test_a_database_on_another_server_is_gone_through_again(database: Database) -> None:
    """A dump that was restored: its numbers of transactions are another server's."""
    await feed_moves(database, "old")
    told_before = await submitted(database, 2)
    await caught_up(database)
    untold = await submitted(database, 2)
    high = "9000000000"
    async with database.connection() as tx:
        await tx.execute("UPDATE event SET written_by = $1::text::xid8", high)
        await tx.execute("UPDATE sequenced SET seen_below = $1::text::xid8", high)
    assert await feed.is_behind(database)
    await feed_moves(database, "new")
    new = await submitted(database, 1)
    await caught_up(database)
    assert named(await told(database)) == [(run_id, 1) for run_id in told_before + untold + new]
    assert not await feed.is_behind(database)
    await hold(database)


async def test_numbers_of_another_server_do_not_hide_what_is_new(database: Database) -> None:
    """The new server is still below where the old one was, or has just passed it: nobody looked."""
    await feed_moves(database, "old")
    new = await submitted(database, 3)
    async with database.connection() as tx:
        await tx.execute(
            "UPDATE sequenced SET seen_below = pg_snapshot_xmax(pg_current_snapshot())"
        )
    assert not await feed.is_behind(database), "as if all that was written here was seen"
    await feed_moves(database, "new")
    await caught_up(database)
    assert named(await told(database)) == [(run_id, 1) for run_id in new]


async def feed_moves(database: Database, server: str) -> None:
    await database.promise("sequence", lambda tx: feed.move_to(tx, server))
    while await database.promise("sequence", feed.adopt):
        pass


# ---- what is no longer kept --------------------------------------------------------------------


async def test_a_pruned_feed_says_from_where_it_is_kept_and_goes_on_counting(
    database: Database,
) -> None:
    """P9."""
    run_ids = await submitted(database, 5)
    await caught_up(database)
    for position, bounds in ((3, Bounds(4, 5)), (2, Bounds(4, 5)), (5, Bounds(6, 5))):
        await prune(database, position)
        assert (await feed.bounds(database, [SCOPE]))[SCOPE] == bounds
    async with database.connection() as tx:
        await say(tx, run_ids[0])
    await caught_up(database)
    (last,) = await told(database, 5)
    assert (last.position, named([last])) == (6, [(run_ids[0], 2)]), "nothing is told twice"


async def test_a_piece_that_reaches_beyond_stays_whole(database: Database) -> None:
    (run_id,) = await submitted(database)
    async with database.connection() as tx:
        await say(tx, run_id, 4)
    await caught_up(database)
    await prune(database, 3)
    assert (await feed.bounds(database, [SCOPE]))[SCOPE] == Bounds(1, 5)
    assert len(await told(database)) == 5


@pytest.mark.parametrize("gone", [1, 3])
async def test_events_that_went_before_the_feed_that_names_them_show_as_missing(
    database: Database, gone: int
) -> None:
    """P9: never in silence."""
    (run_id,) = await submitted(database)
    async with database.connection() as tx:
        await say(tx, run_id, 2)
    await caught_up(database)
    async with database.connection() as tx:
        await tx.execute("DELETE FROM event WHERE seq <= $1", gone)
    assert None in [fed.event for fed in await told(database)]


# ---- questions ---------------------------------------------------------------------------------


async def _open_ones(database: Database) -> list[str]:
    async with database.connection() as tx:
        found: list[str] = await tx.fetchval("SELECT still_open::text[] FROM sequenced")
    return found


async def _pages_of_a_look(database: Database) -> int:
    """How many pages the server touches to know whether something is new, and what."""
    total = 0
    async with database.connection() as tx:
        for name in ("is_feed_behind", "feed_bounds"):
            arguments = [[SCOPE]] if name == "feed_bounds" else []
            rows = await tx.fetch(
                f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {sql(name)}", *arguments
            )
            total += _touched(rows[0][0])
    return total


def _touched(explained: str) -> int:
    plan: dict[str, Any] = json.loads(explained)[0]["Plan"]
    return int(plan["Shared Hit Blocks"]) + int(plan["Shared Read Blocks"])


async def _until_locked_out(database: Database) -> None:
    waits = "SELECT count(*) > 0, pg_sleep(0.002) FROM pg_locks WHERE NOT granted"
    async with database.connection() as tx:
        while not await tx.fetchval(waits):
            pass
