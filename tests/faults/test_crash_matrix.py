"""Killed at every named point, on either side of the commit, and nothing is lost, done twice or
ended wrongly (P1, P2, P3, P4, P7, P22, P23, P25; F1).

Each case kills a real process with SIGKILL while it works on a plan of some twenty runs at one of
the banks; successors go on until everything has ended. Effects are counted at the far end.
"""

from __future__ import annotations

from itertools import product

import pytest

from earnest.domain.crash_points import OF_RUNS
from earnest.testing.databases import ThrowawayCluster
from earnest.testing.simulator import running_simulator
from tests.faults.driving import Stage, open_stage
from tests.faults.matrix import NEVER, SEEDS, SIDES, Case, Occurrence, cases_of, play
from tests.faults.plan import BANKS
from tests.faults.processes import Processes

pytestmark = [pytest.mark.fault, pytest.mark.durability]


def _sample() -> list[Case]:
    """Every point once: banks, passings and ways to die take turns."""
    chosen = []
    for number, (name, side) in enumerate(product(OF_RUNS, SIDES)):
        bank = BANKS[number % 3] if (name, BANKS[number % 3]) not in NEVER else "queryable"
        occurrence: Occurrence = "later" if number // 3 % 2 else "first"
        chosen.append(Case(name, side, occurrence, bank, number % 2))
    return chosen


@pytest.mark.parametrize("case", _sample(), ids=str)
async def test_a_process_killed_at_this_point_loses_nothing_and_doubles_nothing(
    case: Case, stage: Stage
) -> None:
    outcome = await play(case, stage)
    assert outcome.faults() == [], str(case)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("name", "side"), list(product(OF_RUNS, SIDES)))
async def test_killed_at_any_passing_with_any_bank_nothing_is_lost_or_doubled(
    name: str, side: str, durable_cluster: ThrowawayCluster, processes: Processes
) -> None:
    url = await durable_cluster.copy()
    with running_simulator() as simulator:
        async with open_stage(url, simulator, processes) as stage:
            for case in cases_of(name, side, SEEDS):
                outcome = await play(case, stage)
                assert outcome.faults() == [], str(case)
    await durable_cluster.drop(url)
