"""The program `earnest` as a test starts it, on a database or a home: what stays runs in processes
of its own, and so does what a test runs `outside`; the rest runs in the test's process, since a
Python that starts takes longer than most commands.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field, replace
from io import StringIO
from pathlib import Path
from typing import IO, Any, cast
from unittest.mock import patch

import httpx2
import structlog

from earnest.__main__ import Program as Parts
from earnest.apps.bench import command as bench
from earnest.apps.demo import command
from earnest.doors.cli.program import run

DEMO = "earnest.apps.demo.app:app"
SECONDS = 60.0


@dataclass(frozen=True)
class Outcome:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def complaint(self) -> str:
        """The one line on standard error; more lines, or a traceback, are a broken promise."""
        lines = self.err.splitlines()
        assert len(lines) == 1, self.err
        assert lines[0].startswith("earnest: ")
        return lines[0].removeprefix("earnest: ")


@dataclass
class Running:
    """A process that said that it is ready."""

    process: subprocess.Popen[str]
    ready: dict[str, Any]
    log: Path

    @property
    def url(self) -> str:
        return str(self.ready["url"])

    @property
    def pid(self) -> int:
        return self.process.pid

    def signal(self, number: signal.Signals = signal.SIGTERM) -> None:
        self.process.send_signal(number)

    def end(self) -> int:
        """Asks it to stop and returns its exit code."""
        self.signal()
        return self.wait()

    def wait(self, seconds: float = SECONDS) -> int:
        return self.process.wait(seconds)

    def wait_for_log(self, words: str) -> str:
        """The first line of its log with these words; waits until it is written."""
        with self.log.open(encoding="utf-8") as file:
            for line in _follow(file, self.process):
                if words in line:
                    return line
        raise AssertionError(f"it ended without {words!r}:\n{self.log.read_text()}")


@dataclass(frozen=True)
class Program:
    """Starts the program with these variables."""

    folder: Path
    variables: Mapping[str, str] = field(default_factory=dict)
    is_outside: bool = False

    @property
    def outside(self) -> Program:
        """The same program, each command in a process of its own."""
        return replace(self, is_outside=True)

    def on(self, **variables: str) -> Program:
        """The same program with more variables."""
        return replace(self, variables={**self.variables, **variables})

    def run(self, *words: str, text: str | None = None) -> Outcome:
        """Runs a command to its end."""
        return self._run_outside(words, text) if self.is_outside else self._run_here(words, text)

    def _run_outside(self, words: Sequence[str], text: str | None) -> Outcome:
        done = subprocess.run(
            _command(words),
            env=self._environment(),
            cwd=self.folder,
            input=text or "",
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        return Outcome(done.returncode, done.stdout, done.stderr)

    def _run_here(self, words: Sequence[str], text: str | None) -> Outcome:
        out, err = StringIO(), StringIO()
        with (
            patch.dict(os.environ, self._environment(), clear=True),
            patch.object(sys, "stdin", StringIO(text or "")),
            chdir(self.folder),
            logs_as_before(),
            redirect_stdout(out),
            redirect_stderr(err),
        ):
            code = run(Parts(), more=[command.add_to, bench.add_to], arguments=words)
        return Outcome(code, out.getvalue(), err.getvalue())

    def good(self, *words: str, text: str | None = None) -> Outcome:
        """Runs a command that must succeed."""
        outcome = self.run(*words, text=text)
        assert outcome.code == 0, outcome.err
        return outcome

    def refused(self, code: int, *words: str, text: str | None = None) -> str:
        """Runs a command that must end with this code; returns its one line."""
        outcome = self.run(*words, text=text)
        assert outcome.code == code, (outcome.out, outcome.err)
        return outcome.complaint

    def wait_for_event(self, run_id: str, words: str) -> str:
        """What is told of a run once these words are in it."""
        told = ""
        for _ in range(int(SECONDS * 2)):
            told = self.run("runs", "watch", run_id, "--timeout", "0.5").out
            if words in told:
                return told
        raise AssertionError(f"no {words}:\n{told}")

    @contextmanager
    def started(self, *words: str, **more: Any) -> Iterator[Running]:
        """A process that stays, from when it is ready; killed at the end if it still runs."""
        log = self.folder / f"log-{len(list(self.folder.glob('log-*')))}"
        with log.open("w") as errors:
            process = subprocess.Popen(
                _command((*words, "--json")),
                env=self._environment(),
                cwd=self.folder,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                **{"stdin": subprocess.DEVNULL, **more},
            )
        try:
            line = cast("IO[str]", process.stdout).readline()
            assert line, log.read_text()
            yield Running(process, json.loads(line), log)
        finally:
            process.kill()
            process.communicate()

    def _environment(self) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith("EARNEST_")}
        return {**kept, **self.variables}


@contextmanager
def logs_as_before() -> Iterator[None]:
    """A command configures the logs of its process, which here is the test's."""
    before, root = structlog.get_config(), logging.getLogger()
    handlers, level = root.handlers[:], root.level
    try:
        yield
    finally:
        structlog.configure(**before)
        root.handlers[:] = handlers
        root.setLevel(level)


def _command(words: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", "earnest", *words]


def commands(group: Any, path: str = "earnest") -> Iterator[tuple[str, Any]]:
    """All commands below a group of the program, nouns too, each with its words."""
    for name, one in getattr(group, "commands", {}).items():
        yield f"{path} {name}", one
        yield from commands(one, f"{path} {name}")


def get(url: str, path: str, token: str | None = None) -> httpx2.Response:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    return httpx2.get(url + path, headers=headers, timeout=10)


def _follow(file: IO[str], process: subprocess.Popen[str]) -> Iterator[str]:
    """Lines as they are written, until the writer has ended."""
    while True:
        ended = process.poll() is not None
        yield from iter(file.readline, "")
        if ended:
            return
        try:
            process.wait(0.02)
        except subprocess.TimeoutExpired:
            continue
