"""Reading for somebody: what an actor may see, asked of the database as that actor.

What it may not see and what is not there look the same: `NotFound`. For doors; the engine's own
verbs read without an actor.
"""

from __future__ import annotations

import uuid
from dataclasses import replace

from earnest.domain.errors import NotFound
from earnest.domain.operation import Operation
from earnest.domain.run import Run
from earnest.engine.process.actors import Actor
from earnest.engine.process.engine import Engine
from earnest.store import operations, runs
from earnest.store.runs import RunFilter
from earnest.store.visible import Sight


async def find_run(engine: Engine, actor: Actor, run_id: uuid.UUID) -> Run:
    """The run, if the actor asked for it or is an operator of its scope. Raises `NotFound`."""
    run = await runs.find(engine.database, actor.scope_id, run_id, actor.sees_only())
    if run is None:
        raise NotFound("no such run, or not this actor's to see")
    return run


async def list_runs(
    engine: Engine, actor: Actor, only: RunFilter, before: uuid.UUID | None, limit: int
) -> list[Run]:
    """A page of what the actor may see, newest first, without inputs and outputs."""
    narrowed = replace(only, principal_id=actor.sees_only())
    return await runs.listed(engine.database, actor.scope_id, narrowed, before, limit)


async def find_operation(engine: Engine, actor: Actor, operation_id: uuid.UUID) -> Operation:
    """The operation, if it is the actor's or the actor is an operator. Raises `NotFound`."""
    found = await operations.find(engine.database, actor.scope_id, operation_id, actor.sees_only())
    if found is None:
        raise NotFound("no such operation, or not this actor's to see")
    return found


def sight(actor: Actor, run_id: uuid.UUID) -> Sight:
    """How the actor sees the parts of a run. Raises `NotFound` when it sees nobody's."""
    return Sight(actor.scope_id, run_id, actor.sees_only())
