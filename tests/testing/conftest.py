"""Callers of the simulator's banks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from earnest.testing.simulator import Simulator
from tests.testing.bank import Bank


@pytest.fixture(scope="session")
def bank_of_process(simulator_process: Simulator) -> Iterator[Bank]:
    """A caller of the simulator's banks; making one loads certificates, so once is enough."""
    with Bank(simulator_process) as bank:
        yield bank


@pytest.fixture
def bank(simulator: Simulator, bank_of_process: Bank) -> Bank:
    """The simulator's banks as a caller sees them, without fault rules."""
    return bank_of_process
