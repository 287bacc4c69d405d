"""The guide to tokens and roles, told from its first block to its last against a served API."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from earnest.doors.api.application import build_api
from earnest.doors.api.serving import Serving, listen
from earnest.engine.inspection.readiness import Readiness
from earnest.engine.process.access import authenticate
from earnest.engine.process.engine import Engine
from earnest.store.database import Database
from tests.docs.guides import Guide, reading


def run(line: str, **variables: str) -> str:
    """A block of the guide, with this environment's `earnest`; what it printed."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["sh", "-ec", line],
        check=True,
        env={**os.environ, "PATH": path, **variables},
        capture_output=True,
        text=True,
    )
    return done.stdout


@asynccontextmanager
async def served(engine: Engine) -> AsyncIterator[str]:
    """The API on a free port; where it is."""
    serving = Serving(build_api(engine, ready=lambda: Readiness(True)), listen("127.0.0.1", 0))
    serves = asyncio.create_task(serving.run())
    try:
        await serving.started.wait()
        yield serving.url
    finally:
        serving.stop()
        await serves


async def test_the_guide(database: Database, make_engine: Callable[..., Engine]) -> None:
    engine = make_engine()
    async with served(engine) as url:
        with reading("tokens-and-roles") as guide:
            told = {"EARNEST_DATABASE_URL": database.url, "URL": url}
            await tell(engine, partial(_block, guide, told))


async def _block(guide: Guide, told: dict[str, str], name: str, **more: str) -> str:
    return (await asyncio.to_thread(run, guide.text(name), **told, **more)).strip()


async def tell(engine: Engine, block: Callable[..., Awaitable[str]]) -> None:
    async def asked(name: str, **more: str) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(await block(name, **more))
        return answer

    admin = await block("first.sh")
    assert (await authenticate(engine, admin)).roles == {"admin"}
    assert (await asked("principal.sh", ADMIN=admin))["version"] == 1
    made = await asked("issue.sh", ADMIN=admin)
    again = await asked("issue.sh", ADMIN=admin)
    assert "token" not in again
    assert {**again, "token": made["token"]} == made
    assert (await asked("roles.sh", ADMIN=admin))["roles"] == ["approver", "member"]
    assert (await authenticate(engine, made["token"])).roles == {"member", "approver"}

    rotated = await asked("rotate.sh", ADMIN=admin, TOKEN_ID=made["id"])
    assert rotated["replaces"] == made["id"]
    for text in (made["token"], rotated["token"]):
        assert (await authenticate(engine, text)).principal_id == "shop"
    assert (await asked("revoke.sh", ADMIN=admin, TOKEN_ID=made["id"]))["revoked_at"]
    assert "shop" in await block("disable.sh")

    assert (await authenticate(engine, await block("scope.sh"))).scope_id == "acme"
    (entry,) = (await asked("audit.sh"))["items"]
    assert (entry["subject"], entry["principal_id"]) == (f"token {made['id']}", "eve")
