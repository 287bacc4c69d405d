"""Playing a case of a frozen worker: it stops at a point of the call, sleeps past its lease while
another takes over, and goes on as if nothing had happened.

The kernel stops the whole process, keeper and connections too, and lets it go on where it was.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

from earnest.domain import ids
from earnest.domain.event import Event
from earnest.domain.operation import Operation, OperationMove
from earnest.domain.run import Run, RunStatus
from earnest.engine.process.doorbells import MOVED
from earnest.engine.runs import submitting
from earnest.engine.runs.submitting import Request
from earnest.store import facts, operations, runs
from earnest.testing.crashing import Crash
from tests.faults.driving import LOOK, Stage, new_scope
from tests.faults.invariants import read_tables, violations
from tests.faults.processes import Child
from tests.faults.workload import Bank

NAMES = ("reserve", "begin", "call", "record", "confirm", "settle")
POINTS = tuple(f"{name}.{side}" for name, side in product(NAMES, ("before", "after")))
BANKS: tuple[Bank, ...] = ("keyed", "queryable", "careful", "opaque")
PATIENCE = 30.0


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

    async def moves(self) -> list[OperationMove]:
        operation = await self.operation()
        database = self.stage.engine.database
        return await operations.moves(database, self.scope, operation.operation_id)

    async def findings(self) -> list[dict[str, Any]]:
        database, operation = self.stage.engine.database, await self.operation()
        return await operations.findings(database, self.scope, operation.operation_id)

    async def refunds(self) -> int:
        """How often the bank really did it."""
        shown = ids.show("op", (await self.operation()).operation_id)
        truth = await asyncio.to_thread(self.stage.simulator.truth, "bank")
        return sum(deed["operation_id"] == shown for deed in truth)

    async def until(self, is_so: Callable[[], Awaitable[bool]]) -> None:
        until = time.monotonic() + PATIENCE
        while not await is_so():
            assert time.monotonic() < until, f"{is_so.__name__} is not so after {PATIENCE} s"
            await self.stage.engine.bells.wait(MOVED, LOOK)

    async def has_ended(self) -> bool:
        return (await self.run()).final

    async def is_taken_over(self) -> bool:
        return (await self.run()).status is RunStatus.UNKNOWN or await self.has_ended()


@dataclass(frozen=True)
class Thawed:
    """How a case ended. `was_unknown`: the run waited in doubt when the frozen worker went on.
    `resolved_by` names who settled doubts; `broken` says what is wrong with the tables."""

    run: Run
    operation: Operation
    refunds: int
    was_unknown: bool
    resolved_by: list[str]
    broken: list[str]


async def begin(stage: Stage, bank: Bank) -> Scene:
    scope = new_scope()
    order = Request("order", {"order_id": f"{scope}-order", "bank": bank})
    submitted = await submitting.submit(stage.engine, scope, "person", order)
    return Scene(stage, scope, submitted.run.run_id)


async def start_frozen(scene: Scene, point: str) -> Child:
    """A worker that has come to the point and stands still there."""
    child = scene.stage.start_worker(Crash(point, how="freeze"))

    async def is_frozen() -> bool:
        assert child.code is None, f"it ended with {child.code}; see {child.log}"
        return child.reached() and child.is_frozen()

    await scene.until(is_frozen)
    return child


async def end(*workers: Child) -> None:
    """Lets each worker finish what it has begun, calls on their way too."""
    for worker in workers:
        os.kill(worker.pid, signal.SIGTERM)
    for worker in workers:
        assert await asyncio.to_thread(worker.wait) == 0, f"see {worker.log}"


async def play(point: str, bank: Bank, stage: Stage) -> Thawed:
    scene = await begin(stage, bank)
    frozen = await start_frozen(scene, point)
    other = stage.start_worker()
    await scene.until(scene.is_taken_over)
    was_unknown = (await scene.run()).status is RunStatus.UNKNOWN
    frozen.go_on()
    await scene.until(scene.has_ended)
    await end(frozen, other)
    events = await facts.events(stage.engine.database, scene.scope, scene.run_id, 0, 1000)
    tables = await read_tables(stage.engine.database, scene.scope)
    return Thawed(
        await scene.run(),
        await scene.operation(),
        await scene.refunds(),
        was_unknown,
        [move.detail["by"] for move in await scene.moves() if move.move == "resolve"],
        [*violations(tables), *_told_by_the_lost(events)],
    )


def _told_by_the_lost(events: list[Event]) -> Iterator[str]:
    """Of an attempt that was lost nothing is told later but the evidence about its call, and that
    the run goes on by it (a run that an owner hands back says why)."""
    gone: set[int] = set()
    for event in events:
        attempt = int(event.payload.get("attempt", 0))
        if event.type == "attempt.lost":
            gone.add(attempt)
        elif event.type == "run.resumed" and "why" not in event.payload:
            continue
        elif attempt in gone and not event.type.startswith(("operation.", "run.unknown")):
            yield f"{event.type} of attempt {attempt}, which was lost"
