"""The small model's operations: reserve, begin, the call, and every way to an outcome.

As in `reference.py`, written from the tables of moves. A `Caller` is whoever performs an operation:
an attempt, a program without a run, or the reconciler that sends again. It stops where the real one
does, with its one call on the wire.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from tests.model.reference import GRACE, LEASE, Between, Instant, Owner, Run, Runs, Said

SENDS_WITHIN_AN_ATTEMPT = 2
QUESTION_CLAIM = timedelta(seconds=30)
FIRST_QUESTION = timedelta(milliseconds=500)
LONGEST_QUESTION = timedelta(minutes=5)


@dataclass(frozen=True)
class Terms:
    """What an effect declares."""

    kind: str
    recovery: str
    window: timedelta | None = None
    dedupes: bool = False
    absent_after: timedelta | None = None
    keeps_resource: bool = True
    timeout: timedelta = timedelta(seconds=30)


@dataclass(eq=False)
class Operation:
    operation_id: uuid.UUID
    terms: Terms
    request: int
    run: Run | None
    resource: str | None
    created: datetime
    state: str = "reserved"
    reason: str | None = None
    token: object = None
    sends: int = 0
    first_begun: datetime | None = None
    submitting_at: datetime | None = None
    call_until: datetime | None = None
    instance: uuid.UUID | None = None
    question: Instant | None = None
    live: bool = True
    receipt: int | None = None
    moves: list[tuple[str, str]] = field(default_factory=lambda: [("reserve", "reserved")])
    lookups: list[str] = field(default_factory=list)
    findings: int = 0
    recorded: int = 0
    unrecorded: int = 0

    @property
    def in_doubt(self) -> bool:
        return self.state in ("submitting", "unknown")

    @property
    def version(self) -> int:
        return len(self.moves)

    def window_is_open(self, now: datetime) -> bool:
        """From the first begin, minus the call's own time-out and a margin."""
        if self.terms.window is None or self.first_begun is None:
            return False
        margin = max(self.terms.window / 100, timedelta(seconds=1))
        return now < self.first_begun + self.terms.window - self.terms.timeout - margin

    def resendable(self, now: datetime) -> bool:
        return self.state == "submitting" and self.window_is_open(now)

    def move(self, name: str, state: str) -> None:
        self.state = state
        self.moves.append((name, state))
        if self.run is not None:
            self.run.tell(f"operation.{state}")


@dataclass(eq=False)
class Caller:
    """Who performs an operation. `owner` is `None` outside of a run; `reconciler` sends what is
    stored again, for whoever owns it or nobody; `pauses` stops it once at its look before the
    call."""

    operation: Operation
    owner: Owner | None
    instance: uuid.UUID
    sends: int = 0
    token: object = None
    reconciler: bool = False
    pauses: bool = False
    seen: int = 0
    repeats: bool = False


