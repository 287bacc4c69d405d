"""Doctoring: is the database fit, and does the work in it move?

Each check is a small function that looks at one thing and gives one finding: it is well, it is
worth a look, or it is bad; and what to do then. A check that fails or takes too long is a finding
too. Nothing is changed, no bell is rung but the one that is listened to.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import Any

from earnest.domain.duration import in_words
from earnest.engine.process.engine import Engine
from earnest.store import histories, standings
from earnest.store.database import Record
from earnest.store.standings import WorkerRow

SECONDS = 10.0


class Level(StrEnum):
    OK = "ok"
    WARN = "warn"
    BAD = "bad"


@dataclass(frozen=True, slots=True)
class Finding:
    """`advice` says what to do about what is not well."""

    level: Level
    detail: str
    advice: str = ""


@dataclass(frozen=True, slots=True)
class Named:
    """A finding with the name of its check."""

    check: str
    finding: Finding

    def as_json(self) -> dict[str, str]:
        found = self.finding
        return {
            "check": self.check,
            "level": found.level.value,
            "detail": found.detail,
            "advice": found.advice,
        }


@dataclass
class Patient:
    """What is examined. `home` is the folder of an embedded database, `None` for another one."""

    engine: Engine
    home: Path | None = None
    _workers: list[WorkerRow] | None = field(default=None, repr=False)

    async def rows(self, statement: str, *arguments: Any) -> list[Record]:
        return await self.engine.database.fetch(statement, *arguments)

    async def row(self, statement: str, *arguments: Any) -> Record:
        return (await self.rows(statement, *arguments))[0]

    async def workers(self) -> list[WorkerRow]:
        """The processes that have not said goodbye; asked for once."""
        if self._workers is None:
            self._workers = await histories.in_snapshot(self.engine.database, standings.workers)
        return self._workers

    async def living(self) -> list[WorkerRow]:
        return [one for one in await self.workers() if one.lives]


Check = Callable[[Patient], Awaitable[Finding]]


async def diagnose(
    patient: Patient, checks: Sequence[Check], seconds: float = SECONDS
) -> list[Named]:
    """The findings, in the order of the checks; each check gets so many seconds."""
    return [Named(name_of(check), await _examine(patient, check, seconds)) for check in checks]


def name_of(check: Check) -> str:
    return check.__name__.replace("_", " ")


async def _examine(patient: Patient, check: Check, seconds: float) -> Finding:
    try:
        async with asyncio.timeout(seconds):
            return await check(patient)
    except TimeoutError:
        why = f"it took longer than {seconds:g} s"
    except Exception as error:  # a doctor tells what is wrong, also with the looking
        why = f"{type(error).__name__}: {error}"
    return Finding(Level.BAD, f"it could not be looked at: {why}", "see to the database first")


def well(detail: str) -> Finding:
    return Finding(Level.OK, detail)


def warn(detail: str, advice: str) -> Finding:
    return Finding(Level.WARN, detail, advice)


def bad(detail: str, advice: str) -> Finding:
    return Finding(Level.BAD, detail, advice)


def span(seconds: float) -> str:
    return in_words(timedelta(seconds=seconds))


def size(count: float) -> str:
    """So many bytes, in a unit that is read easily."""
    for unit in ("bytes", "KiB", "MiB"):
        if count < 10_240:
            return f"{count:.0f} {unit}"
        count /= 1024
    return f"{count:.0f} GiB"
