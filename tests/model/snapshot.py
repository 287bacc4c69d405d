"""Reading the database after a step and comparing it with the model, column by column."""

from __future__ import annotations

import uuid
from datetime import datetime
from itertools import pairwise
from typing import Any

import asyncpg

from earnest.domain.operation import MOVES as OPERATION_MOVES
from earnest.domain.operation import OperationState
from earnest.domain.run import MOVES, RunStatus
from tests.model.reference import FINAL, Between, Instant, Run
from tests.model.reference_operations import Operation, Reference

RUNS = """
SELECT e.run_id, e.status, e.fence, e.failures, e.doubts, e.reserved, e.cancel_requested,
       e.undecided, ARRAY(SELECT ARRAY[p.name, p.status, p.version::text] FROM approval p
             WHERE p.scope_id = e.scope_id AND p.run_id = e.run_id ORDER BY name) AS approvals,
       e.last_seq, e.lease_until, e.due_at, e.ready, e.wake_at, e.owner_token, e.instance_id,
       ARRAY(SELECT v.type FROM event v WHERE v.scope_id = e.scope_id AND v.run_id = e.run_id
             ORDER BY seq) AS types,
       ARRAY(SELECT v.seq FROM event v WHERE v.scope_id = e.scope_id AND v.run_id = e.run_id
             ORDER BY seq) AS numbers,
       ARRAY(SELECT coalesce(a.outcome, 'open') FROM attempt a
             WHERE a.scope_id = e.scope_id AND a.run_id = e.run_id ORDER BY fence) AS attempts
FROM execution e WHERE e.scope_id = $1
"""

OPERATIONS = """
SELECT o.operation_id, o.state, o.release_reason, o.send_count, o.live, o.lookup_due_at,
       o.version, o.call_until, o.first_begun_at, o.receipt,
       ARRAY(SELECT ARRAY[m.move, m.state] FROM operation_move m
             WHERE m.scope_id = o.scope_id AND m.operation_id = o.operation_id
             ORDER BY version) AS moves,
       ARRAY(SELECT l.answer FROM operation_lookup l
             WHERE l.scope_id = o.scope_id AND l.operation_id = o.operation_id
             ORDER BY number) AS lookups,
       (SELECT count(*) FROM finding f
        WHERE f.scope_id = o.scope_id AND f.operation_id = o.operation_id) AS findings,
       ARRAY(SELECT what FROM earnest.model_record r
             WHERE r.scope_id = o.scope_id AND r.operation_id = o.operation_id) AS written
FROM operation o WHERE o.scope_id = $1
"""

Rows = list[asyncpg.Record]


def compare(reference: Reference, runs: Rows, operations: Rows) -> None:
    """Raises `AssertionError` at the first difference. Fills in what was left to chance."""
    same("the runs", set(reference.runs), {row["run_id"] for row in runs})
    same("the operations", set(reference.operations), {row["operation_id"] for row in operations})
    for row in runs:
        _compare_run(reference.runs[row["run_id"]], row)
    for row in operations:
        _compare_operation(reference.operations[row["operation_id"]], row)


def _compare_run(run: Run, row: asyncpg.Record) -> None:
    run.due_at = _met(run.due_at, row["due_at"])
    queued = run.status == "queued"
    approvals = sorted([one.name, one.status, str(one.version)] for one in run.approvals.values())
    _same(
        f"run {run.run_id}",
        {
            "status": (run.status, row["status"]),
            "events": (run.events, row["types"]),
            "numbers": (list(range(1, row["last_seq"] + 1)), row["numbers"]),
            "attempts": (run.attempts, row["attempts"]),
            "fence": (run.fence, row["fence"]),
            "failures": (run.failures, row["failures"]),
            "doubts": (run.doubts, row["doubts"]),
            "reserved": (run.reserved, row["reserved"]),
            "undecided": (run.undecided, row["undecided"]),
            "approvals": (approvals, row["approvals"]),
            "cancel_requested": (run.cancel_requested, row["cancel_requested"]),
            "lease": (run.lease_until, row["lease_until"]),
            "ready": (run.ready, row["ready"] if queued else run.ready),
            "due": (run.due_at, row["due_at"] if queued else run.due_at),
            "wake": (run.wake_at, row["wake_at"]),
        },
    )