@dataclass
class Reference(Runs):
    """The whole model."""

    operations: dict[uuid.UUID, Operation] = field(default_factory=dict)
    processes_ended: set[uuid.UUID] = field(default_factory=set)

    # ---- the caller's side -----------------------------------------------------------------

    def reserve(
        self,
        owner: Owner | None,
        operation_id: uuid.UUID,
        terms: Terms,
        request: int,
        resource: str | None,
    ) -> Operation:
        run = None if owner is None else self.owned(owner)
        operation = self.operations.get(operation_id)
        if operation is not None:
            if operation.request != request:
                raise Said("CodeChanged")
        else:
            if run is not None and run.cancel_requested:
                raise Said("StopAsked")
            self._require_free(terms.kind, resource)
            operation = Operation(operation_id, terms, request, run, resource, self.now)
            self.operations[operation_id] = operation
            if run is not None:
                run.operations.append(operation)
                run.tell("operation.reserved")
        if run is not None:
            run.lease_until = self.now + LEASE
        return operation

    def _require_free(self, kind: str, resource: str | None) -> None:
        """One resource key has one live intent (P15)."""
        if resource is not None and any(
            other.live and (other.terms.kind, other.resource) == (kind, resource)
            for other in self.operations.values()
        ):
            raise Said("ResourceBusy")

    def perform(self, caller: Caller) -> str:
        """Goes on until the caller looks before its call (`look`), waits for the call of another
        (`wait`), has its own on the wire (`call`) or the receipt is there (`done`); raises what the
        caller is told otherwise."""
        operation = caller.operation
        while True:
            if operation.state == "submitted":
                return "done"
            if operation.state == "released":
                self._after_release(caller)
            elif operation.state == "reserved" and caller.pauses:
                caller.pauses, caller.seen = False, operation.version
                return "look"
            elif operation.state == "submitting" and caller.owner is None:
                return "wait"
            elif operation.state == "reserved" or self._may_try(caller):
                return self.begin(caller)
            else:
                raise Said("InDoubt")

    def looked(self, caller: Caller, answer: str) -> str:
        """After the look, which only reads: the operation may have moved on meanwhile, and the run
        may be somebody else's. Whose it is, is judged first (P5)."""
        if answer == "refused":
            self._refuse(caller)
            return self.perform(caller)
        run, operation = self._owned_to_begin(caller), caller.operation
        if operation.version == caller.seen:
            return self.begin(caller)
        if run is not None:
            run.lease_until = self.now + LEASE
        caller.sends += 1
        return self.perform(caller)

    def waited(self, caller: Caller) -> str:
        """Who waits for another's call looks how it stands. When its time is over, it is sent again
        or in doubt."""
        operation = caller.operation
        if operation.state == "submitting":
            if not self._has_had_its_time(operation):
                return "wait"
            if operation.terms.recovery == "resend":
                if self._may_try(caller):
                    return self.begin(caller)
                raise Said("InDoubt")
            self.doubt(operation)
            return "wait"
        caller.sends += 1
        return self.perform(caller)

    def _has_had_its_time(self, operation: Operation) -> bool:
        """The call's own time and a grace (none for what may be sent again), or its process's."""
        resend = operation.terms.recovery == "resend"
        grace = timedelta(0) if resend else GRACE
        return _late(operation, self.now, grace) or operation.instance in self.processes_ended

    def _refuse(self, caller: Caller) -> None:
        if caller.owner is not None:
            self.owned(caller.owner)
        if caller.operation.version == caller.seen:
            self._release(caller.operation, "refused")

    def _may_try(self, caller: Caller) -> bool:
        resend = caller.operation.terms.recovery == "resend"
        return resend and caller.sends < SENDS_WITHIN_AN_ATTEMPT

    def _after_release(self, caller: Caller) -> None:
        operation = caller.operation
        again = operation.reason in ("not_sent", "absent")
        if not again or caller.sends:
            raise Said(_TOLD[operation.reason or ""])
        run = self._owned_to_begin(caller)
        self._require_free(operation.terms.kind, operation.resource)
        operation.reason, operation.live, operation.token = None, True, None
        operation.question = None
        operation.move("reserve again", "reserved")
        if run is not None:
            run.lease_until = self.now + LEASE

    def _owned_to_begin(self, caller: Caller) -> Run | None:
        if caller.owner is None:
            return None
        run = self.owned(caller.owner)
        if run.cancel_requested:
            raise Said("StopAsked")
        return run

    def begin(self, caller: Caller) -> str:
        """The last thing before the call: first time, or again inside the window."""
        run, operation = self._owned_to_begin(caller), caller.operation
        if run is not None:
            run.lease_until = self.now + LEASE
        first = operation.state == "reserved"
        if not first and not operation.window_is_open(self.now):
            if operation.state == "submitting":
                self.doubt(operation)
            raise Said("InDoubt")
        caller.repeats = not first
        caller.token = operation.token = object()
        caller.sends += 1
        operation.sends += 1
        operation.first_begun = operation.first_begun or self.now
        operation.submitting_at = self.now
        operation.call_until = self.now + operation.terms.timeout
        operation.instance = caller.instance
        operation.move("begin" if first else "send again", "submitting")
        return "call"

    def answer(self, caller: Caller, outcome: str, receipt: int) -> None:
        """What came of the call that is on the wire, judged by the token it was sent under. That a
        repeated call was refused says nothing of the one that it repeats."""
        operation = caller.operation
        mine = operation.in_doubt and operation.token is caller.token
        match outcome:
            case "receipt":
                self.receive(operation, receipt, mine=mine, by_token=True)
            case "refused" | "not_sent" if mine and not caller.repeats:
                self._release(operation, outcome)
            case _ if mine and operation.state == "submitting":
                self.doubt(operation)
            case "record fails" if not mine and operation.receipt != receipt:
                # The receipt is for an operation that moved on; the record was not even tried.
                operation.findings += 1

    def receive(self, operation: Operation, receipt: int, *, mine: bool, by_token: bool) -> None:
        if mine:
            self._submit(operation, receipt)
        elif by_token and operation.receipt != receipt:
            operation.findings += 1

    # ---- outcomes --------------------------------------------------------------------------

    def _submit(self, operation: Operation, receipt: int) -> None:
        resolved = operation.state == "unknown"
        operation.receipt, operation.question = receipt, None
        operation.live = operation.terms.keeps_resource
        operation.recorded += 1
        operation.move("resolve" if resolved else "confirm", "submitted")
        self._resolved(operation, resolved)

    def _release(self, operation: Operation, reason: str) -> None:
        resolved = operation.state == "unknown"
        _write_release(operation, reason)
        self._resolved(operation, resolved)

    def _resolved(self, operation: Operation, resolved: bool) -> None:
        if operation.run is not None:
            if resolved:
                operation.run.tell("operation.resolved")
            self.resume(operation.run)

    def doubt(self, operation: Operation) -> None:
        """It is asked about at once, unless somebody took the question and sent it again."""
        if operation.terms.recovery != "hold":
            taken = operation.question
            operation.question = max(taken, self.now) if isinstance(taken, datetime) else self.now
        operation.move("doubt", "unknown")

    def doubt_submitting(self, run: Run, keep: Iterable[Operation] = ()) -> int:
        for operation in run.operations:
            if operation.state == "submitting" and operation not in keep:
                self.doubt(operation)
        return run.doubts

    def release_reserved(self, run: Run) -> None:
        for operation in run.operations:
            if operation.state == "reserved":
                _write_release(operation, "given_up")

    # ---- the reconciler, the reaper, a person ----------------------------------------------

    def take_due(self) -> list[Operation]:
        """Unknown operations whose question is due; each is taken for a while."""
        due = [
            operation
            for operation in self.operations.values()
            if operation.state == "unknown"
            and isinstance(operation.question, datetime)
            and operation.question <= self.now
        ]
        for operation in due:
            operation.question = self.now + QUESTION_CLAIM
        return due

    def look_up(self, operation: Operation, answer: str, receipt: int) -> str:
        """What asking does: `call` when it sends again, else `done`."""
        if operation.state != "unknown":
            return "done"
        match operation.terms.recovery:
            case "hold":
                raise Said("Conflict")
            case "resend":
                if self._may_be_sent_again(operation):
                    return "call"
                self.note(operation, "inconclusive", LONGEST_QUESTION)
            case _:
                self._asked(operation, answer, receipt)
        return "done"

    def _may_be_sent_again(self, operation: Operation) -> bool:
        run = operation.run
        stopped = run is not None and (run.final or run.cancel_requested)
        return operation.window_is_open(self.now) and not stopped

    def _asked(self, operation: Operation, answer: str, receipt: int) -> None:
        if answer == "found":
            operation.lookups.append("found")
            self._submit(operation, receipt)
        elif answer == "absent" and self._absence_is_proof(operation):
            operation.lookups.append("absent")
            self._release(operation, "absent")
        else:
            self.note(operation, answer)

    def _absence_is_proof(self, operation: Operation) -> bool:
        """After `absent_after`, and only when nothing can arrive late or do harm."""
        after = operation.terms.absent_after
        if after is None or operation.submitting_at is None:
            return False
        harmless = operation.terms.dedupes or operation.instance in self.processes_ended
        return harmless and self.now >= operation.submitting_at + after

    def note(self, operation: Operation, answer: str, wait: timedelta | None = None) -> None:
        """An answer that settles nothing; the next question comes with back-off."""
        longest = min(FIRST_QUESTION * 2.0 ** len(operation.lookups), LONGEST_QUESTION)
        low = self.now + longest / 2 if wait is None else self.now + wait
        high = self.now + longest if wait is None else self.now + wait
        operation.lookups.append(answer)
        operation.question = Between(low, high)

    def resolve(
        self, operation: Operation, outcome: str, receipt: int | None, version: int | None
    ) -> None:
        if operation.state != "unknown":
            if operation.state != outcome or operation.receipt != receipt:
                raise Said("Conflict")
            return
        if version is None:
            raise Said("PreconditionRequired")
        if version != operation.version:
            raise Said("StaleVersion")
        if outcome == "released":
            self._release(operation, "given_up")
        else:
            assert receipt is not None, "a person's receipt"
            self._submit(operation, receipt)

    def overdue(self) -> list[Operation]:
        """Calls that nobody watches any more: alone, or sent again for a run that nobody holds."""
        return [
            operation
            for operation in self.operations.values()
            if operation.state == "submitting"
            and (operation.run is None or operation.run.status not in ("running", "queued"))
            and (_late(operation, self.now, GRACE) or operation.instance in self.dead)
        ]

    def look(self) -> None:
        """One round of the reaper."""
        self.wake_timed()
        self.expire()
        self.expire_approvals()
        for run in sorted(self.lapsed(), key=lambda run: run.run_id.bytes):
            self.lose(run)
        for operation in self.overdue():
            self.doubt(operation)
        holding = {run.instance for run in self.runs.values() if run.status == "running"}
        self.buried |= self.dead - holding
        self.dead -= self.buried


def _late(operation: Operation, now: datetime, grace: timedelta) -> bool:
    return operation.call_until is not None and operation.call_until + grace <= now


def _write_release(operation: Operation, reason: str) -> None:
    name = "resolve" if operation.state == "unknown" else "release"
    operation.reason, operation.live, operation.question = reason, False, None
    operation.unrecorded += 1
    operation.move(name, "released")


_TOLD = {
    "refused": "Refused",
    "not_sent": "NotSent",
    "absent": "NotSent",
    "given_up": "NotDone",
}
