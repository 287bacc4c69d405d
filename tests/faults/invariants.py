"""What must be true of the tables of a scope whatever was killed, when nothing runs any more.

Each check gives lines that say what is wrong; no lines, no fault. The tables of legal moves in
`domain` are the contract, the stored history is held against them.
"""

from __future__ import annotations

import uuid
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from earnest.domain import operation as operation_rules
from earnest.domain import run as run_rules
from earnest.domain.event import FINAL_TYPES
from earnest.domain.operation import OperationState
from earnest.domain.run import RunStatus
from earnest.store.database import Database, Record

Rows = list[Record]


@dataclass(frozen=True)
class Tables:
    """The rows of one scope."""

    executions: Rows
    attempts: Rows
    events: Rows
    operations: Rows
    moves: Rows
    approvals: Rows


async def read_tables(database: Database, scope: str) -> Tables:
    orders = {
        "execution": "run_id",
        "attempt": "run_id, fence",
        "event": "run_id, seq",
        "operation": "operation_id",
        "operation_move": "operation_id, version",
        "approval": "run_id, approval_id",
    }
    async with database.connection() as tx:
        found = [
            await tx.fetch(f"SELECT * FROM {table} WHERE scope_id = $1 ORDER BY {order}", scope)
            for table, order in orders.items()
        ]
    return Tables(*found)


def violations(tables: Tables) -> list[str]:
    """Everything that is wrong, in words."""
    checks = (_counts, _approvals, _sequences, _statuses, _attempts, _moves)
    return [line for check in checks for line in check(tables)]


def _counts(tables: Tables) -> Iterator[str]:
    """What the guards read equals what the operations say."""
    by_run: dict[uuid.UUID, Counter[str]] = defaultdict(Counter)
    for operation in tables.operations:
        by_run[operation["run_id"]][operation["state"]] += 1
    for row in tables.executions:
        states = by_run[row["run_id"]]
        doubts = states["submitting"] + states["unknown"]
        if row["doubts"] != doubts or row["reserved"] != states["reserved"]:
            yield (
                f"run {row['run_id']} counts {row['doubts']} doubts and {row['reserved']} "
                f"reserved; its operations are {dict(states)}"
            )
        if row["status"] in FINAL and states["reserved"]:
            yield f"run {row['run_id']} is {row['status']} with reserved operations"
        if row["status"] == "succeeded" and doubts:
            yield f"run {row['run_id']} succeeded with {doubts} operations in doubt (P3)"


def _approvals(tables: Tables) -> Iterator[str]:
    """What waits for a decision is counted, belongs to a run that can go on, and nothing was begun
    but under an approval of exactly that (P11)."""
    pending = Counter(row["run_id"] for row in tables.approvals if row["status"] == "pending")
    for row in tables.executions:
        if row["undecided"] != pending[row["run_id"]]:
            yield f"run {row['run_id']} counts {row['undecided']}, not {pending[row['run_id']]}"
        if row["status"] in FINAL and pending[row["run_id"]]:
            yield f"run {row['run_id']} is {row['status']} and still asks for a decision"
    approved = {
        (row["operation_id"], row["effect"], row["digest"])
        for row in tables.approvals
        if row["status"] == "approved"
    }
    for one in tables.operations:
        this = (one["operation_id"], one["kind"], one["digest"])
        if one["approval_id"] is not None and one["send_count"] and this not in approved:
            yield f"operation {one['operation_id']} was begun without its approval"


def _sequences(tables: Tables) -> Iterator[str]:
    """Events are numbered 1, 2, 3 … up to the number that the execution knows."""
    numbers = _by_run(tables.events, "seq")
    for row in tables.executions:
        seen = numbers[row["run_id"]]
        if seen != list(range(1, row["last_seq"] + 1)):
            yield f"run {row['run_id']} has events {seen}, and last_seq {row['last_seq']}"


def _statuses(tables: Tables) -> Iterator[str]:
    """The events tell a path of legal moves that ends where the execution stands."""
    types = _by_run(tables.events, "type")
    for row in tables.executions:
        path = [status for type_ in types[row["run_id"]] for status in _told(type_)]
        for source, target in zip([None, *path], path, strict=False):
            if (source, target) not in LEGAL_RUN_MOVES:
                yield f"run {row['run_id']} went from {source} to {target}: {types[row['run_id']]}"
        if not path or path[-1] != row["status"]:
            yield f"run {row['run_id']} is {row['status']}; its events end with {path[-1:]}"
        final = [type_ for type_ in types[row["run_id"]] if type_ in FINAL_TYPES]
        if len(final) != (row["status"] in FINAL):
            yield f"run {row['run_id']} is {row['status']} and has the final events {final}"


