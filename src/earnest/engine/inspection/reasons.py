"""The reasons why a run stands where it stands, told from what was read of it.

It names neither inputs nor receipts (P21); of other scopes' runs it says only that some come first.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from shlex import quote
from typing import Any
from urllib.parse import quote as quote_url

from earnest.domain import ids
from earnest.domain.explanation import Mover, MoverBy, Reason, ReasonCode, Reference
from earnest.domain.operation import Operation, OperationState
from earnest.domain.run import FINAL, RunStatus
from earnest.engine.inspection.doubts import (
    START_WORKER,
    WORKER,
    reasons_of_operation,
    reference,
    settlers,
)
from earnest.engine.runs.retrying import in_one_line
from earnest.store.database import Record
from earnest.store.standings import Submitted, WorkerRow

COUNTED = 10_000
"""How far a backlog is counted."""
LISTED = 20
"""How many of one sort are named."""


@dataclass(frozen=True, slots=True)
class Scene:
    """What the answer is made of. `children` are those that the run waits for, `submitted` what was
    done outside for its lineage once it has ended, `newest` the lineage's newest revision."""

    row: Record
    workers: Sequence[WorkerRow]
    operations: Sequence[Operation]
    children: Sequence[tuple[uuid.UUID, str, RunStatus]]
    backlog: tuple[int, int]
    submitted: Sequence[Submitted]
    newest: tuple[uuid.UUID, int]

    @property
    def now(self) -> datetime:
        at: datetime = self.row["now"]
        return at

    @property
    def run(self) -> str:
        return ids.show("run", self.row["run_id"])

    @property
    def living(self) -> list[WorkerRow]:
        return [worker for worker in self.workers if worker.lives]

    @property
    def serving(self) -> list[WorkerRow]:
        """Living workers that would take up this very run."""
        lane, kind = self.row["lane"], self.row["kind"]
        return [one for one in self.living if lane in one.lanes and kind in one.kinds]


def reasons_of(scene: Scene, status: RunStatus) -> Iterator[Reason]:
    match status:
        case RunStatus.QUEUED:
            yield from _queued(scene)
        case RunStatus.RUNNING:
            yield from _running(scene)
        case RunStatus.WAITING:
            yield from _waiting(scene)
        case RunStatus.UNKNOWN:
            yield from _unknown(scene)
        case _:
            yield _ended(scene, status)
    if status in (RunStatus.QUEUED, RunStatus.WAITING) and scene.row["deadline_at"] is not None:
        detail = "it fails as deadline_exceeded if it is not at work by then"
        yield Reason(ReasonCode.DEADLINE, detail, until=scene.row["deadline_at"], moved_by=(_TIME,))


# ---- queued --------------------------------------------------------------------------------------


def _queued(scene: Scene) -> Iterator[Reason]:
    row = scene.row
    if not row["ready"] and row["due_at"] > scene.now:
        yield _delayed(scene)
        yield from _unserved(scene)
        return
    unserved = list(_unserved(scene))
    yield from unserved
    if not unserved:
        yield from _crowded(scene)
    yield from _calls(scene)


def _delayed(scene: Scene) -> Reason:
    row = scene.row
    if row["retry_at"] is None:
        return Reason(
            ReasonCode.NOT_BEFORE, "it was asked for a later time", until=row["due_at"],
            moved_by=(_TIME,),
        )  # fmt: skip
    error = row["error"] or {}
    why = f"{error.get('code', 'error')}: {error.get('detail', '')}".rstrip(": ")
    detail = (
        f"attempt {row['fence']} failed ({why}); {row['failures']} of {row['max_attempts']} "
        "attempts are used"
    )
    return Reason(ReasonCode.RETRY_SCHEDULED, detail, until=row["retry_at"], moved_by=(_TIME,))


def _unserved(scene: Scene) -> Iterator[Reason]:
    """Why no process takes it up, whatever its turn is."""
    lane, kind = scene.row["lane"], scene.row["kind"]
    if scene.serving:
        return
    if not any(one.slots for one in scene.living):
        yield _no_worker("no worker lives; nobody takes up work")
    elif not any(lane in one.lanes for one in scene.living):
        yield Reason(
            ReasonCode.LANE_WITHOUT_WORKER, f"no living worker serves the lane {lane}",
            refs=(Reference("lane", lane),), moved_by=(START_WORKER,),
        )  # fmt: skip
    else:
        yield Reason(
            ReasonCode.KIND_WITHOUT_WORKER,
            f"no living worker of the lane {lane} knows the kind {kind}; start one with its app",
            refs=(Reference("kind", kind),), moved_by=(START_WORKER,),
        )  # fmt: skip


