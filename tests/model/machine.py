"""The state machine: any verb, by any worker, at any time, against the model.

Each rule plays one verb on both sides. After each, every row of the scope is compared with the
model, and the history is checked when the example ends. Objects are picked by a number modulo how
many there are, so that a failing example shrinks well.

Hypothesis leaves out many rules in each example, so verbs that need each other share a rule, and no
example begins with nothing.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, TypeVar

import hypothesis.strategies as st
from hypothesis.stateful import initialize, precondition, rule

from earnest.domain import canonical, ids
from earnest.domain.approval import Decision, Proposal
from earnest.domain.run import RetryPolicy, Wait
from earnest.engine.approvals import deciding
from earnest.engine.attempts import parenting, reaping
from earnest.engine.attempts.settling import Ending, Settled, Wish
from earnest.engine.operations import intending, operating, reconciling
from earnest.engine.process.actors import Actor
from earnest.engine.runs import cancelling, leasing, retrying, signalling, submitting
from earnest.store.executions import Claimed
from earnest.store.statements import sql
from tests.model.both_sides import Asked, BothSides, UnderWay
from tests.model.effects import TERMS, Request
from tests.model.reference import FIRST_RETRY, Owner, Run, Said, Waiting, said
from tests.model.reference_operations import Caller, Operation
from tests.model.snapshot import same
from tests.model.world import KINDS, Hand, LostReply, Worker

T = TypeVar("T")
Verb = Callable[[], Coroutine[Any, Any, int]]

PRINCIPALS = ("alice", "bob")
ANSWERS = ("receipt", "refused", "not_sent", "doubt", "bad receipt", "record fails")

pick = st.integers(0, 30)
kinds = st.sampled_from(sorted(KINDS))
inputs = st.sampled_from(["one", "two"])
principals = st.sampled_from(PRINCIPALS)
# Mostly no reply is lost; else the connection breaks at the n-th crash point that is passed.
losses = st.sampled_from([None] * 9 + [0, 1, 2, 3])


asked = st.builds(
    Asked,
    name=st.sampled_from(["a", "a", "b"]),
    effect=st.sampled_from(sorted(TERMS)),
    amount=st.sampled_from([1, 1, 1, 1, 2]),
    resource=st.sampled_from([None, None, "r1"]),
    alone=st.sampled_from([False, False, False, True]),
    joins=st.booleans(),
    pauses=st.sampled_from([False, False, False, True]),
    answered=st.sampled_from([None, None, None, *ANSWERS, "doubt"]),
)


class Model(BothSides):
    """Any verb, by any worker, at any time."""

    @initialize(kinds=st.lists(kinds, min_size=1, max_size=3), limit=st.integers(0, 3))
    def begin(self, kinds: list[str], limit: int) -> None:
        """Some runs are there, and some are claimed."""
        self.advance(0.001)
        for kind in kinds:
            self.submit(kind, "one", "alice", None, 0, 0, None)
            self.agrees()
        for number in range(limit):
            self.claim(number, 1)
            self.agrees()

    # ---- time and processes ----------------------------------------------------------------

    @rule(
        seconds=st.sampled_from([0.5, 3.0, 20.0, 46.0, 46.0, 61.0, 130.0, 280.0]),
        by=st.none() | pick,
    )
    def time_passes(self, seconds: float, by: int | None) -> None:
        """And mostly the reaper looks what has run out."""
        self.advance(seconds)
        if by is not None:
            self.reap(by, "look", None)

    @rule(
        number=pick,
        what=st.sampled_from(["cut off", "cut off", "reconnect", "kill"]),
        by=st.none() | pick,
    )
    def disturb(self, number: int, what: str, by: int | None) -> None:
        """A process loses its connection, comes back, or dies with its calls unanswered."""
        worker = self.worker(number)
        match what:
            case "cut off":
                self.world.run(worker.cut_off())
                self._gone(worker.instance_id)
            case "reconnect":
                self.world.run(worker.engine.instance.enter(worker.lock))
                self.reference.dead.discard(worker.instance_id)
                self.reference.buried.discard(worker.instance_id)
            case _:
                self._die(worker)
        if by is not None:
            self.reap(by, "look", None)

    def _die(self, worker: Worker) -> None:
        gone = self.world.run(worker.die())
        self._gone(gone)
        self.reference.processes_ended.add(gone)
        self.hands = [hand for hand in self.hands if hand.worker is not worker]
        self.under_way = [one for one in self.under_way if one.worker is not worker]

    def _gone(self, instance_id: uuid.UUID) -> None:
        if instance_id not in self.reference.buried:
            self.reference.dead.add(instance_id)
        self.history.gone.add(instance_id)

    # ---- submitting ------------------------------------------------------------------------

    @precondition(lambda self: sum(not run.final for run in self.reference.runs.values()) < 4)
    @rule(
        kind=kinds,
        input=inputs,
        principal=principals,
        key=st.sampled_from([None, None, "k1", "k2"]),
        priority=st.sampled_from([0, 0, 5, -5]),
        delay=st.sampled_from([0, 0, 0, 30]),
        loss=losses,
    )
    def submit(
        self,
        kind: str,
        input: str,
        principal: str,
        key: str | None,
        priority: int,
        delay: int,
        loss: int | None,
    ) -> None:
        later = self.world.now + timedelta(seconds=delay) if delay else None
        request = submitting.Request(kind, input, key, priority=priority, not_before=later)

        def model(real: submitting.Submitted | None) -> tuple[uuid.UUID, bool]:
            terms = KINDS[kind]
            return self.reference.submit(_id(real), terms, principal, input, key, priority, later)

        verb = submitting.submit(self.worker(0).engine, self.scope, principal, request)
        real, expected = self.both(verb, model, loss)
        if real is not None:
            same("submit", expected, (real.run.run_id, real.replayed))

    @precondition(lambda self: any(run.final for run in self.reference.runs.values()))
    @rule(
        number=pick,
        by=principals,
        key=st.sampled_from([None, None, "k1", "k3"]),
        loss=losses,
    )
    def retry(self, number: int, by: str, key: str | None, loss: int | None) -> None:
        old = self.run_of(number)

        def model(real: submitting.Submitted | None) -> tuple[uuid.UUID, bool]:
            return self.reference.retry(_id(real), old, by, key)

        verb = retrying.retry(
            self.worker(0).engine, self.scope, old.run_id, by=by, key=key, repeat_submitted=True
        )
        real, expected = self.both(verb, model, loss)
        if real is not None:
            # After a lost reply the retry that was stored may be found by its key.
            replayed = real.replayed if loss is None else expected[1]
            same("retry", expected, (real.run.run_id, replayed))

    @precondition(lambda self: self.hands)
    @rule(
        number=pick,
        name=st.sampled_from(["c1", "c2"]),
        kind=kinds,
        input=inputs,
        detached=st.booleans(),
        waits=st.sampled_from([False, True, True]),
        loss=losses,
    )
    def submit_child(
        self,
        number: int,
        name: str,
        kind: str,
        input: str,
        detached: bool,
        waits: bool,
        loss: int | None,
    ) -> None:
        """A run makes another one, and mostly waits for all that it made."""
        hand = self.hand_of(number)
        engine, child_id = hand.worker.engine, ids.child_id(hand.run_id, name)
        verb = parenting.submit_child(
            engine, hand.claimed, hand.held, engine.kinds[kind], input, name, detached=detached
        )

        def model(_: uuid.UUID | None) -> uuid.UUID:
            return self.reference.submit_child(hand.owner, child_id, KINDS[kind], input, detached)

        real, expected = self.both(verb, model, loss)
        same("submit_child", expected, real)
        if waits:
            self.agrees()
            self._park(hand, self._children_of(hand), None)

    # ---- claiming and holding --------------------------------------------------------------

    @precondition(lambda self: any(run.status == "queued" for run in self.reference.runs.values()))
    @rule(number=pick, limit=st.integers(1, 3))
    def claim(self, number: int, limit: int) -> None:
        """What is due is claimed, delayed runs whose time has come with it."""
        rows = self.world.run(self.world.observer.fetch(sql("ripen_runs"), 100))
        same("how many ripen", self.reference.ripen(), len(rows))
        worker = self.worker(number)
        asked_at = leasing.boot_seconds()
        claimed = self.world.run(worker.claim(limit))
        owners = self.reference.claim(worker.instance_id, limit)
        same(
            "what is claimed, with fences",
            {run_id: owner.fence for run_id, owner in owners.items()},
            {one.run_id: one.fence for one in claimed},
        )
        for one in claimed:
            self._take(worker, one, owners[one.run_id], asked_at)

    def _take(self, worker: Worker, claimed: Claimed, owner: Owner, asked_at: float) -> None:
        heard: list[str] = []
        held = worker.leases.hold(
            claimed, asked_at, lambda: heard.append("lost"), lambda: heard.append("cancel")
        )
        hand = Hand(worker, claimed, held, owner, heard)
        worker.hands.append(hand)
        self.hands.append(hand)

    @precondition(lambda self: self.hands)
    @rule(number=pick)
    def renew(self, number: int) -> None:
        """All leases of a process in one statement; each holder hears its own answer."""
        worker = self.hand_of(number).worker
        believing = [hand for hand in worker.hands if hand.held.valid()]
        self.world.run(_renew(worker))
        for hand in believing:
            answer = self.reference.renew(hand.owner)
            same(f"whether {answer} is heard as lost", answer == "refused", "lost" in hand.heard)
            if answer == "renewed" and hand.owner.run.cancel_requested:
                assert "cancel" in hand.heard, f"a cancel is not heard, only {hand.heard}"

    # ---- what an owner does ----------------------------------------------------------------

    @precondition(lambda self: self.hands)
    @rule(number=pick, loss=losses)
    def remember(self, number: int, loss: int | None) -> None:
        """Every attempt of one process stores a step in the same moment, stale ones too."""
        worker = self.hand_of(number).worker
        hands = list(worker.hands)
        with LostReply(loss):
            answers = self.world.run(_together([self._write(hand) for hand in hands]))
        for hand, answer in zip(hands, answers, strict=True):
            refusal = said(lambda hand=hand: self.reference.write_step(hand.owner))  # type: ignore[misc]
            same("a step's refusal", refusal, None if answer is None else type(answer).__name__)

    def _write(self, hand: Hand) -> Coroutine[Any, Any, None]:
        name = f"step-{hand.claimed.fence}-{self.tally['steps']}"
        return hand.worker.rememberer.write(
            hand.claimed, "step.completed", b"{}", name, "step", b"digest", b"1"
        )

    @precondition(lambda self: self.hands)
    @rule(
        number=pick,
        wish=st.sampled_from(
            ["succeed", "succeed", "fail", "retry", "time out", "hand_back", "block", "stop"]
        ),
        loss=losses,
    )
    def settle(self, number: int, wish: str, loss: int | None) -> None:
        self._settle(self.hand_of(number), _ending(wish), wish, (), loss)

    @precondition(lambda self: self.hands)
    @rule(
        number=pick,
        kind=st.sampled_from(
            ["time", "signal", "signal or time", "children", "children", "approval", "approval"]
        ),
        seconds=st.sampled_from([-1, 10, 100]),
        signal=st.integers(1, 2),
        loss=losses,
    )
    def park(self, number: int, kind: str, seconds: int, signal: int, loss: int | None) -> None:
        hand = self.hand_of(number)
        until = self.world.now + timedelta(seconds=seconds)
        match kind:
            case "time":
                wait = Waiting("time", until=until)
            case "signal":
                wait = Waiting("signal", name="go", number=signal)
            case "signal or time":
                wait = Waiting("signal", until=until, name="go", number=signal)
            case "approval":
                # A time that is over already is none: then it may be decided as long as the run is.
                wait = Waiting("approval", until if seconds > 0 else None, f"p{signal}")
            case _:
                wait = self._children_of(hand)
        self._park(hand, wait, loss)

    def _children_of(self, hand: Hand) -> Waiting:
        children = hand.owner.run.children
        return Waiting("children", run_ids=tuple(child.run_id for child in children))

    def _park(self, hand: Hand, wait: Waiting, loss: int | None) -> None:
        waits = (Wait(wait.kind, wait.name, wait.number, wait.until, wait.run_ids),)
        if wait.kind == "approval":
            span = None if wait.until is None else wait.until - self.world.now
            waits = (Wait("approval", name=wait.name, approval=_proposal(hand, wait.name, span)),)
        self._settle(hand, Ending(Wish.PARK, waits=waits), "park", (wait,), loss)

    def _settle(
        self, hand: Hand, ending: Ending, wish: str, waits: tuple[Waiting, ...], loss: int | None
    ) -> None:
        with LostReply(loss):
            settled = self.world.run(hand.worker.settler.settle(hand.claimed, ending))
        _check_settled(settled, self.reference.settle(hand.owner, wish, waits), loss)

    @precondition(lambda self: self.hands)
    @rule(number=pick, loss=losses)
    def settle_together(self, number: int, loss: int | None) -> None:
        """Every attempt of one process succeeds in the same moment, stale ones among them."""
        worker = self.hand_of(number).worker
        hands = list(worker.hands)
        endings = [worker.settler.settle(hand.claimed, _ending("succeed")) for hand in hands]
        with LostReply(loss):
            answers = self.world.run(_together(endings))
        for place in sorted(range(len(hands)), key=lambda place: _alone(hands[place])):
            expected = self.reference.settle(hands[place].owner, "succeed")
            _check_settled(answers[place], expected, loss)

    # ---- operations ------------------------------------------------------------------------

    @rule(number=pick, asked=asked, loss=losses)
    def perform(self, number: int, asked: Asked, loss: int | None) -> None:
        if asked.alone or not self.hands:
            self._perform_alone(self.worker(number), asked, loss)
            return
        hand = self.hand_of(number)
        operation_id = ids.operation_id(hand.run_id, asked.name)
        busy = [one for one in self.under_way if one.caller.owner is hand.owner]
        if all(one.caller.operation.operation_id != operation_id for one in busy):
            self._perform(hand.worker, hand, operation_id, asked, loss)

    def _perform_alone(self, worker: Worker, asked: Asked, loss: int | None) -> None:
        others = [one.asked for one in self.under_way if one.asked and one.caller.owner is None]
        if asked.joins and others:
            asked = replace(others[-1], pauses=asked.pauses, answered=asked.answered)
        kind, name = asked.effect, asked.name
        operation_id = ids.standing_operation_id(self.scope, "alice", kind, name)
        self._perform(worker, None, operation_id, asked, loss)

    def _perform(
        self,
        worker: Worker,
        hand: Hand | None,
        operation_id: uuid.UUID,
        asked: Asked,
        loss: int | None,
    ) -> None:
        known = self.reference.operations.get(operation_id)
        kind = asked.effect if known is None else known.terms.kind
        intent = intending.make_intent(
            worker.engine.effects[kind], Request(amount=asked.amount), scope_id=self.scope,
            operation_id=operation_id, principal_id="alice", name=asked.name,
            resource_key=asked.resource, lease=None if hand is None else hand.held,
        )  # fmt: skip
        with LostReply(loss):
            performing = self.world.start(operating.perform(worker.engine, intent), asked.pauses)
        owner = None if hand is None else hand.owner
        refusal = said(
            lambda: self.reference.reserve(
                owner, operation_id, TERMS[kind], asked.amount, asked.resource
            )
        )
        if refusal is not None:
            same("perform", refusal, performing.outcome())
            return
        operation = self.reference.operations[operation_id]
        caller = Caller(operation, owner, worker.instance_id, pauses=asked.pauses)
        one = UnderWay(performing, caller, worker, asked)
        self._goes_on(one, self.reference.perform)
        if one in self.under_way and asked.answered is not None:
            self.agrees()
            self._answer(one, asked.answered, None)

    def _goes_on(self, one: UnderWay, model: Callable[[Caller], str]) -> None:
        """The model goes as far as the engine went: to the next call, or to the end."""
        try:
            place = model(one.caller)
        except Said as refusal:
            place = str(refusal)
        same(f"where {one.caller.operation.operation_id} is", place, one.place)
        if place in ("look", "wait", "call"):
            self.under_way.append(one)

    @precondition(lambda self: self.under_way)
    @rule(number=pick, answer=st.sampled_from(ANSWERS), loss=losses)
    def answer(self, number: int, answer: str, loss: int | None) -> None:
        """The provider answers a call, however late; or the look before it ends; or who waits for
        another's call looks how it stands."""
        self._answer(self.under_way[number % len(self.under_way)], answer, loss)

    def _answer(self, one: UnderWay, answer: str, loss: int | None) -> None:
        self.under_way.remove(one)
        place, receipt = one.place, self.new_receipt()
        self.world.provider.record_fails = answer == "record fails"
        with LostReply(loss):
            self.world.answer(one.performing, answer)
        self.world.provider.record_fails = False
        if place == "look":
            self._goes_on(one, lambda caller: self.reference.looked(caller, answer))
            return
        if place == "wait":
            self._goes_on(one, self.reference.waited)
            return
        self.reference.answer(one.caller, answer, receipt)
        if not one.caller.reconciler:
            self._goes_on(one, self.reference.perform)
        else:
            same("where the reconciler is", "done", one.place)
            self._ends_asking(one.caller.operation)

    # ---- settling doubts -------------------------------------------------------------------

    @precondition(lambda self: self.reference.operations)
    @rule(
        number=pick,
        by=pick,
        answer=st.sampled_from(["found", "absent", "inconclusive", "mismatched"]),
        loss=losses,
    )
    def look_up(self, number: int, by: int, answer: str, loss: int | None) -> None:
        operation, worker, receipt = self.operation_of(number), self.worker(by), self.new_receipt()
        self.world.provider.lookup = answer
        verb = reconciling.look_up(worker.engine, self.scope, operation.operation_id)
        with LostReply(loss):
            performing = self.world.start(verb)
        caller = Caller(operation, None, worker.instance_id, reconciler=True)
        try:
            place = self.reference.look_up(operation, answer, receipt)
        except Said as refusal:
            place = str(refusal)
        same("where the question is", place, performing.outcome())
        if place == "call":
            self.reference.begin(caller)
            self.under_way.append(UnderWay(performing, caller, worker))

    @rule(
        by=pick,
        answer=st.sampled_from(["found", "absent", "inconclusive"]),
        sent=st.sampled_from(["receipt", "refused", "doubt"]),
    )
    def ask_due(self, by: int, answer: str, sent: str) -> None:
        """What the reconciler's loop does: it takes what is due and asks it, here one by one."""
        worker, receipt = self.worker(by), self.new_receipt()
        self.world.provider.lookup, self.world.provider.answer = answer, sent
        taken = self.world.run(reconciling.take_due(worker.engine, 1000))
        due = {operation.operation_id: operation for operation in self.reference.take_due()}
        same("the questions that are due", set(due), {operation_id for _, operation_id in taken})
        for key in taken:
            self.world.run(reconciling.ask(worker.engine, *key))
            self._asked(due[key[1]], worker, answer, sent, receipt)

    def _asked(
        self, operation: Operation, worker: Worker, answer: str, sent: str, receipt: int
    ) -> None:
        if self.reference.look_up(operation, answer, receipt) == "call":
            caller = Caller(operation, None, worker.instance_id, reconciler=True)
            self.reference.begin(caller)
            self.reference.answer(caller, sent, receipt)
            self._ends_asking(operation)

    def _ends_asking(self, operation: Operation) -> None:
        if operation.state == "unknown":
            self.reference.note(operation, "inconclusive")

    @precondition(lambda self: self.reference.operations)
    @rule(
        number=pick,
        outcome=st.sampled_from(["submitted", "released"]),
        behind=st.sampled_from([0, 0, 0, 1, None]),
        loss=losses,
    )
    def resolve(self, number: int, outcome: str, behind: int | None, loss: int | None) -> None:
        operation = self.operation_of(number)
        number_there = self.new_receipt() if outcome == "submitted" else None
        receipt = None if number_there is None else {"id": number_there}
        version = None if behind is None else operation.version - behind
        verdict = reconciling.Verdict(outcome, "seen in the bank's portal", receipt=receipt)
        verb = reconciling.resolve(
            self.worker(0).engine, self.scope, operation.operation_id, verdict, by="bob",
            version=version,
        )  # fmt: skip
        self.both(
            verb, lambda _: self.reference.resolve(operation, outcome, number_there, version), loss
        )

    # ---- from outside ----------------------------------------------------------------------

    @rule(
        number=pick,
        name=st.sampled_from(["go", "go", "stop", "cancel"]),
        payload=st.integers(1, 2),
        key=st.sampled_from([None, "s1", "s2"]),
        loss=losses,
    )
    def tell(self, number: int, name: str, payload: int, key: str | None, loss: int | None) -> None:
        """Somebody sends the run a signal, or asks it to stop."""
        if name == "cancel":
            self.cancel(self.run_of(number), loss)
            return
        run = self.run_of(number)
        verb = signalling.signal(
            self.worker(0).engine, self.scope, run.run_id, name, payload, by="bob", key=key
        )
        real, expected = self.both(
            verb, lambda _: self.reference.signal(run, name, payload, key), loss
        )
        same("signal", expected, real)

    @precondition(lambda self: any(run.approvals for run in self.reference.runs.values()))
    @rule(
        number=pick,
        decision=st.sampled_from(["approve", "reject"]),
        same_digest=st.sampled_from([True] * 5 + [False]),
        behind=st.sampled_from([0, 0, 0, 0, 1, None]),
        loss=losses,
    )
    def decide(
        self, number: int, decision: str, same_digest: bool, behind: int | None, loss: int | None
    ) -> None:
        """Somebody with the role decides, about what stands there or about something else."""
        run, name = self.approval_of(number)
        version = None if behind is None else run.approvals[name].version - behind
        proposal = b"1" if same_digest else b"2"
        verdict = deciding.Verdict(Decision(decision), canonical.digest(proposal).hex())
        actor = Actor(self.scope, "bob", frozenset({"approver"}))
        verb = deciding.decide(
            self.worker(number).engine, actor, ids.approval_id(run.run_id, name), verdict,
            version=version,
        )  # fmt: skip
        real, expected = self.both(
            verb,
            lambda _: self.reference.decide(run, name, decision, same_digest, version),
            loss,
        )
        same("decide", expected, None if real is None else real.approval.status.value)

    def cancel(self, run: Run, loss: int | None) -> None:
        verb = cancelling.cancel(self.worker(0).engine, self.scope, run.run_id, "bob")
        real, expected = self.both(verb, lambda _: self.reference.cancel(run), loss)
        same("cancel", expected, None if real is None else real.outcome)

    # ---- the reaper ------------------------------------------------------------------------

    @rule(
        number=pick, what=st.sampled_from(["wake", "expire", "look", "look", "look"]), loss=losses
    )
    def reap(self, number: int, what: str, loss: int | None) -> None:
        worker = self.worker(number)
        verbs: dict[str, tuple[Verb, Callable[[], None]]] = {
            "wake": (lambda: reaping.wake_timed(worker.engine), self.reference.wake_timed),
            "expire": (lambda: reaping.expire(worker.engine), self.reference.expire),
            "look": (worker.reaper.look, self.reference.look),
        }
        verb, model = verbs[what]
        with LostReply(loss):
            self.world.run(verb())
        model()


