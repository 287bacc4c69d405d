"""Apart: a command's work in a child process, whose end it survives.

Code of an app may end the process that it runs in, and may write where a command answers. Here it
ends the child only, and all that the child writes goes to standard error.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe
from typing import Any, NoReturn

import typer

from earnest.doors.cli.exits import ExitCode, tell

Tell = Callable[[object], None]


class ChildEnded(Exception):
    """The child ended before its work did, and did not say why. The text says how."""


@dataclass(frozen=True, slots=True)
class _Over:
    """The last thing that a child tells: its work is done, or failed and the user knows why."""

    code: int


def apart(work: Callable[[Tell], object]) -> Iterator[Any]:
    """What `work` tells, as it comes; anything that can be pickled. When the work raises, its line
    is on standard error, and this raises `typer.Exit` with its code. Raises `ChildEnded`."""
    receiver, sender = Pipe(duplex=False)
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        receiver.close()
        _work_in_child(work, sender)
    sender.close()
    with receiver:
        try:
            while not isinstance(told := receiver.recv(), _Over):
                yield told
        except EOFError:
            raise ChildEnded(_how(child)) from None
        except BaseException:
            os.kill(child, signal.SIGINT)
            os.waitpid(child, 0)
            raise
    os.waitpid(child, 0)
    if told.code:
        raise typer.Exit(told.code)


def _work_in_child(work: Callable[[Tell], object], sender: Connection) -> NoReturn:
    """Ends the process at the end, without a wait for threads that the app's code left behind."""
    code = int(ExitCode.FAILED)
    try:
        os.dup2(2, 1)
        with redirect_stdout(sys.stderr):
            work(sender.send)
        code = int(ExitCode.OK)
    except BaseException as error:
        code = int(tell(error))
    finally:
        try:
            sys.stderr.flush()
            sender.send(_Over(code))
        finally:
            os._exit(code)


def _how(child: int) -> str:
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return f"with code {code}" if code >= 0 else f"by {signal.Signals(-code).name}"
