"""What the API answers, as values. Members that a newer server adds are not looked at."""

from __future__ import annotations

from datetime import date, datetime
from typing import Any, ClassVar

from msgspec import Struct, field

from earnest.domain.approval import ApprovalStatus
from earnest.domain.operation import OperationState
from earnest.domain.run import FINAL, CancelOutcome, RunStatus

Error = dict[str, Any]


class RunSummary(Struct, frozen=True):
    """A run as lists show it: without input and output."""

    id: str
    kind: str
    lane: str
    status: RunStatus
    version: int
    revision: int
    lineage_id: str
    retry_of: str | None
    conversation_id: str | None
    parent_run_id: str | None
    attempt: int
    priority: int
    error: Error | None
    labels: dict[str, str]
    cancel_requested: bool
    last_seq: int
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    waiting_on: list[dict[str, Any]] | None = None
    retry_at: datetime | None = None

    @property
    def final(self) -> bool:
        """Whether it has ended."""
        return self.status in FINAL


class RunSnapshot(RunSummary, frozen=True, kw_only=True):
    """A run as it stands and what came of it, without what was asked for."""

    output: Any
    max_attempts: int
    failures: int
    due_at: datetime | None
    deadline_at: datetime | None


class Run(RunSnapshot, frozen=True, kw_only=True):
    """A run, whole."""

    input: Any
    context: dict[str, Any]


class Cancelled(Struct, frozen=True):
    """What a cancel came to, with the run as it stands after it."""

    outcome: CancelOutcome
    run: Run


class Signalled(Struct, frozen=True):
    """The signal is the `number`-th of its name."""

    run_id: str
    name: str
    number: int


class Event(Struct, frozen=True):
    """What happened, the `seq`-th of its run. `id` is the place to go on after it, in the stream
    that it came from."""

    seq: int
    type: str
    run_id: str
    created_at: datetime
    payload: dict[str, Any]
    final: bool = False
    id: str = ""


class Resync(Struct, frozen=True):
    """Events between the place asked for and `head_seq` cannot be told. `snapshot` is the run after
    them; a scope's feed has none, so read anew the runs that you follow. What comes next comes
    after `head_seq`."""

    type: ClassVar[str] = "resync_required"

    after_seq: int
    minimum_retained_seq: int
    head_seq: int
    snapshot: RunSnapshot | None = None
    id: str = ""


class TextPiece(Struct, frozen=True):
    """A piece of a run's text; `sequence` goes on across attempts."""

    sequence: int
    attempt: int
    content: str


class TextReset(Struct, frozen=True):
    """What was written before is void: the text of another attempt follows."""

    attempt: int
    content: ClassVar[str] = ""


class Reference(Struct, frozen=True):
    """What a reason is about."""

    type: str
    id: str
    status: str | None = None


class Mover(Struct, frozen=True):
    """One way on: by whom, and the call and the command that do it, where there are."""

    by: str
    call: str | None = None
    command: str | None = None


class Reason(Struct, frozen=True):
    """One reason why a run does not move."""

    code: str
    detail: str
    since: datetime | None
    until: datetime | None
    refs: list[Reference]
    moved_by: list[Mover]


class Explanation(Struct, frozen=True):
    """Why a run stands as it stands; the reason that counts most comes first."""

    run_id: str
    status: RunStatus
    since: datetime
    at: datetime
    attempt: int
    reasons: list[Reason]


class Approval(Struct, frozen=True):
    """What was put to somebody. `proposal` is exactly that, and `digest` its name."""

    id: str
    run_id: str
    name: str
    proposal: Any
    digest: str
    operation_id: str | None
    effect: str | None
    status: ApprovalStatus
    role: str
    proposer: str
    excludes_proposer: bool
    version: int
    requested_at: datetime
    expires_at: datetime | None
    decided_by: str | None
    decided_at: datetime | None
    note: str
    run: RunSummary


class OperationSummary(Struct, frozen=True):
    """An operation as the desk lists it: without request and receipt."""

    id: str
    run_id: str | None
    kind: str
    name: str
    state: OperationState
    recovery: str
    provider: str
    resource_key: str | None
    attempt: int
    send_count: int
    external_ref: str | None
    release_reason: str | None
    refusal: Error | None
    resolution: dict[str, Any] | None
    version: int
    created_at: datetime
    submitting_at: datetime | None
    unknown_since: datetime | None
    submitted_at: datetime | None
    released_at: datetime | None
    next_lookup_at: datetime | None


class Operation(OperationSummary, frozen=True, kw_only=True):
    """An operation, whole. `history` holds its moves, `findings` what does not fit into it."""

    request: Any
    receipt: Any
    lookups: list[dict[str, Any]]
    history: list[dict[str, Any]] = field(default_factory=list)
    findings: list[dict[str, Any]] = field(default_factory=list)


class Artifact(Struct, frozen=True):
    """A file. `sha256` is in hexadecimal digits; `expires_at` is `None` for one that stays as long
    as its run."""

    id: str
    name: str
    media_type: str
    size: int
    sha256: str
    run_id: str | None
    created_at: datetime
    expires_at: datetime | None


class Token(Struct, frozen=True):
    """What is known of a token. `token` is its text, there in the answer that made it alone."""

    id: str
    principal_id: str
    roles: list[str]
    name: str | None
    created_by: str
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    used_on: date | None
    replaces: str | None
    token: str | None = None


class Webhook(Struct, frozen=True):
    """Who is told of what. `secret` is there in the answer that made it alone."""

    id: str
    url: str
    types: list[str]
    description: str
    state: str
    why: str | None
    version: int
    created_by: str
    created_at: datetime
    secret: str | None = None
