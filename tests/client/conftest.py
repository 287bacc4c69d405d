"""Fixtures of the clients' tests: servers in processes of their own, and people with tokens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from earnest import Client
from earnest.testing.databases import ThrowawayCluster
from earnest.testing.simulator import Simulator
from tests.client.house import House


@pytest.fixture(scope="module")
def shared(
    cluster: ThrowawayCluster,
    simulator_process: Simulator,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[House]:
    """One server with a worker, for all tests of a module that do it no harm."""
    url = asyncio.run(cluster.copy())
    house = House(tmp_path_factory.mktemp("house"), url, simulator_process.url)
    asyncio.run(house.welcome())
    house.start()
    yield house
    house.close()
    asyncio.run(cluster.drop(url))


@pytest.fixture
async def house(
    database_url: str, simulator: Simulator, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[House]:
    """A house of this test alone; the test starts the server."""
    made = House(tmp_path_factory.mktemp("house"), database_url, simulator.url)
    await made.welcome()
    yield made
    made.close()


@pytest.fixture
async def client(shared: House) -> AsyncIterator[Client]:
    """The member's."""
    async with Client(shared.url, shared.tokens["member"], patience=15) as opened:
        yield opened
