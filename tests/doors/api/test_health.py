"""Whether a process lives and is ready, told to everybody and without facts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack

import httpx2
import pytest

from earnest.doors.api.application import build_api
from earnest.engine.inspection.readiness import Readiness, examine
from earnest.engine.process.engine import Engine
from earnest.store.database import Database
from tests.doors.api.outside import URL, Outside, hold_against_contract

READY = Readiness(True)


async def _readyz(engine: Engine, said: Readiness) -> httpx2.Response:
    app = build_api(engine, ready=lambda: said)
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url=URL) as client:
        answer = await client.get("/readyz")
    hold_against_contract(app, "GET", answer)
    return answer


async def test_a_living_process_says_so_without_a_token(outside: Outside) -> None:
    answer = await outside.get("/livez", None)
    assert (answer.status_code, answer.json()) == (200, {"status": "alive"})


async def test_a_ready_process_with_a_database_is_ready(outside: Outside) -> None:
    answer = await outside.get("/readyz", None)
    assert (answer.status_code, answer.json()["status"]) == (200, "ready")


@pytest.mark.parametrize("reason", ["recovering", "draining"])
async def test_a_process_that_recovers_or_drains_is_not_ready(engine: Engine, reason: str) -> None:
    """P18, P19: whoever sends it work hears it before."""
    answer = await _readyz(engine, Readiness(False, reason, ("loud",)))
    assert (answer.status_code, answer.json()["code"]) == (503, "busy")
    assert (answer.json()["detail"], answer.json()["warnings"][0]) == (reason, "loud")
    assert int(answer.headers["retry-after"]) >= 1


async def test_settings_that_can_lose_accepted_work_are_warned_of(
    engine: Engine, database_url: str
) -> None:
    """The database of the tests has them all."""
    warnings = (await _readyz(engine, READY)).json()["warnings"]
    names = ["fsync", "full_page_writes", "synchronous_commit"]
    assert [warning.split()[0] for warning in warnings] == names
    assert all("lose accepted work" in warning for warning in warnings)
    safer = {"synchronous_commit": "on"}
    async with Database(database_url, size=1, patience=5, settings=safer) as database:
        engine.database = database
        warnings = (await _readyz(engine, READY)).json()["warnings"]
    assert [warning.split()[0] for warning in warnings] == names[:2]


async def test_a_process_without_its_database_is_not_ready(
    make_engine: Callable[..., Engine], database_url: str
) -> None:
    engine = make_engine()
    engine.database = Database(database_url)
    answer = await _readyz(engine, READY)
    assert (answer.status_code, answer.json()["detail"]) == (503, "the database does not answer")


async def test_a_database_that_does_not_answer_in_time_is_not_waited_for(engine: Engine) -> None:
    async with AsyncExitStack() as stack:
        for _ in range(engine.database.size):
            await stack.enter_async_context(engine.database.connection())
        async with asyncio.timeout(5):
            found = await examine(engine, Readiness(True, warnings=("loud",)), within=0.01)
    assert found == Readiness(False, "the database does not answer", ("loud",))


async def test_a_warning_of_the_process_and_of_its_database_is_told_once(engine: Engine) -> None:
    told = (await examine(engine, READY)).warnings
    assert (await examine(engine, Readiness(True, warnings=told))).warnings == told
