"""Frozen instead of killed: a worker stops at a point of the call, sleeps past its lease while
another takes over, and wakes up believing that nothing happened (P2, P5).

The kernel stops the whole process, keeper and connections too, and lets it go on where it was.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from itertools import product
from typing import Any

import pytest

from earnest.domain import ids
from earnest.domain.operation import Operation, OperationState, ReleaseReason
from earnest.domain.run import FINAL, AttemptOutcome, Run, RunStatus
from earnest.engine import submitting
from earnest.engine.submitting import Request
from earnest.store import facts, operations, runs
from earnest.testing.crashing import Crash
from tests.faults.driving import LOOK, Stage, new_scope
from tests.faults.invariants import read_tables, violations
from tests.faults.processes import Child
from tests.faults.workload import Bank

pytestmark = [pytest.mark.fault, pytest.mark.durability]

NAMES = ("reserve", "begin", "call", "confirm", "settle")
BANKS: tuple[Bank, ...] = ("keyed", "queryable", "careful", "opaque")
PATIENCE = 30.0


def _cases() -> list[Any]:
    """Every point once; all banks at every point in the long run."""
    found = []
    for number, (name, side) in enumerate(product(NAMES, ("before", "after"))):
        for place, bank in enumerate(BANKS):
            marks = [] if place == number % len(BANKS) else [pytest.mark.slow]
            found.append(pytest.param(f"{name}.{side}", bank, marks=marks))
    return found


@dataclass
class Scene:
    """One order, and how it stands."""

    stage: Stage
    scope: str
    run_id: uuid.UUID

    async def run(self) -> Run:
        found = await runs.find(self.stage.engine.database, self.scope, self.run_id)
        assert found is not None, "submitted"
        return found

    async def operation(self) -> Operation:
        (found,) = await operations.of_run(self.stage.engine.database, self.scope, self.run_id)
        return found

    async def refunds(self, operation: Operation) -> int:
        shown = ids.show("op", operation.operation_id)
        truth = await asyncio.to_thread(self.stage.simulator.truth, "bank")
        return sum(deed["operation_id"] == shown for deed in truth)


async def _begin(stage: Stage, bank: Bank) -> Scene:
    scope = new_scope()
    order = Request("order", {"order_id": f"{scope}-order", "bank": bank})
    submitted = await submitting.submit(stage.engine, scope, "person", order)
    return Scene(stage, scope, submitted.run.run_id)


async def _until(stage: Stage, is_so: Callable[[], Awaitable[bool]]) -> None:
    until = time.monotonic() + PATIENCE
    while not await is_so():
        assert time.monotonic() < until, f"not so after {PATIENCE} s"
        await stage.engine.bells.wait("moved", LOOK)


async def _until_frozen(stage: Stage, child: Child) -> None:
    async def is_frozen() -> bool:
        assert child.code is None, f"it ended with {child.code}; see {child.log}"
        return child.reached() and child.is_frozen()

    await _until(stage, is_frozen)


async def _end(*workers: Child) -> None:
    """Lets each worker finish what it has begun, calls on their way too."""
    for worker in workers:
        os.kill(worker.pid, signal.SIGTERM)
    for worker in workers:
        assert await asyncio.to_thread(worker.wait) == 0, f"see {worker.log}"


@pytest.mark.parametrize(("point", "bank"), _cases())
async def test_a_worker_frozen_at_this_point_doubles_nothing_and_changes_nothing(
    point: str, bank: Bank, stage: Stage
) -> None:
    scene = await _begin(stage, bank)
    frozen = stage.start_worker(Crash(point, how="freeze"))
    await _until_frozen(stage, frozen)
    other = stage.start_worker()

    async def is_taken_over() -> bool:
        run = await scene.run()
        return run.status is RunStatus.UNKNOWN or run.final

    await _until(stage, is_taken_over)
    before = await scene.run()
    frozen.go_on()

    async def has_ended() -> bool:
        return (await scene.run()).status in FINAL

    await _until(stage, has_ended)
    await _end(frozen, other)
    operation = await scene.operation()
    assert (await scene.run()).status is RunStatus.SUCCEEDED
    assert operation.state is OperationState.SUBMITTED
    assert await scene.refunds(operation) == 1
    assert violations(await read_tables(stage.engine.database, scene.scope)) == []
    if before.status is RunStatus.UNKNOWN and bank == "opaque":
        moves = await operations.moves(stage.engine.database, scene.scope, operation.operation_id)
        assert [move.detail["by"] for move in moves if move.move == "resolve"] == ["late_receipt"]
    await _assert_that_the_lost_attempt_changed_nothing(scene)


async def _assert_that_the_lost_attempt_changed_nothing(scene: Scene) -> None:
    """After it was lost there is nothing of it but the evidence about its call."""
    database = scene.stage.engine.database
    attempts = await runs.attempts(database, scene.scope, scene.run_id)
    lost = {one.number for one in attempts if one.outcome is AttemptOutcome.LOST}
    gone: set[int] = set()
    for event in await facts.events(database, scene.scope, scene.run_id, 0, 1000):
        attempt = int(event.payload.get("attempt", 0))
        if event.type == "attempt.lost":
            gone.add(attempt)
        elif attempt in gone and not event.type.startswith("run."):
            assert event.type.startswith("operation."), f"{event.type} of lost attempt {attempt}"
    assert gone == lost
    for step in await facts.steps(database, scene.scope, scene.run_id):
        assert step.attempt in {one.number for one in attempts}


async def test_an_absence_is_no_proof_while_the_sender_may_still_send(stage: Stage) -> None:
    """The bank does not recognise repetitions: a frozen sender keeps the operation in doubt,
    however often the bank says that it knows nothing; its death proves it."""
    scene = await _begin(stage, "careful")
    frozen = stage.start_worker(Crash("call.before", how="freeze"))
    await _until_frozen(stage, frozen)
    other = stage.start_worker()

    async def is_asked_often() -> bool:
        operation = await scene.operation()
        late = operation.submitting_at is not None and operation.lookup_count >= 5
        return late and operation.state is OperationState.UNKNOWN

    await _until(stage, is_asked_often)
    frozen.kill()

    async def has_ended() -> bool:
        return (await scene.run()).final

    await _until(stage, has_ended)
    await _end(other)
    operation = await scene.operation()
    history = await operations.moves(stage.engine.database, scene.scope, operation.operation_id)
    released = [move for move in history if move.state is OperationState.RELEASED]
    assert [move.move for move in history[-3:]] == ["reserve again", "begin", "confirm"]
    assert len(released) == 1
    assert await scene.refunds(operation) == 1
    lookups = await operations.lookups(stage.engine.database, scene.scope, operation.operation_id)
    assert ReleaseReason.ABSENT.value in {lookup.answer.value for lookup in lookups}
