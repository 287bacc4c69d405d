"""A run: its statuses, the table of its legal moves and its value.

`MOVES` is the contract. The statements in the store name the states they leave, the table in
`docs/states.md` is compared with this one by a test.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from msgspec import Struct

from earnest.domain import ids
from earnest.domain.approval import Approval, Proposal
from earnest.domain.moves import Move, table


class RunStatus(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    WAITING = "waiting"
    UNKNOWN = "unknown"
    BLOCKED = "blocked"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


FINAL = frozenset({RunStatus.SUCCEEDED, RunStatus.FAILED, RunStatus.CANCELLED, RunStatus.BLOCKED})
ACTIVE = frozenset(RunStatus) - FINAL


MOVES: dict[str, Move[RunStatus]] = table(
    RunStatus,
    (
        ("submit", "", "queued", "door, SQL function, schedule, parent"),
        ("claim", "queued", "running", "worker"),
        ("renew", "running", "running", "owner"),
        ("succeed", "running", "succeeded", "owner"),
        ("fail", "running", "failed", "owner"),
        ("retry later", "running", "queued", "owner or reaper"),
        ("hand back", "running", "queued", "owner"),
        ("park", "running", "waiting queued", "owner"),
        ("wake", "waiting", "queued", "engine"),
        ("expire", "queued waiting", "failed unknown", "engine"),
        ("block", "queued running", "blocked", "owner, engine"),
        ("doubt", "running", "unknown failed", "owner or reaper"),
        ("lose", "running", "queued unknown failed cancelled", "reaper"),
        ("resolve", "unknown", "queued cancelled", "operator, callback, look-up, receipt"),
        ("cancel", "queued waiting unknown running", "cancelled running", "door"),
        ("stop", "running", "cancelled", "owner"),
    ),
)


class AttemptOutcome(StrEnum):
    """How an attempt ended. Only `failed`, `timeout` and `lost` count against `max_attempts`."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    TIMEOUT = "timeout"
    LOST = "lost"
    PARKED = "parked"
    HANDED_BACK = "handed_back"
    BLOCKED = "blocked"
    DOUBTED = "doubted"
    CANCELLED = "cancelled"


COUNTED = frozenset({AttemptOutcome.FAILED, AttemptOutcome.TIMEOUT, AttemptOutcome.LOST})


class CancelOutcome(StrEnum):
    CANCELLED = "cancelled"
    REQUESTED = "requested"
    TOO_LATE = "too_late"


_GROWS_AT_MOST = 60  # times; far beyond any pause, and no number overflows


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """When a failed attempt is tried again: exponential backoff with full jitter above a floor."""

    max_attempts: int = 3
    first: timedelta = timedelta(seconds=2)
    factor: float = 2.0
    longest: timedelta = timedelta(minutes=10)

    def delay(self, failures: int, random: float) -> timedelta:
        """The wait after the `failures`-th counted failure; `random` in [0, 1) spreads it over
        the upper half of the window, so that a crowd of failures does not come back as one."""
        growth = self.factor ** min(max(0, failures - 1), _GROWS_AT_MOST)
        window = min(self.first.total_seconds() * growth, self.longest.total_seconds())
        return timedelta(seconds=window * (0.5 + 0.5 * random))


class Wait(Struct, frozen=True):
    """What a parked run waits for. `kind` is `time`, `signal`, `children` or `approval`; the rest
    says which: `until` for a time, `name` and `number` for a signal, `run_ids` for children. A
    decision is a `Proposal` until the run is parked, then the `Approval` that stands for it."""

    kind: str
    name: str = ""
    number: int = 0
    until: datetime | None = None
    run_ids: tuple[uuid.UUID, ...] = ()
    approval: Proposal | Approval | None = None

    def as_json(self) -> dict[str, Any]:
        shown: dict[str, Any] = {"kind": self.kind}
        if self.name:
            shown["name"] = self.name
        if self.number:
            shown["number"] = self.number
        if self.until is not None:
            shown["until"] = self.until.isoformat()
        if self.run_ids:
            shown["run_ids"] = [ids.show("run", run_id) for run_id in self.run_ids]
        if self.approval is not None:
            shown["approval_id"] = ids.show("apr", self.approval.approval_id)
            shown["role"] = self.approval.role
        if isinstance(self.approval, Approval) and self.approval.expires_at is not None:
            shown["expires_at"] = self.approval.expires_at.isoformat()
        return shown


class NewRun(Struct, frozen=True):
    """A run about to be submitted. `input`, `context` and `labels` are JSON bytes or values that
    were validated at the door; times are instants of the database's clock or `None`."""

    scope_id: str
    run_id: uuid.UUID
    kind: str
    lane: str
    principal_id: str
    input: bytes
    idempotency_key: str | None = None
    fingerprint: bytes = b""
    context: dict[str, Any] = {}
    labels: dict[str, str] = {}
    priority: int = 0
    not_before: datetime | None = None
    deadline: timedelta | None = None
    max_attempts: int = 3
    conversation_id: str | None = None
    parent_run_id: uuid.UUID | None = None
    child_name: str | None = None
    detached: bool = False
    traceparent: str | None = None


class Run(Struct, frozen=True):
    """A run as it stands: what was asked and how far it is."""

    scope_id: str
    run_id: uuid.UUID
    kind: str
    lane: str
    status: RunStatus
    version: int
    revision: int
    lineage_id: uuid.UUID
    retry_of: uuid.UUID | None
    conversation_id: str | None
    parent_run_id: uuid.UUID | None
    principal_id: str
    priority: int
    attempt: int
    failures: int
    max_attempts: int
    input: Any
    output: Any
    error: dict[str, Any] | None
    context: dict[str, Any]
    labels: dict[str, str]
    waiting_on: list[dict[str, Any]] | None
    due_at: datetime | None
    retry_at: datetime | None
    deadline_at: datetime | None
    cancel_requested: bool
    in_doubt: int
    last_seq: int
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None

    @property
    def final(self) -> bool:
        return self.status in FINAL


class Attempt(Struct, frozen=True):
    """One worker's execution of a run, under one lease and one fence number."""

    run_id: uuid.UUID
    number: int
    instance_id: uuid.UUID
    started_at: datetime
    ended_at: datetime | None
    outcome: AttemptOutcome | None
    error: dict[str, Any] | None


class Step(Struct, frozen=True):
    """A named result, remembered so that a later attempt does not redo it."""

    name: str
    kind: str
    digest: bytes
    result: Any
    attempt: int
    created_at: datetime
