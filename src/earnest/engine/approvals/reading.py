"""Reading approvals for somebody: an operator sees its scope's, whoever has a role that decides
sees what is addressed to it, a member what its own runs asked for. Of foreign runs an approval
shows what is put to the reader and the run's summary, nothing else.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from earnest.domain.approval import Approval, ApprovalStatus
from earnest.domain.errors import NotFound
from earnest.domain.run import Run
from earnest.engine.process.actors import Actor, Role
from earnest.engine.process.engine import Engine
from earnest.store import approvals
from earnest.store.approvals import Eyes, Position


def eyes_of(actor: Actor) -> Eyes:
    """How an actor sees approvals. A role that decides is asked for by name; being a member alone
    shows one's own."""
    return Eyes(
        actor.scope_id,
        Role.OPERATOR in actor.roles,
        actor.roles - {Role.MEMBER},
        actor.principal_id if Role.MEMBER in actor.roles else None,
    )


async def find_approval(engine: Engine, actor: Actor, approval_id: uuid.UUID) -> Approval:
    """Raises `NotFound` for what is not there or not the actor's to see."""
    found = await approvals.find_visible(engine.database, eyes_of(actor), approval_id)
    if found is None:
        raise NotFound("no such approval, or not this actor's to see")
    return found


async def list_approvals(
    engine: Engine,
    actor: Actor,
    status: ApprovalStatus | None,
    after: Position | None,
    limit: int,
) -> list[Approval]:
    """A page of what the actor sees, oldest first."""
    return await approvals.listed(engine.database, eyes_of(actor), status, after, limit)


async def runs_of(engine: Engine, scope_id: str, found: Sequence[Approval]) -> dict[uuid.UUID, Run]:
    """The runs of approvals that were found for somebody, as lists show them."""
    return await approvals.summaries(engine.database, scope_id, [one.run_id for one in found])
