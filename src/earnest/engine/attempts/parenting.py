"""Parents and children: a run that submits others and waits for them.

A child's id derives from its parent and its name, so an attempt that asks again finds the child
that an earlier one made. The parent's row is locked while the child is written: a parent that was
cancelled or lost makes no more children.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from earnest.domain import canonical, ids
from earnest.domain.errors import CodeChanged, FencedOut
from earnest.domain.run import FINAL, NewRun, RunStatus
from earnest.engine.operations.intending import StopAsked
from earnest.engine.process.doorbells import WORK
from earnest.engine.process.engine import Engine
from earnest.engine.process.kinds import RunKind
from earnest.engine.runs.leasing import HeldLease
from earnest.engine.runs.submitting import encode_input
from earnest.store import executions, runs
from earnest.store.database import Tx
from earnest.store.executions import Claimed


@dataclass(frozen=True, slots=True)
class Ended:
    """How a child stands."""

    status: RunStatus
    output: Any
    error: dict[str, Any] | None

    @property
    def final(self) -> bool:
        return self.status in FINAL


async def submit_child(
    engine: Engine,
    parent: Claimed,
    lease: HeldLease,
    kind: RunKind[Any, Any],
    input: Any,
    name: str,
    *,
    detached: bool,
) -> uuid.UUID:
    """Makes the child, or finds it. Raises `FencedOut`, `StopAsked`, `CodeChanged` when the name
    was used with another kind or input before, and for an input what `submit` raises."""
    new = meant_child(engine, parent, kind, input, name, detached=detached)

    async def work(tx: Tx) -> uuid.UUID:
        locked = await executions.lock(tx, parent.scope_id, [parent.run_id])
        row = locked.get(parent.run_id)
        if row is None or not row.owned_by(parent.fence, parent.owner_token):
            raise FencedOut(f"attempt {parent.fence} no longer owns the parent run")
        known = await runs.fingerprint(tx, parent.scope_id, new.run_id)
        if known is not None:
            check_same(new, known)
            return new.run_id
        if row.cancel_requested:
            raise StopAsked("the run was asked to stop; it makes no more children")
        fails = kind.on_unknown == "fail"
        await runs.insert(tx, new, runs.Lineage(new.run_id), fails_on_doubt=fails)
        await executions.renew(tx, row, engine.settings.lease)
        return new.run_id

    await engine.database.promise("submit", work)
    engine.bells.ring(WORK)
    return new.run_id


def check_same(meant: NewRun, known: bytes) -> None:
    """Raises `CodeChanged` unless the child that is there, of this fingerprint, is the one that is
    meant."""
    if known != meant.fingerprint:
        raise CodeChanged(
            f"child {meant.child_name!r} was submitted with another kind or input before"
        )


def meant_child(
    engine: Engine,
    parent: Claimed,
    kind: RunKind[Any, Any],
    input: Any,
    name: str,
    *,
    detached: bool,
) -> NewRun:
    """The child as it is asked for. Raises for an input what `submit` raises."""
    data = encode_input(engine, kind, input)
    return NewRun(
        scope_id=parent.scope_id,
        run_id=ids.child_id(parent.run_id, name),
        kind=kind.name,
        lane=kind.lane,
        principal_id=parent.principal_id,
        input=data,
        fingerprint=canonical.digest(b"\x00".join((kind.name.encode(), data))),
        deadline=kind.deadline,
        max_attempts=kind.retry.max_attempts,
        conversation_id=parent.conversation_id,
        parent_run_id=parent.run_id,
        child_name=name,
        detached=detached,
        traceparent=parent.traceparent,
    )


async def read_children(
    engine: Engine, scope_id: str, run_ids: Sequence[uuid.UUID]
) -> dict[uuid.UUID, Ended]:
    rows = await engine.database.fetch("endings_of", scope_id, list(run_ids))
    return {
        row["run_id"]: Ended(RunStatus(row["status"]), row["output"], row["error"]) for row in rows
    }
