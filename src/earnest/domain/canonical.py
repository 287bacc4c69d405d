"""JSON as it is stored and compared: one form for one value, and only what PostgreSQL can keep.

Object keys are sorted, so equal values have equal digests. Refused are a NUL character (jsonb
cannot hold it), half of a surrogate pair (it is no character), numbers that are not finite (JSON
has none; encoders would quietly write null), and anything that is not JSON.
"""

from __future__ import annotations

import hashlib
import json
import math
from typing import Any

import msgspec

_encoder = msgspec.json.Encoder(order="deterministic")


class NotJson(ValueError):
    """The value cannot be stored as JSON; the message says where and why."""


def encode(value: Any) -> bytes:
    """The canonical bytes of a JSON value. Raises `NotJson`."""
    try:
        data = _encoder.encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        if isinstance(error, UnicodeEncodeError):
            refuse_unstorable(value)  # It says where.
        raise NotJson(f"not JSON: {error}") from error
    # Both checks walk the value only when the bytes say that it could matter.
    if b"\\u0000" in data or b"null" in data:
        refuse_unstorable(value)
    return data


def decode(data: bytes | str) -> Any:
    """The value of JSON bytes. Raises `NotJson`."""
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        _refuse_half_pairs(data)
        raise NotJson(f"not JSON: {error}") from error


def _refuse_half_pairs(data: bytes | str) -> None:
    """Of half of a surrogate pair the decoder says that the data was truncated, or worse."""
    escape = b"\\u" if isinstance(data, bytes) else "\\u"
    if escape not in data:  # type: ignore[operator]
        return
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return
    refuse_unstorable(value)


def storable(text: str) -> bool:
    """Whether PostgreSQL can keep this text."""
    return "\x00" not in text and not _has_half_pair(text)


def _has_half_pair(text: str) -> bool:
    return any("\ud800" <= letter <= "\udfff" for letter in text)


def digest(data: bytes) -> bytes:
    """SHA-256 of canonical bytes."""
    return hashlib.sha256(data).digest()


def refuse_unstorable(value: Any, where: str = "$") -> None:
    """Raises `NotJson` for what would be lost or refused on the way to the database."""
    if isinstance(value, str) and "\x00" in value:
        raise NotJson(f"a NUL character at {where} cannot be stored")
    if isinstance(value, str) and _has_half_pair(value):
        raise NotJson(f"half of a surrogate pair at {where} is no character")
    if isinstance(value, float) and not math.isfinite(value):
        raise NotJson(f"{value} at {where} is not a JSON number")
    if isinstance(value, dict):
        for key, item in value.items():
            refuse_unstorable(key, f"{where} (a key)")
            refuse_unstorable(item, f"{where}.{key}")
    elif isinstance(value, (list, tuple, set, frozenset)):
        for index, item in enumerate(value):
            refuse_unstorable(item, f"{where}[{index}]")
