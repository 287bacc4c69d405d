"""What stands behind the fixtures of `plugin`: making and binding an engine, stopping a clock,
running a coroutine for a test that is not async, and noticing a forgotten `await`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Self

import pytest

from earnest.engine.app import App
from earnest.engine.process import announcing, binding
from earnest.engine.process.doorbells import Doorbells
from earnest.engine.process.engine import Engine
from earnest.engine.process.settings import EngineSettings
from earnest.testing.any_loop import AnyLoopDatabase, on_a_loop_aside
from earnest.testing.clock import HeldClock, ManualClock

SCOPE, PRINCIPAL = "default", "app"


@contextmanager
def bound_engine(app: App, database: AnyLoopDatabase, settings: EngineSettings) -> Iterator[Engine]:
    """An engine that knows the app; its kinds are announced, so SQL can submit them too."""
    engine = Engine(
        database,
        kinds=app.kinds,
        effects=dict(app.effects),
        inboxes=app.inboxes,
        settings=settings,
    )
    engine.bells = Doorbells(database, across=False)
    on_a_loop_aside(lambda: announcing.announce(engine))
    bound = binding.Binding(engine, SCOPE, PRINCIPAL)
    binding.bind(bound)
    try:
        yield engine
    finally:
        binding.unbind(bound)


def stop_clock(database: AnyLoopDatabase) -> HeldClock:
    """The database's clock, stopped now; programs that compute times by their own stay close."""
    now = datetime.now(UTC)
    return HeldClock(on_a_loop_aside(ManualClock(database, now).stop))


class Runner:
    """One event loop for a test that is not async, made when it is first needed."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner()

    def run(self, awaitable: Awaitable[Any]) -> Any:
        """What the awaitable gives. Raises `RuntimeError` in a test that is async itself."""
        if asyncio._get_running_loop() is not None:
            if asyncio.iscoroutine(awaitable):
                awaitable.close()
            raise RuntimeError("earnest_run is for tests that are not async; use `await` in this")
        return self._runner.run(_awaiting(awaitable))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._runner.close()


async def _awaiting(awaitable: Awaitable[Any]) -> Any:
    return await awaitable


class _Asked:
    """A coroutine that knows whether somebody has awaited it."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], what: str) -> None:
        self.what = what
        self.awaited = False
        self._coroutine = coroutine

    def __await__(self) -> Generator[Any, Any, Any]:
        self.awaited = True
        return self._coroutine.__await__()

    def close(self) -> None:
        self._coroutine.close()


@contextmanager
def awaited(
    verb: Callable[..., Coroutine[Any, Any, Any]], *first: Any
) -> Iterator[Callable[..., Awaitable[Any]]]:
    """The verb with its first arguments given. A call of it that nobody awaits does nothing, and a
    test that believes it did could not fail; so the test fails for that."""
    calls: list[_Asked] = []

    def ask(*rest: Any, **named: Any) -> _Asked:
        calls.append(_Asked(verb(*first, *rest, **named), verb.__name__))
        return calls[-1]

    yield ask
    forgotten = [call for call in calls if not call.awaited]
    for call in forgotten:
        call.close()
    if forgotten:
        pytest.fail(f"{forgotten[0].what}() was called and not awaited; it has done nothing")
