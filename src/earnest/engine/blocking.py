"""Blocking: the verbs of a program that has no event loop: a Celery task, a Django view, a script.

Every verb is the async one, carried to an event loop in a thread of this process and waited for;
there is no second implementation. The thread, its engine and its connections are made at the first
use, in the process that uses them: a process that was forked from one that had opened Earnest opens
it for itself, and never touches what it inherited.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakSet

from earnest.domain.duration import Duration
from earnest.domain.errors import SettingInvalid
from earnest.engine.app import App
from earnest.engine.operations.standing import operation
from earnest.engine.process import binding
from earnest.engine.process.effects import Effect
from earnest.engine.process.kinds import RunKind

if TYPE_CHECKING:
    from anyio.from_thread import BlockingPortal

T = TypeVar("T")
InputT = TypeVar("InputT")
RequestT = TypeVar("RequestT")
ReceiptT = TypeVar("ReceiptT")

Opening = Callable[[], AbstractAsyncContextManager[binding.Binding]]


@dataclass(frozen=True)
class _Opened:
    """What one process has opened; `closing` ends it all, the thread last."""

    portal: BlockingPortal
    bound: binding.Binding
    closing: ExitStack


class Blocking:
    """An app for callers that block. `earnest.blocking` makes it.

    It opens Earnest at the first use in a process, and closes it when the process ends; used as a
    context, at the end of that. Any number of threads may use it at once. A caller that stops
    waiting (a signal, a time limit) does not abandon its call: what comes of it is stored.
    """

    def __init__(self, app: App, opening: Opening) -> None:
        self._app = app
        self._opening = opening
        self._opened: _Opened | None = None
        self._lock = threading.Lock()
        _all.add(self)

    @contextmanager
    def operation(
        self,
        key: str,
        effect: Effect[RequestT, ReceiptT] | type[Effect[RequestT, ReceiptT]],
        request: RequestT,
        *,
        resource_key: str | None = None,
        scope: str | None = None,
        wait: Duration | None = None,
    ) -> Iterator[ReceiptT]:
        """Does it at most once and gives the receipt to the body. Promises and raises what
        `earnest.operation` does."""

        async def receipt() -> ReceiptT:
            async with operation(
                key, effect, request, resource_key=resource_key, scope=scope, wait=wait
            ) as found:
                return found

        yield self._wait(receipt)

    def submit(
        self,
        kind: RunKind[InputT, Any],
        input: InputT,
        *,
        key: str | None = None,
        priority: int = 0,
        not_before: datetime | None = None,
        labels: dict[str, str] | None = None,
    ) -> str:
        """As `App.submit`."""
        return self._wait(
            partial(
                self._app.submit, kind, input, key=key, priority=priority, not_before=not_before,
                labels=labels,
            )
        )  # fmt: skip

    def submit_many(
        self,
        kind: RunKind[InputT, Any],
        inputs: Sequence[InputT],
        *,
        keys: Sequence[str | None] | None = None,
    ) -> list[str]:
        """As `App.submit_many`."""
        return self._wait(partial(self._app.submit_many, kind, inputs, keys=keys))

    # ---- opening and closing -------------------------------------------------------------------

    def open(self) -> None:
        """Opens Earnest in this process now, and not at the first use: a setting that cannot be is
        told at start. Harmless when it is open."""
        self._open_here()

    def close(self) -> None:
        """Waits for calls that are on their way, and closes what this process has opened. Harmless
        when nothing is; the next use opens again."""
        with self._lock:
            opened, self._opened = self._opened, None
        if opened is not None:
            atexit.unregister(self.close)
            opened.closing.close()

    def __enter__(self) -> Blocking:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open_here(self) -> _Opened:
        binding.require_allowed()
        with self._lock:
            if self._opened is None:
                self._opened = _open(self._opening)
                atexit.register(self.close)
            return self._opened

    def _leave_behind(self) -> None:
        """In a process that was just forked: another thread may have held the lock meanwhile."""
        self._lock = threading.Lock()
        if self._opened is not None:
            _inherited.append(self._opened)
            self._opened = None

    def _wait(self, work: Callable[[], Awaitable[T]]) -> T:
        _refuse_event_loops()
        opened = self._open_here()
        return opened.portal.call(_act_through, opened.bound, work)


def _open(opening: Opening) -> _Opened:
    from anyio.from_thread import start_blocking_portal

    with ExitStack() as stack:
        portal = stack.enter_context(start_blocking_portal(name="earnest-blocking"))
        bound = stack.enter_context(portal.wrap_async_context_manager(opening()))
        return _Opened(portal, bound, stack.pop_all())


async def _act_through(bound: binding.Binding, work: Callable[[], Awaitable[T]]) -> T:
    with binding.acting_through(bound):
        return await work()


def _refuse_event_loops() -> None:
    """A caller that blocks an event loop would stop everybody else on it, and on ours forever."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise SettingInvalid(
        "this would block the event loop; in async code use `async with earnest.operation(...)` "
        "and `await app.submit(...)` inside `async with earnest.open(app)`, or call this in a "
        "thread: `await asyncio.to_thread(...)`"
    )


# ---- forks -------------------------------------------------------------------------------------

_all: WeakSet[Blocking] = WeakSet()

_inherited: list[_Opened] = []
"""What a forked process found opened. Never used, closed or collected there: its sockets, and the
selector that watches them, are the other process's."""


def _leave_all_behind() -> None:
    for one in list(_all):
        one._leave_behind()


os.register_at_fork(after_in_child=_leave_all_behind)
