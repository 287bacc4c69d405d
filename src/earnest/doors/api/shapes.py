"""The bodies of answers. Handlers build plain dictionaries of these types, so that the type checker
holds code and OpenAPI document together, and the encoder has nothing to convert.

Ids are TypeIDs, times RFC 3339 in UTC.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal, NotRequired

from typing_extensions import TypedDict

from earnest.domain.approval import ApprovalStatus
from earnest.domain.explanation import MoverBy, ReasonCode
from earnest.domain.operation import LookupAnswer, OperationState, Recovery, ReleaseReason
from earnest.domain.run import AttemptOutcome, CancelOutcome, RunStatus

REFERENCE = "#/components/schemas/{model}"

ProblemError = TypedDict(
    "ProblemError",
    {
        "in": Literal["body", "query", "header", "path"],
        "pointer": str,
        "detail": str,
        "code": str,
    },
)
"""One thing that is wrong: in which part of the request, where there (a JSON pointer), and what."""


class Problem(TypedDict):
    """RFC 9457. `code` is stable; `reason` is finer where there is something finer to say. Some
    problems have more members."""

    type: str
    title: str
    status: int
    detail: str
    instance: str
    code: str
    request_id: str
    reason: NotRequired[str]
    errors: NotRequired[list[ProblemError]]


class RunLinks(TypedDict):
    """Paths."""

    self: str
    events: str
    text_events: str
    text_deltas: str
    attempts: str
    operations: str
    steps: str
    artifacts: str
    explain: str
    cancel: str
    retry: str


class RunSummary(TypedDict):
    """A run as lists show it: without input and output."""

    id: str
    run_id: str
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
    error: dict[str, Any] | None
    labels: dict[str, str]
    cancel_requested: bool
    waiting_on: NotRequired[list[dict[str, Any]]]
    retry_at: NotRequired[datetime]
    last_seq: int
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None


class RunSnapshot(RunSummary):
    """A run as it stands and what came of it, without what was asked for: so streams and refusals
    show it. `waiting_on` and `retry_at` are there while it waits or will be tried again."""

    output: Any
    max_attempts: int
    failures: int
    due_at: datetime | None
    deadline_at: datetime | None
    links: RunLinks


class Run(RunSnapshot):
    """A run, whole."""

    input: Any
    context: dict[str, Any]


class RunPage(TypedDict):
    items: list[RunSummary]
    next_cursor: str | None


class Reference(TypedDict):
    """What a reason is about; `status` is how that stands, where it has a state."""

    type: str
    id: str
    status: str | None


class Mover(TypedDict):
    """One way on: by whom, and the call to this API and the command that do it, where there are.
    A call names its method and path; its body is described where the route is."""

    by: MoverBy
    call: str | None
    command: str | None


class Reason(TypedDict):
    """`since` when it is so, `until` when it ends by itself, or is looked at again, at the latest;
    null where that is not known or never."""

    code: ReasonCode
    detail: str
    since: datetime | None
    until: datetime | None
    refs: list[Reference]
    moved_by: list[Mover]


class Explanation(TypedDict):
    """Why a run stands as it stands since `since`, in one state of the database, read at `at`. The
    reason that counts most comes first."""

    run_id: str
    kind: str
    lane: str
    status: RunStatus
    since: datetime
    at: datetime
    attempt: int
    reasons: list[Reason]


class Cancelled(TypedDict):
    """What a cancel came to, with the run as it stands after it."""

    outcome: CancelOutcome
    run_id: str
    run: Run


class SignalStored(TypedDict):
    """The signal is the `number`-th of its name."""

    run_id: str
    name: str
    number: int


class Event(TypedDict):
    seq: int
    type: str
    run_id: str
    created_at: datetime
    payload: dict[str, Any]
    final: NotRequired[Literal[True]]


class EventPage(TypedDict):
    """`next_cursor` is null when the page reaches the newest event: ask again with `after_seq`."""

    items: list[Event]
    next_cursor: str | None
    head_seq: int
    minimum_retained_seq: int


class Heartbeat(TypedDict):
    """The stream lives, and `head_seq` is the newest event of the run."""

    head_seq: int


class Resync(TypedDict):
    """The reader cannot go on after `after_seq` without a gap. `snapshot` is the run after its
    event `head_seq`; the stream goes on from there."""

    status: Literal["resync_required"]
    after_seq: int
    minimum_retained_seq: int
    head_seq: int
    snapshot: RunSnapshot


class StreamEnd(TypedDict):
    """Why the stream ends. After `final` there is nothing to come back for."""

    reason: Literal["final", "rotated", "busy", "revoked", "shutdown"]


class FeedPage(TypedDict):
    """Go on with `cursor`; `next_cursor` is the same while there is more now, else null. The other
    numbers are positions of the feed, which counts the events of all runs of the scope."""

    items: list[Event]
    next_cursor: str | None
    cursor: str
    head_seq: int
    minimum_retained_seq: int


class FeedHeartbeat(TypedDict):
    """The stream lives, and `head_seq` is the newest position of the scope's feed."""

    head_seq: int


