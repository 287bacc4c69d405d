"""The context: what a handler has in its hands while it works on a run.

Everything a handler does through it is remembered by name, so that a later attempt finds it done.
A wait that is not over yet ends the attempt (the handler is left by `Parked`, which is no
`Exception`, so that `except Exception` does not swallow it) and no worker slot is held.
"""

from __future__ import annotations

import asyncio
import inspect
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Generic, NoReturn, ParamSpec, TypeVar, cast, overload

from pydantic import ValidationError
from pydantic_core import to_jsonable_python

from earnest.domain import canonical, ids
from earnest.domain.approval import Approval, Proposal
from earnest.domain.duration import Duration, duration
from earnest.domain.errors import (
    ApprovalExpired,
    ApprovalRejected,
    ChildFailed,
    CodeChanged,
    InvalidRequest,
    PayloadTooLarge,
    SignalTimedOut,
)
from earnest.domain.event import MAX_PAYLOAD_BYTES, is_app_type
from earnest.domain.operation import Operation
from earnest.domain.run import RunStatus, Wait
from earnest.engine.approvals import asking
from earnest.engine.approvals.asking import Approved, Terms
from earnest.engine.attempts import parenting
from earnest.engine.attempts.filing import Filing
from earnest.engine.attempts.logging import make_line
from earnest.engine.attempts.recalling import kept_beside_steps
from earnest.engine.attempts.remembering import digest_of
from earnest.engine.attempts.step_results import encode_result, read_result, result_type
from earnest.engine.operations import intending, operating
from earnest.engine.process.actors import Role
from earnest.engine.process.effects import Effect
from earnest.engine.process.foreign_code import Leaving, foreign_code
from earnest.engine.process.kinds import RunKind, require_kind
from earnest.engine.process.logs import get_logger
from earnest.engine.process.threads import in_thread
from earnest.engine.process.typed_json import misfit
from earnest.engine.runs import publishing
from earnest.engine.runs.fencing import patiently
from earnest.store import approvals

T = TypeVar("T")
P = ParamSpec("P")
InputT = TypeVar("InputT")
OutputT = TypeVar("OutputT")
RequestT = TypeVar("RequestT")
ReceiptT = TypeVar("ReceiptT")

log = get_logger("earnest.run")

IN_PLACE = timedelta(seconds=1)


class Parked(Leaving):
    """Control flow: the attempt ends here and the run waits. Never catch it."""

    def __init__(self, *waits: Wait) -> None:
        super().__init__("the run waits")
        self.waits = waits


@dataclass(frozen=True, slots=True)
class Child(Generic[OutputT]):
    """A child run that was submitted; `await ctx.wait(child)` gives its output."""

    run_id: uuid.UUID
    name: str
    kind: RunKind[Any, OutputT]


