"""Asking: what a handler wants decided, as one exact proposal, and what an answer means to it.

A proposal is found by its name in its run, so every attempt finds the same one. Its digest is
compared each time: code that asks about something else is told so, and nothing is sent.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from pydantic_core import to_jsonable_python

from earnest.domain import canonical, ids
from earnest.domain.approval import Approval, ApprovalStatus, Proposal
from earnest.domain.duration import Duration, duration
from earnest.domain.errors import (
    ApprovalExpired,
    ApprovalRejected,
    CodeChanged,
    InvalidRequest,
    PayloadTooLarge,
)
from earnest.engine.process.actors import Role
from earnest.engine.process.foreign_code import foreign_code
from earnest.engine.process.typed_json import misfit

MAX_PROPOSAL_BYTES = 64 * 1024
DECIDERS = (Role.APPROVER, Role.OPERATOR, Role.ADMIN)


@dataclass(frozen=True, slots=True)
class Terms:
    """Who decides, and how long that may be done; `ctx.approve(role=..., expires_in=...)`."""

    role: str
    expires_in: timedelta | None


@dataclass(frozen=True, slots=True)
class Approved:
    """What was decided, by whom and when; `approval_id` is the TypeID that people see."""

    approval_id: str
    decided_by: str
    decided_at: datetime
    note: str


@dataclass(frozen=True, slots=True)
class Asker:
    """The run that asks: who asked for it is the proposer, and may be kept from deciding."""

    run_id: uuid.UUID
    proposer: str
    excludes_proposer: bool


def make_terms(role: str, expires_in: Duration | None) -> Terms:
    """Raises `InvalidRequest` for a role that there is not, and for a span that is none."""
    if role not in DECIDERS:
        raise InvalidRequest(
            f"{str(role)[:80]!r} is no role that decides; these are: {', '.join(DECIDERS)}"
        )
    span = None if expires_in is None else duration(expires_in)
    if span is not None and span <= timedelta(0):
        raise InvalidRequest("expires_in must be longer than nothing")
    return Terms(role, span)


def require_terms(given: object) -> None:
    """Raises `InvalidRequest` for what is no terms, such as a decision of its own."""
    if not isinstance(given, Terms):
        raise InvalidRequest(
            "`approval` takes the terms on which it is approved: "
            'approval=ctx.approve(role="approver", expires_in="24h"), without a name'
        )


def own_proposal(asker: Asker, name: str, proposal: Any, terms: Terms) -> Proposal:
    """A decision for its own sake. Raises `InvalidRequest` for what is not JSON, and
    `PayloadTooLarge`."""
    try:
        with foreign_code:
            data = canonical.encode(to_jsonable_python(proposal))
    except (canonical.NotJson, ValueError) as error:
        raise InvalidRequest(f"the proposal {name!r} is not JSON: {misfit(error)}") from error
    approval_id = ids.approval_id(asker.run_id, name)
    return _proposal(asker, approval_id, name, data, terms)


def request_proposal(
    asker: Asker,
    name: str,
    terms: Terms,
    *,
    operation_id: uuid.UUID,
    effect: str,
    data: bytes,
) -> Proposal:
    """The decision without which that operation is not begun. Raises `PayloadTooLarge`."""
    return _proposal(
        asker, ids.operation_approval_id(operation_id), name, data, terms,
        operation_id=operation_id, effect=effect,
    )  # fmt: skip


def _proposal(
    asker: Asker, approval_id: uuid.UUID, name: str, data: bytes, terms: Terms, **about: Any
) -> Proposal:
    if len(data) > MAX_PROPOSAL_BYTES:
        raise PayloadTooLarge(
            f"the proposal {name!r} has {len(data)} bytes; at most {MAX_PROPOSAL_BYTES} are put to "
            "a person: store larger things as artifacts and name them"
        )
    return Proposal(
        approval_id, name, data, canonical.digest(data), terms.role, asker.proposer,
        expires_in=terms.expires_in, excludes_proposer=asker.excludes_proposer, **about,
    )  # fmt: skip


def check_same(asked: Proposal, known: Approval) -> None:
    """Raises `CodeChanged` unless that is what was asked before under this name."""
    if not known.is_of(asked):
        raise CodeChanged(
            f"the approval {asked.name!r} was asked for with another request before, or for "
            "another effect; nothing was sent: bring the old code back, ask under another name, or "
            "submit a new run",
            fields={"approval_id": ids.show("apr", known.approval_id)},
        )


def is_pending(asked: Proposal, known: Approval | None) -> bool:
    """Whether there is still something to wait for. Raises `CodeChanged`."""
    if known is None:
        return True
    check_same(asked, known)
    return known.status is ApprovalStatus.PENDING


def answer(known: Approval) -> Approved:
    """What a handler gets of a decision. Raises `ApprovalRejected` and `ApprovalExpired`."""
    shown = ids.show("apr", known.approval_id)
    if known.status is ApprovalStatus.REJECTED:
        why = f": {known.note}" if known.note else ""
        raise ApprovalRejected(
            f"{known.name!r} ({shown}) was rejected by {known.decided_by}{why}",
            fields={"approval_id": shown, "decided_by": known.decided_by, "note": known.note},
        )
    if known.status is not ApprovalStatus.APPROVED:
        raise ApprovalExpired(
            f"nobody decided about {known.name!r} ({shown}) in time",
            fields={"approval_id": shown},
        )
    assert known.decided_by is not None, "it is approved"
    assert known.decided_at is not None, "it is approved"
    return Approved(shown, known.decided_by, known.decided_at, known.note)
