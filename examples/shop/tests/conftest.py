"""The bank of the tests: Earnest's simulator, in a process of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx2
import pytest

from earnest.testing.simulator import Simulator


@pytest.fixture
async def bank(
    earnest_simulator: Simulator, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[httpx2.AsyncClient]:
    """The client of the code under test. Each test has an event loop, so each has its client."""
    async with httpx2.AsyncClient(base_url=earnest_simulator.url) as client:
        monkeypatch.setattr("shop.app.bank", client)
        yield client
