"""An explanation: why a run stands where it stands, and what would move it on."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from earnest.domain.run import RunStatus


class ReasonCode(StrEnum):
    """Stable names of the reasons; each says what holds a run back, or what it is busy with."""

    # queued
    NOT_BEFORE = "not_before"
    RETRY_SCHEDULED = "retry_scheduled"
    NO_WORKER = "no_worker"
    LANE_WITHOUT_WORKER = "lane_without_worker"
    KIND_WITHOUT_WORKER = "kind_without_worker"
    WORKERS_FULL = "workers_full"
    BACKLOG = "backlog"
    CLAIMABLE = "claimable"
    # running
    LEASE_HELD = "lease_held"
    LEASE_LAPSED = "lease_lapsed"
    OWNER_GONE = "owner_gone"
    CANCEL_REQUESTED = "cancel_requested"
    CALL_ON_ITS_WAY = "call_on_its_way"
    # waiting
    WAITS_FOR_TIME = "waits_for_time"
    WAITS_FOR_SIGNAL = "waits_for_signal"
    WAITS_FOR_CHILD = "waits_for_child"
    WAITS_FOR_APPROVAL = "waits_for_approval"
    WAITS_FOR_OTHERS = "waits_for_others"
    # unknown
    OPERATION_IN_DOUBT = "operation_in_doubt"
    EFFECT_WITHOUT_WORKER = "effect_without_worker"
    # any
    DEADLINE = "deadline"
    ENDED = "ended"
    BLOCKED = "blocked"


class MoverBy(StrEnum):
    """Who or what can move a run on."""

    TIME = "time"
    WORKER = "worker"
    CALLER = "caller"
    APPROVER = "approver"
    OPERATOR = "operator"
    PROVIDER = "provider"


@dataclass(frozen=True, slots=True)
class Reference:
    """What a reason is about: `type` is `run`, `operation`, `approval`, `instance`, `lane`, `kind`,
    `effect` or `signal`; `status` is how that stands, where it has a state."""

    type: str
    id: str
    status: str | None = None


@dataclass(frozen=True, slots=True)
class Mover:
    """One way on: by whom, and the call to the API and the command that do it, where there are."""

    by: MoverBy
    call: str | None = None
    command: str | None = None


@dataclass(frozen=True, slots=True)
class Reason:
    """One reason. `since` when it is so, `until` when it ends by itself, or is looked at again, at
    the latest; `None` where that is not known or never."""

    code: ReasonCode
    detail: str
    since: datetime | None = None
    until: datetime | None = None
    refs: tuple[Reference, ...] = ()
    moved_by: tuple[Mover, ...] = ()


@dataclass(frozen=True, slots=True)
class Explanation:
    """One truthful answer from one state of the database, read at `at` by its clock. The reason
    that counts most comes first."""

    run_id: uuid.UUID
    kind: str
    lane: str
    status: RunStatus
    since: datetime
    at: datetime
    attempt: int
    reasons: tuple[Reason, ...]
