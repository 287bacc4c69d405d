"""The context of plain handlers: the same verbs, from a thread, without `await`.

Every verb is the async one, carried to the event loop and waited for; there is no second
implementation. Each thread that asks counts as a branch of its own.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, overload

from earnest.domain.artifact import ArtifactRef
from earnest.engine.approvals.asking import Approved, Terms
from earnest.engine.artifacts.sources import Data
from earnest.engine.attempts.names import asked_in
from earnest.engine.process.actors import Role
from earnest.engine.process.effects import Effect
from earnest.engine.process.kinds import RunKind

if TYPE_CHECKING:
    from earnest.engine.attempts.context import Child, Context


class PlainContext:
    """What a handler that is no coroutine works with. See `Context` for what each verb promises."""

    def __init__(self, context: Context, loop: asyncio.AbstractEventLoop) -> None:
        self._context = context
        self._loop = loop

    @property
    def run_id(self) -> str:
        return self._context.run_id

    @property
    def scope_id(self) -> str:
        return self._context.scope_id

    @property
    def attempt(self) -> int:
        return self._context.attempt

    @property
    def fence(self) -> int:
        return self._context.fence

    @property
    def labels(self) -> dict[str, str]:
        return self._context.labels

    @property
    def submitted_context(self) -> dict[str, Any]:
        return self._context.submitted_context

    @property
    def cancelled(self) -> bool:
        """Whether the run was asked to stop. A thread cannot be ended from outside: look at this
        between pieces of work, or use any other verb, which raises then."""
        return self._context.cancelled

    def step(self, name: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        return self._wait(self._context.step(name, function, *args, **kwargs))

    def keyed_step(
        self, name: str, key: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> Any:
        return self._wait(self._context.keyed_step(name, key, function, *args, **kwargs))

    def emit(self, type: str, payload: dict[str, Any], *, key: str | None = None) -> None:
        self._wait(self._context.emit(type, payload, key=key))

    def publish(self, type: str, payload: dict[str, Any], *, key: str | None = None) -> None:
        self._wait(self._context.publish(type, payload, key=key))

    def progress(self, done: float, total: float | None = None, note: str = "") -> None:
        self._wait(self._context.progress(done, total, note))

    def text(self, piece: str) -> None:
        self._wait(self._context.text(piece))

    def log(self, message: str, **fields: Any) -> None:
        self._context.log(message, **fields)

    def artifact(
        self,
        name: str,
        data: Data,
        *,
        media_type: str | None = None,
        kept: Any = None,
        key: str | None = None,
    ) -> ArtifactRef:
        return self._wait(  # type: ignore[no-any-return]
            self._context.artifact(name, data, media_type=media_type, kept=kept, key=key)
        )

    def read_artifact(self, artifact: ArtifactRef | str) -> bytes:
        """All bytes of an artifact; a coroutine can `open_artifact` and read it in parts."""
        opened = self._wait(self._context.open_artifact(artifact))
        return self._wait(opened.read())  # type: ignore[no-any-return]

    def operation(
        self,
        name: str,
        effect: Effect[Any, Any] | type[Effect[Any, Any]],
        request: Any,
        *,
        key: str | None = None,
        resource_key: str | None = None,
        approval: Terms | None = None,
    ) -> Any:
        return self._wait(
            self._context.operation(
                name, effect, request, key=key, resource_key=resource_key, approval=approval
            )
        )

    @overload
    def approve(self, *, role: str = ..., expires_in: Any = ...) -> Terms: ...
    @overload
    def approve(
        self,
        name: str,
        proposal: Any,
        *,
        role: str = ...,
        expires_in: Any = ...,
        key: str | None = ...,
    ) -> Approved: ...
    def approve(
        self,
        name: str | None = None,
        proposal: Any = None,
        *,
        role: str = Role.APPROVER,
        expires_in: Any = None,
        key: str | None = None,
    ) -> Terms | Approved:
        if name is None:
            return self._context.approve(role=role, expires_in=expires_in)
        work = self._context.approve(name, proposal, role=role, expires_in=expires_in, key=key)
        return self._wait(work)  # type: ignore[no-any-return]

    def sleep(self, span: Any, *, key: str | None = None) -> None:
        self._wait(self._context.sleep(span, key=key))

    def wait_signal(self, name: str, *, timeout: Any = None) -> Any:
        return self._wait(self._context.wait_signal(name, timeout=timeout))

    def run(
        self,
        kind: RunKind[Any, Any],
        input: Any,
        *,
        name: str | None = None,
        key: str | None = None,
        detached: bool = False,
    ) -> Any:
        return self._wait(self._context.run(kind, input, name=name, key=key, detached=detached))

    def submit(
        self,
        kind: RunKind[Any, Any],
        input: Any,
        *,
        name: str | None = None,
        key: str | None = None,
        detached: bool = False,
    ) -> Child[Any]:
        return self._wait(  # type: ignore[no-any-return]
            self._context.submit(kind, input, name=name, key=key, detached=detached)
        )

    def wait(self, *children: Child[Any]) -> list[Any]:
        return self._wait(self._context.wait(*children))  # type: ignore[no-any-return]

    def _wait(self, work: Any) -> Any:
        asked_in.set(threading.current_thread())
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()
