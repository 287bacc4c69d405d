"""One simulator process for the tests of this folder; no rule of one test meets another."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from earnest.testing.simulator import Simulator, running_simulator
from tests.testing.bank import Bank


@pytest.fixture(scope="session")
def simulator_process() -> Iterator[Simulator]:
    """A simulator in a process of its own."""
    with running_simulator() as simulator:
        yield simulator


@pytest.fixture
def simulator(simulator_process: Simulator) -> Simulator:
    """The simulator without fault rules. Its truth still knows what other tests did."""
    simulator_process.clear_faults()
    return simulator_process


@pytest.fixture(scope="session")
def bank_of_process(simulator_process: Simulator) -> Iterator[Bank]:
    """A caller of the simulator's banks; making one loads certificates, so once is enough."""
    with Bank(simulator_process) as bank:
        yield bank


@pytest.fixture
def bank(simulator: Simulator, bank_of_process: Bank) -> Bank:
    """The simulator's banks as a caller sees them, without fault rules."""
    return bank_of_process
