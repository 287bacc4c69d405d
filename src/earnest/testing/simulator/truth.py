"""The truth log: what a provider really did, in the order in which it did it.

An entry is made in the same step as the effect, without an await between them, so the log cannot
disagree with the receipts. Requests that were refused, dropped before acting, or recognised as a
repetition leave no entry.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any


@dataclass(frozen=True, slots=True)
class Deed:
    """One thing that was really done. `request` is the body that asked for it, unchanged."""

    provider: str
    action: str
    operation_id: str | None
    at: datetime
    request: Mapping[str, Any]

    def as_json(self) -> dict[str, Any]:
        """The item as `GET /truth` shows it; `at` is UTC in ISO 8601 with microseconds."""
        return {
            "provider": self.provider,
            "action": self.action,
            "operation_id": self.operation_id,
            "at": self.at.isoformat(timespec="microseconds"),
            "request": dict(self.request),
        }


class TruthLog:
    """Deeds of all providers of one simulator, kept as long as its process lives."""

    def __init__(self) -> None:
        self._deeds: list[Deed] = []
        self._grown = asyncio.Event()

    def record(
        self, provider: str, action: str, operation_id: str | None, request: Mapping[str, Any]
    ) -> None:
        """Write down what has just been done, and wake everybody who waits for it."""
        self._deeds.append(Deed(provider, action, operation_id, datetime.now(UTC), request))
        self._grown.set()
        self._grown = asyncio.Event()

    def deeds(self, provider: str | None) -> list[Deed]:
        """The deeds of one provider, or of all, oldest first."""
        return [deed for deed in self._deeds if provider in (None, deed.provider)]

    async def deeds_when(self, provider: str | None, at_least: int, seconds: float) -> list[Deed]:
        """The deeds once there are `at_least` of them, or what there is after `seconds`."""
        try:
            async with asyncio.timeout(seconds):
                while len(self.deeds(provider)) < at_least:
                    await self._grown.wait()
        except TimeoutError:
            pass
        return self.deeds(provider)
