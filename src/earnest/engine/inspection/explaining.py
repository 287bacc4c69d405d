"""Explaining: why a run is not moving (or how it is moving), and what would move it on.

One answer from one snapshot of the database. Who may not see the run is told that there is none.
"""

from __future__ import annotations

from datetime import datetime

from earnest.domain import ids
from earnest.domain.errors import NotFound
from earnest.domain.explanation import Explanation
from earnest.domain.run import FINAL, RunStatus
from earnest.engine.inspection.reasons import COUNTED, LISTED, Scene, reasons_of
from earnest.engine.process.engine import Engine
from earnest.store import histories, operations, runs, standings
from earnest.store.database import Record, Tx
from earnest.store.visible import Sight

# By which events a run comes to stand as it stands.
_BEGAN = {
    RunStatus.QUEUED: ("run.submitted", "run.retry_scheduled", "run.resumed", "run.woken"),
    RunStatus.WAITING: ("run.waiting",),
    RunStatus.UNKNOWN: ("run.unknown",),
}


async def explain(engine: Engine, sight: Sight) -> Explanation:
    """Raises `NotFound` for a run that is not there or not to be seen."""

    async def work(tx: Tx) -> Explanation | None:
        row = await standings.find(tx, sight)
        return None if row is None else await _explain(tx, row)

    found = await histories.in_snapshot(engine.database, work)
    if found is None:
        raise NotFound("no such run, or not this actor's to see")
    return found


async def _explain(tx: Tx, row: Record) -> Explanation:
    status = RunStatus(row["status"])
    scene = await _look(tx, row, status)
    return Explanation(
        run_id=row["run_id"],
        kind=row["kind"],
        lane=row["lane"],
        status=status,
        since=await _since(tx, row, status),
        at=row["now"],
        attempt=row["fence"],
        reasons=tuple(reasons_of(scene, status)),
    )


async def _look(tx: Tx, row: Record, status: RunStatus) -> Scene:
    waited = [
        ids.read("run", text) for one in row["waiting_on"] or () for text in one.get("run_ids", ())
    ]
    queued = status is RunStatus.QUEUED and row["ready"]
    lineage = row["scope_id"], row["lineage_id"]
    return Scene(
        row=row,
        workers=await standings.workers(tx),
        operations=await operations.of_run(tx, row["scope_id"], row["run_id"]),
        children=await standings.standings(tx, row["scope_id"], waited) if waited else (),
        backlog=await standings.backlog(tx, row, COUNTED) if queued else (0, 0),
        submitted=await standings.submitted(tx, *lineage, LISTED) if status in FINAL else (),
        newest=await runs.newest_revision(tx, *lineage),
    )


async def _since(tx: Tx, row: Record, status: RunStatus) -> datetime:
    known: datetime | None = None
    if status in FINAL:
        known = row["finished_at"]
    elif status is RunStatus.RUNNING:
        known = row["attempt_started_at"]
    else:
        known = await standings.told_at(tx, row["scope_id"], row["run_id"], _BEGAN[status])
    created: datetime = row["created_at"]
    return known or created
