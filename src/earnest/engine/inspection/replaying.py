"""Replaying: a handler is run against what is recorded of its run, and against nothing else.

What the handler asks for is answered as its next attempt would find it: by the same names, compared
by the same digests, read as the same types. Nothing is written, called or sent. What is asked for
and not recorded gets no answer; when every branch of the handler waits for such a thing, the replay
is at its end and the handler is left, as it is left when a run parks.

The handler's own code between what it asks for does run. This module does not judge; that is
`checking.py`.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

from earnest.domain.approval import Approval, Proposal
from earnest.domain.duration import Duration
from earnest.domain.operation import SENDABLE_AGAIN, OperationState, ReleaseReason
from earnest.domain.run import Step, Wait
from earnest.engine.attempts import parenting
from earnest.engine.attempts.attempting import call_handler, speaking_error
from earnest.engine.attempts.context import Context, Parked
from earnest.engine.attempts.recalling import spoken
from earnest.engine.attempts.remembering import Memory, Rememberer
from earnest.engine.operations import intending, operating
from earnest.engine.process import binding
from earnest.engine.process.engine import Engine
from earnest.engine.process.kinds import RunKind
from earnest.engine.runs.leasing import HeldLease, Leases
from earnest.store.database import Database
from earnest.store.executions import Claimed
from earnest.store.histories import ChildRow

_STILL = 0.05
_SIGNAL = "#signal:"  # Times kept for signals are named so.
_UNWIND = 1.0


@dataclass(frozen=True, slots=True)
class History:
    """What a run has behind it. `claimed` is the run as its next attempt will get it; `attempted`:
    there was an earlier one; `error` is that of the last attempt; `signals` are names and numbers
    of those that it waits for; `approvals` are what it has put to people."""

    claimed: Claimed
    attempted: bool
    memory: Memory
    children: Mapping[uuid.UUID, ChildRow]
    error: dict[str, Any] | None
    signals: frozenset[tuple[str, int]] = frozenset()
    approvals: Mapping[uuid.UUID, Approval] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class End:
    """Where a branch came to its end. `unsettled`: the thing itself is recorded, its outcome is
    not; whatever is recorded beyond it was done by an attempt that saw it fail. `waits`: there it
    would wait, rather than do something."""

    what: str
    unsettled: bool = False
    waits: bool = False


@dataclass(frozen=True, slots=True)
class Replayed:
    """How a replay ended: at `ends`, by an `error` of the handler, or (neither) with its `output`.
    `left` names what is recorded and was not asked for; `sent` those of it that did something
    beyond the run: operations and children. `unheard` are signals that it waits for and was not
    found to wait for."""

    ends: tuple[End, ...] = ()
    error: BaseException | None = None
    output: Any = None
    left: tuple[str, ...] = ()
    sent: tuple[str, ...] = ()
    unheard: tuple[str, ...] = ()


class HistoryEnds(Parked):
    """Control flow: what is asked for now is not recorded. Never catch it."""


class Nowhere(Database):
    """Stands where a database is expected. Whoever asks it leaves what is recorded."""

    def __init__(self) -> None:
        super().__init__("")

    async def promise(self, name: str, *_: Any, **__: Any) -> NoReturn:
        raise HistoryEnds

    async def fetch(self, statement: str, *_: Any) -> NoReturn:
        raise HistoryEnds

    async def connect(self, **_: str) -> NoReturn:
        raise HistoryEnds

    def connection(self) -> NoReturn:
        raise HistoryEnds


def on_nothing(engine: Engine) -> Engine:
    """An engine that knows the same code and has no database."""
    return replace(engine, database=Nowhere(), effects=dict(engine.effects))


async def replay(engine: Engine, kind: RunKind[Any, Any], value: Any, past: History) -> Replayed:
    """Runs the handler on an engine made by `on_nothing`. Cancelling it leaves the handler as it
    can be left; a thread of a plain handler stays behind until its own code returns."""
    context = Replay(engine, past)
    bound = binding.Binding(engine, past.claimed.scope_id, past.claimed.principal_id)
    others = asyncio.all_tasks()
    with binding.acting_through(bound):
        handler = asyncio.create_task(call_handler(kind, context, value))
    try:
        await context.until_still(handler, others)
        if handler.done():
            return context.told(handler)
        return Replayed(ends=tuple(context.ends), left=context.left(), unheard=context.unheard())
    finally:
        context.leave()
        await _end_tasks(asyncio.all_tasks() - others)


async def _end_tasks(tasks: set[asyncio.Task[Any]]) -> None:
    """What the handler began is ended with it, first by what its asks raise."""
    if tasks:
        await asyncio.wait(tasks, timeout=_UNWIND)
    for task in tasks:
        if not task.done():
            task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=_UNWIND)
    for task in tasks:
        if task.done() and not task.cancelled():
            task.exception()  # Looked at, so that nobody is warned of it.


@dataclass(eq=False)
class _Asks:
    """What was asked for so far, and the branches that wait without an answer."""

    count: int = 0
    names: set[object] = field(default_factory=set)
    signals: set[tuple[str, int]] = field(default_factory=set)
    ends: list[End] = field(default_factory=list)
    waiting: dict[asyncio.Future[None], asyncio.Task[Any] | None] = field(default_factory=dict)
    first_end: asyncio.Future[None] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    over: bool = False


class Replay(Context):
    """A context whose answers are recorded ones. Naming, digests and types are the real one's."""

    def __init__(self, engine: Engine, past: History) -> None:
        leases = Leases(engine.settings.lease)
        super().__init__(engine, past.claimed, _lease(past.claimed), Rememberer(engine, leases))
        self._past = past
        self._asks = _Asks()

    @property
    def ends(self) -> list[End]:
        return self._asks.ends

    def log(self, message: str, **fields: Any) -> None:
        """Said by the attempt that will do the work."""

    def told(self, handler: asyncio.Task[Any]) -> Replayed:
        """How a handler that is over has ended."""
        error = asyncio.CancelledError() if handler.cancelled() else handler.exception()
        error = speaking_error(error)
        if isinstance(error, Parked):
            ends = tuple(self.ends) or (End("the database"),)
            return Replayed(ends=ends, left=self.left(), unheard=self.unheard())
        output = None if error is not None else handler.result()
        return Replayed(error=error, output=output, left=self.left(), sent=self.sent())

    def sent(self) -> tuple[str, ...]:
        """Operations and children that are recorded and were not asked for. An operation that was
        given up, or surely not sent, left nothing on the outside."""
        asked = self._asks.names
        operations = [
            f"operation {one.name!r} ({one.state})"
            for one in self._past.memory.operations.values()
            if one.operation_id not in asked
            and one.release_reason not in (*SENDABLE_AGAIN, ReleaseReason.GIVEN_UP)
        ]
        children = [
            f"child {one.name!r}" for one in self._past.children.values() if one.run_id not in asked
        ]
        return (*operations, *children)

    def left(self) -> tuple[str, ...]:
        """All that is recorded and was not asked for; operations first."""
        asked = self._asks.names
        return (
            *self.sent(),
            *(
                f"approval {one.name!r} ({one.status})"
                for one in self._past.approvals.values()
                if one.approval_id not in asked
            ),
            *(spoken(name) for name in self._past.memory.steps if name not in asked),
        )

    def unheard(self) -> tuple[str, ...]:
        """Signals that the run waits for, and that were not asked for."""
        missed = self._past.signals - self._asks.signals
        return tuple(f"signal {name!r}" for name, _ in sorted(missed))

    async def until_still(self, handler: asyncio.Task[Any], others: set[asyncio.Task[Any]]) -> None:
        """Returns when the handler is over, or when all that it has left to do is to wait for what
        is not recorded."""
        await asyncio.wait({handler, self._asks.first_end}, return_when=asyncio.FIRST_COMPLETED)
        while not (handler.done() or self._waits_alone(handler, others)):
            before = self._asks.count
            await asyncio.wait({handler}, timeout=_STILL)
            if before == self._asks.count:
                return

    def _waits_alone(self, handler: asyncio.Task[Any], others: set[asyncio.Task[Any]]) -> bool:
        return asyncio.all_tasks() - others == {handler} and handler in self._asks.waiting.values()

    def leave(self) -> None:
        """Whoever waits is told that the history ends; so is whoever asks from now on."""
        self._asks.over = True
        for future in list(self._asks.waiting):
            if not future.done():
                future.set_exception(HistoryEnds())

    # ---- answers ---------------------------------------------------------------------------

    def _name(self, room: str, name: str, key: str | None = None) -> str:
        self._asks.count += 1
        return super()._name(room, name, key)

    async def _remember_all(self, *, fresh: bool = False) -> Memory:
        return self._past.memory

    async def _remembered(self, name: str, digest: bytes) -> Step | None:
        self._asks.names.add(name)
        known = await super()._remembered(name, digest)
        if known is None:
            await self._end(spoken(name), waits=name.startswith(_SIGNAL))
        return known

    async def wait_signal(self, name: str, *, timeout: Duration | None = None) -> Any:
        self._asks.signals.add((name, self._signals_taken.get(name, 0) + 1))
        return await super().wait_signal(name, timeout=timeout)

    async def _known_operation(self, intent: intending.Intent) -> Any:
        self._asks.names.add(intent.operation_id)
        return await super()._known_operation(intent)

    async def _perform(self, intent: intending.Intent) -> Any:
        shown = f"operation {intent.name!r}"
        known = self._past.memory.operations.get(intent.operation_id)
        if known is None:
            await self._end(shown)
        intending.check_same(intent, known)
        if known.state is OperationState.RELEASED and known.release_reason not in SENDABLE_AGAIN:
            raise operating.as_error(known)
        await self._end(f"{shown} ({known.state})", unsettled=True)

    async def _reserve(self, intent: intending.Intent) -> bool:
        known = self._past.memory.operations.get(intent.operation_id)
        if known is None:
            await self._end(f"operation {intent.name!r}")
        intending.check_same(intent, known)
        return intending.may_begin(known)

    async def _give_up(self, intent: intending.Intent) -> None:
        """Given up by the attempt that hears the answer."""

    async def _find_approval(self, asked: Proposal) -> Approval | None:
        self._asks.names.add(asked.approval_id)
        return self._past.approvals.get(asked.approval_id)

    async def _submit(
        self, kind: RunKind[Any, Any], input: Any, name: str, detached: bool
    ) -> uuid.UUID:
        meant = parenting.meant_child(
            self.engine, self.claimed, kind, input, name, detached=detached
        )
        self._asks.names.add(meant.run_id)
        known = self._past.children.get(meant.run_id)
        if known is None:
            await self._end(f"child {name!r}")
        parenting.check_same(meant, known.fingerprint)
        return meant.run_id

    async def _read_children(
        self, run_ids: Sequence[uuid.UUID]
    ) -> dict[uuid.UUID, parenting.Ended]:
        self._asks.count += 1
        found = [self._past.children[run_id] for run_id in run_ids]
        return {one.run_id: parenting.Ended(one.status, one.output, one.error) for one in found}

    async def _park(self, wait: Wait) -> NoReturn:
        named = f" {wait.name!r}" if wait.name else ""
        await self._end(f"a wait for {wait.kind}{named}", waits=True)

    async def _write(self, *fact: Any) -> None:
        """Told by the attempt that will do the work."""

    async def _write_text(self, piece: str) -> None:
        """As above."""

    async def _end(self, what: str, *, unsettled: bool = False, waits: bool = False) -> NoReturn:
        """This branch waits for what is not recorded; it is left by `HistoryEnds`."""
        asks = self._asks
        if asks.over:
            raise HistoryEnds
        asks.ends.append(End(what, unsettled, waits))
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        asks.waiting[future] = asyncio.current_task()
        if not asks.first_end.done():
            asks.first_end.set_result(None)
        try:
            await future
        finally:
            asks.waiting.pop(future, None)
        raise HistoryEnds


def _lease(claimed: Claimed) -> HeldLease:
    """Nobody else works on what is only looked at: it never runs out."""
    return HeldLease(
        claimed.scope_id, claimed.run_id, claimed.fence, claimed.owner_token, float("inf"),
        lambda: None, lambda: None,
    )  # fmt: skip
