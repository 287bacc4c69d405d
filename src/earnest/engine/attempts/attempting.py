"""One attempt: a handler is run under its lease, and how it ended is told truthfully.

The reasons an attempt can be stopped from outside (its own time-out, a lost lease, a cancel, a
drain) are told apart here and never by the exception that the handler happens to see. A call that
is on its way when the handler ends is waited for first.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from functools import partial
from typing import Any, TypeGuard

from earnest.domain import canonical, ids
from earnest.domain.errors import (
    ApprovalExpired,
    ApprovalRejected,
    AttemptTimedOut,
    Blocked,
    ChildFailed,
    DatabaseUnavailable,
    EarnestError,
    Failed,
    FencedOut,
    InputInvalid,
    InvalidRequest,
    NameNeeded,
    NotDone,
    Refused,
    ResultInvalid,
    SignalTimedOut,
    TextTooLong,
)
from earnest.domain.kept_error import kept_error, kept_text
from earnest.domain.run import Wait
from earnest.engine.attempts.context import Context, Parked
from earnest.engine.attempts.plain import PlainContext
from earnest.engine.attempts.remembering import Rememberer
from earnest.engine.attempts.settling import Ending, Settled, Settler, Wish
from earnest.engine.operations.intending import StopAsked
from earnest.engine.process.engine import Engine
from earnest.engine.process.foreign_code import foreign_code, told_of
from earnest.engine.process.kinds import RunKind
from earnest.engine.process.logs import get_logger
from earnest.engine.process.threads import in_thread
from earnest.engine.process.typed_json import encode_typed, misfit
from earnest.engine.process.unchecked import judge_misfit
from earnest.engine.runs.leasing import HeldLease, Leases
from earnest.store.database import BUSY
from earnest.store.executions import Claimed

log = get_logger("earnest.attempt")

# What a later attempt would only meet again.
FOR_GOOD = (
    Refused,
    NotDone,
    ApprovalRejected,
    ApprovalExpired,
    Failed,
    ChildFailed,
    SignalTimedOut,
    InputInvalid,
    ResultInvalid,
    NameNeeded,
    TextTooLong,
)
UNWIND = timedelta(seconds=5)


class Stop(StrEnum):
    """Why an attempt was stopped from outside."""

    LOST = "lost"
    TIMEOUT = "timeout"
    CANCEL = "cancel"
    DRAIN = "drain"


@dataclass(eq=False)
class Attempting:
    """Runs one claimed run's handler to its ending. `stop` may be called from any thread.
    `on_over` is called once, when the handler is over and only its ending is still to be stored.
    `ended` is done when that is stored too, or cannot be: `None` then, and the reaper sees to it.

    The handler is the only task of its attempt as long as nothing needs to be waited for after it:
    a plain success joins the group that is stored next, and what it answers is the end."""

    engine: Engine
    claimed: Claimed
    leases: Leases
    rememberer: Rememberer
    settler: Settler
    asked_at: float
    on_over: Callable[[], None]
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    ended: asyncio.Future[Settled | None] = field(init=False)
    _held: HeldLease = field(init=False)
    _context: Context = field(init=False)
    _handler: asyncio.Task[Any] | None = None
    _timer: asyncio.TimerHandle | None = None
    _finishing: asyncio.Task[Settled | None] | None = None
    _over: bool = False
    _stopped: Stop | None = None
    _over_at: float = 0.0

    def __post_init__(self) -> None:
        self.ended = self._loop.create_future()
        self._held = self.leases.hold(
            self.claimed, self.asked_at, self._told_lost, self._told_cancel
        )
        self._context = Context(self.engine, self.claimed, self._held, self.rememberer)

    def begin(self) -> None:
        kind = self.engine.kinds[self.claimed.kind]
        self._handler = self._loop.create_task(_call(self.engine, kind, self._context))
        self._handler.add_done_callback(self._handler_ended)
        if self._stopped is not None:
            self.stop(self._stopped)
        if kind.timeout is not None:
            seconds = kind.timeout.total_seconds()
            self._timer = self._loop.call_later(seconds, self.stop, Stop.TIMEOUT)

    def stop(self, why: Stop) -> None:
        """Asks the handler to end. The first reason counts, but a lost lease beats all."""
        if self._stopped is None or why is Stop.LOST:
            self._stopped = why
        if why is Stop.CANCEL:
            self._context.cancelled = True
        if self._handler is not None:
            self._handler.cancel()
            self._loop.call_later(UNWIND.total_seconds(), self._end_waiting)

    def _told_lost(self) -> None:
        self.engine.metrics.leases_lost.add()
        self._stop_from_thread(Stop.LOST)

    def _told_cancel(self) -> None:
        self._stop_from_thread(Stop.CANCEL)

    def _stop_from_thread(self, why: Stop) -> None:
        if threading.current_thread() is threading.main_thread() and _is_current(self._loop):
            self.stop(why)
        elif not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self.stop, why)

    # ---- when the handler is over ----------------------------------------------------------

    def _handler_ended(self, handler: asyncio.Task[Any]) -> None:
        if not handler.cancelled():
            handler.exception()  # Looked at: of an attempt that was lost nobody else asks for it.
        self._end_waiting()

    def _end_waiting(self) -> None:
        """The handler is done, or was stopped and has had its time to unwind. What does not end
        then (a thread cannot be ended) is left behind with a closed context."""
        if self._over:
            return
        self._over, self._over_at = True, self._loop.time()
        if self._timer is not None:
            self._timer.cancel()
        self.on_over()
        assert self._handler is not None, "it has begun"
        if not self._handler.done():
            log.warning("handler.left_behind", why=str(self._stopped), **self._ids())
        ending = self._ending(self.engine.kinds[self.claimed.kind], self._handler)
        if self._may_join_others(ending):
            answer = self.settler.join(self.claimed, ending)
            answer.add_done_callback(partial(self._answered, ending))
        else:
            self._finish_by_itself(ending)

    def _may_join_others(self, ending: Ending | None) -> TypeGuard[Ending]:
        return (
            ending is not None
            and self.settler.takes(self.claimed, ending)
            and not self._context.has_loose_ends()
            and self._held.valid()
        )

    def _answered(self, ending: Ending, answer: asyncio.Future[bool]) -> None:
        error = None if answer.cancelled() else answer.exception()
        if isinstance(error, DatabaseUnavailable):
            self._warn_not_settled(error)
            self._end(None)
        elif error is None and not answer.cancelled() and answer.result():
            self._end(Settled.SUCCEEDED)
        else:
            self._finish_by_itself(ending)

    def _finish_by_itself(self, ending: Ending | None) -> None:
        self._finishing = self._loop.create_task(self._finish(ending))
        self._finishing.add_done_callback(self._finished)

    async def _finish(self, ending: Ending | None) -> Settled | None:
        try:
            await self._context.finish_calls()
            await self._context.flush_text()
            await self._context.flush_logs()
            if ending is None or not self._held.valid():
                return Settled.FENCED
            return await self._settle(ending)
        except DatabaseUnavailable as error:
            self._warn_not_settled(error)
            return None

    async def _settle(self, ending: Ending) -> Settled:
        """A row on which somebody sits is waited for as long as the lease lives: what is done is
        not to be done again because of that."""
        while True:
            try:
                return await self.settler.settle(self.claimed, ending)
            except BUSY as error:
                if not self._held.valid():
                    raise
                log.warning("attempt.settles_again", error=str(error), **self._ids())

    def _warn_not_settled(self, error: DatabaseUnavailable) -> None:
        log.warning("attempt.not_settled", error=error.detail, **self._ids())

    def _finished(self, finishing: asyncio.Task[Settled | None]) -> None:
        error = None if finishing.cancelled() else finishing.exception()
        if error is not None:
            log.error("attempt.broken", exc_info=error, **self._ids())
        broken = finishing.cancelled() or error is not None
        self._end(None if broken else finishing.result())

    def _end(self, settled: Settled | None) -> None:
        self._context.close()
        self.leases.let_go(self._held)
        self._count("unsettled" if settled is None else settled.value)
        if not self.ended.done():
            self.ended.set_result(settled)

    def _count(self, outcome: str) -> None:
        metrics = self.engine.metrics
        metrics.settle_seconds.observe(self._loop.time() - self._over_at)
        metrics.attempts_ended.add(self.claimed.kind, outcome)

    def _ending(self, kind: RunKind[Any, Any], handler: asyncio.Task[Any]) -> Ending | None:
        if self._stopped is Stop.LOST:
            return None
        if not handler.done() or handler.cancelled():
            return self._ending_when_stopped(kind)
        error = speaking_error(handler.exception())
        if error is None and self._stopped is not Stop.TIMEOUT:
            return success(kind, handler.result(), self.engine.settings.max_result_bytes)
        if self._stopped is not None and not isinstance(error, (Parked, FencedOut, Blocked)):
            return self._ending_when_stopped(kind)
        assert error is not None, "told apart above"
        return self._ending_of(kind, error)

    def _ending_when_stopped(self, kind: RunKind[Any, Any]) -> Ending | None:
        match self._stopped:
            case Stop.TIMEOUT:
                late = AttemptTimedOut(
                    f"the attempt ran longer than its time-out of {kind.timeout}"
                )
                return Ending(Wish.RETRY, error=late.as_json(), timed_out=True, retry=kind.retry)
            case Stop.CANCEL:
                return Ending(Wish.STOP)
            case Stop.LOST:
                return None
            case Stop.DRAIN:
                return Ending(Wish.HAND_BACK)
            case None:  # a task that the handler waited for was cancelled, by whomever
                return self._ending_of(kind, asyncio.CancelledError("nobody stopped the attempt"))

    def _ending_of(self, kind: RunKind[Any, Any], error: BaseException) -> Ending | None:
        """What an error of the handler means for the run."""
        match error:
            case Parked(waits=waits):
                return Ending(Wish.PARK, waits=waits)
            case FencedOut():
                return None
            case StopAsked():
                return Ending(Wish.STOP)
            case Blocked():
                return Ending(Wish.BLOCK, error=kept_error(error))
        shown = told_error(error)
        if not isinstance(error, EarnestError):
            log.warning("handler.failed", error=shown["detail"], **self._ids(), exc_info=error)
        wish = Wish.FAIL if isinstance(error, FOR_GOOD) else Wish.RETRY
        return Ending(wish, error=shown, retry=kind.retry)

    def _ids(self) -> dict[str, Any]:
        return {"run_id": ids.show("run", self.claimed.run_id), "attempt": self.claimed.fence}


async def _call(engine: Engine, kind: RunKind[Any, Any], context: Context) -> Any:
    try:
        value = kind.read_input(context.claimed.input)
    except InvalidRequest as misfit:
        raise await judge_misfit(engine, context.claimed, kind, misfit) from misfit
    return await call_handler(kind, context, value)


async def call_handler(kind: RunKind[Any, Any], context: Context, value: Any) -> Any:
    """Coroutines here, plain functions in a thread."""
    with foreign_code:
        if kind.is_async:
            return await kind.handler(context, value)
        loop = asyncio.get_running_loop()
        return await in_thread(kind.handler, PlainContext(context, loop), value)


def told_error(error: BaseException) -> dict[str, Any]:
    """A handler's error as it is kept with its run."""
    shown = kept_error(error)
    if not isinstance(error, EarnestError):
        shown["detail"] = kept_text(told_of(error))
    return shown


