"""Waiting for something outside this process: in small steps, not silently, and not for ever."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable

from earnest.domain.errors import DatabaseUnavailable

Say = Callable[[str], None]
"""Takes a line for people about what takes so long."""

_STEP = 0.05  # seconds
_FIRST_WORD, _NEXT_WORD = 1.0, 5.0  # seconds


class Patience:
    """One wait, perhaps for one reason after the other. `say` hears of it now and then."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._seen = time.monotonic()
        self._say_at = self._seen + _FIRST_WORD
        self._waited: defaultdict[str, float] = defaultdict(float)

    def step(self, reason: str, limit: float) -> None:
        """Wait a moment; `DatabaseUnavailable` if that comes to `limit` seconds for `reason`."""
        now = time.monotonic()
        self._waited[reason] += now - self._seen
        self._seen = now
        if self._waited[reason] > limit:
            raise DatabaseUnavailable(f"{reason} (waited {limit:.0f} s)")
        if now > self._say_at:
            self._say(f"waiting: {reason}")
            self._say_at = now + _NEXT_WORD
        time.sleep(_STEP)
