"""The epoch of the database, and positions that carry it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from earnest.domain.errors import InvalidRequest
from earnest.engine.process.engine import Engine
from earnest.engine.process.epoch import Position, begin_epoch, find_epoch, read_position
from earnest.store import epochs
from earnest.store.database import Database

Says = Callable[[str | None], None]


@pytest.fixture
def server_says(monkeypatch: pytest.MonkeyPatch) -> Says:
    """What the server will say of itself; `None`: it may not be asked."""

    def say(identity: str | None) -> None:
        async def answer(_: Database) -> str | None:
            return identity

        monkeypatch.setattr(epochs, "server_identity", answer)

    return say


async def test_the_epoch_is_the_same_for_every_process(make_engine: Callable[..., Engine]) -> None:
    words = await asyncio.gather(*(find_epoch(make_engine()) for _ in range(8)))
    assert len(set(words)) == 1
    assert read_position(f"{words[0]}-7") == Position(7, words[0])


async def test_the_real_server_says_which_cluster_and_timeline_it_is(database: Database) -> None:
    identity = await epochs.server_identity(database)
    assert identity is not None
    cluster, timeline = identity.split("/")
    assert int(cluster) > 0
    assert int(timeline, 16) == 1


async def test_a_role_that_may_not_ask_is_answered_with_nothing(database: Database) -> None:
    async with database.connection() as tx:
        await tx.execute("REVOKE EXECUTE ON FUNCTION pg_control_system() FROM public")
        await tx.execute("CREATE ROLE poor")
    poor = Database(database.url, settings={"role": "poor"})
    async with poor:
        assert await epochs.server_identity(poor) is None
    async with database.connection() as tx:
        await tx.execute("DROP ROLE poor")


@pytest.mark.parametrize("other", ["2/00000001", "1/00000002"])
async def test_another_cluster_or_timeline_is_another_epoch(
    make_engine: Callable[..., Engine], server_says: Says, other: str
) -> None:
    """P9."""
    engine = make_engine()
    server_says("1/00000001")
    before = await find_epoch(engine)
    assert await find_epoch(engine) == before
    server_says(other)
    after = await find_epoch(engine)
    assert after != before
    assert await find_epoch(engine) == after


async def test_a_server_that_may_not_be_asked_keeps_its_epoch(
    make_engine: Callable[..., Engine], server_says: Says
) -> None:
    engine = make_engine()
    server_says(None)
    word = await find_epoch(engine)
    assert await find_epoch(engine) == word
    server_says("1/00000001")
    assert await find_epoch(engine) == word, "it was not known to be another one"
    server_says(None)
    assert await find_epoch(engine) == word
    server_says("1/00000002")
    assert await find_epoch(engine) != word


async def test_who_restored_the_database_begins_a_new_epoch(
    make_engine: Callable[..., Engine],
) -> None:
    engine = make_engine()
    first = await begin_epoch(engine)
    second = await begin_epoch(engine)
    assert first != second
    assert await find_epoch(make_engine()) == second


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("0", Position(0)),
        ("007", Position(7)),
        (str(2**63 - 1), Position(2**63 - 1)),
        ("abc1-7", Position(7, "abc1")),
        ("7-7", Position(7, "7")),
    ],
)
def test_a_position_is_a_number_with_or_without_an_epoch(text: str, position: Position) -> None:
    assert read_position(text) == position


@pytest.mark.parametrize(
    "text",
    ["", " 1", "1 ", "-1", "+1", "1.0", "abc", "abc-", "-", "A-1", "a-b-1", "٣", str(2**63)],
)  # fmt: skip
def test_anything_else_is_no_position(text: str) -> None:
    with pytest.raises(InvalidRequest):
        read_position(text)
