"""Opening Earnest inside a program of one's own: on which database, and what a failure leaves."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import asyncpg
import pytest
from fastapi import FastAPI
from structlog.testing import capture_logs

import earnest
from earnest import App, Context, assembly
from earnest.domain.errors import InvalidRequest, SettingInvalid
from earnest.engine.process import binding, principals
from earnest.testing.clock import ManualClock
from tests.engine.bench import SCOPE
from tests.engine.conftest import MakeBench
from tests.engine.provider import Provider, shop
from tests.engine.test_standing_operations import bound, pay, stored


def idle() -> App:
    app = App("idle")

    @app.run("idle")
    async def idle(ctx: Context, value: int) -> int:
        return value

    return app


async def change(database_url: str, statement: str) -> None:
    connection = await asyncpg.connect(database_url, server_settings={"search_path": "earnest"})
    await connection.execute(statement)
    await connection.close()


async def test_a_program_opens_the_database_that_its_environment_names(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P23: the one that its workers are told in the same way, and no other."""
    monkeypatch.setenv("EARNEST_DATABASE_URL", database_url)
    app = idle()
    async with earnest.open(app) as opened:
        assert opened.engine.database.url == database_url
        await app.submit(app.kinds["idle"], 1)
    connection = await asyncpg.connect(database_url)
    assert await connection.fetchval("SELECT count(*) FROM earnest.run") == 1
    await connection.close()


async def test_what_is_no_app_of_earnest_is_refused_before_anything_is_opened() -> None:
    for app in (FastAPI(), None, "shop:app"):
        with pytest.raises(SettingInvalid, match=r"is no earnest\.App$"):
            async with earnest.open(app):  # type: ignore[arg-type]
                pytest.fail("it was opened")


async def test_what_is_no_run_kind_is_not_submitted(database_url: str) -> None:
    app = idle()
    async with earnest.open(app, database_url=database_url):
        for kind in ("idle", idle, None):
            with pytest.raises(InvalidRequest, match="is no run kind; give the handler"):
                await app.submit(kind, 1)  # type: ignore[arg-type]
            with pytest.raises(InvalidRequest, match="is no run kind; give the handler"):
                await app.submit_many(kind, [1])  # type: ignore[arg-type]


async def test_a_program_that_could_not_be_opened_is_bound_to_nothing(database_url: str) -> None:
    await change(database_url, "ALTER TABLE run_kind RENAME TO run_kind_away")
    with pytest.raises(asyncpg.UndefinedTableError):
        async with earnest.open(idle(), database_url=database_url):
            pytest.fail("it was not opened")
    with pytest.raises(SettingInvalid, match="not open in this process"):
        binding.current()
    await change(database_url, "ALTER TABLE run_kind_away RENAME TO run_kind")


async def test_a_worker_that_fails_beside_a_program_is_told_at_once(database_url: str) -> None:
    """P18: nothing is dispatched, and not in silence."""
    await change(database_url, "ALTER TABLE execution RENAME COLUMN lease_until TO lease_away")
    with capture_logs() as told:
        async with earnest.open(idle(), database_url=database_url, worker=True) as opened:
            while not any(line["event"] == "worker.failed" for line in told):
                await opened.engine.database.fetch("database_clock")
    await change(database_url, "ALTER TABLE execution RENAME COLUMN lease_away TO lease_until")


async def test_a_program_without_a_worker_settles_the_doubts_of_one_that_is_gone(
    database_url: str, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, make_bench: MakeBench
) -> None:
    """P3: a house that only calls has no worker; nobody has to ask for the same thing again."""
    monkeypatch.setattr(assembly, "MIND_EVERY", timedelta(milliseconds=20))
    provider = Provider()
    gate = provider.holds()
    gone = make_bench(shop(provider))
    with bound(gone):
        call = asyncio.create_task(pay(by="lookup"))
        await gate.reached()
    await clock.advance(seconds=75)
    async with earnest.open(shop(provider), scope=SCOPE, database_url=database_url):
        async with asyncio.timeout(10):
            while (await stored(gone, by="lookup")).state != "submitted":
                await gone.engine.database.fetch("database_clock")
    gate.open()
    await call
    assert len(provider.calls) == 1


SEEN = """
SELECT scope_id, principal_id, roles FROM earnest.scope LEFT JOIN earnest.principal USING (scope_id)
"""


async def scopes_of(database_url: str) -> set[tuple[str, str, tuple[str, ...]]]:
    connection = await asyncpg.connect(database_url)
    rows = await connection.fetch(SEEN)
    await connection.close()
    return {(row["scope_id"], row["principal_id"], tuple(row["roles"])) for row in rows}


async def test_what_a_program_does_is_done_in_a_scope_that_is_there(database_url: str) -> None:
    """P3: its doubts are on the desk of that scope, whoever made it; what roles its principal was
    given before, it keeps."""
    terms: dict[str, Any] = {"scope": "shop", "principal": "clerk", "database_url": database_url}
    async with earnest.open(idle(), **terms) as opened:
        assert await scopes_of(database_url) == {("shop", "clerk", ())}
        await principals.ensure_principal(opened.engine, "shop", "clerk", {"member"})
    async with earnest.open(idle(), **terms):
        assert await scopes_of(database_url) == {("shop", "clerk", ("member",))}


async def test_what_a_blocking_program_does_is_done_in_a_scope_that_is_there(
    database_url: str,
) -> None:
    """P3."""
    shop = earnest.blocking(idle(), scope="shop", principal="clerk", database_url=database_url)
    await asyncio.to_thread(shop.open)
    assert await scopes_of(database_url) == {("shop", "clerk", ())}
    await asyncio.to_thread(shop.close)


@pytest.mark.parametrize("named", [{"scope": "My Shop"}, {"scope": ""}, {"principal": ""}])
async def test_a_program_is_not_opened_under_an_impossible_name(
    database_url: str, named: dict[str, str]
) -> None:
    with pytest.raises(InvalidRequest, match="name"):
        async with earnest.open(idle(), database_url=database_url, **named):  # type: ignore[arg-type]
            pytest.fail("it was not opened")
    with pytest.raises(SettingInvalid, match="not open in this process"):
        binding.current()
