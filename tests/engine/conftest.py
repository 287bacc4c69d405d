"""Fixtures of the engine's tests: benches, and crash points that are taken away again."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
import structlog

from earnest.domain import crash_points
from earnest.engine.app import App
from earnest.engine.attempts.working import Worker
from earnest.engine.process.engine import Engine
from earnest.testing.databases import ThrowawayCluster
from tests.engine.bench import Bench
from tests.engine.spare_database import SpareDatabase

MakeBench = Callable[..., Bench]


@pytest.fixture(scope="session", autouse=True)
def _plain_log() -> None:
    """One line for each entry: tracebacks with all their variables take longer than the tests."""
    line = structlog.processors.KeyValueRenderer(key_order=["event"])
    structlog.configure(processors=[structlog.processors.add_log_level, line])


@pytest.fixture(scope="session")
def spare_database(cluster: ThrowawayCluster) -> SpareDatabase:
    return SpareDatabase(cluster)


@pytest.fixture
async def database_url(spare_database: SpareDatabase) -> AsyncIterator[str]:
    """A migrated, empty database for this test alone."""
    url = await spare_database.take()
    yield url
    await spare_database.give_back(url)


@pytest.fixture
def make_bench(make_engine: Callable[..., Engine]) -> MakeBench:
    """Makes a bench for an app. Several on one database stand for several processes. A call in
    doubt is not sent again within its attempt unless `resend_waits` is given."""

    def make(app: App, *, keeper: bool = False, **settings: Any) -> Bench:
        engine = make_engine(app, **{"resend_waits": (), **settings})
        return Bench(engine, Worker(engine, keeper=keeper))

    return make


@pytest.fixture
def at_points() -> Iterator[Callable[[Callable[[str], None]], None]]:
    """Installs a hook on the crash points of this process for one test."""
    yield crash_points.install
    crash_points.install(None)
