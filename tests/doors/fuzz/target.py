"""A server of the API to be fuzzed: a real one, with a worker, people of two scopes and things.

`python -m tests.doors.fuzz.target FOLDER` serves on a free port until its input is closed. It says
in one line where, by whose tokens, and which things are there. Streams end at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import sys
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import structlog
import uvloop

from earnest import Listed
from earnest.doors.api.application import build_api
from earnest.doors.api.serving import serve
from earnest.doors.api.streams import StreamSettings
from earnest.engine.attempts.working import Worker
from earnest.engine.inspection.readiness import Readiness
from earnest.engine.process.engine import Engine
from earnest.engine.process.principals import ensure_principal
from earnest.engine.process.sealing import Sealer
from earnest.engine.process.tokens import issue_token
from earnest.store.blobs_folder import FolderBlobs
from earnest.store.database import Database
from earnest.store.embedded import EmbeddedPostgres
from earnest.store.migrate import migrate
from earnest.testing.databases import FAST
from tests.doors.api.conftest import issue_all
from tests.doors.api.outside import Outside
from tests.doors.api.samples import MAKERS
from tests.doors.api.shop import Bank, Queryable, make_shop


class Listable(Queryable):
    """A bank that tells what it did: nothing."""

    kind = "shop.listable"

    async def list_since(self, time: datetime) -> AsyncIterator[Listed]:
        if self._bank.silent and self._bank.known:
            yield Listed(at=time)


ALL_ROLES = ["member", "approver", "operator", "admin"]
EACH = 3


def main() -> None:
    folder = Path(sys.argv[1])
    level = structlog.make_filtering_bound_logger(logging.ERROR)
    structlog.configure(
        wrapper_class=level, logger_factory=structlog.PrintLoggerFactory(sys.stderr)
    )
    with EmbeddedPostgres(folder / "home", settings=FAST) as started:
        uvloop.run(_serve(started.url, folder))


async def _serve(url: str, folder: Path) -> None:
    await migrate(url)
    async with Database(url, size=8, patience=5) as database:
        engine = _engine(database, folder)
        tokens = await issue_all(engine)
        await ensure_principal(engine, "demo", "zoe", ALL_ROLES)
        tokens["everything"] = await issue_token(engine, "demo", "zoe")
        briefly = StreamSettings(shortest=timedelta(0), longest=timedelta(0))
        app = build_api(engine, ready=lambda: Readiness(True), streams=briefly)
        async with Outside(app, engine, tokens) as outside:
            things = {
                name: [await make(outside) for _ in range(EACH)] for name, make in MAKERS.items()
            }
        told = {"tokens": tokens, "things": things}
        await _until_told(engine, serve(app, "127.0.0.1", 0, ready=lambda at: _say(at, told)))


def _engine(database: Database, folder: Path) -> Engine:
    engine = Engine(database, sealer=Sealer(folder), blobs=FolderBlobs(folder / "artifacts"))
    bank = Bank()
    shop = make_shop(bank)
    shop.effect(Listable(bank))
    engine.kinds, engine.effects = shop.kinds, dict(shop.effects)
    engine.inboxes = shop.inboxes
    return engine


async def _until_told(engine: Engine, serving: Any) -> None:
    """Works and serves until the input is closed."""
    worker = Worker(engine)
    tasks = [asyncio.create_task(worker.run()), asyncio.create_task(serving)]
    await asyncio.to_thread(sys.stdin.read)
    worker.hurry()
    tasks[1].cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.gather(*tasks)
    await engine.bells.stop()


def _say(url: str, told: dict[str, Any]) -> None:
    print(json.dumps({"url": url, **told}), flush=True)


if __name__ == "__main__":
    main()
