"""A log line: what a handler wrote for the people who run it. Bounded, and kept for a short time.

Lines count 1, 2, 3 … within an attempt. It is the handler's own text: what must not be read by who
may see the run does not belong into it.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

MAX_FIELDS_BYTES = 4096
"""Bytes of a line's fields as JSON; a line with more is kept without them, and says so. A message
has at most 2,000 characters, on one line."""
MAX_LINES = 1000
"""Lines of an attempt that are kept; those beyond are counted."""
KEPT = timedelta(days=3)


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line, `number` among those of its attempt."""

    attempt: int
    number: int
    message: str
    fields: dict[str, Any]
    created_at: datetime
