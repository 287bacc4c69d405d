"""Waiting for something outside this process: in small steps, not silently, and not for ever."""

from __future__ import annotations

import time
from collections.abc import Callable

from earnest.domain.errors import DatabaseUnavailable

Say = Callable[[str], None]
"""Takes a line for people about what takes so long."""

_STEP = 0.05  # seconds
_FIRST_WORD, _NEXT_WORD = 1.0, 5.0  # seconds


class Patience:
    """One wait. `say` hears what for after a second, then every five."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._say_at = time.monotonic() + _FIRST_WORD
        self._reason = ""
        self._since = 0.0

    def step(self, reason: str, limit: float) -> None:
        """Wait a moment; `DatabaseUnavailable` after `limit` seconds for this one reason."""
        now = time.monotonic()
        if reason != self._reason:
            self._reason, self._since = reason, now
        if now > self._since + limit:
            raise DatabaseUnavailable(f"{reason} (waited {limit:.0f} s)")
        if now > self._say_at:
            self._say(f"waiting: {reason}")
            self._say_at = now + _NEXT_WORD
        time.sleep(_STEP)
