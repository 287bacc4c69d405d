"""The server process of a data folder, as its lock files and the kernel know it.

PostgreSQL believes a lock file as long as any process has the number in it. That is wrong after a
crash when the number has gone to another program, or when the killed server is a zombie that
nobody has reaped yet (in a container perhaps for ever). Here both are told apart from a server.
Whether a server that lives also answers is not asked here.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

PORT = 5432
SOCKET = f".s.PGSQL.{PORT}"


def living(data: Path) -> int | None:
    """The process id of the server that runs on `data`, or None if none does.

    Where the kernel does not let us look, a process with that number counts as the server.
    """
    pid = _pid_in(data / "postmaster.pid")
    return pid if pid is not None and _serves(pid, data) else None


def remove_dead_locks(data: Path, sockets: Path) -> None:
    """Remove lock files that would keep PostgreSQL from starting although their server is dead.

    Only to be called by the one starter. Those whose process number is free are left to
    PostgreSQL. Should a child of the dead server still run, PostgreSQL sees it at the shared
    memory, which it finds by the folder's inode and not by these files.
    """
    for lock in (data / "postmaster.pid", sockets / f"{SOCKET}.lock"):
        if lock.exists() and _misleads(_pid_in(lock), data):
            lock.unlink(missing_ok=True)


def stop(data: Path, timeout: float) -> bool:
    """End the server in the fast mode (open transactions roll back); True once it has ended."""
    pid = living(data)
    if pid is None:
        return True
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGINT)
    end = time.monotonic() + timeout
    while _serves(pid, data) and time.monotonic() < end:
        time.sleep(0.02)
    return not _serves(pid, data)


def _misleads(pid: int | None, data: Path) -> bool:
    return pid is None or (_exists(pid) and not _serves(pid, data))


def _pid_in(lock: Path) -> int | None:
    """The number in the first line (negative in a file of a single-user server), if any."""
    try:
        first, _, _ = lock.read_text(encoding="utf-8", errors="replace").partition("\n")
        return abs(int(first)) or None
    except (FileNotFoundError, ValueError):
        return None


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _serves(pid: int, data: Path) -> bool:
    """Whether the process runs (a zombie does not) and was started with this data folder."""
    if not _exists(pid):
        return False
    process = Path("/proc", str(pid))
    try:
        state = (process / "stat").read_text(errors="replace").rpartition(")")[2].split()[0]
        words = (process / "cmdline").read_bytes().split(b"\0")
    except OSError:  # it has just ended, is hidden from us, or this system has no /proc
        return _exists(pid)
    return state not in "ZX" and os.fsencode(data) in words
