"""Forks processes that are to die: one parent that has imported everything, a child for each role.

A fresh interpreter takes most of a second to import the engine, a fork some milliseconds. The
parent has one thread, no event loop and no connection, so that a fork copies nothing it should not.

On standard input come lines like `{"role": "worker", "log": PATH, "environment": {…}, "arguments":
{…}}`; on standard output go `{"forked": PID}`, one for each in order, and `{"ended": PID, "code":
N}` (negative: the signal) when a child has ended. When the input ends, all children are killed.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import select
import signal
import sys
import traceback
from typing import Any, NoReturn

import structlog

from earnest.testing.crashing import install_from_environment
from tests.faults import roles

_children: set[int] = set()


def main() -> None:
    woken, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper("iso"),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ]
    )
    gc.freeze()
    rest = b""
    while True:
        ready, _, _ = select.select([0, woken], [], [])
        if woken in ready:
            os.read(woken, 4096)
            _reap()
        if 0 in ready:
            got = os.read(0, 1 << 16)
            if not got:
                break
            *lines, rest = (rest + got).split(b"\n")
            for line in lines:
                _fork(json.loads(line))
    for pid in _children:
        os.kill(pid, signal.SIGKILL)


def _fork(request: dict[str, Any]) -> None:
    pid = os.fork()
    if pid == 0:
        _live(request)
    _children.add(pid)
    _say({"forked": pid})


def _reap() -> None:
    for pid in list(_children):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            _children.discard(pid)
            _say({"ended": pid, "code": os.waitstatus_to_exitcode(status)})


def _say(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def _live(request: dict[str, Any]) -> NoReturn:
    """The child's whole life; it never returns into the parent's code."""
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        log = os.open(request["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.environ.update(request["environment"])
        install_from_environment()
        asyncio.run(getattr(roles, request["role"])(**request["arguments"]))
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
