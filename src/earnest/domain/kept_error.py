"""Errors as they are kept with a run or an operation: bounded, and storable whatever they say.

What they say comes from other people's code and from providers: it may be of any length and hold
what neither JSON nor PostgreSQL can.
"""

from __future__ import annotations

from typing import Any

from earnest.domain import canonical
from earnest.domain.errors import EarnestError
from earnest.domain.foreign_errors import name_of, said_by

MAX_DETAIL = 500
MAX_BYTES = 8 * 1024  # half of what an event may carry


def kept_text(text: object, most: int = MAX_DETAIL) -> str:
    """The beginning of a text, without what cannot be printed."""
    return "".join(letter for letter in said_by(text)[:most] if letter.isprintable())


def kept_error(error: BaseException) -> dict[str, Any]:
    """Code and detail of an error, and its fields if they can be kept."""
    if not isinstance(error, EarnestError):
        return {
            "code": "handler_failed",
            "detail": kept_text(f"{name_of(error)}: {said_by(error)}"),
        }
    short = {"code": error.code, "detail": kept_text(error.detail)}
    whole = {**error.as_json(), **short}
    try:
        return whole if len(canonical.encode(whole)) <= MAX_BYTES else short
    except canonical.NotJson:
        return short
