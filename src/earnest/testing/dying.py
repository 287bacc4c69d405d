"""Dying in the middle of a test: a process that is a copy of the test's is killed at a point.

The copy is made with `fork`, so it has the app, the patches and the settings of the test, and it
knows what the test knows. It has an engine, connections and an event loop of its own, works, and is
ended by SIGKILL at the named point: nothing is unwound, the database sees the connection break, and
the operating system can prove that the process is gone. What the copy changed in memory dies with
it; what it sent and committed stays.

What this does not show: a machine that loses power, and a process that lives on cut off from its
database. Connections that the test itself has opened before are the copy's too; it must not use
them (a client that already has talked on another event loop could not be used there anyway).
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import NoReturn

from earnest.domain import crash_points
from earnest.domain.duration import Duration, duration
from earnest.engine.attempts.working import Worker
from earnest.engine.process import binding
from earnest.engine.process.engine import Engine
from earnest.testing.any_loop import AnyLoopDatabase, in_a_thread
from earnest.testing.crashing import Crash

PATIENCE = "30s"
ALIASES = {
    "run.claimed": "claim.after",
    "operation.reserved": "reserve.after",
    "operation.begun": "begin.after",
    "operation.called": "call.after",
    "operation.submitted": "confirm.after",
}
"""Points by what is true there: the operation is begun, and no more than that."""

Doing = Callable[[], Awaitable[object]]


class StillAlive(AssertionError):
    """The process that was to die there has not."""


async def crash_at(
    engine: Engine,
    point: str,
    *,
    occurrence: int = 1,
    doing: Doing | None = None,
    patience: Duration = PATIENCE,
) -> None:
    """Lets another process do what is due (or `doing`, an async function without arguments) and
    kills it at the `occurrence`-th passing of `point`. Returns when it is dead.

    Raises `SettingInvalid` for a point that does not exist, `StillAlive` when the process ended
    otherwise or not at all; it says which points were passed.
    """
    crash = Crash(ALIASES.get(point, point), occurrence)
    reading, writing = os.pipe()
    pid = _fork()
    if pid == 0:
        _live_and_die(engine, crash, doing, writing)
    os.close(writing)
    status = await _ended(pid, duration(patience).total_seconds())
    passed = _read(reading)
    if status is None:
        raise StillAlive(f"the process has not come to {crash.point} in {patience}; it is ended")
    if not (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL):
        raise StillAlive(_why_alive(crash, passed, status))


def _read(end: int) -> str:
    """What the process that has ended left in its pipe."""
    with open(end, encoding="utf-8") as report:
        return report.read()


def _why_alive(crash: Crash, passed: str, status: int) -> str:
    how = "failed, see its output" if os.waitstatus_to_exitcode(status) else "ended by itself"
    return (
        f"nobody was killed at passing {crash.passing} of {crash.point}: the process {how}; "
        f"it passed {passed or 'no point at all'}"
    )


async def _ended(pid: int, seconds: float) -> int | None:
    """How the process has ended; `None` when it had to be ended. It does not outlive who waits."""
    waiting = asyncio.create_task(asyncio.to_thread(os.waitpid, pid, 0))
    try:
        done, _ = await asyncio.wait({waiting}, timeout=seconds)
    finally:
        if not waiting.done():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    _, status = await waiting
    return status if done else None


def _fork() -> int:
    with warnings.catch_warnings():
        # Of threads that do not exist in the copy: it only ever uses what it makes itself.
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


# ---- the copy ----------------------------------------------------------------------------------


def _live_and_die(engine: Engine, crash: Crash, doing: Doing | None, report: int) -> NoReturn:
    """Never returns to the test, of which it is a copy, and runs none of its clean-up."""
    code = 1
    passed: dict[str, int] = {}
    try:
        gc.freeze()  # What the test left to be collected is the test's to close.
        crash_points.install(_trigger(crash, passed))
        # In a thread of its own: this one is in the middle of the test's event loop.
        in_a_thread(lambda: asyncio.run(_live(engine, doing)))
        code = 0
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os.write(report, ", ".join(f"{point} ({n})" for point, n in passed.items()).encode())
        os._exit(code)


def _trigger(crash: Crash, passed: dict[str, int]) -> Callable[[str], None]:
    def reached(point: str) -> None:
        passed[point] = passed.get(point, 0) + 1
        if point == crash.point and passed[point] == crash.passing:
            os.kill(os.getpid(), signal.SIGKILL)

    return reached


async def _live(engine: Engine, doing: Doing | None) -> None:
    """As a process of its own: its own identity in the database, held as long as it lives."""
    database = AnyLoopDatabase(engine.database.url)
    own = Engine(database, engine.kinds, engine.effects, engine.settings)
    connection = await database.connect()
    await own.instance.enter(connection)
    with _bound(own):
        async with database.pooled():
            await (doing() if doing is not None else Worker(own, keeper=False).drain_once())
    crash_points.install(None)
    await own.instance.leave(database)
    await connection.close()


@contextmanager
def _bound(own: Engine) -> Iterator[None]:
    test = binding.current()
    bound = binding.Binding(own, test.scope_id, test.principal_id)
    binding.bind(bound)
    try:
        yield
    finally:
        binding.unbind(bound)
