"""What the fixtures that are called look like, for projects that check the types of their tests."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import EllipsisType
from typing import Any, Protocol, TypeVar

from earnest.domain.approval import Approval
from earnest.domain.duration import Duration
from earnest.domain.run import Run
from earnest.engine.process.kinds import RunKind
from earnest.testing.draining import Drained

T = TypeVar("T")


class Drain(Protocol):
    """The fixture `drain`; see `draining.drain`."""

    def __call__(
        self, *, ahead: Duration = 0, to_the_end: bool = False, patience: Duration = "20s"
    ) -> Awaitable[Drained]: ...


class CrashAt(Protocol):
    """The fixture `crash_at`; see `dying.crash_at`."""

    def __call__(
        self,
        point: str,
        *,
        occurrence: int = 1,
        doing: Callable[[], Awaitable[object]] | None = None,
        patience: Duration = "30s",
    ) -> Awaitable[None]: ...


class Decide(Protocol):
    """The fixtures `approve` and `reject`; see `approving`."""

    def __call__(
        self, run: str, /, *, name: str | None = None, note: str = "", by: str = "approver"
    ) -> Awaitable[Approval]: ...


class AssertSubmitted(Protocol):
    """The fixture `assert_submitted`; see `submitted.assert_submitted`."""

    def __call__(
        self,
        kind: RunKind[Any, Any] | str,
        *,
        input: Any = ...,
        key: str | EllipsisType | None = ...,
        count: int | None = None,
    ) -> list[Run]: ...


class RunNow(Protocol):
    """The fixture `earnest_run`, for tests that are not async."""

    def __call__(self, awaitable: Awaitable[T], /) -> T: ...
