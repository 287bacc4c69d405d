"""What the tests of faults share: a server that keeps its word about durability, a fork server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from earnest.testing.databases import ThrowawayCluster
from earnest.testing.simulator import Simulator
from tests.faults.driving import Stage, open_stage
from tests.faults.processes import Processes


@pytest.fixture(scope="session")
def durable_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ThrowawayCluster]:
    """An embedded server with its default settings: every commit is on the disk."""
    started = ThrowawayCluster(tmp_path_factory.mktemp("durable"), settings={}).start()
    yield started
    started.stop()


@pytest.fixture(scope="session")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    with Processes(tmp_path_factory.mktemp("processes")) as started:
        yield started


@pytest.fixture(scope="session")
def stage_url(durable_cluster: ThrowawayCluster) -> str:
    """A database that cases share, each in a scope of its own."""
    return asyncio.run(durable_cluster.copy())


@pytest.fixture
async def stage(stage_url: str, simulator: Simulator, processes: Processes) -> AsyncIterator[Stage]:
    async with open_stage(stage_url, simulator, processes) as opened:
        yield opened
