"""Keeping processes running: each is started again when it ends, at its old place.

A process says in one line of JSON on its standard output that it is ready; what it logs goes to a
file. It gets its own session, so that Ctrl-C reaches only the supervisor, and a pipe as standard
input, whose end tells it that the supervisor is gone.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import structlog

from earnest.domain.errors import EarnestError

log = structlog.get_logger("earnest.demo")

FIRST_WAIT, LONGEST_WAIT = 0.25, 5.0  # seconds before a process that does not get ready is retried
_TOLD = 300


class NotStarted(EarnestError):
    """A process of the demo did not start."""

    code = "not_started"


class Kept:
    """One process of the program `earnest` that is kept running."""

    def __init__(
        self,
        name: str,
        words: Sequence[str],
        *,
        variables: Mapping[str, str],
        log_file: Path,
        on_ready: Callable[[Kept], None],
        restarts: bool = True,
    ) -> None:
        self.name = name
        self.words = list(words)
        self.facts: dict[str, Any] = {}
        self.ready = asyncio.Event()
        self.variables = dict(variables)
        self._log_file = log_file
        self._on_ready = on_ready
        self._restarts = restarts
        self._process: Process | None = None
        self._stopping = False

    @property
    def pid(self) -> int | None:
        """The number of the process that was ready last."""
        found: int | None = self.facts.get("pid")
        return found

    async def run(self) -> None:
        """Keeps it running until `stop`. Raises `NotStarted` if it does not get ready the first
        time; later it is tried again for ever."""
        failures = 0
        while True:
            was_ready = await self._live()
            if self._stopping or not self._restarts:
                return
            if not self.facts:
                raise NotStarted(f"the {self.name} did not start: {self._last_words()}")
            failures = 0 if was_ready else failures + 1
            if failures:
                await asyncio.sleep(min(FIRST_WAIT * 2**failures, LONGEST_WAIT))

    async def stop(self, patience: float) -> None:
        """Asks the process to end, and ends it after `patience` seconds."""
        self._stopping = True
        if self._process is None or self._process.returncode is not None:
            return
        self._signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(patience):
                await self._process.wait()
        except TimeoutError:
            self._signal(signal.SIGKILL)
            await self._process.wait()

    def hurry(self) -> None:
        """Asks once more."""
        self._signal(signal.SIGTERM)

    async def _live(self) -> bool:
        """One life of the process, from start to end; whether it got ready."""
        self._log_file.touch(mode=0o600)
        with self._log_file.open("ab") as log_file:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "earnest", *self.words,
                stdin=PIPE, stdout=PIPE, stderr=log_file,
                env=self.variables, start_new_session=True,
            )  # fmt: skip
        self._process = process
        assert process.stdout is not None, "it is a pipe"
        line = await process.stdout.readline()
        if line and not self._stopping:
            self.facts = json.loads(line)
            self.ready.set()
            self._on_ready(self)
        code = await process.wait()
        self.ready.clear()
        if not self._stopping:
            log.info("process.ended", name=self.name, pid=process.pid, code=code)
        return bool(line)

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.send_signal(number)

    def _last_words(self) -> str:
        lines = self._log_file.read_text("utf-8", errors="replace").split("\n")
        told = [line.strip() for line in lines if line.strip()]
        return (told[-1] if told else "it said nothing").removeprefix("earnest: ")[:_TOLD]
