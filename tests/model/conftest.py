"""One world for all examples: a database, its clock, the workers and the provider."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from earnest.testing.databases import ThrowawayCluster
from tests.model.machine import Model
from tests.model.world import World


@pytest.fixture(scope="module")
def world(cluster: ThrowawayCluster) -> Iterator[World]:
    url = asyncio.run(cluster.copy())
    made = World(url)
    Model.world = made
    yield made
    made.close()
    asyncio.run(cluster.drop(url))