def _id(real: submitting.Submitted | None) -> uuid.UUID:
    """The id that the engine chose; a refused request would have had another."""
    return uuid.uuid4() if real is None else real.run.run_id


def _proposal(hand: Hand, name: str, span: timedelta | None) -> Proposal:
    """The same one in every attempt."""
    approval_id, data = ids.approval_id(hand.run_id, name), b"1"
    return Proposal(
        approval_id, name, data, canonical.digest(data), "approver", "alice", expires_in=span
    )


def _alone(hand: Hand) -> bool:
    """Whether an ending takes the single path, which comes after the group's."""
    run = hand.owner.run
    return bool(run.parent or run.doubts or run.reserved or run.undecided)


def _ending(wish: str) -> Ending:
    retry = RetryPolicy(first=FIRST_RETRY)
    error = {"code": "handler_failed", "detail": wish}
    match wish:
        case "succeed":
            return Ending(Wish.SUCCEED, output=b'"done"')
        case "time out":
            return Ending(Wish.RETRY, error=error, timed_out=True, retry=retry)
        case "retry":
            return Ending(Wish.RETRY, error=error, retry=retry)
    return Ending(Wish(wish), error=error)


def _check_settled(settled: Settled, expected: str, loss: int | None) -> None:
    """After a lost reply it is enough to know that the ending was stored."""
    if expected == "fenced" or (expected != "before" and loss is None):
        same("settle", expected, settled.value)
    else:
        assert settled is not Settled.FENCED, (
            f"settle: the model says {expected}, the engine fenced"
        )


async def _renew(worker: Worker) -> None:
    async with worker.database.connection() as tx:
        await leasing.renew(tx, worker.leases, worker.engine.settings.lease)


async def _together(work: Sequence[Coroutine[Any, Any, T]]) -> list[Any]:
    return await asyncio.gather(*work, return_exceptions=True)
