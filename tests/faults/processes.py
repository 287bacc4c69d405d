"""Processes that a test starts, kills, freezes and waits for, through the fork server."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from earnest.testing.crashing import Crash, crash_at

ROOT = Path(__file__).resolve().parents[2]


class Child:
    """A forked process. `code` is how it ended: negative for a signal, `None` while it lives."""

    def __init__(self, pid: int, crash: Crash | None, report: Path, log: Path) -> None:
        self.pid = pid
        self.crash = crash
        self.log = log
        self.code: int | None = None
        self._report = report
        self._ended = threading.Event()

    def wait(self, timeout: float = 20.0) -> int:
        """Blocks until it has ended. Raises `TimeoutError`."""
        if not self._ended.wait(timeout):
            raise TimeoutError(f"process {self.pid} did not end in {timeout} s; see {self.log}")
        assert self.code is not None, "set before the event"
        return self.code

    def reached(self) -> bool:
        """Whether its hook has reported the crash point, just before it fell."""
        said = self._report.read_text() if self._report.exists() else ""
        point = "" if self.crash is None else f"{self.crash.point}:{self.crash.passing} {self.pid}"
        return bool(point) and point in said.splitlines()

    def crashed(self) -> bool:
        """Whether it died by SIGKILL at its crash point and nowhere else."""
        return self.code == -signal.SIGKILL and self.reached()

    def is_frozen(self) -> bool:
        """Whether the whole process is stopped."""
        state = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0]
        return state == "T"

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def go_on(self) -> None:
        self._signal(signal.SIGCONT)

    def ended(self, code: int) -> None:
        self.code = code
        self._ended.set()

    def _signal(self, number: int) -> None:
        if self.code is None:
            os.kill(self.pid, number)


class Processes:
    """The fork server of a test session. `folder` gets logs and reports."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._server = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.fork_server"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._forked: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._children: dict[int, Child] = {}
        self._unknown: dict[int, int] = {}
        self._lock, self._starting = threading.Lock(), threading.Lock()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._server.stdin is not None, "opened as a pipe"
        self._server.stdin.close()
        self._server.wait(20)
        self._listener.join(20)
        assert self._server.stdout is not None, "opened as a pipe"
        self._server.stdout.close()

    def start(
        self, role: str, *, crash: Crash | None = None, log: str = "children", **arguments: Any
    ) -> Child:
        """Forks a process that does what `roles.<role>(**arguments)` says."""
        report, path = self._folder / "reached", self._folder / f"{log}.log"
        environment: Mapping[str, str] = {}
        if crash is not None:
            environment = crash_at(crash.point, passing=crash.passing, how=crash.how, report=report)
        request = {
            "role": role, "log": str(path), "environment": environment, "arguments": arguments,
        }  # fmt: skip
        assert self._server.stdin is not None, "opened as a pipe"
        with self._starting:
            self._server.stdin.write(json.dumps(request).encode() + b"\n")
            self._server.stdin.flush()
            child = Child(self._forked.get(timeout=20), crash, report, path)
        self._know(child)
        return child

    def kill_all(self) -> None:
        """Leaves nobody behind who could take the next test's work."""
        with self._lock:
            alive = list(self._children.values())
        for child in alive:
            child.kill()
            child.wait()

    def _know(self, child: Child) -> None:
        """It may have ended before we learned that it was forked."""
        with self._lock:
            code = self._unknown.pop(child.pid, None)
            if code is None:
                self._children[child.pid] = child
        if code is not None:
            child.ended(code)

    def _listen(self) -> None:
        assert self._server.stdout is not None, "opened as a pipe"
        for line in self._server.stdout:
            told = json.loads(line)
            if "forked" in told:
                self._forked.put(told["forked"])
            else:
                self._tell_end(told["ended"], told["code"])

    def _tell_end(self, pid: int, code: int) -> None:
        with self._lock:
            child = self._children.pop(pid, None)
            if child is None:
                self._unknown[pid] = code
        if child is not None:
            child.ended(code)
