"""The event loop of a command."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, TypeVar, cast

if TYPE_CHECKING:
    import uvloop

T = TypeVar("T")


def run_in_loop(work: Coroutine[Any, Any, T]) -> T:
    """Runs it on uvloop to its end; SIGINT cancels it and comes out as `KeyboardInterrupt`. Nothing
    else ends it sooner: see `_new_loop`."""
    with asyncio.Runner(loop_factory=_new_loop) as runner:
        exited, result = runner.run(_ended(work))
    if exited is not None:
        raise exited
    return cast(T, result)


async def _ended(work: Coroutine[Any, Any, T]) -> tuple[BaseException | None, T | None]:
    """What the command itself exits with is a result like others: it ends the loop."""
    try:
        return None, await work
    except (SystemExit, KeyboardInterrupt) as exited:
        return exited, None


def _new_loop() -> uvloop.Loop:
    """Where a task says `sys.exit()`, Python stops the whole loop. Here the loop goes on, and
    whoever waits for that task is told: it may be a branch that a handler began by itself."""
    import uvloop

    class LoopThatGoesOn(uvloop.Loop):
        def run_forever(self) -> None:
            while True:
                try:
                    return super().run_forever()
                except (SystemExit, KeyboardInterrupt) as error:
                    if _came_by_signal(error):
                        raise

    return LoopThatGoesOn()


def _came_by_signal(error: BaseException) -> bool:
    from earnest.engine.process.foreign_code import came_by_signal

    return came_by_signal(error)