def success(kind: RunKind[Any, Any], value: Any, most: int) -> Ending:
    """Results are checked before they join a group: no NUL, JSON, not too large."""
    try:
        output = encode_typed(kind.output_type, value, warnings="error")
        if len(output) > most:
            raise canonical.NotJson(f"it has {len(output)} bytes; at most {most} are kept")
    except (canonical.NotJson, ValueError, TypeError) as error:
        invalid = ResultInvalid(f"the result of {kind.name} cannot be stored: {misfit(error)}")
        return Ending(Wish.FAIL, error=kept_error(invalid))
    return Ending(Wish.SUCCEED, output=output)


def speaking_error(error: BaseException | None) -> BaseException | None:
    """The error that counts in a group of them, as parallel branches raise it: the first that is
    more than waiting; branches that only wait, wait together."""
    if not isinstance(error, BaseExceptionGroup):
        return error
    waiting, others = error.split(Parked)
    if others is not None:
        return speaking_error(others.exceptions[0])
    assert waiting is not None, "a group is not empty"
    return Parked(*_waits(waiting))


def _waits(group: BaseExceptionGroup[Parked]) -> Iterator[Wait]:
    for one in group.exceptions:
        yield from one.waits if isinstance(one, Parked) else _waits(one)


def _is_current(loop: asyncio.AbstractEventLoop) -> bool:
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False
