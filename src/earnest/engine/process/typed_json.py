"""Values of declared types as the canonical JSON that is stored and compared.

A set has no order, and the one that it shows differs from process to process. Its members are put
in the order of their canonical JSON, so that equal values have equal digests everywhere.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError

from earnest.domain import canonical
from earnest.domain.foreign_errors import said_by

_MISTYPED = re.compile(
    r"(?m)^ *PydanticSerializationUnexpectedValue\(Expected `(?P<wanted>[^`]+)` - [^\[\n]+"
    r"\[(?:field_name='(?P<place>[^'\n]*)', )?input_value=.*, input_type=(?P<is>\S+?)\]\)$"
)


def encode_typed(
    declared: TypeAdapter[Any], value: Any, warnings: Literal["none", "error"] = "none"
) -> bytes:
    """The canonical bytes of a value. Raises `canonical.NotJson` and pydantic's errors, which are
    `ValueError`s; with `warnings="error"` also for a value that is not of its declared type."""
    plain = declared.dump_python(value, mode="json", warnings=warnings)
    if _may_hold_sets(declared) and not _is_plain(value):
        plain = in_order(plain, declared.dump_python(value, warnings="none"))
    data = canonical.encode(plain)
    if b"null" in data and value is not None:
        # Where a type is open, pydantic writes null for a number that is not finite.
        canonical.refuse_unstorable(declared.dump_python(value, warnings="none"))
    return data


@lru_cache(maxsize=4096)
def _may_hold_sets(declared: TypeAdapter[Any]) -> bool:
    schema = str(declared.core_schema)
    return any(f"'type': '{type_}'" in schema for type_ in ("set", "frozenset", "any"))


_SCALARS = frozenset({str, int, float, bool, type(None)})


def _is_plain(value: Any) -> bool:
    """Whether a value is JSON as it stands; what is neither that nor surely without sets is not."""
    kind = type(value)
    if kind is dict:
        return all(_is_plain(part) for part in value.values())
    if kind is list or kind is tuple:
        return all(_is_plain(part) for part in value)
    return kind in _SCALARS


def in_order(plain: Any, value: Any) -> Any:
    """`plain`, the JSON of `value`, with the members of its sets in order. Where the two have not
    the same shape, since a type writes itself in its own way, it is left as it is."""
    if isinstance(value, dict) and isinstance(plain, dict) and len(plain) == len(value):
        pairs = zip(plain.items(), value.values(), strict=True)
        return {key: in_order(part, own) for (key, part), own in pairs}
    several = isinstance(value, list | tuple | set | frozenset) and isinstance(plain, list)
    if not several or len(plain) != len(value):
        return plain
    parts = [in_order(part, own) for part, own in zip(plain, value, strict=True)]
    return sorted(parts, key=canonical.encode) if isinstance(value, set | frozenset) else parts


def misfit(error: BaseException) -> str:
    """What does not fit and where, without the values: they may be secrets (P21). Errors that are
    not pydantic's say what they say."""
    if isinstance(error, PydanticSerializationError):
        return _mistyped(str(error))
    if not isinstance(error, ValidationError):
        return said_by(error)
    shown = [
        f"{'/'.join(map(str, item['loc'])) or 'the whole'}: {item['msg']}"
        for item in error.errors(include_url=False, include_input=False, include_context=False)
    ]
    return _first(shown)


def _mistyped(told: str) -> str:
    """What pydantic says of values that are not of their declared types: it repeats the values, and
    says the same once for each type that would do."""
    if not told.startswith("Pydantic serializer warnings"):
        return told
    wanted: dict[tuple[str, str], list[str]] = {}
    for found in _MISTYPED.finditer(told):
        place = f"{found['place']}: " if found["place"] else ""
        wanted.setdefault((place, found["is"]), []).append(found["wanted"])
    shown = [
        f"{place}{is_} instead of {' or '.join(dict.fromkeys(types))}"
        for (place, is_), types in wanted.items()
    ]
    return _first(shown) or "a value is not of its declared type"


def _first(shown: list[str]) -> str:
    return "; ".join(shown[:5]) + (f"; and {len(shown) - 5} more" if len(shown) > 5 else "")