@dataclass(eq=False)
class Context(Filing):
    """One attempt at one run. Its methods raise `FencedOut` once the attempt has ended or lost its
    lease, and then change nothing any more (P5)."""

    _signals_taken: dict[str, int] = field(default_factory=dict)
    cancelled: bool = False

    # ---- remembered work -------------------------------------------------------------------

    @overload
    async def step(
        self, name: str, function: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> T: ...
    @overload
    async def step(
        self, name: str, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T: ...
    async def step(self, name: str, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Calls `function(*args)` once and remembers what it returns, also across attempts. Plain
        functions run in a thread. A function may run again if the worker dies before its result is
        stored: what must not happen twice is an operation. Use `keyed_step` in parallel branches.
        """
        return await self._step(self._name("step", name), function, args, kwargs)

    async def keyed_step(
        self, name: str, key: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> Any:
        """A step of a parallel branch; `key` tells it from the others of that name."""
        return await self._step(self._name("step", name, key), function, args, kwargs)

    async def emit(self, type: str, payload: dict[str, Any], *, key: str | None = None) -> None:
        """Tells an event of the app's own, once however many attempts pass here."""
        if not is_app_type(type):
            raise InvalidRequest(
                f"{type[:80]!r} is no event type for an app: use dotted lower-case words, none of "
                "the engine's own"
            )
        name = kept_beside_steps("emit", self._name("emit", type, key))
        data = _payload(payload)
        if await self._remembered(name, canonical.digest(data)) is None:
            await self._write(type, data, name, "emit", canonical.digest(data))

    async def publish(self, type: str, payload: dict[str, Any], *, key: str | None = None) -> None:
        """Tells the outside: a message to all sinks of the scope that want its type. Stored once
        however many attempts pass here, and sent at least once after that."""
        publishing.check_type(type)
        name = kept_beside_steps("publish", self._name("publish", type, key))
        data = publishing.encode_payload(payload)
        if await self._remembered(name, canonical.digest(data)) is None:
            await self._publish(name, type, data)

    async def progress(self, done: float, total: float | None = None, note: str = "") -> None:
        """Shows how far the work is. Not remembered: a later attempt tells its own."""
        self._check_open()
        told = {"attempt": self.attempt, "done": done, "total": total, "note": note}
        await self._write("run.progress", _payload(told))

    async def text(self, piece: str) -> None:
        """Writes a piece of text for who watches. Pieces that come within a moment are stored as
        one; all are stored before the next event, step or operation. Not remembered: the text of a
        later attempt replaces this one's. Raises `TextTooLong` beyond what is kept of a run."""
        self._check_open()
        await self._write_text(piece)

    def log(self, message: str, **fields: Any) -> None:
        """A line for the people who run this: in the process's log with the run's ids, and kept
        with the attempt for some days. Waits for nothing and never fails; of an attempt the first
        thousand lines are kept. Who may see the run may read them."""
        log.info(message, **{**fields, "run_id": self.run_id, "attempt": self.attempt})
        self._keep_line(make_line(message, fields))

    # ---- the outside world -----------------------------------------------------------------

    async def operation(
        self,
        name: str,
        effect: Effect[RequestT, ReceiptT] | type[Effect[RequestT, ReceiptT]],
        request: RequestT,
        *,
        key: str | None = None,
        resource_key: str | None = None,
        approval: Terms | None = None,
    ) -> ReceiptT:
        """Does it at most once, under the same id in every attempt, and returns the receipt. With
        `approval=ctx.approve(role=..., expires_in=...)` the run waits until somebody has approved
        this very request; nothing else is sent under that decision.

        Raises `Refused`, `NotSent`, `NotDone`, `ApprovalRejected`, `ApprovalExpired` when it surely
        was not done and `InDoubt` when that cannot be known; a run whose handler swallows the doubt
        becomes `unknown` all the same.
        """
        intent = self._intent(self._name("operation", name, key), effect, request, resource_key)
        known = await self._known_operation(intent)
        if known is not None and intent.is_of(known) and known.receipt is not None:
            return cast(ReceiptT, operating.read_receipt(intent.effect, known))
        if approval is not None:
            intent = await self._have_approved(intent, approval)
        self._check_open()
        return cast(ReceiptT, await self._perform(intent))

    @overload
    def approve(self, *, role: str = ..., expires_in: Duration | None = ...) -> Terms: ...
    @overload
    def approve(
        self,
        name: str,
        proposal: Any,
        *,
        role: str = ...,
        expires_in: Duration | None = ...,
        key: str | None = ...,
    ) -> Coroutine[Any, Any, Approved]: ...
    def approve(
        self,
        name: str | None = None,
        proposal: Any = None,
        *,
        role: str = Role.APPROVER,
        expires_in: Duration | None = None,
        key: str | None = None,
    ) -> Terms | Coroutine[Any, Any, Approved]:
        """Without a name: the terms on which an operation is approved. With one, to be awaited: a
        decision for its own sake about `proposal`, which is JSON; the run waits without a worker.

        `role` is who decides (`approver`, `operator` or `admin`), `expires_in` how long that can be
        done. Raises `ApprovalRejected` and `ApprovalExpired`, in every attempt again.
        """
        terms = asking.make_terms(role, expires_in)
        return terms if name is None else self._approve(name, proposal, terms, key)

    # ---- waiting ---------------------------------------------------------------------------

    async def sleep(self, span: Duration, *, key: str | None = None) -> None:
        """Waits without holding a worker. The instant is fixed when it is first asked for."""
        own = kept_beside_steps("timer", self._name("sleep", "sleep", key))
        until = await self._timer(own, duration(span))
        await self._wait_until(until)

    async def wait_signal(self, name: str, *, timeout: Duration | None = None) -> Any:
        """The payload of the next signal of that name, without holding a worker. Signals are taken
        in the order they came, each by one wait; parallel branches wait for different names. Raises
        `SignalTimedOut`; that is remembered, and a signal that comes later is the next wait's."""
        own = self._name("signal", name)
        number = self._signals_taken.get(name, 0) + 1
        until = None
        if timeout is not None:
            until = await self._timer(kept_beside_steps("signal", own), duration(timeout))
        memory = await self._remember_all(fresh=True)
        over = kept_beside_steps("timed out", own)
        found = memory.signals.get((name, number))
        if found is not None and over not in memory.steps:
            self._signals_taken[name] = number
            return found.payload
        if over in memory.steps or (until is not None and until <= memory.now):
            await self._timer(over, timedelta(0))
            raise SignalTimedOut(f"no signal {name!r} came within {timeout}")
        return await self._park(Wait("signal", name=name, number=number, until=until))

    async def run(
        self,
        kind: RunKind[InputT, OutputT],
        input: InputT,
        *,
        name: str | None = None,
        key: str | None = None,
        detached: bool = False,
    ) -> OutputT:
        """Submits a child run and waits for its output without holding a worker. Raises
        `ChildFailed` when it ended otherwise."""
        child = await self.submit(kind, input, name=name, key=key, detached=detached)
        return (await self.wait(child))[0]

    async def submit(
        self,
        kind: RunKind[InputT, OutputT],
        input: InputT,
        *,
        name: str | None = None,
        key: str | None = None,
        detached: bool = False,
    ) -> Child[OutputT]:
        """Submits a child run and goes on. The same child in every attempt."""
        require_kind(kind)
        stored = self._name("child", name or kind.name, key)
        return Child(await self._submit(kind, input, stored, detached), stored, kind)

    async def wait(self, *children: Child[OutputT]) -> list[OutputT]:
        """The outputs of children, in order, once all have ended."""
        self._check_open()
        wanted = [child.run_id for child in children]
        found = await self._read_children(wanted)
        if any(not found[run_id].final for run_id in wanted):
            await self._park(Wait("children", run_ids=tuple(wanted)))
        return [self._output_of(child, found[child.run_id]) for child in children]

    # ---- inside ----------------------------------------------------------------------------

    async def _step(
        self, name: str, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        digest = digest_of(args, kwargs)
        adapter = result_type(function)
        known = await self._remembered(name, digest)
        if known is not None:
            return read_result(adapter, known.result, name)
        value = await _call(function, args, kwargs)
        result = encode_result(adapter, value, name, self.engine.settings.max_result_bytes)
        told = canonical.encode({"name": name, "attempt": self.attempt})
        self._check_open()
        await self._write("step.completed", told, name, "step", digest, result)
        return read_result(adapter, canonical.decode(result), name)

    async def _approve(self, name: str, proposal: Any, terms: Terms, key: str | None) -> Approved:
        stored = self._name("approval", name, key)
        return await self._decision(asking.own_proposal(self._asker(), stored, proposal, terms))

    async def _have_approved(self, intent: intending.Intent, terms: Terms) -> intending.Intent:
        """Returns when somebody has approved it. The intent is durable before anybody is asked, and
        given up when the answer is no. What was begun already is past its approval."""
        asking.require_terms(terms)
        asked = asking.request_proposal(
            self._asker(), intent.name, terms, operation_id=intent.operation_id,
            effect=intent.effect.kind, data=intent.data,
        )  # fmt: skip
        intent = replace(intent, approval_id=asked.approval_id)
        known = await self._find_approval(asked)
        if known is None and not await self._reserve(intent):
            return intent
        try:
            await self._decision(asked)
        except (ApprovalRejected, ApprovalExpired):
            await self._give_up(intent)
            raise
        return intent

    async def _decision(self, asked: Proposal) -> Approved:
        known = await self._find_approval(asked)
        if asking.is_pending(asked, known):
            await self._park(Wait("approval", name=asked.name, approval=asked))
        assert known is not None, "what is not there is pending"
        return asking.answer(known)

    def _asker(self) -> asking.Asker:
        kind = self.engine.kinds[self.claimed.kind]
        excludes = not kind.approver_may_be_proposer
        return asking.Asker(self.claimed.run_id, self.claimed.principal_id, excludes)

    async def _known_operation(self, intent: intending.Intent) -> Operation | None:
        memory = await self._remember_all()
        return memory.operations.get(intent.operation_id)

    def _intent(
        self, name: str, effect: Any, request: Any, resource_key: str | None
    ) -> intending.Intent:
        return intending.make_intent(
            self.engine.effect_of(effect),
            request,
            scope_id=self.scope_id,
            operation_id=ids.operation_id(self.claimed.run_id, name),
            principal_id=self.claimed.principal_id,
            name=name,
            resource_key=resource_key,
            lease=self.lease,
        )

    # What acts on database and outside; a replay answers it from what is recorded.

    async def _perform(self, intent: intending.Intent) -> Any:
        await self.flush_text()
        self._check_open()
        return await self._finish_even_if_left(operating.perform(self.engine, intent))

    async def _reserve(self, intent: intending.Intent) -> bool:
        """Whether it stands as reserved then, and waits for nothing but its approval."""
        self._check_open()
        reserve = partial(intending.reserve, self.engine, intent)
        return intending.may_begin(await patiently(self.lease.valid, reserve))

    async def _give_up(self, intent: intending.Intent) -> None:
        self._check_open()
        give_up = partial(intending.give_up, self.engine, intent)
        await patiently(self.lease.valid, give_up)

    async def _find_approval(self, asked: Proposal) -> Approval | None:
        """A first attempt has asked nobody yet."""
        if self.attempt == 1:
            return None
        return await approvals.find(self.engine.database, self.scope_id, asked.approval_id)

    async def _submit(
        self, kind: RunKind[Any, Any], input: Any, name: str, detached: bool
    ) -> uuid.UUID:
        submit = partial(
            parenting.submit_child,
            self.engine, self.claimed, self.lease, kind, input, name, detached=detached,
        )  # fmt: skip
        return await patiently(self.lease.valid, submit)

    async def _read_children(
        self, run_ids: Sequence[uuid.UUID]
    ) -> dict[uuid.UUID, parenting.Ended]:
        return await parenting.read_children(self.engine, self.scope_id, run_ids)

    async def _park(self, wait: Wait) -> NoReturn:
        raise Parked(wait)

    async def _wait_until(self, until: datetime) -> None:
        memory = await self._remember_all(fresh=True)
        left = until - memory.now
        if left <= timedelta(0):
            return
        if left > IN_PLACE:
            await self._park(Wait("time", until=until))
        await asyncio.sleep(left.total_seconds())

    def _output_of(self, child: Child[OutputT], ended: parenting.Ended) -> OutputT:
        if ended.status is not RunStatus.SUCCEEDED:
            shown = ids.show("run", child.run_id)
            raise ChildFailed(
                f"child {child.name!r} ({shown}) ended as {ended.status}",
                fields={"run_id": shown, "status": ended.status.value, "error": ended.error},
            )
        try:
            return child.kind.output_type.validate_python(ended.output)
        except ValidationError as error:
            raise CodeChanged(
                f"the output of child {child.name!r} no longer fits {child.kind.name}: "
                f"{misfit(error)}"
            ) from error


async def _call(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    with foreign_code:
        if inspect.iscoroutinefunction(function):
            return await function(*args, **kwargs)
        value = await in_thread(function, *args, **kwargs)
        return await value if inspect.isawaitable(value) else value


def _payload(payload: dict[str, Any]) -> bytes:
    try:
        data = canonical.encode(to_jsonable_python(payload))
    except (canonical.NotJson, ValueError) as error:
        raise InvalidRequest(f"the event's payload cannot be stored: {misfit(error)}") from error
    if len(data) > MAX_PAYLOAD_BYTES:
        raise PayloadTooLarge(f"an event's payload has at most {MAX_PAYLOAD_BYTES} bytes")
    return data
