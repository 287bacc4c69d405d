"""Deciding in a test: somebody with the role approves or rejects what a run waits for.

It is the engine's own decision, with all that it refuses; only who decides is made up.
"""

from __future__ import annotations

from earnest.domain import ids
from earnest.domain.approval import Approval, ApprovalStatus, Decision
from earnest.engine.approvals import deciding
from earnest.engine.process import binding
from earnest.engine.process.actors import Actor
from earnest.engine.process.engine import Engine
from earnest.store import approvals

APPROVER = "approver"


async def approve(
    engine: Engine, run: str, *, name: str | None = None, note: str = "", by: str = APPROVER
) -> Approval:
    """Approves what the run waits for, in the scope of the test: the approval of that name, or the
    only one that is pending. `by` is the principal that decides; it has the role that the approval
    is addressed to. Returns the approval, with the `proposal` that was decided about. Raises
    `AssertionError` when there is no such one, and what `deciding.decide` raises.
    """
    return await _decide(engine, Decision.APPROVE, run, name, note, by)


async def reject(
    engine: Engine, run: str, *, name: str | None = None, note: str = "", by: str = APPROVER
) -> Approval:
    """As `approve`: nothing of it is sent."""
    return await _decide(engine, Decision.REJECT, run, name, note, by)


async def _decide(
    engine: Engine, decision: Decision, run: str, name: str | None, note: str, by: str
) -> Approval:
    scope_id = binding.current().scope_id
    found = await _pending(engine, scope_id, run, name)
    actor = Actor(scope_id, by, frozenset({found.role}))
    verdict = deciding.Verdict(decision, found.digest.hex(), note)
    decided = await deciding.decide(
        engine, actor, found.approval_id, verdict, version=found.version
    )
    return decided.approval


async def _pending(engine: Engine, scope_id: str, run: str, name: str | None) -> Approval:
    async with engine.database.connection() as tx:
        asked = await approvals.of_run(tx, scope_id, ids.read("run", run))
    open_ones = [one for one in asked if one.status is ApprovalStatus.PENDING]
    wanted = [one for one in open_ones if name in (None, one.name)]
    if len(wanted) == 1:
        return wanted[0]
    if len(wanted) > 1:
        names = ", ".join(repr(one.name) for one in wanted)
        raise AssertionError(f"{run} waits for several decisions: say name= of {names}")
    told = ", ".join(f"{one.name!r} is {one.status}" for one in asked) or "it has asked for none"
    which = "a decision" if name is None else f"a decision about {name!r}"
    raise AssertionError(f"{run} does not wait for {which}: {told}; was it drained?")
