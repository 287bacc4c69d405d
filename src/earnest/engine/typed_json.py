"""Values of declared types as the canonical JSON that is stored and compared."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from earnest.domain import canonical


def encode_typed(
    declared: TypeAdapter[Any], value: Any, warnings: Literal["warn", "error"] = "warn"
) -> bytes:
    """The canonical bytes of a value. Raises `canonical.NotJson` and pydantic's errors, which are
    `ValueError`s; with `warnings="error"` also for a value that is not of its declared type."""
    data = canonical.encode(declared.dump_python(value, mode="json", warnings=warnings))
    if b"null" in data and value is not None:
        # Where a type is open, pydantic writes null for a number that is not finite.
        canonical.refuse_unstorable(declared.dump_python(value, warnings="none"))
    return data


def misfit(error: BaseException) -> str:
    """What does not fit and where, without the values: they may be secrets (P21). Errors that are
    not pydantic's say what they say."""
    if not isinstance(error, ValidationError):
        return str(error)
    shown = [
        f"{'/'.join(map(str, item['loc'])) or 'the whole'}: {item['msg']}"
        for item in error.errors(include_url=False, include_input=False, include_context=False)
    ]
    return "; ".join(shown[:5]) + (f"; and {len(shown) - 5} more" if len(shown) > 5 else "")
