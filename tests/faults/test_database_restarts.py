"""The database goes away under load and comes back: nothing is lost, nothing is done twice, and
work goes on within three seconds (P16, P23; F3)."""

from __future__ import annotations

from pathlib import Path

import pytest

from earnest.testing.simulator import running_simulator
from tests.faults.processes import Processes
from tests.faults.restarting import restart_under_load

pytestmark = [pytest.mark.fault, pytest.mark.durability]

LONGEST = 3.0  # seconds


@pytest.mark.timeout(600)
@pytest.mark.parametrize("count", [4, pytest.param(50, marks=pytest.mark.slow)])
async def test_restarts_of_the_database_lose_nothing_and_double_nothing(
    count: int, tmp_path: Path, processes: Processes
) -> None:
    with running_simulator() as simulator:
        found = await restart_under_load(tmp_path / "home", simulator, processes, count)
    assert (found.lost, found.doubled, found.broken) == ([], [], [])
    assert len(found.recoveries) == count
    assert max(found.recoveries) < LONGEST
    assert found.accepted > count
    assert found.refunds > 0
