"""A simulator seen from a test: start one in its own process, set faults, read the truth."""

from __future__ import annotations

import json
import select
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from typing import IO, Any, cast
from urllib.parse import urlencode, urlsplit

START_SECONDS = 30.0
STOP_SECONDS = 10.0


class Simulator:
    """A simulator at an address, whoever started it. Calls block; use threads in async code."""

    def __init__(self, url: str, pid: int | None = None) -> None:
        self.url = url
        self.pid = pid

    def truth(self, provider: str | None = None) -> list[dict[str, Any]]:
        """What was really done, oldest first; each item as `GET /truth` shows it."""
        return self._call("GET", "/truth?" + urlencode(_given(provider=provider)))

    def wait_for_truth(
        self, at_least: int, provider: str | None = None, *, timeout: float = 10.0
    ) -> list[dict[str, Any]]:
        """The truth as soon as it has `at_least` items; `TimeoutError` after `timeout` seconds."""
        asked = _given(provider=provider, at_least=at_least, wait_ms=round(timeout * 1000))
        items = self._call("GET", "/truth?" + urlencode(asked), seconds=timeout + 10)
        if len(items) < at_least:
            raise TimeoutError(f"{len(items)} of {at_least} effects after {timeout} s")
        return items

    def statement(self, bank: str) -> list[dict[str, Any]]:
        """The bank's own list of its refunds, oldest first, each with its `id`: up to a hundred."""
        return self._call("GET", f"/bank/{bank}/refunds")

    def forget(self) -> None:
        """Make the simulator as new: no truth, no fault rules, nothing to be recognised."""
        self._call("DELETE", "/truth")

    def put_fault(
        self,
        provider: str,
        mode: str,
        *,
        count: int = 1,
        delay_ms: int = 0,
        match: str | None = None,
    ) -> None:
        """Set a fault rule; what each mode does stands in the table of `faults`."""
        rule = _given(provider=provider, mode=mode, count=count, delay_ms=delay_ms, match=match)
        self._call("PUT", "/faults", json.dumps(rule))

    def faults(self) -> list[dict[str, Any]]:
        """The fault rules that are not used up."""
        return self._call("GET", "/faults")

    def clear_faults(self) -> None:
        """Take all fault rules away."""
        self._call("DELETE", "/faults")

    def _call(
        self, method: str, path: str, body: str | None = None, *, seconds: float = 30.0
    ) -> list[dict[str, Any]]:
        """The items answered, on a connection of its own; `ValueError` if it was asked wrongly."""
        address = urlsplit(self.url)
        connection = HTTPConnection(address.hostname or "", address.port, timeout=seconds)
        with closing(connection):
            connection.request(method, path, body)
            response = connection.getresponse()
            answer = json.loads(response.read() or b"{}")
        if "error" in answer:
            raise ValueError(answer["error"])
        items: list[dict[str, Any]] = answer.get("items", [])
        return items


@contextmanager
def running_simulator() -> Iterator[Simulator]:
    """A simulator in a process of its own on a free port, stopped at the end."""
    command = [sys.executable, "-m", "earnest.testing.simulator", "--stop-with-stdin"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            announced = _announced(process)
            yield Simulator(announced["url"], announced["pid"])
        finally:
            _stop(process)


def _announced(process: subprocess.Popen[bytes]) -> dict[str, Any]:
    """What the process says when it answers; its own errors go to our standard error."""
    stdout = cast("IO[bytes]", process.stdout)
    readable, _, _ = select.select([stdout], [], [], START_SECONDS)
    line = stdout.readline() if readable else b""
    if not line:
        raise RuntimeError(f"the simulator did not start (exit code {process.poll()})")
    announced: dict[str, Any] = json.loads(line)
    return announced


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()


def _given(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}
