"""How a command ends: its exit code, and one line on standard error when it did not work.

| code | means |
| --- | --- |
| 0 | done |
| 1 | refused, not found or failed; a watched run that did not succeed; a check found something |
| 2 | the command line, or a setting that it or a variable gives, cannot be (a port in use, too) |
| 3 | the database cannot be reached or does not fit, or the home cannot be used |
| 130 | interrupted |

With `EARNEST_DEBUG=1` the traceback follows the line.
"""

from __future__ import annotations

import os
import sys
import traceback
from enum import IntEnum

from typer.exceptions import TyperException

from earnest.domain.errors import (
    DatabaseUnavailable,
    EarnestError,
    HomeUnusable,
    SchemaMismatch,
    SettingInvalid,
)
from earnest.domain.foreign_errors import said_by
from earnest.doors.cli import screen


class ExitCode(IntEnum):
    OK = 0
    FAILED = 1
    USAGE = 2
    UNUSABLE = 3
    INTERRUPTED = 130


EPILOG = (
    "Exit codes: 0 done; 1 refused, not found or failed; 2 the command line or a setting cannot "
    "be, a port in use too; 3 the database cannot be reached or does not fit, or the home cannot "
    "be used; 130 interrupted. EARNEST_DEBUG=1 adds the traceback to an error."
)


def code_of(error: BaseException) -> ExitCode:
    match error:
        case SettingInvalid() | TyperException():
            return ExitCode.USAGE
        case DatabaseUnavailable() | HomeUnusable() | SchemaMismatch():
            return ExitCode.UNUSABLE
        case KeyboardInterrupt():
            return ExitCode.INTERRUPTED
        case _:
            return ExitCode.FAILED


def tell(error: BaseException) -> ExitCode:
    """Says in one line what went wrong and what to do; returns the exit code."""
    line = _line(error)
    if line:
        sys.stderr.write(f"earnest: {line}\n")
    if debugging():
        traceback.print_exception(error)
    return code_of(error)


def debugging() -> bool:
    return os.environ.get("EARNEST_DEBUG", "") not in ("", "0")


def _line(error: BaseException) -> str:
    match error:
        case KeyboardInterrupt():
            return ""
        case EarnestError():
            text = error.detail
        case TyperException():
            text = f"{error.format_message().rstrip('.')}{_where_help_is(error)}"
        case _:
            text = f"{type(error).__name__}: {said_by(error)}; EARNEST_DEBUG=1 shows where"
    return screen.printable(" ".join(text.split()))


def _where_help_is(error: TyperException) -> str:
    context = getattr(error, "ctx", None)
    return "" if context is None else f"; try `{context.command_path} --help`"
