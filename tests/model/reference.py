"""The small model: runs as `docs/states.md` tells them, in memory, one move at a time.

It is written from the tables of moves, not from the code: no SQL, no locks, no transactions. A verb
changes the model and returns what the engine must answer, or raises `Said` with the name of the
error that the engine must raise. What is left to chance (the spread of a delay) is a `Between`.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from tests.model.reference_approvals import DECIDED_AS, Approval

if TYPE_CHECKING:
    from tests.model.reference_operations import Operation

LEASE = timedelta(seconds=45)
GRACE = timedelta(seconds=45)
FIRST_RETRY = timedelta(seconds=2)
FINAL = frozenset({"succeeded", "failed", "cancelled", "blocked"})


class Said(Exception):
    """The engine must raise the error of this name, and nothing has changed."""


def said(verb: Callable[[], object]) -> str | None:
    """By which name the model refuses; `None` when it does not."""
    try:
        verb()
    except Said as refusal:
        return str(refusal)
    return None


@dataclass(frozen=True)
class Between:
    """An instant that the engine may choose; what it chose is read back and kept."""

    low: datetime
    high: datetime


Instant = datetime | Between


@dataclass(frozen=True)
class KindTerms:
    name: str
    max_attempts: int = 3
    fails_on_doubt: bool = False
    deadline: timedelta | None = None


@dataclass(frozen=True)
class Waiting:
    """What a parked run waits for. A decision is asked for by `name`; `until` is when the time for
    it is over, if it is asked for the first time."""

    kind: str
    until: datetime | None = None
    name: str = ""
    number: int = 0
    run_ids: tuple[uuid.UUID, ...] = ()


@dataclass(eq=False)
class Run:
    run_id: uuid.UUID
    terms: KindTerms
    principal: str
    input: str
    priority: int
    due_at: Instant
    ready: bool
    deadline_at: datetime | None
    turn_at: datetime | None
    parent: Run | None = None
    detached: bool = False
    lineage: uuid.UUID | None = None
    revision: int = 1
    status: str = "queued"
    fence: int = 0
    instance: uuid.UUID | None = None
    lease_until: datetime | None = None
    failures: int = 0
    cancel_requested: bool = False
    waits: tuple[Waiting, ...] = ()
    wake_at: datetime | None = None
    events: list[str] = field(default_factory=lambda: ["run.submitted"])
    attempts: list[str] = field(default_factory=list)
    signals: list[tuple[str, int]] = field(default_factory=list)
    operations: list[Operation] = field(default_factory=list)
    children: list[Run] = field(default_factory=list)
    approvals: dict[str, Approval] = field(default_factory=dict)

    @property
    def final(self) -> bool:
        return self.status in FINAL

    @property
    def doubts(self) -> int:
        return sum(operation.in_doubt for operation in self.operations)

    @property
    def reserved(self) -> int:
        return sum(operation.state == "reserved" for operation in self.operations)

    @property
    def undecided(self) -> int:
        return sum(approval.pending for approval in self.approvals.values())

    def tell(self, *events: str) -> None:
        self.events.extend(events)


@dataclass(frozen=True)
class Owner:
    """Who claims to own a run: the attempt that was started with this fence."""

    run: Run
    fence: int
    instance: uuid.UUID


@dataclass
class Runs:
    """All runs of a scope and their moves. The operations' moves are in `reference_operations`."""

    now: datetime
    runs: dict[uuid.UUID, Run] = field(default_factory=dict)
    keys: dict[tuple[str, str], tuple[uuid.UUID, str]] = field(default_factory=dict)
    signal_keys: dict[tuple[uuid.UUID, str], tuple[str, int, int]] = field(default_factory=dict)
    dead: set[uuid.UUID] = field(default_factory=set)
    buried: set[uuid.UUID] = field(default_factory=set)

    # ---- what operations bring; see the subclass -------------------------------------------

    def doubt_submitting(self, run: Run, keep: Iterable[Operation] = ()) -> int:
        raise NotImplementedError

    def release_reserved(self, run: Run) -> None:
        raise NotImplementedError

    # ---- submit ----------------------------------------------------------------------------

    def submit(
        self,
        run_id: uuid.UUID,
        terms: KindTerms,
        principal: str,
        input: str,
        key: str | None = None,
        priority: int = 0,
        not_before: datetime | None = None,
    ) -> tuple[uuid.UUID, bool]:
        """The run that stands for the request, and whether it was there before."""
        asked = f"{terms.name} {input}"
        known = None if key is None else self.keys.get((principal, key))
        if known is not None:
            if known[1] != asked:
                raise Said("IdempotencyConflict")
            return known[0], True
        if key is not None:
            self.keys[principal, key] = (run_id, asked)
        due = max(self.now, not_before or self.now)
        self._put(run_id, terms, principal, input, priority, due)
        return run_id, False

    def _put(
        self,
        run_id: uuid.UUID,
        terms: KindTerms,
        principal: str,
        input: str,
        priority: int,
        due: datetime,
    ) -> Run:
        deadline = None if terms.deadline is None else self.now + terms.deadline
        run = Run(run_id, terms, principal, input, priority, due, due == self.now, deadline, None)
        run.turn_at, run.lineage = _turn(run), run_id
        self.runs[run_id] = run
        return run

    def submit_child(
        self,
        owner: Owner,
        run_id: uuid.UUID,
        terms: KindTerms,
        input: str,
        detached: bool,
    ) -> uuid.UUID:
        run = self.owned(owner)
        known = self.runs.get(run_id)
        if known is not None:
            if (known.terms.name, known.input) != (terms.name, input):
                raise Said("CodeChanged")
            return run_id
        if run.cancel_requested:
            raise Said("StopAsked")
        child = self._put(run_id, terms, run.principal, input, 0, self.now)
        child.parent, child.detached = run, detached
        run.children.append(child)
        run.lease_until = self.now + LEASE
        return run_id

    def retry(
        self, run_id: uuid.UUID, old: Run, by: str, key: str | None
    ) -> tuple[uuid.UUID, bool]:
        """A person's retry: a new revision of a lineage that ended badly and is not in doubt. It
        belongs to whom the old one belongs; who retries for another has keys apart."""
        asked = f"retry {old.run_id}"
        owner = by if by == old.principal else f"{by} for {old.principal}"
        known = None if key is None else self.keys.get((owner, key))
        if known is not None:
            if known[1] != asked:
                raise Said("IdempotencyConflict")
            return known[0], True
        newest = max(
            (run for run in self.runs.values() if run.lineage == old.lineage),
            key=lambda run: run.revision,
        )
        if not newest.final or newest.status == "succeeded":
            raise Said("Conflict")
        if newest.doubts and not newest.terms.fails_on_doubt:
            raise Said("UnderReview")
        if key is not None:
            self.keys[owner, key] = (run_id, asked)
        run = self._put(run_id, old.terms, old.principal, old.input, old.priority, self.now)
        run.lineage, run.revision = old.lineage, newest.revision + 1
        return run_id, False

    # ---- claim, renew, lose ----------------------------------------------------------------

    def ripen(self) -> int:
        ripe = [
            run
            for run in self.runs.values()
            if run.status == "queued" and not run.ready and _instant(run.due_at) <= self.now
        ]
        for run in ripe:
            run.ready, run.turn_at = True, _turn(run)
        return len(ripe)

    def claim(self, instance: uuid.UUID, limit: int) -> dict[uuid.UUID, Owner]:
        due = [
            run
            for run in self.runs.values()
            if run.status == "queued" and run.ready and not self._expired(run)
        ]
        due.sort(key=lambda run: (run.turn_at or self.now, run.run_id.bytes))
        return {run.run_id: self._claim(run, instance) for run in due[:limit]}

    def _claim(self, run: Run, instance: uuid.UUID) -> Owner:
        run.status, run.fence, run.instance = "running", run.fence + 1, instance
        run.lease_until = self.now + LEASE
        run.attempts.append("open")
        run.tell("attempt.started")
        return Owner(run, run.fence, instance)

    def renew(self, owner: Owner) -> str:
        """`renewed`; `settled`: this attempt ended by its own word; else `refused`."""
        run = owner.run
        if self._owns(owner):
            run.lease_until = self.now + LEASE
            return "renewed"
        if run.status != "running" and run.fence == owner.fence and run.attempts[-1] != "lost":
            return "settled"
        return "refused"

    def owned(self, owner: Owner) -> Run:
        """The run, if this owner still owns it. Raises `Said("FencedOut")`."""
        if not self._owns(owner):
            raise Said("FencedOut")
        return owner.run

    def _owns(self, owner: Owner) -> bool:
        run = owner.run
        return (
            run.status == "running"
            and run.fence == owner.fence
            and run.lease_until is not None
            and run.lease_until > self.now
        )

    def lapsed(self) -> list[Run]:
        return [
            run
            for run in self.runs.values()
            if run.status == "running"
            and ((run.lease_until or self.now) <= self.now or run.instance in self.dead)
        ]

    def lose(self, run: Run) -> None:
        """The order of the table: a call on its way, then a requested cancel, then attempts."""
        goes_on = run.failures + 1 < run.terms.max_attempts and not run.cancel_requested
        doubtful = [operation for operation in run.operations if operation.in_doubt]
        all_resendable = all(operation.resendable(self.now) for operation in doubtful)
        if doubtful and not (goes_on and all_resendable):
            self.doubt_submitting(run)
            run.failures += 1
            self._doubt(run, "lost", "attempt.lost")
            return
        run.failures += 1
        if run.cancel_requested:
            self.finish(run, "cancelled", "lost", "attempt.lost")
        elif not goes_on:
            self.finish(run, "failed", "lost", "attempt.lost")
        else:
            self._requeue(run, "lost", "attempt.lost", "run.retry_scheduled")

    # ---- the owner's endings ---------------------------------------------------------------

    def settle(
        self,
        owner: Owner,
        wish: str,
        waits: tuple[Waiting, ...] = (),
        first: timedelta = FIRST_RETRY,
    ) -> str:
        """What became of an ending: the run's status, `before` or `fenced`."""
        run = owner.run
        if not self._owns(owner):
            return _told_before(run, owner)
        if run.doubts:
            self.doubt_submitting(run)
            return self._doubt(run, "doubted")
        if run.cancel_requested and wish != "succeed":
            return self.finish(run, "cancelled", "cancelled")
        match wish:
            case "retry" | "time out" | "fail":
                return self._fail(run, wish, first)
            case "park":
                return self._park(run, waits)
            case "hand_back":
                return self._requeue(run, "handed_back", "run.resumed")
        status = {"succeed": "succeeded", "block": "blocked", "stop": "cancelled"}[wish]
        return self.finish(run, status, status)

    def _fail(self, run: Run, wish: str, first: timedelta) -> str:
        run.failures += 1
        outcome = "timeout" if wish == "time out" else "failed"
        if wish == "fail" or run.failures >= run.terms.max_attempts:
            return self.finish(run, "failed", outcome, "attempt.failed")
        self._requeue(run, outcome, "attempt.failed", "run.retry_scheduled")
        window = min(first * 2.0 ** (run.failures - 1), timedelta(minutes=10))
        run.ready, run.turn_at = False, None
        run.due_at = Between(self.now + window / 2, self.now + window)
        return run.status

    def _park(self, run: Run, waits: tuple[Waiting, ...]) -> str:
        for wait in waits:
            if wait.kind == "approval" and wait.name not in run.approvals:
                run.approvals[wait.name] = Approval(wait.name, wait.until)
                run.tell("approval.requested")
        run.tell("run.waiting")
        if any(self._is_there(run, wait) for wait in waits):
            return self._requeue(run, "parked", "run.woken")
        run.status, run.lease_until, run.attempts[-1] = "waiting", None, "parked"
        run.waits = waits
        timed = [wait.until for wait in waits if wait.until and wait.kind != "approval"]
        run.wake_at = min(timed, default=None)
        return run.status

    def _is_there(self, run: Run, wait: Waiting) -> bool:
        if wait.kind == "approval":
            return not run.approvals[wait.name].pending
        if wait.until is not None and wait.until <= self.now:
            return True
        if wait.kind == "signal":
            return (wait.name, wait.number) in run.signals
        return wait.kind == "children" and all(self.runs[child].final for child in wait.run_ids)

    def _doubt(self, run: Run, outcome: str | None, *before: str) -> str:
        if run.terms.fails_on_doubt:
            return self.finish(run, "failed", outcome, *before)
        run.tell(*before, "run.unknown")
        run.status, run.lease_until, run.waits, run.wake_at = "unknown", None, (), None
        _close(run, outcome)
        return run.status

    def finish(self, run: Run, status: str, outcome: str | None = None, *before: str) -> str:
        self.release_reserved(run)
        for approval in run.approvals.values():
            if approval.pending:
                approval.becomes("cancelled")
        run.tell(*before, f"run.{status}")
        run.status, run.lease_until, run.waits, run.wake_at = status, None, (), None
        _close(run, outcome)
        parent = run.parent
        if parent is not None and parent.status == "waiting":
            waited = [wait.run_ids for wait in parent.waits if run.run_id in wait.run_ids]
            if any(all(self.runs[child].final for child in some) for some in waited):
                self._requeue(parent, None, "run.woken")
        return status

    def _requeue(self, run: Run, outcome: str | None, *events: str) -> str:
        run.tell(*events)
        run.status, run.lease_until, run.waits, run.wake_at = "queued", None, (), None
        run.due_at, run.ready = self.now, True
        run.turn_at = _turn(run)
        _close(run, outcome)
        return run.status

    # ---- from outside ----------------------------------------------------------------------

    def resume(self, run: Run) -> None:
        """After a doubt was settled."""
        if run.status != "unknown" or run.doubts:
            return
        if run.cancel_requested:
            self.finish(run, "cancelled")
        else:
            self._requeue(run, None, "run.resumed")

    def cancel(self, run: Run) -> str:
        """Parents before their children, so that nobody is woken only to be cancelled."""
        outcome = self._cancel(run)
        family = [run]
        for member in family:
            followers = [child for child in member.children if not child.detached]
            for child in followers:
                self._cancel(child)
            family.extend(followers)
        return outcome

    def _cancel(self, run: Run) -> str:
        if run.final:
            return "cancelled" if run.status == "cancelled" else "too_late"
        if run.status == "running":
            if not run.cancel_requested:
                run.cancel_requested = True
                run.tell("run.cancel_requested")
            return "requested"
        self.doubt_submitting(run)
        self.finish(run, "cancelled", None, "run.cancel_requested")
        return "cancelled"

    def signal(self, run: Run, name: str, payload: int, key: str | None) -> int:
        """The n-th signal of its name; a waiting run that waits for it goes on."""
        known = None if key is None else self.signal_keys.get((run.run_id, key))
        if known is not None:
            if (known[0], known[2]) != (name, payload):
                raise Said("IdempotencyConflict")
            return known[1]
        if run.final:
            raise Said("Conflict")
        number = 1 + sum(sent == name for sent, _ in run.signals)
        run.signals.append((name, number))
        if key is not None:
            self.signal_keys[run.run_id, key] = (name, number, payload)
        run.tell("signal.received")
        if run.status == "waiting" and any(
            (one.name, one.number) in run.signals for one in run.waits
        ):
            self._requeue(run, None, "run.woken")
        return number

    def decide(self, run: Run, name: str, decision: str, same: bool, version: int | None) -> str:
        """The approval's status after it; a run that waits for it goes on."""
        approval = run.approvals[name]
        refusal = approval.refusal(decision, same, version, self.now)
        if refusal is not None:
            raise Said(refusal)
        if approval.pending:
            approval.becomes(DECIDED_AS[decision])
            run.tell("approval.decided")
            self._hear(run, name)
        return approval.status

    def expire_approvals(self) -> None:
        for run in list(self.runs.values()):
            over = [one for one in run.approvals.values() if one.pending and one.is_over(self.now)]
            for approval in over:
                approval.becomes("expired")
            run.tell(*["approval.expired"] * len(over))
            for approval in over:
                self._hear(run, approval.name)

    def _hear(self, run: Run, name: str) -> None:
        waited = [wait for wait in run.waits if (wait.kind, wait.name) == ("approval", name)]
        if run.status == "waiting" and waited:
            self._requeue(run, None, "run.woken")

    def write_step(self, owner: Owner) -> None:
        run = self.owned(owner)
        run.tell("step.completed")
        run.lease_until = self.now + LEASE

    # ---- time ------------------------------------------------------------------------------

    def wake_timed(self) -> None:
        for run in list(self.runs.values()):
            if run.status == "waiting" and run.wake_at is not None and run.wake_at <= self.now:
                self._requeue(run, None, "run.woken")

    def expire(self) -> None:
        due = [run for run in self.runs.values() if self._expired(run)]
        for run in sorted(due, key=lambda run: run.deadline_at or self.now):
            if run.status not in ("queued", "waiting"):
                continue
            if run.doubts:
                self.doubt_submitting(run)
                self._doubt(run, None)
            else:
                self.finish(run, "failed")

    def _expired(self, run: Run) -> bool:
        return run.deadline_at is not None and run.deadline_at <= self.now


def _told_before(run: Run, owner: Owner) -> str:
    """What an attempt hears that settles again: that it has ended (`before`), or that it was fenced
    out; never a second ending."""
    return "fenced" if run.attempts[owner.fence - 1] in ("open", "lost") else "before"


def _close(run: Run, outcome: str | None) -> None:
    if outcome is not None:
        run.attempts[-1] = outcome


def _turn(run: Run) -> datetime:
    return _instant(run.due_at) - timedelta(minutes=run.priority)


def _instant(value: Instant) -> datetime:
    assert isinstance(value, datetime), "read back before it is looked at"
    return value
