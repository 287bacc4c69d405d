"""Migrations: each file once, in one transaction, by whoever comes first, or by hand."""

from __future__ import annotations

import asyncio
import itertools
import re
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import SimpleNamespace

import asyncpg
import pytest

from earnest.domain.errors import SchemaMismatch
from earnest.store.embedded import EmbeddedPostgres
from earnest.store.migrate import (
    Migration,
    as_script,
    check,
    engine_migrations,
    migrate,
    pending,
    read_migrations,
)
from earnest.store.postgres_binaries import Programs, in_wheel
from earnest.store.schema import made_by, require_whole
from earnest.store.statements import statements
from earnest.testing.databases import FAST, ThrowawayCluster

DEBIAN_15 = Path("/usr/lib/postgresql/15/bin")
with_15 = pytest.mark.skipif(not DEBIAN_15.exists(), reason="PostgreSQL 15 is not installed")

SHOP = Migration("shop", 1, "0001_order", "CREATE TABLE shop_order (id int PRIMARY KEY);")
SHOP_MORE = Migration("shop", 2, "0002_paid", "ALTER TABLE shop_order ADD paid boolean;")

_numbers = itertools.count(1)


async def _command(url: str, statement: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()


async def _value(url: str, query: str) -> object:
    connection = await asyncpg.connect(url)
    try:
        return await connection.fetchval(query)
    finally:
        await connection.close()


async def _new_database(url: str) -> str:
    name = f"empty_{next(_numbers)}"
    await _command(url, f"CREATE DATABASE {name}")
    head, _, query = url.partition("?")
    return f"{head.rsplit('/', 1)[0]}/{name}?{query}"


@pytest.fixture
async def empty(cluster: ThrowawayCluster) -> AsyncIterator[str]:
    """A database in which nobody has done anything yet."""
    url = await _new_database(cluster.url_of("earnest"))
    yield url
    await cluster.drop(url)


def test_what_a_later_migration_drops_is_not_looked_for() -> None:
    dropped = Migration("shop", 2, "0002_gone", "DROP TABLE IF EXISTS shop_order;")
    assert list(made_by([SHOP])) == [("table", "shop_order")]
    assert made_by([SHOP, dropped]) == {}


async def test_a_schema_that_lost_something_is_not_whole(empty: str) -> None:
    await migrate(empty)
    await require_whole(empty)
    await _command(empty, "DROP INDEX earnest.run_due")
    assert await pending(empty) == []
    with pytest.raises(SchemaMismatch, match="lacks the index run_due of engine/0001_engine; make"):
        await require_whole(empty)


# ---- every version ------------------------------------------------------------------------------

MAJORS = [pytest.param(15, marks=with_15), 16, 18]


@pytest.fixture(scope="module", params=MAJORS)
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """An empty server of one version."""
    major: int = request.param
    bin_dir = DEBIAN_15 if major == 15 else None
    home = tmp_path_factory.mktemp(f"postgres-{major}")
    with EmbeddedPostgres(home, major=major, bin_dir=bin_dir, settings=FAST) as started:
        yield started.url


async def test_a_fresh_database_gets_all_and_a_second_run_nothing(server: str) -> None:
    url = await _new_database(server)
    assert await migrate(url) == engine_migrations()
    assert await migrate(url) == []
    assert await pending(url) == []
    await check(url)


async def test_by_hand_gives_the_same_schema(server: str) -> None:
    ours, theirs = await _new_database(server), await _new_database(server)
    wanted = [*engine_migrations(), SHOP]
    await migrate(ours, wanted)
    by_hand = await asyncio.to_thread(_psql, theirs, as_script(wanted))
    assert by_hand.returncode == 0, by_hand.stdout
    assert await asyncio.to_thread(_dump, ours) == await asyncio.to_thread(_dump, theirs)
    await check(theirs, wanted)


async def test_every_statement_is_understood(server: str) -> None:
    url = await _new_database(server)
    await migrate(url)
    connection = await asyncpg.connect(url, server_settings={"search_path": "earnest"})
    try:
        for text in statements().values():
            await connection.prepare(text)
    finally:
        await connection.close()


def _psql(url: str, script: str) -> SimpleNamespace:
    words = ("-X", "-q", "-v", "ON_ERROR_STOP=1", "-d", url)
    ended = Programs(in_wheel(18)).run("psql", *words, text=script)
    return SimpleNamespace(returncode=ended.returncode, stdout=ended.stdout)


def _dump(url: str) -> str:
    """The schema as SQL, without the words that each dump has of its own."""
    ended = Programs(in_wheel(18)).run("pg_dump", "--schema-only", "--no-owner", "-d", url)
    assert ended.returncode == 0, ended.stdout
    return re.sub(r"\\(un)?restrict \S+", "", ended.stdout)


# ---- who applies what ---------------------------------------------------------------------------


async def test_those_that_start_at_once_apply_each_file_once(empty: str) -> None:
    applied = await asyncio.gather(*(migrate(empty) for _ in range(5)))
    counted = Counter(migration for each in applied for migration in each)
    assert counted == dict.fromkeys(engine_migrations(), 1)


async def test_an_apps_files_come_after_the_engines_under_a_name_of_their_own(empty: str) -> None:
    await migrate(empty)
    assert await migrate(empty, [*engine_migrations(), SHOP]) == [SHOP]
    assert await migrate(empty, [*engine_migrations(), SHOP, SHOP_MORE]) == [SHOP_MORE]
    assert await _value(empty, "SELECT to_regclass('earnest.shop_order') IS NOT NULL")


async def test_a_file_that_fails_leaves_nothing_of_it(empty: str) -> None:
    broken = Migration("shop", 2, "0002_paid", f"{SHOP_MORE.text} SELECT no_such_function();")
    with pytest.raises(asyncpg.UndefinedFunctionError):
        await migrate(empty, [SHOP, broken])
    assert await pending(empty, [SHOP, SHOP_MORE]) == [SHOP_MORE]
    assert await migrate(empty, [SHOP, SHOP_MORE]) == [SHOP_MORE]


async def test_looking_changes_nothing(empty: str) -> None:
    assert await pending(empty) == engine_migrations()
    with pytest.raises(SchemaMismatch, match=r"lacks engine/0001_engine.*run `earnest migrate`"):
        await check(empty)
    assert not await _value(empty, "SELECT to_regnamespace('earnest') IS NOT NULL")


async def test_old_code_accepts_a_newer_schema(empty: str) -> None:
    await migrate(empty, [SHOP, SHOP_MORE])
    await check(empty, [SHOP])
    assert await migrate(empty, [SHOP]) == []


@pytest.mark.parametrize("verb", [migrate, pending, check])
async def test_a_file_that_changed_after_it_was_applied_is_refused(
    empty: str, verb: object
) -> None:
    assert callable(verb)
    await migrate(empty, [SHOP])
    changed = Migration("shop", 1, "0001_order", SHOP.text + " -- changed")
    with pytest.raises(SchemaMismatch) as refusal:
        await verb(empty, [changed, SHOP_MORE])
    assert str(refusal.value) == (
        "shop/0001_order was applied with another text; an applied migration is never changed: "
        "restore its file and add a new one"
    )
    assert await pending(empty, [SHOP, SHOP_MORE]) == [SHOP_MORE]


@pytest.mark.parametrize("verb", [migrate, pending, check])
async def test_a_server_that_is_too_old_is_refused(
    empty: str, verb: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the version is invented: no server that old is at hand."""
    assert callable(verb)
    old = SimpleNamespace(major=14, minor=9)
    monkeypatch.setattr(asyncpg.Connection, "get_server_version", lambda _: old)
    with pytest.raises(SchemaMismatch) as refusal:
        await verb(empty)
    assert str(refusal.value) == (
        "the server is PostgreSQL 14.9; Earnest needs 15 or later: point EARNEST_DATABASE_URL at a "
        "newer one"
    )
    assert not await _value(empty, "SELECT to_regnamespace('earnest') IS NOT NULL")


# ---- files --------------------------------------------------------------------------------------


def _files(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).write_text("SELECT 1;")
    return folder


def test_files_are_read_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    folder = _files(tmp_path, "0002_second.sql", "0001_first.sql", "README.md", "draft.sql")
    found = read_migrations("shop", folder)
    assert [str(migration) for migration in found] == ["shop/0001_first", "shop/0002_second"]


@pytest.mark.parametrize(
    "names",
    [("0002_second.sql",), ("0001_first.sql", "0003_third.sql"), ("0001_a.sql", "0001_b.sql")],
    ids=["does not begin", "gap", "twice"],
)
def test_a_gap_or_a_double_number_is_refused(tmp_path: Path, names: tuple[str, ...]) -> None:
    with pytest.raises(SchemaMismatch, match="the migrations of shop are numbered"):
        read_migrations("shop", _files(tmp_path, *names))
