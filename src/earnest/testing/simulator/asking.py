"""Reading what a caller asked for: JSON objects, whole numbers, provider names.

Every mistake becomes one `Misasked` with a line that says what to do. It is answered with 400
(see `app`), and nothing has been done.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NoReturn

PROVIDERS = ("bank", "llm", "images", "jobs", "vision", "embeddings", "gallery")
"""Every provider name that truth and faults know; which of them have routes is `app`'s matter."""


class Misasked(Exception):
    """The request cannot be understood; its text says what is expected instead."""


def json_object(raw: bytes) -> dict[str, Any]:
    """The JSON object in `raw`, in UTF-8 and without what JSON cannot carry, such as NaN."""
    try:
        value = json.loads(raw.decode())
        json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise Misasked(f"the body must be one JSON object: {error}") from error
    if not isinstance(value, dict):
        raise Misasked("the body must be one JSON object")
    return value


def known_provider(name: object) -> str:
    """`name` itself if a provider is called that."""
    if isinstance(name, str) and name in PROVIDERS:
        return name
    raise Misasked(f"unknown provider {name!r}: use one of {', '.join(PROVIDERS)}")


def whole_number(name: str, value: object, *, least: int, most: int) -> int:
    """`value` as a whole number between `least` and `most`, both allowed."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise Misasked(f"{name} must be a whole number from {least} to {most}, not {value!r}")
    return value


def query_number(name: str, text: str, *, least: int, most: int) -> int:
    """A whole number written in a query string."""
    value: object = int(text) if text.isascii() and text.isdigit() and len(text) < 20 else text
    return whole_number(name, value, least=least, most=most)


def only_fields(body: Mapping[str, Any], allowed: tuple[str, ...]) -> None:
    """Refuse fields that would be ignored, since a misspelt one would go unnoticed."""
    for name in body.keys() - set(allowed):
        _unknown_field(name, allowed)


def _unknown_field(name: str, allowed: tuple[str, ...]) -> NoReturn:
    raise Misasked(f"unknown field {name!r}: use {', '.join(allowed)}")