class FeedResync(TypedDict):
    """The reader cannot go on after position `after_seq` without a gap. It reads anew the runs that
    it follows; the stream goes on after `head_seq`."""

    status: Literal["resync_required"]
    after_seq: int
    minimum_retained_seq: int
    head_seq: int


class TextPiece(TypedDict):
    """A piece of a run's text; `sequence` goes on across attempts."""

    sequence: int
    attempt: int
    content: str


class TextDelta(TextPiece):
    created_at: datetime


class TextPage(TypedDict):
    """All of a run's text after a sequence, or nothing once it is no longer `kept`. `draft` is what
    the last attempt that wrote had written, in one piece, of a run that ended without success. The
    page is whole: there is no next one."""

    items: list[TextDelta]
    next_cursor: None
    status: RunStatus
    last_sequence: int
    kept: bool
    draft: str | None


class ResyncProblem(Problem):
    """What is known of what is still kept, to go on from; `snapshot` is the run as it stands, where
    a run's own events were asked for."""

    after_seq: int
    minimum_retained_seq: int
    head_seq: int
    snapshot: NotRequired[RunSnapshot]


class TextProgress(TypedDict):
    """How the run stands. `stage` is what its handler says that it is at, `progress` how much is
    done, from 0 to 1; each is null where nothing was said."""

    status: RunStatus
    stage: str | None
    progress: float | None


class TextReset(TypedDict):
    """What was written before is void: the text of another attempt follows."""

    attempt: int


class TextError(TypedDict):
    """The text cannot be read now; the stream ends. Come again."""

    message: str


class Attempt(TypedDict):
    """`number` is the attempt's fence; `outcome` is null while it runs."""

    id: str
    run_id: str
    number: int
    outcome: AttemptOutcome | None
    error: dict[str, Any] | None
    started_at: datetime
    ended_at: datetime | None


class AttemptPage(TypedDict):
    items: list[Attempt]
    next_cursor: str | None


class Step(TypedDict):
    name: str
    kind: str
    attempt: int
    result: Any
    created_at: datetime


class StepPage(TypedDict):
    items: list[Step]
    next_cursor: str | None


class Lookup(TypedDict):
    number: int
    answer: LookupAnswer
    detail: str
    at: datetime


class Move(TypedDict):
    version: int
    move: str
    state: OperationState
    attempt: int
    by: str
    detail: dict[str, Any]
    at: datetime


class Finding(TypedDict):
    kind: str
    detail: dict[str, Any]
    at: datetime


class OperationSummary(TypedDict):
    """An operation as the desk lists it: without request and receipt."""

    id: str
    run_id: str | None
    kind: str
    name: str
    state: OperationState
    recovery: Recovery
    provider: str
    resource_key: str | None
    attempt: int
    send_count: int
    external_ref: str | None
    release_reason: ReleaseReason | None
    refusal: dict[str, Any] | None
    resolution: dict[str, Any] | None
    version: int
    created_at: datetime
    submitting_at: datetime | None
    unknown_since: datetime | None
    submitted_at: datetime | None
    released_at: datetime | None
    next_lookup_at: datetime | None


class Operation(OperationSummary):
    request: Any
    receipt: Any
    lookups: list[Lookup]


class OperationDetail(Operation):
    """With its whole history, and what does not fit into it."""

    history: list[Move]
    findings: list[Finding]


class ApprovalSummary(TypedDict):
    """What was put to somebody. `proposal` is exactly that, and `digest` the SHA-256 of its JSON
    with sorted keys and without blanks, in hexadecimal digits; `operation_id` and `effect` are
    there where it is an operation's request. `role` says who may decide, `expires_at` until when
    (null: as long as the run lives), `excludes_proposer` whether who asked for the run may not."""

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


class Approval(ApprovalSummary):
    """With the run that asks, as lists show it."""

    run: RunSummary


class ApprovalPage(TypedDict):
    items: list[Approval]
    next_cursor: str | None


class OperationPage(TypedDict):
    items: list[Operation]
    next_cursor: str | None


class OperationSummaryPage(TypedDict):
    items: list[OperationSummary]
    next_cursor: str | None


class Alive(TypedDict):
    status: Literal["alive"]


class Ready(TypedDict):
    """`warnings` are about what works and is dangerous."""

    status: Literal["ready"]
    warnings: list[str]
