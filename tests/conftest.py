"""What all tests share: a throwaway server, a database of one's own, an engine on it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import settings as hypothesis_settings

from earnest.engine.app import App
from earnest.engine.attempts.working import Worker
from earnest.engine.process.engine import Engine
from earnest.engine.process.sealing import Sealer
from earnest.engine.process.settings import EngineSettings
from earnest.store.database import Database
from earnest.testing.clock import ManualClock
from earnest.testing.databases import ThrowawayCluster
from earnest.testing.simulator import Simulator

hypothesis_settings.register_profile("earnest", deadline=None, print_blob=True)
hypothesis_settings.load_profile("earnest")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Two processes that share the tests must call each by the same name."""
    named_by_address = [item.nodeid for item in items if " at 0x" in item.nodeid]
    if named_by_address:
        raise pytest.UsageError(f"give its cases ids of their own: {named_by_address[0]}")


@pytest.fixture(scope="session")
def cluster(earnest_cluster: ThrowawayCluster) -> ThrowawayCluster:
    """The server of the shipped plugin, with a migrated template database."""
    return earnest_cluster


@pytest.fixture
async def database_url(cluster: ThrowawayCluster) -> AsyncIterator[str]:
    """A migrated, empty database for this test alone."""
    url = await cluster.copy()
    yield url
    await cluster.drop(url)


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    async with Database(database_url, size=8, patience=5) as opened:
        yield opened


@pytest.fixture
async def clock(database: Database) -> ManualClock:
    """The database's clock, stopped; the test moves it."""
    return await ManualClock(database).stop()


@pytest.fixture(scope="session")
def sealer(tmp_path_factory: pytest.TempPathFactory) -> Sealer:
    """Seals with a key in a folder of the tests."""
    return Sealer(tmp_path_factory.mktemp("home"))


@pytest.fixture
async def make_engine(database: Database, sealer: Sealer) -> AsyncIterator[Callable[..., Engine]]:
    """Makes an engine on this test's database, for an app, with changed settings."""
    engines: list[Engine] = []

    def make(app: App | None = None, **changed: Any) -> Engine:
        engine = Engine(database, settings=replace(EngineSettings(), **changed), sealer=sealer)
        if app is not None:
            engine.kinds = app.kinds
            engine.effects = dict(app.effects)
            engine.inboxes = app.inboxes
        engines.append(engine)
        return engine

    yield make
    for engine in engines:
        await engine.bells.stop()


@pytest.fixture
async def make_worker() -> AsyncIterator[Callable[[Engine], Worker]]:
    """Makes a worker without keeper and loops; the test drives it with `drain_once`."""
    async with contextlib.AsyncExitStack():
        yield lambda engine: Worker(engine, keeper=False)


@pytest.fixture(scope="session")
def simulator_process(earnest_simulator_process: Simulator) -> Simulator:
    """A simulator in a process of its own, as the shipped plugin starts it."""
    return earnest_simulator_process


@pytest.fixture
def simulator(simulator_process: Simulator) -> Simulator:
    """The simulator without fault rules. Its truth still knows what other tests did."""
    simulator_process.clear_faults()
    return simulator_process
