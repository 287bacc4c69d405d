"""A sweep: what a provider says it did, compared with what is recorded, and what differs.

A *difference* is about one thing: one effect of the provider that no operation tells of, or one
operation that the provider does not list. It is the same difference however often it is found.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum


class SweepState(StrEnum):
    """`incomplete`: the provider did not list to the end, so nobody is said to be missing in it."""

    QUEUED = "queued"
    RUNNING = "running"
    COMPLETE = "complete"
    INCOMPLETE = "incomplete"


class Stage(StrEnum):
    """What a running sweep does: it lists; lists a second time where something seemed to be
    missing; asks the provider about what was missing both times."""

    LISTING = "listing"
    LISTING_AGAIN = "listing_again"
    ASKING = "asking"


class DifferenceKind(StrEnum):
    EFFECT_WITHOUT_RECORD = "effect_without_record"
    RECORD_WITHOUT_EFFECT = "record_without_effect"


class Why(StrEnum):
    """`no_operation`: nobody knows of it. `released`: it is recorded as not done. `another_effect`:
    its operation is recorded as something else there. `another_request`: its operation asked for
    something else. `not_listed`: it is recorded as done and is not in the list."""

    NO_OPERATION = "no_operation"
    RELEASED = "released"
    ANOTHER_EFFECT = "another_effect"
    ANOTHER_REQUEST = "another_request"
    NOT_LISTED = "not_listed"


class DifferenceState(StrEnum):
    """`closed` by a person; `vanished`: a later sweep did not find it any more."""

    OPEN = "open"
    CLOSED = "closed"
    VANISHED = "vanished"


@dataclass(frozen=True, slots=True)
class SweepCounts:
    """Of the present listing: what was listed, matched with a record here, belongs to another
    scope or effect, settled a doubt, or could not be judged yet. `asked`: about how many missing
    ones the provider was asked."""

    listed: int = 0
    matched: int = 0
    elsewhere: int = 0
    settled: int = 0
    unjudged: int = 0
    asked: int = 0


@dataclass(frozen=True, slots=True)
class Sweep:
    """`takes` counts how often it was begun: more than once where a sweeper died. `asked_at` is
    when the list was asked for, `listed_to` the latest time that the provider named so far."""

    scope_id: str
    sweep_id: uuid.UUID
    effect: str
    since: datetime
    state: SweepState
    why: str | None
    stage: Stage | None
    takes: int
    asked_at: datetime | None
    listed_to: datetime | None
    counts: SweepCounts
    created_by: str
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    fingerprint: bytes | None = None

    @property
    def final(self) -> bool:
        return self.state in (SweepState.COMPLETE, SweepState.INCOMPLETE)


@dataclass(frozen=True, slots=True)
class NewDifference:
    """What a sweep found. `subject` is the provider's name for the effect, or the operation: with
    kind and effect it makes the difference one. `listed_id`: the operation's id as the provider
    told it; `happened_at`: by the provider's clock, or when the operation was begun."""

    kind: DifferenceKind
    why: Why
    subject: str
    happened_at: datetime
    operation_id: uuid.UUID | None = None
    listed_id: str | None = None
    external_ref: str | None = None


@dataclass(frozen=True, slots=True)
class Difference:
    """A difference as it stands."""

    scope_id: str
    difference_id: uuid.UUID
    effect: str
    found: NewDifference
    state: DifferenceState
    found_at: datetime
    seen_at: datetime
    ended_at: datetime | None
    closed_by: str | None
    note: str | None
    version: int
