"""The bodies of answers about sweeps. None holds what was asked of a provider, nor a receipt."""

from __future__ import annotations

from datetime import datetime

from typing_extensions import TypedDict

from earnest.domain.sweep import DifferenceKind, DifferenceState, Stage, SweepState, Why


class SweepCounts(TypedDict):
    """Of the present listing: what the provider listed; of it, what has its record here, what is
    another scope's or effect's, which doubts it settled, and what could not be judged yet. `asked`:
    about how many missing ones the provider was asked."""

    listed: int
    matched: int
    elsewhere: int
    settled: int
    unjudged: int
    asked: int


class SweepLinks(TypedDict):
    self: str
    differences: str


class Sweep(TypedDict):
    """A look at what a provider did since `since`. `why` says why it is `incomplete`: then nobody
    is said to be missing in the list. While it runs, `stage` and `counts` say how far it is, and
    `listed_to` up to which time; `takes` is how often it was begun."""

    id: str
    effect: str
    since: datetime
    state: SweepState
    why: str | None
    stage: Stage | None
    counts: SweepCounts
    listed_to: datetime | None
    takes: int
    created_by: str
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    links: SweepLinks


class OpenDifferences(TypedDict):
    effect_without_record: int
    record_without_effect: int


class SweepDetail(Sweep):
    """`open_differences`: of what it found, how many are open by now."""

    open_differences: OpenDifferences


class SweepPage(TypedDict):
    items: list[Sweep]
    next_cursor: str | None


class Difference(TypedDict):
    """What one side has and the other has not. `external_ref` is the provider's name for the
    effect, `listed_id` the operation's id as the provider told it; `operation_id` is the scope's
    operation, if there is one. `happened_at` is by the provider's clock, or, for a record, when it
    was begun. `ended_at`: when it was closed or had vanished."""

    id: str
    effect: str
    kind: DifferenceKind
    why: Why
    operation_id: str | None
    listed_id: str | None
    external_ref: str | None
    happened_at: datetime
    state: DifferenceState
    found_at: datetime
    seen_at: datetime
    ended_at: datetime | None
    closed_by: str | None
    note: str | None
    version: int


class DifferencePage(TypedDict):
    items: list[Difference]
    next_cursor: str | None
