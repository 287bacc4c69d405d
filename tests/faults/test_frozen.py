"""Frozen instead of killed: a worker that sleeps past its lease at any point of the call doubles
nothing and changes nothing of the run when it goes on; its late receipt settles the doubt (P2, P5).
"""

from __future__ import annotations

from typing import Any

import pytest

from earnest.domain.operation import OperationState
from earnest.domain.run import RunStatus
from tests.faults import freezing
from tests.faults.driving import Stage
from tests.faults.freezing import BANKS, POINTS
from tests.faults.workload import Bank

pytestmark = [pytest.mark.fault, pytest.mark.durability]


def _cases() -> list[Any]:
    """Every point once; all banks at every point in the long run."""
    return [
        pytest.param(point, bank, marks=[] if place == number % len(BANKS) else [pytest.mark.slow])
        for number, point in enumerate(POINTS)
        for place, bank in enumerate(BANKS)
    ]


@pytest.mark.parametrize(("point", "bank"), _cases())
async def test_a_worker_frozen_at_this_point_doubles_nothing_and_changes_nothing(
    point: str, bank: Bank, stage: Stage
) -> None:
    thawed = await freezing.play(point, bank, stage)
    assert thawed.refunds == 1
    assert thawed.broken == []
    assert thawed.run.status is RunStatus.SUCCEEDED
    assert thawed.operation.state is OperationState.SUBMITTED
    if thawed.was_unknown and bank == "opaque":
        assert thawed.resolved_by == ["late_receipt"]


async def test_an_absence_is_no_proof_while_the_sender_may_still_send(stage: Stage) -> None:
    """The bank does not recognise repetitions: a frozen sender keeps the operation in doubt,
    however often the bank says that it knows nothing; its death proves it."""
    scene = await freezing.begin(stage, "careful")
    frozen = await freezing.start_frozen(scene, "call.before")
    other = stage.start_worker()

    async def is_asked_often() -> bool:
        operation = await scene.operation()
        return operation.lookup_count >= 5 and operation.state is OperationState.UNKNOWN

    await scene.until(is_asked_often)
    frozen.kill()
    await scene.until(scene.has_ended)
    await freezing.end(other)
    moves = await scene.moves()
    assert [move.move for move in moves[-4:]] == ["resolve", "reserve again", "begin", "confirm"]
    assert [move.detail["outcome"] for move in moves if move.move == "resolve"] == ["released"]
    assert await scene.refunds() == 1
