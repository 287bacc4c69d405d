"""A lock on a file, held by a process and freed by the kernel when that process ends.

It answers who is here without anybody keeping a list: a killed process leaves nothing behind. It
guards processes of one machine, not rows; for those there is the database.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path


class FileLock:
    """One open file and the `flock` on it; two objects on one path exclude each other.

    Opening makes the file (0600) when it is missing and raises `OSError` when it cannot.
    """

    def __init__(self, path: Path) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        self._file = os.open(path, flags, 0o600)

    def try_exclusive(self) -> bool:
        """Take the lock alone if nobody else holds it. A share held before is given up either way.

        (The kernel drops the old lock before it tries the new one.)
        """
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def wait_exclusive(self) -> None:
        """Take the lock alone, however long the others hold it."""
        fcntl.flock(self._file, fcntl.LOCK_EX)

    def share(self) -> None:
        """Hold the lock together with others; waits while one holds it alone."""
        fcntl.flock(self._file, fcntl.LOCK_SH)

    def close(self) -> None:
        """Free the lock and close the file."""
        os.close(self._file)