def _crowded(scene: Scene) -> Iterator[Reason]:
    ahead, own = scene.backlog
    full = [one for one in scene.serving if one.held >= one.slots]
    if len(full) == len(scene.serving):
        slots = sum(one.slots for one in full)
        yield Reason(
            ReasonCode.WORKERS_FULL, f"all {slots} places of the workers that know it are taken",
            refs=_instances(full), moved_by=(WORKER, START_WORKER),
        )  # fmt: skip
    if ahead:
        yield Reason(
            ReasonCode.BACKLOG, _ahead(scene.row["lane"], ahead, own),
            refs=(Reference("lane", scene.row["lane"]),), moved_by=(WORKER, START_WORKER),
        )  # fmt: skip
    elif len(full) < len(scene.serving):
        yield Reason(
            ReasonCode.CLAIMABLE, "a living worker can take it up at any moment",
            refs=_instances(scene.serving), moved_by=(WORKER,),
        )  # fmt: skip


def _ahead(lane: str, ahead: int, own: int) -> str:
    """Of other scopes' runs nobody learns how many there are."""
    least = "at least " if ahead >= COUNTED else ""
    mine = f"{least}{own} of this scope's" if own else ""
    others = "some of other scopes" if ahead > own else ""
    return f"runs come first in the lane {lane}: {' and '.join(filter(None, (mine, others)))}"


# ---- running -------------------------------------------------------------------------------------


def _running(scene: Scene) -> Iterator[Reason]:
    row = scene.row
    owner = next((one for one in scene.workers if one.instance_id == row["instance_id"]), None)
    gone = owner is None or not owner.lives
    refs = (Reference("instance", ids.show("inst", row["instance_id"])),)
    lapsed = row["lease_until"] <= scene.now
    if lapsed:
        yield Reason(
            ReasonCode.LEASE_LAPSED, "its lease has run out; a worker's reaper takes it back",
            since=row["lease_until"], refs=refs, moved_by=(WORKER,),
        )  # fmt: skip
    elif gone:
        yield Reason(
            ReasonCode.OWNER_GONE,
            "the process that holds its lease keeps no connection; a worker's reaper takes it back",
            until=row["lease_until"], refs=refs, moved_by=(WORKER,),
        )  # fmt: skip
    else:
        yield Reason(
            ReasonCode.LEASE_HELD, f"attempt {row['fence']} is at work; its lease is renewed",
            since=row["attempt_started_at"], until=row["lease_until"], refs=refs,
            moved_by=(WORKER,),
        )  # fmt: skip
    if row["cancel_requested"]:
        detail = "it was asked to stop; what is on its way to the outside is let finish"
        yield Reason(ReasonCode.CANCEL_REQUESTED, detail, moved_by=(WORKER,))
    yield from _calls(scene)
    if (lapsed or gone) and not scene.living:
        yield _no_worker("no worker lives; nobody takes it back")


def _calls(scene: Scene) -> Iterator[Reason]:
    """Calls to the outside that are on their way."""
    for one in scene.operations:
        if one.state is OperationState.SUBMITTING:
            yield from reasons_of_operation(one, scene.now, scene.living)


# ---- waiting -------------------------------------------------------------------------------------


def _waiting(scene: Scene) -> Iterator[Reason]:
    for wait in scene.row["waiting_on"] or ():
        match wait["kind"]:
            case "time":
                yield Reason(
                    ReasonCode.WAITS_FOR_TIME, "it sleeps", until=_until(wait),
                    moved_by=(_TIME, WORKER),
                )  # fmt: skip
            case "signal":
                yield _signal(scene, wait)
            case "children":
                yield from _children(scene)
            case "approval":
                yield _approval(wait)
            case other:
                yield Reason(
                    ReasonCode.WAITS_FOR_OTHERS, f"it waits for {other} {wait.get('name', '')}",
                    until=_until(wait),
                )  # fmt: skip
    timed = any("expires_at" in wait for wait in scene.row["waiting_on"] or ())
    if (timed or scene.row["wake_at"] is not None) and not scene.living:
        yield _no_worker("no worker lives; nobody wakes it when its time comes")


def _signal(scene: Scene, wait: dict[str, Any]) -> Reason:
    name = wait["name"]
    number = "" if wait["number"] == 1 else f", the {wait['number']}. of that name"
    # A path cannot carry a slash within a name.
    path = f"/v1/runs/{scene.run}/signals/{quote_url(name)}"
    call = None if "/" in name else f"POST {path}"
    command = f"earnest runs signal {scene.run} {quote(name)}"
    until = _until(wait)
    return Reason(
        ReasonCode.WAITS_FOR_SIGNAL,
        f"it waits for the signal {name!r}{number}",
        until=until,
        refs=(Reference("signal", name),),
        moved_by=(Mover(MoverBy.CALLER, call, command), *((_TIME,) if until else ())),
    )


