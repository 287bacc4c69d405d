"""What is left when nothing moves any more: each run and operation that has not ended, and why.

One line each, for the failure of a test. Why a thing does not move is said by
`engine/inspection/reasons.py`, as for an installation, with this process as a worker. Times are
given as seconds from the database's clock, since a test moves that one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from earnest.domain import ids
from earnest.domain.explanation import Reason, ReasonCode
from earnest.domain.run import RunStatus
from earnest.engine.inspection.doubts import reasons_of_operation
from earnest.engine.inspection.reasons import Scene, reasons_of
from earnest.engine.process.engine import Engine
from earnest.store import operations, standings
from earnest.store.database import Record, Tx
from earnest.store.standings import WorkerRow

_RUNS = """
SELECT scope_id, run_id, kind, lane, status, fence, instance_id, lease_until, ready, due_at,
       failures, max_attempts, cancel_requested, waiting_on, wake_at, retry_at, deadline_at,
       attempt_started_at, error, doubts, clock() AS now
FROM execution WHERE finished_at IS NULL ORDER BY run_id
"""
# What each was last told of, beside what the operation itself says.
_OPERATIONS = """
SELECT o.*, clock() AS now,
       (SELECT m.detail->>'why' FROM operation_move m
        WHERE m.scope_id = o.scope_id AND m.operation_id = o.operation_id AND m.detail ? 'why'
        ORDER BY m.version DESC LIMIT 1) AS why,
       (SELECT l.detail FROM operation_lookup l
        WHERE l.scope_id = o.scope_id AND l.operation_id = o.operation_id
        ORDER BY l.number DESC LIMIT 1) AS answer
FROM operation o WHERE o.state IN ('submitting', 'unknown') ORDER BY o.created_at, o.operation_id
"""
_UNSERVED = frozenset({
    ReasonCode.NO_WORKER, ReasonCode.LANE_WITHOUT_WORKER, ReasonCode.KIND_WITHOUT_WORKER,
    ReasonCode.EFFECT_WITHOUT_WORKER,
})  # fmt: skip
# A run for which one of these holds could go on at any moment, or is at it.
_AT_ONCE = frozenset({
    ReasonCode.CLAIMABLE, ReasonCode.BACKLOG, ReasonCode.WORKERS_FULL, ReasonCode.LEASE_HELD,
    ReasonCode.LEASE_LAPSED, ReasonCode.OWNER_GONE,
})  # fmt: skip
_MANY = 1_000_000  # places: in a test everything that is due is run


@dataclass(frozen=True, slots=True)
class Left:
    """One run or operation that has not ended. `due_at`: when the clock alone will move it; `None`
    where something else has to. `stuck`: it is due, and nothing in this test takes it up."""

    id: str
    what: str
    state: str
    why: str
    due_at: datetime | None = None
    stuck: bool = False

    def __str__(self) -> str:
        return f"{self.id} ({self.what}) is {self.state}: {self.why}"


async def what_is_left(engine: Engine) -> list[Left]:
    """Operations in doubt first, as the cause of what follows; then the runs."""
    async with engine.database.connection() as tx:
        here = _this_process(engine)
        others = [one for one in await standings.workers(tx) if one.instance_id != here.instance_id]
        workers = [*others, here]
        living = [one for one in workers if one.lives]
        doubtful = [_of_operation(row, living) for row in await tx.fetch(_OPERATIONS)]
        rows = await tx.fetch(_RUNS)
        return [*doubtful, *[await _of_run(tx, engine, row, workers) for row in rows]]


async def endings(tx: Tx) -> dict[str, int]:
    """How many runs have ended, by how."""
    rows = await tx.fetch(
        "SELECT status, count(*) AS runs FROM execution WHERE finished_at IS NOT NULL GROUP BY 1"
    )
    return {row["status"]: row["runs"] for row in rows}


def _this_process(engine: Engine) -> WorkerRow:
    return WorkerRow(
        engine.instance.instance_id, frozenset(engine.kinds.lanes()), frozenset(engine.kinds),
        frozenset(engine.effect_kinds()), slots=_MANY, held=0, lives=True,
    )  # fmt: skip


async def _of_run(tx: Tx, engine: Engine, row: Record, workers: Sequence[WorkerRow]) -> Left:
    waits = row["waiting_on"] or ()
    waited = [ids.read("run", text) for one in waits for text in one.get("run_ids", ())]
    key = row["scope_id"], row["run_id"]
    scene = Scene(
        row=row,
        workers=workers,
        operations=await operations.of_run(tx, *key) if row["doubts"] else (),
        children=await standings.standings(tx, row["scope_id"], waited) if waited else (),
        backlog=(0, 0),
        submitted=(),
        newest=(row["run_id"], 1),
    )
    reasons = list(reasons_of(scene, RunStatus(row["status"])))
    codes = {one.code for one in reasons}
    why = _told(reasons, row["now"])
    if ReasonCode.KIND_WITHOUT_WORKER in codes:
        why += f"; the app has no such kind; it has: {', '.join(engine.kinds) or 'none'}"
    stuck = bool(codes & (_UNSERVED | _AT_ONCE))
    shown = ids.show("run", row["run_id"])
    return Left(shown, row["kind"], row["status"], why, _due(reasons), stuck)


def _of_operation(row: Record, living: Sequence[WorkerRow]) -> Left:
    one = operations.as_operation(row)
    reasons = list(reasons_of_operation(one, row["now"], living))
    facts = [f"sent {one.send_count} times", row["why"] or "nobody told why"]
    if row["answer"]:
        facts.append(f"last answer: {row['answer']}")
    run = "" if one.run_id is None else f" of {ids.show('run', one.run_id)}"
    due = _due(reasons)
    is_due = one.in_doubt and due is not None and due <= row["now"]
    unserved = any(reason.code in _UNSERVED for reason in reasons)
    return Left(
        ids.show("op", one.operation_id),
        f"{one.kind}, {one.name!r}{run}",
        one.state.value,
        "; ".join([_told(reasons, row["now"]), *facts]),
        None if unserved else due,
        unserved or is_due,
    )


def _told(reasons: Iterable[Reason], now: datetime) -> str:
    return "; ".join(one.detail + _when(one.until, now) for one in reasons)


def _when(until: datetime | None, now: datetime) -> str:
    """Such as `, in 45 s`."""
    if until is None:
        return ""
    seconds = (until - now).total_seconds()
    return ", now" if seconds <= 0 else f", in {seconds:.3g} s"


def _due(reasons: Iterable[Reason]) -> datetime | None:
    return min((one.until for one in reasons if one.until is not None), default=None)
