"""The small model of approvals: what a run has put to people, and what they may say when.

Written from `docs/states.md`, as the rest of the model. Whose role it is and who the proposer was
is judged elsewhere; here somebody with the role decides about the request as it stands, or about
another one.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

DECIDED_AS = {"approve": "approved", "reject": "rejected"}


@dataclass(eq=False)
class Approval:
    name: str
    expires_at: datetime | None
    status: str = "pending"
    version: int = 1

    @property
    def pending(self) -> bool:
        return self.status == "pending"

    def is_over(self, now: datetime) -> bool:
        return self.expires_at is not None and self.expires_at <= now

    def becomes(self, status: str) -> None:
        self.status, self.version = status, self.version + 1

    def refusal(self, decision: str, same: bool, version: int | None, now: datetime) -> str | None:
        """By which name a decision is refused; `None` when it counts, or is the same again."""
        if not same:
            return "ProposalChanged"
        if self.status == "expired" or (self.pending and self.is_over(now)):
            return "ApprovalExpired"
        if self.status == "cancelled":
            return "Conflict"
        if not self.pending:
            return None if self.status == DECIDED_AS[decision] else "Conflict"
        if version is None:
            return "PreconditionRequired"
        return None if version == self.version else "StaleVersion"