def _compare_operation(operation: Operation, row: asyncpg.Record) -> None:
    unknown = operation.state == "unknown"
    if operation.question is not None and unknown:
        operation.question = _met(operation.question, row["lookup_due_at"])
    receipt = None if operation.receipt is None else {"id": operation.receipt}
    written = row["written"]
    _same(
        f"operation {operation.operation_id} {operation.terms.kind}",
        {
            "state": (operation.state, row["state"]),
            "moves": ([list(move) for move in operation.moves], row["moves"]),
            "reason": (operation.reason, row["release_reason"]),
            "sends": (operation.sends, row["send_count"]),
            "live": (operation.live, row["live"]),
            "question": (
                operation.question,
                row["lookup_due_at"] if unknown else operation.question,
            ),
            "version": (operation.version, row["version"]),
            "first begun": (operation.first_begun, row["first_begun_at"]),
            "call until": (operation.call_until, row["call_until"]),
            "receipt": (receipt, row["receipt"]),
            "lookups": (operation.lookups, row["lookups"]),
            "findings": (operation.findings, row["findings"]),
            "recorded": (operation.recorded, written.count("recorded")),
            "unrecorded": (operation.unrecorded, len(written) - written.count("recorded")),
        },
    )


def _same(what: str, pairs: dict[str, tuple[Any, Any]]) -> None:
    differences = [
        f"{name}: the model says {expected!r}, the engine {actual!r}"
        for name, (expected, actual) in pairs.items()
        if expected != actual
    ]
    assert not differences, f"{what}: {'; '.join(differences)}"


def same(what: str, expected: object, actual: object) -> None:
    """Raises `AssertionError` with both answers when the model's and the engine's differ."""
    assert expected == actual, f"{what}: the model says {expected!r}, the engine {actual!r}"


def _met(expected: Instant, actual: datetime | None) -> Instant:
    if not isinstance(expected, Between) or actual is None:
        return expected
    assert expected.low <= actual <= expected.high, f"the engine chose {actual}, not in {expected}"
    return actual


# ---- what must hold whatever the model says -----------------------------------------------------

_STATUS_AFTER = {
    "run.submitted": "queued",
    "attempt.started": "running",
    "run.retry_scheduled": "queued",
    "run.resumed": "queued",
    "run.woken": "queued",
    "run.waiting": "waiting",
    "run.unknown": "unknown",
    "run.blocked": "blocked",
    "run.succeeded": "succeeded",
    "run.failed": "failed",
    "run.cancelled": "cancelled",
}
_LEGAL = {
    (source, target)
    for move in MOVES.values()
    for source in move.sources
    for target in move.targets
}


def check_alone(runs: Rows, operations: Rows) -> None:
    """Invariants of the database by itself."""
    for row in runs:
        _check_path(row)
    for row in operations:
        _check_moves(row["operation_id"], row["moves"])


def _check_path(row: asyncpg.Record) -> None:
    """The run's events tell a path of legal moves that ends where the run stands."""
    path = [_STATUS_AFTER[told] for told in row["types"] if told in _STATUS_AFTER]
    shown = f"run {row['run_id']}"
    assert path[0] == "queued", f"{shown} began as {path[0]}"
    assert path[-1] == row["status"], f"{shown} is {row['status']}, its events tell {path}"
    for source, target in pairwise(path):
        legal = (RunStatus(source), RunStatus(target)) in _LEGAL
        assert legal, f"{shown} went from {source} to {target}"
    succeeded_in_doubt = row["status"] == "succeeded" and row["doubts"]
    assert not succeeded_in_doubt, f"{shown} succeeded with {row['doubts']} in doubt"
    final = row["status"] in FINAL
    assert not (final and row["reserved"]), f"{shown} is {row['status']} and has reserved ones"
    assert not (final and row["undecided"]), f"{shown} is {row['status']} and still asks"


def _check_moves(operation_id: uuid.UUID, moves: list[list[str]]) -> None:
    """Each move of an operation is one of the table and leaves a state that it may leave."""
    assert moves[0] == ["reserve", "reserved"], f"operation {operation_id} began with {moves[0]}"
    for (_, source), (name, target) in pairwise(moves):
        move, told = OPERATION_MOVES[name], f"operation {operation_id}: {source}, {name}, {target}"
        assert OperationState(source) in move.sources, told
        assert OperationState(target) in move.targets, told
