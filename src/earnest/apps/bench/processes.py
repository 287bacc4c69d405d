"""Processes of a benchmark: workers and servers, started by the commands that everybody uses."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

from earnest.domain.errors import EarnestError

_START = 60.0  # seconds
_STOP = 15.0
_TOLD = 300


class NotStarted(EarnestError):
    """A process of the benchmark did not start."""

    code = "not_started"


class Running:
    """A process that said that it is ready; `facts` is what it said."""

    def __init__(self, process: Process, facts: dict[str, Any]) -> None:
        self.facts = facts
        self._process = process

    @property
    def url(self) -> str:
        found: str = self.facts["url"]
        return found

    def peak_rss_mb(self) -> float | None:
        """The most memory it has had. `None` where the system does not tell."""
        try:
            lines = Path(f"/proc/{self._process.pid}/status").read_text().splitlines()
        except OSError:
            return None
        kilobytes = [line.split()[1] for line in lines if line.startswith("VmHWM")]
        return int(kilobytes[0]) / 1024 if kilobytes else None


@asynccontextmanager
async def running(module: str, *words: str) -> AsyncIterator[Running]:
    """`python -m MODULE WORDS…`, from when it is ready. Raises `NotStarted`."""
    with TemporaryFile() as log:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", module, *words,
            stdin=PIPE, stdout=PIPE, stderr=log, env=_variables(), start_new_session=True,
        )  # fmt: skip
        try:
            yield Running(process, await _ready(process, log))
        finally:
            await _stop(process)


def earnest_words(command: str, url: str, app: str, *more: str) -> list[str]:
    return [command, "--database-url", url, "--app", app, "--json", "--stop-with-stdin", *more]


async def time_import(statement: str) -> float:
    """Seconds that a fresh interpreter takes for it."""
    code = f"import time\nat = time.perf_counter()\n{statement}\nprint(time.perf_counter() - at)"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, stdin=DEVNULL, stdout=PIPE
    )
    told, _ = await process.communicate()
    return float(told)


def _variables() -> dict[str, str]:
    """Settings of somebody's own service are not the benchmark's."""
    return {name: value for name, value in os.environ.items() if not name.startswith("EARNEST_")}


async def _ready(process: Process, log: IO[bytes]) -> dict[str, Any]:
    assert process.stdout is not None, "it is a pipe"
    line = b""
    with suppress(TimeoutError):
        line = await asyncio.wait_for(process.stdout.readline(), _START)
    if not line:
        log.seek(0)
        told = log.read().decode(errors="replace").strip().rpartition("\n")[2] or "it said nothing"
        raise NotStarted(f"a process of the benchmark did not start: {told[:_TOLD]}")
    facts: dict[str, Any] = json.loads(line)
    return facts


async def _stop(process: Process) -> None:
    with suppress(ProcessLookupError):
        process.terminate()
    try:
        await asyncio.wait_for(process.wait(), _STOP)
    except TimeoutError:
        process.kill()
        await process.wait()
