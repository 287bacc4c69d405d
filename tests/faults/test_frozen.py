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


async def test_what_a_frozen_worker_says_of_its_own_call_touches_no_later_call(
    stage: Stage,
) -> None:
    """It wakes up knowing that it has sent nothing, while its successor's call is on the way: that
    call has another send token, so nothing is released and nothing is sent a third time."""
    scene = await freezing.begin(stage, "keyed")
    stage.simulator.put_fault("bank", "slow", delay_ms=2500, match=f"{scene.scope}-order")
    frozen = await freezing.start_frozen(scene, "begin.after")
    other = stage.start_worker()

    async def is_sent_again() -> bool:
        operation = await scene.operation()
        return operation.send_count == 2 and operation.state is OperationState.SUBMITTING

    await scene.until(is_sent_again)
    frozen.go_on()
    await freezing.end(frozen)
    assert (await scene.operation()).state is OperationState.SUBMITTING
    await scene.until(scene.has_ended)
    await freezing.end(other)
    moves = [move.move for move in await scene.moves()]
    assert moves == ["reserve", "begin", "send again", "confirm"]
    assert await scene.findings() == []
    assert await scene.refunds() == 1
