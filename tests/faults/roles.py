"""What the forked processes are: a worker, and a client that asks for things."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from earnest.assembly import Assembly, Config
from earnest.engine.attempts.working import Worker
from earnest.engine.process.engine import Engine
from earnest.engine.process.instances import Instance
from earnest.engine.process.settings import EngineSettings
from earnest.store.database import Database
from earnest.testing.simulator import Simulator
from tests.faults.verbs import Caller, Verb
from tests.faults.workload import close_app, make_app

# A frozen process keeps the locks of its open transaction until the server ends it.
IMPATIENT = {"idle_in_transaction_session_timeout": "1s"}


def quick_settings(**changed: float) -> EngineSettings:
    """Settings under which what takes a minute in production takes a second. Spans in seconds;
    `concurrency` and `claim_batch` are counts."""
    spans = {
        "lease": 1.0,
        "renew_every": 0.3,
        "poll": 0.1,
        "watch_every": 0.1,
        "drain": 1.0,
        "call_grace": 1.0,
        "first_question": 0.05,
        "longest_question_wait": 0.4,
        "question_claim": 1.0,
        "dead_after": 0.3,
    }
    counts = {"concurrency": 8, "claim_batch": 3}
    given: dict[str, Any] = {
        name: timedelta(seconds=changed.get(name, span)) for name, span in spans.items()
    }
    given |= {name: int(changed.get(name, count)) for name, count in counts.items()}
    waits = tuple(timedelta(seconds=wait) for wait in (0.02, 0.05))
    return EngineSettings(resend_waits=waits, **given)


@asynccontextmanager
async def open_engine(
    database_url: str, simulator_url: str, settings: EngineSettings, *, known_host: bool = True
) -> AsyncIterator[Engine]:
    """An engine of the workload's app. Without `known_host` nobody can prove that this process has
    ended; others have to wait for its lease or its session lock."""
    app = make_app(simulator_url)
    instance = Instance() if known_host else Instance(host="", process="")
    async with Database(database_url, size=6, patience=20, settings=IMPATIENT) as database:
        yield Engine(database, app.kinds, dict(app.effects), settings, instance)
    await close_app(app)


async def worker(
    database_url: str, simulator_url: str, known_host: bool, settings: Mapping[str, float]
) -> None:
    """Works until it is told to stop by SIGTERM, or dies."""
    wanted = quick_settings(**settings)
    async with open_engine(database_url, simulator_url, wanted, known_host=known_host) as engine:
        working = Worker(engine)
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, working.stop)
        await working.run()


async def worker_at_home(home: str, simulator_url: str, settings: Mapping[str, float]) -> None:
    """A worker that is one of the users of an embedded server, and brings it back when it is gone,
    as `earnest worker` does."""
    app = make_app(simulator_url)
    config = Config(home=Path(home), apps=[app], settings=quick_settings(**settings))
    async with Assembly(config) as assembly:
        working = assembly.worker()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, working.stop)
        await working.run()


async def client(database_url: str, simulator_url: str, scope: str, verbs: list[Any]) -> None:
    """Asks for each thing in turn, as a program with its own keys would; gives up after a while."""
    async with open_engine(database_url, simulator_url, quick_settings()) as engine:
        caller = Caller(engine, Simulator(simulator_url), scope)
        for verb in verbs:
            for _ in range(1000):
                if await caller.perform(Verb(*verb)):
                    break
                await asyncio.sleep(0.01)
