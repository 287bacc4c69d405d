"""The guide to deploying changed code, told on a run that the guide's first code left parked."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import ModuleType

import asyncpg
import pytest

from earnest.domain.run import Run
from earnest.engine.attempts.working import Worker
from earnest.engine.inspection import checking
from earnest.engine.inspection.checking import Asked, Checked
from earnest.engine.process.engine import Engine
from earnest.engine.runs import signalling, submitting
from earnest.store import runs
from earnest.store.database import Database
from tests.docs.guides import Guide, reading

ORDER = {"number": 17, "amount": "20.00"}

MakeEngine = Callable[..., Engine]


@pytest.fixture
async def role_is_new(database: Database) -> AsyncIterator[None]:
    """Roles are the whole server's; the guide makes one named `checker`."""
    yield
    async with database.connection() as owner:
        await owner.execute("DROP OWNED BY checker; DROP ROLE checker")


async def test_the_guide_says_of_each_change_what_happens_then(
    database: Database, make_engine: MakeEngine, tmp_path: Path, role_is_new: None
) -> None:
    with reading("deploying-changed-code") as guide:
        old = make_engine(guide.module("shop.py").app)
        run_id = await park(old)
        assert (await check(make_engine, guide.module("behind.py"))).verdict == "fits"
        changed = guide.module("changed.py")
        found = await check(make_engine, changed)
        assert (found.verdict, found.code) == ("breaks", "code_changed")
        await say_it_by_command(guide, database, tmp_path)
        both = guide.module("both.py")
        assert (await check(make_engine, both)).verdict == "fits"
        refused = await go_on(make_engine(changed.app), run_id)
        assert (refused.status, refused.error and refused.error["code"]) == (
            "queued", "code_changed"
        )  # fmt: skip
        async with database.connection() as owner:
            await owner.execute("UPDATE execution SET due_at = clock(), ready = true")
        ended = await go_on(make_engine(both.app), run_id)
        assert (ended.status, ended.output) == ("succeeded", "parcel 17, 20.00 EUR")


async def park(engine: Engine) -> uuid.UUID:
    request = submitting.Request("order.ship", ORDER)
    submitted = await submitting.submit(engine, "demo", "shop", request)
    await Worker(engine, keeper=False).drain_once()
    run = await runs.find(engine.database, "demo", submitted.run.run_id)
    assert run is not None
    assert run.status == "waiting"
    return run.run_id


async def go_on(engine: Engine, run_id: uuid.UUID) -> Run:
    """It is paid, and a worker with this code takes it up."""
    found = await runs.find(engine.database, "demo", run_id)
    if found is not None and found.status == "waiting":
        await signalling.signal(engine, "demo", run_id, "paid", None, by="shop")
    await Worker(engine, keeper=False).drain_once()
    run = await runs.find(engine.database, "demo", run_id)
    assert run is not None
    return run


async def check(make_engine: MakeEngine, code: ModuleType) -> Checked:
    engine, asked = make_engine(code.app), Asked()
    listed = await checking.list_runs(engine, asked)
    (found,) = [one async for one in checking.check(engine, listed, asked)]
    assert found is not None
    return found


async def say_it_by_command(guide: Guide, database: Database, folder: Path) -> None:
    """The commands of the guide, in a folder with its code."""
    guide.write(folder, "shop.py", "changed.py")
    shown = await asyncio.to_thread(run, guide.text("check.sh"), folder, database.url)
    assert shown.returncode == 1, shown.stderr
    told = " ".join(shown.stdout.split())
    assert " ".join(guide.text("answer.txt").split()) in told
    async with database.connection() as owner:
        await owner.execute(guide.text("reader.sql"))
    reader = database.url.replace("//earnest@", "//checker@")
    connection = await asyncpg.connect(reader)
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        await connection.execute("DELETE FROM earnest.event")
    await connection.close()
    done = await asyncio.to_thread(run, guide.text("ci.sh"), folder, "", READ_ONLY_URL=reader)
    assert done.returncode == 0, done.stderr
    answer = json.loads((folder / "check.json").read_text(encoding="utf-8"))
    assert (answer["checked"], answer["fits"]) == (1, 1)


def run(line: str, folder: Path, url: str, **more: str) -> subprocess.CompletedProcess[str]:
    """A command of the guide, with this environment's `earnest`."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    kept = {k: v for k, v in os.environ.items() if not k.startswith("EARNEST_")}
    environment = {**kept, "PATH": path, "EARNEST_DATABASE_URL": url, "COLUMNS": "200", **more}
    return subprocess.run(
        ["sh", "-c", line], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
