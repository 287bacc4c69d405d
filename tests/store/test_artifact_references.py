"""Bytes that somebody is about to name are not taken away, however two transactions meet.

Each test holds one transaction open on a connection of its own while another meets it.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from earnest.domain import ids
from earnest.domain.artifact import BlobKey, Content
from earnest.store import artifacts
from earnest.store.artifacts import NewArtifact
from earnest.store.database import Database, Tx
from earnest.testing.clock import ManualClock
from tests.store.given import SCOPE, blocked, insert, new_run

ALIVE = timedelta(minutes=5)
CONTENT = Content(4, bytes(range(32)), bytes(32))


@pytest.fixture
async def one(database: Database) -> AsyncIterator[Tx]:
    connection = await database.connect()
    yield connection
    await connection.close()


@pytest.fixture
async def other(database: Database) -> AsyncIterator[Tx]:
    connection = await database.connect()
    yield connection
    await connection.close()


async def arriving(database: Database, scope_id: str = SCOPE) -> BlobKey:
    key = BlobKey(scope_id, ids.new_id())
    async with database.connection() as tx:
        await artifacts.announce(tx, key, ALIVE)
    return key


async def stored(database: Database, scope_id: str = SCOPE) -> BlobKey:
    """A blob that no artifact names yet, with its room taken."""
    key = await arriving(database, scope_id)
    async with database.connection() as tx, tx.transaction():
        await artifacts.lock_room(tx, scope_id)
        assert await artifacts.store_blob(tx, key, CONTENT)
        assert await artifacts.take_room(tx, scope_id, CONTENT.size)
    return key


async def name(tx: Tx, key: BlobKey, scope_id: str = SCOPE, **more: Any) -> uuid.UUID:
    """An artifact that names the blob."""
    terms: dict[str, Any] = {
        "scope_id": scope_id,
        "artifact_id": ids.new_id(),
        "run_id": None,
        "principal_id": "ann",
        "owner_id": "ann",
        "name": "x",
        "media_type": "a/b",
        "idempotency_key": None,
        "fingerprint": b"",
        "kept": None,
    }
    new = NewArtifact(**{**terms, **more})
    await artifacts.put(tx, new, key.blob_id)
    return new.artifact_id


async def discard(tx: Tx, key: BlobKey) -> list[BlobKey]:
    async with tx.transaction():
        return await artifacts.discard_unnamed(tx, key.scope_id, [key.blob_id])


async def state(database: Database, key: BlobKey) -> str | None:
    async with database.connection() as tx:
        found: str | None = await tx.fetchval(
            "SELECT state FROM blob WHERE scope_id = $1 AND blob_id = $2", key.scope_id, key.blob_id
        )
    return found


async def meets(database: Database, other: Tx, work: Awaitable[Any]) -> asyncio.Task[Any]:
    """Starts what the other connection does; returns when it waits for a row of the first."""
    task = asyncio.ensure_future(work)
    await blocked(database, other)
    assert not task.done()
    return task


# ---- naming and discarding ---------------------------------------------------------------------


@pytest.mark.parametrize("commits", [True, False], ids=["commits", "rolls back"])
async def test_who_discards_waits_for_who_is_about_to_name(
    database: Database, one: Tx, other: Tx, commits: bool
) -> None:
    key = await stored(database)
    naming = one.transaction()
    await naming.start()
    await name(one, key)
    discarding = await meets(database, other, discard(other, key))
    await (naming.commit() if commits else naming.rollback())
    assert await discarding == ([] if commits else [key])
    assert await state(database, key) == ("stored" if commits else "discarded")


@pytest.mark.parametrize("commits", [True, False], ids=["commits", "rolls back"])
async def test_who_names_waits_for_who_discards(
    database: Database, one: Tx, other: Tx, commits: bool
) -> None:
    """And is refused by the database itself once it is discarded."""
    key = await stored(database)
    discarding = one.transaction()
    await discarding.start()
    assert await artifacts.discard_unnamed(one, SCOPE, [key.blob_id]) == [key]
    naming = await meets(database, other, name(other, key))
    await (discarding.commit() if commits else discarding.rollback())
    if commits:
        with pytest.raises(asyncpg.ForeignKeyViolationError):
            await naming
    else:
        await naming
    assert await state(database, key) == ("discarded" if commits else "stored")


async def test_the_database_refuses_to_discard_what_is_named(database: Database, one: Tx) -> None:
    """Whoever forgets the rules of this house."""
    key = await stored(database)
    await name(one, key)
    for order in (
        "UPDATE blob SET state = 'discarded', discarded_at = clock() WHERE blob_id = $1",
        "DELETE FROM blob WHERE blob_id = $1",
    ):
        with pytest.raises(asyncpg.ForeignKeyViolationError):
            await one.execute(order, key.blob_id)


async def test_the_last_of_two_that_are_deleted_at_once_discards(
    database: Database, one: Tx, other: Tx
) -> None:
    key = await stored(database)
    first, second = await name(one, key), await name(one, key)

    async def delete(tx: Tx, artifact_id: uuid.UUID) -> list[BlobKey]:
        async with tx.transaction():
            await artifacts.lock_room(tx, SCOPE)
            doomed = await artifacts.lock_doomed(tx, SCOPE, [artifact_id])
            return await artifacts.delete(tx, SCOPE, doomed)

    held = one.transaction()
    await held.start()
    await artifacts.lock_room(one, SCOPE)
    doomed = await artifacts.lock_doomed(one, SCOPE, [first])
    assert await artifacts.delete(one, SCOPE, doomed) == []
    deleting = await meets(database, other, delete(other, second))
    await held.commit()
    assert await deleting == [key]
    assert (await artifacts.find_room(database, SCOPE)).used == 0


# ---- uploads and those who give them up --------------------------------------------------------


async def give_up(tx: Tx) -> int:
    return await artifacts.give_up_arriving(tx, 10)


async def test_who_gives_up_passes_over_an_upload_that_is_just_being_stored(
    database: Database, one: Tx, other: Tx, clock: ManualClock
) -> None:
    key = await arriving(database)
    await clock.advance(seconds=301)
    storing = one.transaction()
    await storing.start()
    assert await artifacts.store_blob(one, key, CONTENT)
    assert await give_up(other) == 0
    await storing.commit()
    assert await give_up(other) == 0
    assert await state(database, key) == "stored"


@pytest.mark.parametrize("commits", [True, False], ids=["commits", "rolls back"])
@pytest.mark.parametrize("how", ["given up", "left"])
async def test_who_stores_waits_for_who_gives_it_up(
    database: Database, one: Tx, other: Tx, clock: ManualClock, commits: bool, how: str
) -> None:
    key = await arriving(database)
    await clock.advance(seconds=301)
    ends: dict[str, Callable[[], Awaitable[Any]]] = {
        "given up": lambda: give_up(one),
        "left": lambda: artifacts.discard_arriving(one, key),
    }
    giving_up = one.transaction()
    await giving_up.start()
    assert await ends[how]()
    storing = await meets(database, other, artifacts.store_blob(other, key, CONTENT))
    await (giving_up.commit() if commits else giving_up.rollback())
    assert await storing is not commits
    assert await state(database, key) == ("discarded" if commits else "stored")


async def test_an_upload_that_gave_a_sign_of_life_is_not_given_up(
    database: Database, one: Tx, clock: ManualClock
) -> None:
    key = await arriving(database)
    await clock.advance(seconds=290)
    assert await artifacts.keep_arriving(one, key, ALIVE)
    await clock.advance(seconds=290)
    assert await give_up(one) == 0
    await clock.advance(seconds=11)
    assert await give_up(one) == 1
    assert not await artifacts.keep_arriving(one, key, ALIVE)
    assert not await artifacts.store_blob(one, key, CONTENT)


async def test_a_name_that_was_discarded_is_never_given_again(database: Database, one: Tx) -> None:
    key = await arriving(database)
    assert await artifacts.discard_arriving(one, key)
    await artifacts.announce(one, key, ALIVE)
    assert await state(database, key) == "discarded"
    assert not await artifacts.store_blob(one, key, CONTENT)


# ---- between scopes ----------------------------------------------------------------------------


async def test_the_database_refuses_what_refers_to_another_scope(
    database: Database, one: Tx
) -> None:
    """P12: composite keys, whatever the code does."""
    key = await stored(database, "other")
    run = new_run()
    await insert(one, run)
    with pytest.raises(asyncpg.ForeignKeyViolationError):
        await name(one, key, SCOPE)
    own = await stored(database, "third")
    with pytest.raises(asyncpg.ForeignKeyViolationError):
        await name(one, own, "third", run_id=run.run_id)


async def test_the_database_refuses_a_scope_that_is_no_folder(database: Database, one: Tx) -> None:
    with pytest.raises(asyncpg.CheckViolationError):
        await artifacts.announce(one, BlobKey("../etc", ids.new_id()), ALIVE)
