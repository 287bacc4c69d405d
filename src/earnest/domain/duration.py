"""Durations as people write them: `30s`, `10m`, `24h`, `7d`, `500ms`, or a `timedelta`."""

from __future__ import annotations

import re
from datetime import timedelta

from earnest.domain.errors import SettingInvalid

Duration = str | int | float | timedelta

_UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}
_PATTERN = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(ms|s|m|h|d)")


def duration(value: Duration) -> timedelta:
    """The span meant by `value`; bare numbers are seconds. Raises `SettingInvalid`."""
    try:
        span = value if isinstance(value, timedelta) else timedelta(seconds=_seconds(value))
    except (OverflowError, ValueError) as error:
        raise SettingInvalid(f"{value!r} is no duration that can be counted") from error
    if span < timedelta(0):
        raise SettingInvalid(f"{value!r} is negative; a duration must be zero or more")
    return span


def _seconds(value: str | int | float) -> float:
    if not isinstance(value, str):
        return value
    match = _PATTERN.fullmatch(value.strip())
    if match is None:
        raise SettingInvalid(f"{value!r} is no duration; write it like 500ms, 30s, 10m, 24h, 7d")
    return float(match[1]) * _UNITS[match[2]]


def in_words(span: timedelta) -> str:
    """A length of time in its largest whole unit, for people: `5 hours`, `90 seconds`."""
    seconds = max(0, int(span.total_seconds()))
    for unit, length in (("days", 86_400), ("hours", 3_600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds // length} {unit}"
    return f"{seconds} second{'' if seconds == 1 else 's'}"