def _approval(wait: dict[str, Any]) -> Reason:
    shown, role = wait["approval_id"], wait["role"]
    until = wait.get("expires_at")
    decide = f"POST /v1/approvals/{shown}/decision", f"earnest approvals approve {shown}"
    decline = None, f"earnest approvals reject {shown}"
    return Reason(
        ReasonCode.WAITS_FOR_APPROVAL,
        f"it waits until somebody with the role {role} has decided about {wait['name']!r}",
        until=datetime.fromisoformat(until) if until else None,
        refs=(Reference("approval", shown, "pending"),),
        moved_by=(
            Mover(MoverBy.APPROVER, *decide),
            Mover(MoverBy.APPROVER, *decline),
            *((_TIME,) if until else ()),
        ),
    )


def _children(scene: Scene) -> Iterator[Reason]:
    active = [one for one in scene.children if one[2] not in FINAL]
    for run_id, kind, status in active[:LISTED]:
        shown = ids.show("run", run_id)
        look = f"GET /v1/runs/{shown}/explain", f"earnest runs explain {shown}"
        yield Reason(
            ReasonCode.WAITS_FOR_CHILD, f"it waits for a child, a run of {kind} that is {status}",
            refs=(Reference("run", shown, status.value),),
            moved_by=(Mover(MoverBy.WORKER, *look),),
        )  # fmt: skip
    if len(active) > LISTED:
        detail = f"and for {len(active) - LISTED} more children"
        yield Reason(ReasonCode.WAITS_FOR_CHILD, detail)


def _until(wait: dict[str, Any]) -> datetime | None:
    return datetime.fromisoformat(wait["until"]) if wait.get("until") else None


# ---- unknown -------------------------------------------------------------------------------------


def _unknown(scene: Scene) -> Iterator[Reason]:
    for one in scene.operations:
        if one.state is OperationState.UNKNOWN:
            yield from reasons_of_operation(one, scene.now, scene.living)
    yield from _calls(scene)


# ---- ended ---------------------------------------------------------------------------------------


_ENDED = {
    RunStatus.SUCCEEDED: "it has succeeded",
    RunStatus.FAILED: "it has failed",
    RunStatus.CANCELLED: "it was cancelled",
    RunStatus.BLOCKED: "it is blocked",
}


def _ended(scene: Scene, status: RunStatus) -> Reason:
    row = scene.row
    error = row["error"] or {}
    why = f" ({error['code']}: {error.get('detail', '')})" if "code" in error else ""
    beside, refs, movers = _afterwards(scene, status)
    return Reason(
        ReasonCode.BLOCKED if status is RunStatus.BLOCKED else ReasonCode.ENDED,
        f"{_ENDED[status]}{why}, and moves no more{beside}",
        since=row["finished_at"],
        refs=refs,
        moved_by=movers,
    )


_After = tuple[str, tuple[Reference, ...], tuple[Mover, ...]]


def _afterwards(scene: Scene, status: RunStatus) -> _After:
    """What is to be said of what could come after the end, to whom it refers, who does it. A retry
    is named only where it is neither refused nor does anything a second time."""
    newest, revision = scene.newest
    if newest != scene.row["run_id"]:
        shown = ids.show("run", newest)
        detail = f"; look at revision {revision} of its lineage, which came after it"
        return detail, (Reference("run", shown),), ()
    doubts = [one for one in scene.operations if one.in_doubt]
    if doubts:
        detail = "; an operation of it is still in doubt, which has to be settled first"
        return detail, tuple(map(reference, doubts)), tuple(_ways_out(doubts))
    if status is RunStatus.SUCCEEDED:
        return "", (), ()
    if scene.submitted:
        refs = (Reference("operation", ids.show("op", one.operation_id), "submitted")
                for one in scene.submitted)  # fmt: skip
        detail = f"; {in_one_line(scene.submitted)} submitted: a retry is a new revision, which "
        return f"{detail}sends again what it asks for", tuple(refs), ()
    retry = f"POST /v1/runs/{scene.run}/retry", f"earnest runs retry {scene.run}"
    return "", (), (Mover(MoverBy.CALLER, *retry),)


def _ways_out(doubts: Sequence[Operation]) -> Iterator[Mover]:
    for one in doubts:
        if one.state is OperationState.UNKNOWN:
            yield from settlers(one)
        else:
            yield Mover(MoverBy.PROVIDER)


# ---- shared parts --------------------------------------------------------------------------------

_TIME = Mover(MoverBy.TIME)


def _no_worker(detail: str) -> Reason:
    return Reason(ReasonCode.NO_WORKER, detail, moved_by=(START_WORKER,))


def _instances(workers: Sequence[WorkerRow]) -> tuple[Reference, ...]:
    return tuple(
        Reference("instance", ids.show("inst", one.instance_id)) for one in workers[:LISTED]
    )
