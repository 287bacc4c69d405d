"""What is left when nothing moves any more: each run and operation that has not ended, and why.

One line each, for the failure of a test. Times are given as seconds from the database's clock,
since a test moves that one.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from earnest.domain import ids
from earnest.engine.process.engine import Engine
from earnest.store.database import Record, Tx

_RUNS = """
SELECT run_id, kind, lane, status, ready, fence, failures, max_attempts, due_at, waiting_on,
       wake_at, lease_until, error, clock() AS now
FROM execution WHERE finished_at IS NULL ORDER BY run_id
"""
_OPERATIONS = """
SELECT o.operation_id, o.run_id, o.name, o.kind, o.state, o.recovery, o.send_count,
       o.lookup_count, o.lookup_due_at, o.call_until, clock() AS now,
       (SELECT m.detail->>'why' FROM operation_move m
        WHERE m.scope_id = o.scope_id AND m.operation_id = o.operation_id AND m.detail ? 'why'
        ORDER BY m.version DESC LIMIT 1) AS why,
       (SELECT l.detail FROM operation_lookup l
        WHERE l.scope_id = o.scope_id AND l.operation_id = o.operation_id
        ORDER BY l.number DESC LIMIT 1) AS answer
FROM operation o WHERE o.state IN ('submitting', 'unknown') ORDER BY o.created_at, o.operation_id
"""


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
        operations = [_of_operation(engine, row) for row in await tx.fetch(_OPERATIONS)]
        return [*operations, *[_of_run(engine, row) for row in await tx.fetch(_RUNS)]]


async def endings(tx: Tx) -> dict[str, int]:
    """How many runs have ended, by how."""
    rows = await tx.fetch(
        "SELECT status, count(*) AS runs FROM execution WHERE finished_at IS NOT NULL GROUP BY 1"
    )
    return {row["status"]: row["runs"] for row in rows}


# ---- runs --------------------------------------------------------------------------------------


def _of_run(engine: Engine, row: Record) -> Left:
    why, due_at, stuck = _WHYS[row["status"]](engine, row)
    shown = ids.show("run", row["run_id"])
    return Left(shown, row["kind"], row["status"], why, due_at, stuck)


_Why = tuple[str, datetime | None, bool]


def _queued(engine: Engine, row: Record) -> _Why:
    if row["kind"] not in engine.kinds:
        known = ", ".join(kind.name for kind in engine.kinds.values()) or "none"
        return f"the app has no such kind; it has: {known}", None, True
    if row["due_at"] <= row["now"]:
        return f"it is due in lane {row['lane']}, and nobody has taken it", None, True
    failed = ""
    if row["failures"]:
        told = (row["error"] or {}).get("detail", "")
        failed = f"attempt {row['failures']} of {row['max_attempts']} failed ({told}); "
    return f"{failed}it is due {_when(row, 'due_at')}", row["due_at"], False


def _running(engine: Engine, row: Record) -> _Why:
    ends = _when(row, "lease_until")
    return f"attempt {row['fence']} has not ended; its lease ends {ends}", row["lease_until"], True


def _waiting(engine: Engine, row: Record) -> _Why:
    waits = ", ".join(_wait(wait) for wait in row["waiting_on"] or ()) or "something"
    timed = "" if row["wake_at"] is None else f"; it goes on {_when(row, 'wake_at')}"
    return f"it waits for {waits}{timed}", row["wake_at"], False


def _unknown(engine: Engine, row: Record) -> _Why:
    return "an operation of it is in doubt", None, False


_WHYS = {"queued": _queued, "running": _running, "waiting": _waiting, "unknown": _unknown}


def _wait(wait: dict[str, Any]) -> str:
    match wait["kind"]:
        case "signal":
            return f"the signal {wait.get('name', '')!r}"
        case "children":
            return f"its children {', '.join(wait.get('run_ids', ()))}"
        case "time":
            return "a time"
        case kind:
            return f"the {kind} {wait.get('name', '')}".strip()


# ---- operations --------------------------------------------------------------------------------


def _of_operation(engine: Engine, row: Record) -> Left:
    shown = ids.show("op", row["operation_id"])
    what = f"{row['kind']}, {row['name']!r}{_of(row['run_id'])}"
    if row["state"] == "submitting":
        ends = _when(row, "call_until")
        return Left(shown, what, "submitting", f"its call may last until {ends}", row["call_until"])
    why = f"sent {row['send_count']} times; {row['why'] or 'nobody told why'}"
    if row["answer"]:
        why += f"; asked {row['lookup_count']} times, last answer: {row['answer']}"
    due = row["lookup_due_at"]
    if due is None:
        return Left(shown, what, "unknown", f"{why}; a person must settle it with evidence")
    if engine.effect(row["kind"]) is None:
        return Left(shown, what, "unknown", f"{why}; no such effect is known here", None, True)
    asked = f"{why}; the provider is asked {_when(row, 'lookup_due_at')}"
    return Left(shown, what, "unknown", asked, due, due <= row["now"])


def _of(run_id: uuid.UUID | None) -> str:
    return "" if run_id is None else f" of {ids.show('run', run_id)}"


def _when(row: Record, field: str) -> str:
    """Such as `in 45 s`."""
    seconds = (row[field] - row["now"]).total_seconds()
    return "now" if seconds <= 0 else f"in {seconds:.3g} s"
