"""An approval: a person's decision about one exact request, its statuses and its moves.

What is approved is found by its digest; a request that differs in one letter is another one.
"""

from __future__ import annotations

import uuid
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from msgspec import Struct

from earnest.domain.moves import Move, table


class ApprovalStatus(StrEnum):
    PENDING = "pending"
    APPROVED = "approved"
    REJECTED = "rejected"
    EXPIRED = "expired"
    CANCELLED = "cancelled"


class Decision(StrEnum):
    APPROVE = "approve"
    REJECT = "reject"


DECIDED_AS = {
    Decision.APPROVE: ApprovalStatus.APPROVED,
    Decision.REJECT: ApprovalStatus.REJECTED,
}


MOVES: dict[str, Move[ApprovalStatus]] = table(
    ApprovalStatus,
    (
        ("request", "", "pending", "owner"),
        ("decide", "pending", "approved rejected", "who has its role"),
        ("expire", "pending", "expired", "engine"),
        ("cancel", "pending", "cancelled", "engine, when the run ends"),
    ),
)


class Proposal(Struct, frozen=True):
    """What is about to be put to somebody. `data` is canonical JSON and `digest` its SHA-256;
    `operation_id` and `effect` are there where it is an operation's request. `expires_in`: how long
    it may be decided, `None` as long as the run lives."""

    approval_id: uuid.UUID
    name: str
    data: bytes
    digest: bytes
    role: str
    proposer: str
    operation_id: uuid.UUID | None = None
    effect: str | None = None
    expires_in: timedelta | None = None
    excludes_proposer: bool = False


class Approval(Struct, frozen=True):
    """An approval as it stands. `proposer` is who asked for the run, `excluded` who may not
    decide: also who retried it, and who asked for what it came from."""

    scope_id: str
    approval_id: uuid.UUID
    run_id: uuid.UUID
    name: str
    operation_id: uuid.UUID | None
    effect: str | None
    proposal: Any
    digest: bytes
    role: str
    status: ApprovalStatus
    version: int
    requested_at: datetime
    expires_at: datetime | None
    decided_by: str | None
    decided_at: datetime | None
    note: str
    decision_key: str | None
    proposer: str
    excludes_proposer: bool
    excluded: list[str] = []

    def is_of(self, proposal: Proposal) -> bool:
        """Whether it is about exactly that: the same operation, effect and request."""
        return (self.operation_id, self.effect, self.digest) == (
            proposal.operation_id,
            proposal.effect,
            proposal.digest,
        )
