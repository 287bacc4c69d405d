"""The verdict on a case that has ended: the far end, the runs, the tables, the app's own book.

Three numbers are asked for: double effects, lost runs, wrong final states. Whatever else is wrong
with the tables is told too.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from earnest.domain import canonical, ids
from earnest.store.database import Record
from tests.faults.driving import Play
from tests.faults.invariants import (
    RELEASED,
    SUBMITTED,
    Tables,
    read_tables,
    violations,
)
from tests.faults.plan import Plan, Planned

_ASKED = """
SELECT run_id, idempotency_key AS key, retry_of, parent_run_id, kind FROM earnest.run
WHERE scope_id = $1
"""


_BOOK = "SELECT * FROM public.book WHERE operation_id = ANY ($1) ORDER BY line"


@dataclass
class Verdict:
    """What was wrong, in words; four empty lists are a case that was passed."""

    doubled: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)

    def all(self) -> list[str]:
        return [*self.doubled, *self.lost, *self.wrong, *self.broken]


@dataclass(frozen=True)
class _Evidence:
    """Everything that is known afterwards. `deeds` counts refunds at the bank by operation id,
    `requests` are what it was sent for them."""

    plan: Plan
    tables: Tables
    asked: dict[uuid.UUID, Record]
    deeds: Counter[str]
    requests: dict[str, list[Any]]
    book: dict[uuid.UUID, list[str]]

    def runs_of(self, key: str) -> list[uuid.UUID]:
        """The run submitted under the key, and its revisions after it."""
        first = [row["run_id"] for row in self.asked.values() if row["key"] == key]
        return first + [row["run_id"] for row in self.asked.values() if row["retry_of"] in first]

    def refunds_of(self, run_id: uuid.UUID) -> int:
        return sum(
            self.deeds[ids.show("op", operation["operation_id"])]
            for operation in self.tables.operations
            if operation["run_id"] == run_id
        )

    def execution(self, run_id: uuid.UUID) -> Record:
        return next(row for row in self.tables.executions if row["run_id"] == run_id)


async def judge(play: Play) -> Verdict:
    evidence = await _gather(play)
    return Verdict(
        doubled=list(_doubled(evidence)),
        lost=list(_lost(evidence)),
        wrong=[line for planned in play.plan.runs for line in _wrong(evidence, planned)],
        broken=[*violations(evidence.tables), *_broken(evidence), *_unapproved(evidence)],
    )


async def _gather(play: Play) -> _Evidence:
    database = play.stage.engine.database
    tables = await read_tables(database, play.scope)
    known = [operation["operation_id"] for operation in tables.operations]
    async with database.connection() as tx:
        asked = await tx.fetch(_ASKED, play.scope)
        lines = await tx.fetch(_BOOK, known)
    book: dict[uuid.UUID, list[str]] = defaultdict(list)
    for line in lines:
        book[line["operation_id"]].append(line["said"])
    truth = await asyncio.to_thread(play.stage.simulator.truth, "bank")
    requests: dict[str, list[Any]] = defaultdict(list)
    for deed in truth:
        requests[str(deed["operation_id"])].append(deed["request"])
    deeds = Counter({shown: len(sent) for shown, sent in requests.items()})
    by_run = {row["run_id"]: row for row in asked}
    return _Evidence(play.plan, tables, by_run, deeds, requests, book)


def _doubled(evidence: _Evidence) -> Iterator[str]:
    for operation in evidence.tables.operations:
        shown = ids.show("op", operation["operation_id"])
        if evidence.deeds[shown] > 1:
            yield f"{operation['kind']} {shown} was done {evidence.deeds[shown]} times"


def _lost(evidence: _Evidence) -> Iterator[str]:
    """Each key has its one run, each child was made once, and everything has ended."""
    for planned in evidence.plan.runs:
        wanted = 2 if planned.retried else 1
        found = evidence.runs_of(planned.key)
        if len(found) != wanted:
            yield f"{planned.key} has {len(found)} runs, not {wanted}"
    ended = {row["run_id"] for row in evidence.tables.executions if row["finished_at"] is not None}
    for run_id in evidence.asked.keys() - ended:
        yield f"run {run_id} never ended"


def _wrong(evidence: _Evidence, planned: Planned) -> Iterator[str]:
    first, *again = evidence.runs_of(planned.key)
    yield from _wrong_end(evidence, planned, first)
    for run_id in again:
        retried = Planned(f"the retry of {planned.key}", planned.kind, refunds=1)
        yield from _wrong_end(evidence, retried, run_id)


def _given_up(evidence: _Evidence, planned: Planned, run_id: uuid.UUID) -> Planned:
    """What a plan becomes when the process died before it sent anything and nobody can be asked
    but a person, who says that it was not done."""
    reasons = [
        operation["release_reason"]
        for operation in evidence.tables.operations
        if operation["run_id"] == run_id
    ]
    if planned.refunds == 0 or reasons != ["given_up"]:
        return planned
    if planned.status == "succeeded":
        return replace(planned, status="failed", codes=("not_done",), output=None, refunds=0)
    return replace(planned, refunds=0)


def _wrong_end(evidence: _Evidence, planned: Planned, run_id: uuid.UUID) -> Iterator[str]:
    planned = _given_up(evidence, planned, run_id)
    row = evidence.execution(run_id)
    code = (row["error"] or {}).get("code")
    if row["status"] != planned.status or (planned.codes and code not in planned.codes):
        yield f"{planned.key} is {row['status']} {row['error']}, not {planned.status}"
    if not _fits(planned.output, row["output"]):
        yield f"{planned.key} gave {row['output']}, not {planned.output}"
    if (refunds := evidence.refunds_of(run_id)) != planned.refunds:
        yield f"{planned.key} was refunded {refunds} times, not {planned.refunds}"


def _fits(wanted: Any, found: Any) -> bool:
    """Of an object only the wanted fields are looked at."""
    if isinstance(wanted, dict):
        return isinstance(found, dict) and wanted.items() <= found.items()
    return wanted is None or wanted == found


def _broken(evidence: _Evidence) -> Iterator[str]:
    """State, bank and the app's own book tell the same of every operation (P4)."""
    for operation in evidence.tables.operations:
        shown = ids.show("op", operation["operation_id"])
        state, done = operation["state"], evidence.deeds[shown]
        if (state, done) not in ((SUBMITTED, 1), (RELEASED, 0)):
            yield f"{shown} is {state} and was done {done} times"
        lines = evidence.book[operation["operation_id"]]
        if lines.count(_last_line(operation)) != 1 or lines[-1] != _last_line(operation):
            yield f"{shown} is {state}, and the app's book says {lines}"


def _unapproved(evidence: _Evidence) -> Iterator[str]:
    """What the bank was sent equals what was approved, by the digest of what came there (P11)."""
    for approval in evidence.tables.approvals:
        shown = ids.show("op", approval["operation_id"])
        for request in evidence.requests[shown]:
            sent = {name: value for name, value in request.items() if name != "operation_id"}
            same = canonical.digest(canonical.encode(sent)) == approval["digest"]
            if approval["status"] != "approved" or not same:
                yield f"{shown} was sent {sent} under {dict(approval)}"


def _last_line(operation: Record) -> str:
    if operation["state"] == RELEASED:
        return f"released: {operation['release_reason']}"
    return str((operation["receipt"] or {}).get("id"))
