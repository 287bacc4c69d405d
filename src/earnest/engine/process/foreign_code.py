"""Calling other people's code: handlers, steps, effects and their hooks.

What they raise stays where they were called. Python lets `SystemExit` and `KeyboardInterrupt` pass
through a task and end the whole event loop: one handler that says `sys.exit()` would end its worker
and lose the work of all its neighbours. Here also stands how their errors are told.
"""

from __future__ import annotations

import asyncio
import dis
import signal
import threading
import traceback
from collections import deque
from types import CodeType, TracebackType

from pydantic import ValidationError

from earnest.domain.foreign_errors import Exited, name_of
from earnest.engine.process.typed_json import misfit

MAX_MESSAGE = 300
MAX_FRAMES = 30
MAX_ERRORS = 10


class Leaving(BaseException):
    """Control flow of the engine, which passes through other people's code on purpose."""


_PASSING = (Exception, asyncio.CancelledError, GeneratorExit, BaseExceptionGroup, Leaving)


class _ForeignCode:
    """`with foreign_code:` around a call: what would end the process becomes `Exited`, an ordinary
    exception. A real signal passes."""

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None and not isinstance(error, _PASSING) and not came_by_signal(error):
            raise Exited(error) from error


foreign_code = _ForeignCode()


def came_by_signal(error: BaseException) -> bool:
    """Whether a signal raised it, wherever the program happened to be, and no code there did."""
    if threading.current_thread() is not threading.main_thread():
        return False  # signals are heard by the main thread alone
    listening = _listening()
    last: TracebackType | None = None
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code in listening:
            return True
        last, trace = trace, trace.tb_next
    by_python = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    return by_python and isinstance(error, KeyboardInterrupt) and not _is_raised_at(last)


def _listening() -> set[CodeType]:
    """The code of the program's own signal handlers."""
    found = set()
    for number in signal.valid_signals():
        handler = signal.getsignal(number)
        function = getattr(handler, "func", handler)  # of a partial, as asyncio's is
        code = getattr(getattr(function, "__func__", function), "__code__", None)
        if isinstance(code, CodeType):
            found.add(code)
    return found


def _is_raised_at(trace: TracebackType | None) -> bool:
    """Whether a `raise` stands there; Python's own signal handler has no line in a traceback."""
    if trace is None:
        return True
    return trace.tb_frame.f_code.co_code[trace.tb_lasti] == dis.opmap["RAISE_VARARGS"]


# ---- how their errors are told -----------------------------------------------------------------


def told_of(error: BaseException) -> str:
    """Its type and what it says; of a value that does not fit, the places alone. Not bounded."""
    return f"{name_of(error)}: {misfit(error)}"


def described(error: BaseException) -> str:
    """The error, what it came after, and the frames of each as file, line and function: for logs.
    No values of variables, no control characters but the ends of lines, and of a bounded length."""
    parts: list[str] = []
    seen: set[int] = set()
    current: BaseException | None = error.error if isinstance(error, Exited) else error
    while current is not None and id(current) not in seen and len(parts) < MAX_ERRORS:
        seen.add(id(current))
        parts.append(f"{_said(current)}{_frames(current.__traceback__)}")
        current = current.__cause__ or (
            None if current.__suppress_context__ else current.__context__
        )
    return "\nafter ".join(parts)


def _said(error: BaseException) -> str:
    if not isinstance(error, ValidationError):
        return printable(told_of(error))
    places = ["/".join(map(str, one["loc"])) for one in error.errors(include_input=False)]
    return printable(f"{name_of(error)}: does not fit at {', '.join(places[:10])}")


def printable(text: str, most: int = MAX_MESSAGE) -> str:
    """On one line, without what cannot be printed, and cut where it is too long."""
    shown = "".join(
        letter if letter.isprintable() else " " if letter.isspace() else "\N{REPLACEMENT CHARACTER}"
        for letter in text[: most + 1]
    )
    return f"{shown[:most]}…" if len(shown) > most else shown


def _frames(trace: TracebackType | None) -> str:
    walked = deque(traceback.walk_tb(trace), maxlen=MAX_FRAMES)
    return "".join(f"\n  {_place(frame.f_code, line)}" for frame, line in walked)


def _place(code: CodeType, line: int) -> str:
    return printable(f"{code.co_filename}:{line} in {code.co_name}")
