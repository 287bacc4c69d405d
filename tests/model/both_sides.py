"""Playing a verb on both sides, and comparing everything after it."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from hypothesis.stateful import RuleBasedStateMachine, invariant

from tests.model.history import ATTEMPTS, History
from tests.model.reference import Run, said
from tests.model.reference_operations import Caller, Operation, Reference
from tests.model.snapshot import OPERATIONS, RUNS, check_alone, compare, same
from tests.model.world import Hand, LostReply, Performing, Worker, World

T = TypeVar("T")


@dataclass(frozen=True)
class Asked:
    """An operation as somebody asks for it: `alone` without a run (`joins`: for the same as another
    caller who is at it), `pauses` while it looks before its call, and how its first call is
    `answered` at once (`None`: it stays on the wire)."""

    name: str = "a"
    effect: str = "model.held"
    amount: int = 1
    resource: str | None = None
    alone: bool = False
    joins: bool = False
    pauses: bool = False
    answered: str | None = None


class UnderWay:
    """A verb that stopped on both sides: with a call on the wire, or where it looks or waits.
    `asked` is what its caller asked for; the reconciler asks for nothing."""

    def __init__(
        self, performing: Performing, caller: Caller, worker: Worker, asked: Asked | None = None
    ) -> None:
        self.performing, self.caller, self.worker = performing, caller, worker
        self.asked = asked

    @property
    def place(self) -> str:
        return self.performing.outcome()


class BothSides(RuleBasedStateMachine):
    """`world` is set before the machine is run; `tally` counts over all examples."""

    world: ClassVar[World]
    tally: ClassVar[Counter[str]] = Counter()

    def __init__(self) -> None:
        super().__init__()
        self.scope = self.world.begin_example()
        self.reference = Reference(self.world.now)
        self.history = History()
        self.hands: list[Hand] = []
        self.under_way: list[UnderWay] = []
        self.receipts = 0

    def teardown(self) -> None:
        try:
            attempts = self.world.run(self.world.observer.fetch(ATTEMPTS, self.scope))
            self.history.check(attempts)
            self.tally.update(examples=1, attempts=len(attempts))
        finally:
            self.world.end_example(self.scope)

    # ---- playing both sides ----------------------------------------------------------------

    def both(
        self,
        real: Coroutine[Any, Any, T],
        model: Callable[[T | None], Any],
        loss: int | None = None,
    ) -> tuple[T | None, Any]:
        """Plays a verb here and there. Either both refuse by the same name, or both answer; the
        model is told the real answer, since ids are the engine's to choose."""
        answer, refused = self._really(real, loss)
        expected: list[Any] = []
        refusal = said(lambda: expected.append(model(answer)))
        assert refused == refusal, f"the engine says {refused}, the model {refusal}"
        return answer, expected[0] if expected else None

    def _really(
        self, real: Coroutine[Any, Any, T], loss: int | None
    ) -> tuple[T | None, str | None]:
        try:
            with LostReply(loss):
                return self.world.run(real), None
        except Exception as error:
            if type(error).__module__.startswith("earnest."):
                return None, type(error).__name__
            raise

    def worker(self, number: int) -> Worker:
        return self.world.workers[number % len(self.world.workers)]

    def run_of(self, number: int) -> Run:
        """Any run; mostly one that has not ended."""
        runs = list(self.reference.runs.values())
        return _of([run for run in runs if not run.final and number % 8] or runs, number)

    def hand_of(self, number: int) -> Hand:
        """Any attempt of a process that lives, stale ones too; mostly one that owns its run."""
        owners = [hand for hand in self.hands if hand.owner.run.fence == hand.owner.fence]
        owners = [hand for hand in owners if hand.owner.run.status == "running"]
        return _of(owners if owners and number % 4 else self.hands, number)

    def operation_of(self, number: int) -> Operation:
        """Any operation; mostly one in doubt."""
        operations = list(self.reference.operations.values())
        return _of([one for one in operations if one.in_doubt and number % 8] or operations, number)

    def approval_of(self, number: int) -> tuple[Run, str]:
        """Any approval, by its run and name; mostly one that waits for a decision."""
        found = [(run, name) for run in self.reference.runs.values() for name in run.approvals]
        pending = [(run, name) for run, name in found if run.approvals[name].pending]
        return _of(pending if pending and number % 4 else found, number)

    def new_receipt(self) -> int:
        self.receipts += 1
        self.world.provider.receipt = self.receipts
        return self.receipts

    # ---- after every step ------------------------------------------------------------------

    @invariant()
    def agrees(self) -> None:
        self.tally["steps"] += 1
        runs = self.world.run(self.world.observer.fetch(RUNS, self.scope))
        operations = self.world.run(self.world.observer.fetch(OPERATIONS, self.scope))
        compare(self.reference, runs, operations)
        check_alone(runs, operations)
        self.history.see(runs)
        self._check_calls()
        self.advance(0.001)

    def _check_calls(self) -> None:
        """Nothing was sent but what the model began, and always the same bytes (P1, P2)."""
        sent: dict[uuid.UUID, int] = {}
        for call, amount in self.world.provider.calls:
            sent[call.operation_id] = sent.get(call.operation_id, 0) + 1
            meant = self.reference.operations[call.operation_id].request
            same(f"what is sent by {call.operation_id}", meant, amount)
        for operation_id, count in sent.items():
            expected = self.reference.operations[operation_id].sends
            same(f"how often {operation_id} was sent", expected, count)

    def advance(self, seconds: float) -> None:
        self.world.run(self.world.clock.advance(seconds=seconds))
        self.reference.now = self.world.now


def _of(things: Sequence[T], number: int) -> T:
    return things[number % len(things)]