def _attempts(tables: Tables) -> Iterator[str]:
    """One attempt for each fence, one after the other; only a running run has an open one."""
    by_run: dict[uuid.UUID, Rows] = defaultdict(list)
    for attempt in tables.attempts:
        by_run[attempt["run_id"]].append(attempt)
    for row in tables.executions:
        attempts = by_run[row["run_id"]]
        if [attempt["fence"] for attempt in attempts] != list(range(1, row["fence"] + 1)):
            yield f"run {row['run_id']} has fence {row['fence']} and {len(attempts)} attempts"
        still_open = [attempt["fence"] for attempt in attempts if attempt["ended_at"] is None]
        if still_open != ([row["fence"]] if row["status"] == "running" else []):
            yield f"run {row['run_id']} is {row['status']} with open attempts {still_open}"
        for first, second in pairwise(attempts):
            if first["ended_at"] is None or second["started_at"] < first["ended_at"]:
                yield f"run {row['run_id']} had two owners at once at fence {second['fence']}"


def _moves(tables: Tables) -> Iterator[str]:
    """The history of each operation is complete and legal, and ends in its state."""
    by_operation: dict[uuid.UUID, Rows] = defaultdict(list)
    for move in tables.moves:
        by_operation[move["operation_id"]].append(move)
    for operation in tables.operations:
        moves = by_operation[operation["operation_id"]]
        shown = " ".join(f"{move['move']}→{move['state']}" for move in moves)
        if [move["version"] for move in moves] != list(range(1, operation["version"] + 1)):
            yield f"operation {operation['operation_id']} misses history: {shown}"
        states: list[str | None] = [None, *(move["state"] for move in moves)]
        for source, move in zip(states, moves, strict=False):
            if (move["move"], source, move["state"]) not in LEGAL_OPERATION_MOVES:
                yield f"operation {operation['operation_id']} moved illegally: {shown}"
        if states[-1] != operation["state"]:
            yield f"operation {operation['operation_id']} is {operation['state']}: {shown}"


def _told(event_type: str) -> list[str]:
    """What an event says of its run's status; most say nothing."""
    status = _TELLING.get(event_type)
    return [] if status is None else [status]


def _by_run(rows: Iterable[Record], column: str) -> dict[uuid.UUID, list[Any]]:
    found: dict[uuid.UUID, list[Any]] = defaultdict(list)
    for row in rows:
        found[row["run_id"]].append(row[column])
    return found


def _pairs(sources: frozenset[Any], targets: frozenset[Any]) -> Iterator[tuple[str | None, str]]:
    for source in sources or {None}:
        for target in targets:
            yield (None if source is None else source.value, target.value)


FINAL = frozenset(status.value for status in run_rules.FINAL)

LEGAL_RUN_MOVES = {
    pair for move in run_rules.MOVES.values() for pair in _pairs(move.sources, move.targets)
}

LEGAL_OPERATION_MOVES = {
    (move.name, source, target)
    for move in operation_rules.MOVES.values()
    for source, target in _pairs(move.sources, move.targets)
}

_TELLING = {
    "run.submitted": RunStatus.QUEUED.value,
    "attempt.started": RunStatus.RUNNING.value,
    "run.waiting": RunStatus.WAITING.value,
    "run.woken": RunStatus.QUEUED.value,
    "run.retry_scheduled": RunStatus.QUEUED.value,
    "run.resumed": RunStatus.QUEUED.value,
    "run.unknown": RunStatus.UNKNOWN.value,
    "run.succeeded": RunStatus.SUCCEEDED.value,
    "run.failed": RunStatus.FAILED.value,
    "run.cancelled": RunStatus.CANCELLED.value,
    "run.blocked": RunStatus.BLOCKED.value,
}

IN_DOUBT = frozenset(state.value for state in operation_rules.IN_DOUBT)
SUBMITTED, RELEASED = OperationState.SUBMITTED.value, OperationState.RELEASED.value
