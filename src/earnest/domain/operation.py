"""An operation: the intent of one side effect, its states, moves and recoveries.

The window of trust: before `begin` commits, nothing was sent; after it, the operation is in doubt
until a receipt, a definite refusal or a proof of absence is stored. `MOVES` is the contract.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from msgspec import Struct

from earnest.domain.moves import Move, table


class OperationState(StrEnum):
    RESERVED = "reserved"
    SUBMITTING = "submitting"
    SUBMITTED = "submitted"
    UNKNOWN = "unknown"
    RELEASED = "released"


IN_DOUBT = frozenset({OperationState.SUBMITTING, OperationState.UNKNOWN})


class Recovery(StrEnum):
    """What may be done when an outcome is in doubt; see `docs/states.md`."""

    RESEND = "resend"
    LOOKUP = "lookup"
    HOLD = "hold"


class ReleaseReason(StrEnum):
    NOT_SENT = "not_sent"
    ABSENT = "absent"
    REFUSED = "refused"
    GIVEN_UP = "given_up"


SENDABLE_AGAIN = frozenset({ReleaseReason.NOT_SENT, ReleaseReason.ABSENT})


class LookupAnswer(StrEnum):
    FOUND = "found"
    ABSENT = "absent"
    INCONCLUSIVE = "inconclusive"
    MISMATCHED = "mismatched"


MOVES: dict[str, Move[OperationState]] = table(
    OperationState,
    (
        ("reserve", "", "reserved"),
        ("prepare", "reserved", "reserved"),
        ("begin", "reserved", "submitting"),
        ("confirm", "submitting", "submitted"),
        ("release", "reserved submitting", "released"),
        ("reserve again", "released", "reserved"),
        ("send again", "submitting unknown", "submitting"),
        ("doubt", "submitting", "unknown"),
        ("resolve", "unknown", "submitted released"),
    ),
)


@dataclass(frozen=True, slots=True)
class EffectTerms:
    """What an effect declares and what is stored with each of its operations, so that a process
    that never saw the effect still knows what may be done.

    `window` is how long the provider honours a repeated id (`resend`), `absent_after` how long an
    absence may still turn into a presence (`lookup`), `timeout` bounds the one call;
    `has_released_hook`: the app has code of its own to run when it did not happen.
    """

    kind: str
    recovery: Recovery
    provider: str = ""
    window: timedelta | None = None
    dedupes: bool = False
    absent_after: timedelta | None = None
    timeout: timedelta = timedelta(seconds=30)
    keeps_resource: bool = True
    has_released_hook: bool = False


class Operation(Struct, frozen=True):
    """An operation as it stands. `run_id` is `None` when it stands alone, `approval_id` when nobody
    has to approve it."""

    scope_id: str
    operation_id: uuid.UUID
    run_id: uuid.UUID | None
    principal_id: str
    name: str
    kind: str
    state: OperationState
    recovery: Recovery
    provider: str
    resource_key: str | None
    live: bool
    has_released_hook: bool
    approval_id: uuid.UUID | None
    request: Any
    digest: bytes
    attempt: int
    send_count: int
    send_token: uuid.UUID | None
    instance_id: uuid.UUID | None
    window: timedelta | None
    dedupes: bool
    absent_after: timedelta | None
    timeout: timedelta
    first_begun_at: datetime | None
    submitting_at: datetime | None
    call_until: datetime | None
    unknown_since: datetime | None
    submitted_at: datetime | None
    released_at: datetime | None
    release_reason: ReleaseReason | None
    refusal: dict[str, Any] | None
    receipt: Any
    external_ref: str | None
    lookup_count: int
    lookup_due_at: datetime | None
    resolution: dict[str, Any] | None
    version: int
    created_at: datetime

    @property
    def in_doubt(self) -> bool:
        return self.state in IN_DOUBT


class OperationMove(Struct, frozen=True):
    """One entry of an operation's history."""

    version: int
    move: str
    state: OperationState
    attempt: int
    by: str
    detail: dict[str, Any]
    at: datetime


class Lookup(Struct, frozen=True):
    """One question to a provider and what it answered."""

    number: int
    answer: LookupAnswer
    detail: str
    at: datetime


def may_send_again(
    first_begun_at: datetime, now: datetime, window: timedelta, timeout: timedelta
) -> bool:
    """Whether a repeated id is still honoured for the whole length of one more call.

    The window counts from the first begin; the call's own time-out and a margin (a hundredth of
    the window, at least a second) are taken off, since the provider's clock is not ours.
    """
    margin = max(window / 100, timedelta(seconds=1))
    return now < first_begun_at + window - timeout - margin
