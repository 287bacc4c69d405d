"""Patience: when something is tried again, and when no more.

Pauses double and are random between half the window and the window: many callers that were cut off
together do not come back together. What the server says about when to come again is honoured.
"""

from __future__ import annotations

import asyncio
import random
import time
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

_FIRST = 0.2  # seconds
_LONGEST = 10.0
_MAX_ASKED = 60.0  # a server that asks for more is not believed


class Patience:
    """So many seconds for one call with all its tries. `begun`: they run from now on; else from the
    first failure, so that a long transfer does not use them up."""

    def __init__(self, seconds: float, *, begun: bool = True) -> None:
        self._seconds = seconds
        self._failures = 0
        self._until = time.monotonic() + seconds if begun else None

    @property
    def left(self) -> float | None:
        """Seconds; `None` while they do not run yet."""
        return None if self._until is None else max(self._until - time.monotonic(), 0.0)

    def renew(self) -> None:
        """There was a sign of life: patience is as on the first day."""
        self._failures = 0
        self._until = None

    async def pause(self, failure: Exception, at_least: float = 0.0) -> None:
        """Waits until the next try is due; where patience ends before, raises the failure."""
        if self._until is None:
            self._until = time.monotonic() + self._seconds
        wait = max(self._window() * random.uniform(0.5, 1.0), min(at_least, _MAX_ASKED))
        if time.monotonic() + wait >= self._until:
            raise failure
        self._failures += 1
        await asyncio.sleep(wait)

    def _window(self) -> float:
        return min(_LONGEST, _FIRST * 2.0 ** min(self._failures, 10))


def retry_after(text: str | None) -> float:
    """The seconds that a `Retry-After` asks for: a number of them, or a date; 0 for neither."""
    given = (text or "").strip()
    if given.isascii() and given.isdigit():
        return float(given[:6])
    try:
        at = parsedate_to_datetime(given)
    except ValueError:
        return 0.0
    if at.tzinfo is None:
        at = at.replace(tzinfo=UTC)
    return max((at - datetime.now(UTC)).total_seconds(), 0.0)
