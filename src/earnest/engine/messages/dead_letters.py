"""Dead letters: what could not be delivered, kept until somebody sends it again."""

from __future__ import annotations

import uuid

from earnest.domain import ids
from earnest.domain.errors import Conflict, NotFound
from earnest.engine.process import auditing
from earnest.engine.process.actors import Actor, Role
from earnest.engine.process.doorbells import MOVED
from earnest.engine.process.engine import Engine
from earnest.store import messages, sinks
from earnest.store.database import Tx
from earnest.store.messages import Delivery, DeliveryFilter

MAY = (Role.OPERATOR, Role.ADMIN)


async def dead_letters(
    engine: Engine, actor: Actor, only: DeliveryFilter, after: uuid.UUID | None, limit: int
) -> list[Delivery]:
    """The scope's, the oldest first. Raises `Forbidden`."""
    actor.require(*MAY)
    return await messages.dead(engine.database, actor.scope_id, only, after, limit)


async def replay(engine: Engine, actor: Actor, delivery_id: uuid.UUID) -> Delivery:
    """Sends a dead letter again, under the id that it had, with as many attempts as a new one.
    Harmless when repeated: what is no dead letter stays as it is. Raises `Forbidden`, `NotFound`,
    and `Conflict` while its sink is disabled."""
    actor.require(*MAY)
    found = await _find(engine, actor, delivery_id)
    sink = await sinks.find(engine.database, actor.scope_id, found.sink_id)
    if sink is not None and sink.state == "disabled":
        raise Conflict(
            f"{ids.show('sink', found.sink_id)} is disabled; make it active, then replay"
        )

    async def work(tx: Tx) -> bool:
        replayed = await messages.replay(tx, actor.scope_id, delivery_id)
        if replayed:
            await auditing.keep(tx, actor, "delivery.replayed", ids.show("dlv", delivery_id))
        return replayed

    await engine.database.promise("access", work)
    engine.bells.ring(MOVED)
    return await _find(engine, actor, delivery_id)


async def _find(engine: Engine, actor: Actor, delivery_id: uuid.UUID) -> Delivery:
    found = await messages.find(engine.database, actor.scope_id, delivery_id)
    if found is None:
        raise NotFound(f"no such delivery: {ids.show('dlv', delivery_id)}")
    return found
