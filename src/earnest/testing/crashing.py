"""Dying at a named point, for real: the process kills or freezes itself, nothing is unwound.

A test starts the process that is to die with `crash_at(...)` in its environment and the process
calls `install_from_environment()`; `earnest worker` and `earnest serve` do. The points stand in
`earnest.domain.crash_points`: `begin.before` is the last moment before the begin of an operation is
committed, `begin.after` the first one after it.

    EARNEST_CRASH_AT=begin.after:2          SIGKILL at the second passing of that point
    EARNEST_CRASH_AT=call.before:1:freeze   SIGSTOP at the first; SIGCONT lets it go on
    EARNEST_CRASH_REPORT=/path/to/file      a line `begin.after:2 PID` is added just before

It is no mock: what was not written to a socket or a file by then is gone, as it would be.
"""

from __future__ import annotations

import itertools
import os
import signal
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from earnest.domain import crash_points
from earnest.domain.errors import SettingInvalid

AT, REPORT = "EARNEST_CRASH_AT", "EARNEST_CRASH_REPORT"

How = Literal["kill", "freeze"]


@dataclass(frozen=True, slots=True)
class Crash:
    """Where and how a process ends or stops: at the `passing`-th passing of `point`, counted from 1
    over all its threads. Raises `SettingInvalid`."""

    point: str
    passing: int = 1
    how: How = "kill"

    def __post_init__(self) -> None:
        if self.point not in crash_points.POINTS:
            known = ", ".join(sorted(crash_points.POINTS))
            raise SettingInvalid(f"there is no crash point {self.point!r}; there are: {known}")
        if self.passing < 1 or self.how not in get_args(How):
            raise SettingInvalid(f"{self} is not POINT[:PASSING[:kill|freeze]], passing from 1")

    def __str__(self) -> str:
        return f"{self.point}:{self.passing}" + ("" if self.how == "kill" else f":{self.how}")

    @classmethod
    def parse(cls, text: str) -> Crash:
        """The crash written as `POINT[:PASSING[:kill|freeze]]`. Raises `SettingInvalid`."""
        point, _, rest = text.strip().partition(":")
        passing, _, how = rest.partition(":")
        if not (passing or "1").isdecimal():
            raise SettingInvalid(f"{AT}={text!r} is not POINT[:PASSING[:kill|freeze]]")
        return cls(point, int(passing or 1), how or "kill")  # type: ignore[arg-type]


def crash_at(
    point: str, *, passing: int = 1, how: How = "kill", report: Path | None = None
) -> dict[str, str]:
    """What to add to the environment of a process so that it dies there:
    `subprocess.Popen(command, env={**os.environ, **crash_at("begin.after")})`."""
    chosen = {AT: str(Crash(point, passing, how))}
    return chosen if report is None else {**chosen, REPORT: str(report)}


def install(crash: Crash, report: Path | None = None) -> None:
    """Makes this very process die or freeze there."""
    crash_points.install(_Trigger(crash, report))


def install_from_environment(environment: Mapping[str, str] = os.environ) -> Crash | None:
    """As `install`, if `EARNEST_CRASH_AT` is set; returns what was read."""
    if not environment.get(AT):
        return None
    crash = Crash.parse(environment[AT])
    install(crash, Path(environment[REPORT]) if environment.get(REPORT) else None)
    return crash


@dataclass(slots=True)
class _Trigger:
    """Counts the passings of one point; the keeper's thread passes points too."""

    crash: Crash
    report: Path | None
    _passings: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    def __call__(self, point: str) -> None:
        if point == self.crash.point and next(self._passings) == self.crash.passing:
            self._tell()
            self._fall()

    def _tell(self) -> None:
        if self.report is not None:
            with self.report.open("ab", buffering=0) as file:
                file.write(f"{self.crash.point}:{self.crash.passing} {os.getpid()}\n".encode())

    def _fall(self) -> None:
        if self.crash.how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        # Sent to this thread, which therefore does not run on; the kernel stops all others too.
        signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
