"""Fixtures of the store's tests."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from earnest.testing.databases import ThrowawayCluster
from tests.engine.spare_database import SpareDatabase
from tests.sql_shop import shop

__all__ = ["shop"]


@pytest.fixture(scope="session")
def spare_database(cluster: ThrowawayCluster) -> SpareDatabase:
    return SpareDatabase(cluster)


@pytest.fixture
async def database_url(spare_database: SpareDatabase) -> AsyncIterator[str]:
    """A migrated, empty database for this test alone."""
    url = await spare_database.take()
    yield url
    await spare_database.give_back(url)
