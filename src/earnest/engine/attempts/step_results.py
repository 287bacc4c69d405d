"""Results of steps: by the type that the function declares, to JSON and back."""

from __future__ import annotations

import contextlib
from functools import lru_cache
from typing import Any, get_type_hints
from weakref import WeakKeyDictionary

from pydantic import TypeAdapter, ValidationError

from earnest.domain import canonical
from earnest.domain.errors import CodeChanged, ResultInvalid
from earnest.engine.process.typed_json import encode_typed, misfit


def result_type(function: Any) -> TypeAdapter[Any]:
    """What the function says that it returns; anything where it does not say. Read once for each
    function: to build a type's validator takes longer than all the rest of a step."""
    lasting = getattr(function, "__func__", function)  # a bound method is made anew each time
    try:
        return _known[lasting]
    except (KeyError, TypeError):
        pass
    made = _read_result_type(function)
    with contextlib.suppress(TypeError):  # not everything that can be called can be remembered
        _known[lasting] = made
    return made


_known: WeakKeyDictionary[Any, TypeAdapter[Any]] = WeakKeyDictionary()


def _read_result_type(function: Any) -> TypeAdapter[Any]:
    try:
        declared = get_type_hints(function, include_extras=True).get("return", Any)
    except (NameError, TypeError):
        declared = Any
    try:
        return _adapter(declared, repr(declared))
    except TypeError:  # a type that cannot be a key
        return TypeAdapter(declared)


@lru_cache(maxsize=1024)
def _adapter(declared: Any, _shown: str) -> TypeAdapter[Any]:
    """For functions that are made anew in each attempt and say the same of their result. Shown the
    same, since unions of another order are equal and not the same."""
    return TypeAdapter(declared)


def encode_result(adapter: TypeAdapter[Any], value: Any, name: str, most: int) -> bytes:
    """The result as it is kept. Raises `ResultInvalid`."""
    try:
        data = encode_typed(adapter, value, warnings="error")
    except (canonical.NotJson, ValueError) as error:
        raise ResultInvalid(
            f"the result of step {name!r} cannot be stored: {misfit(error)}"
        ) from error
    if len(data) > most:
        raise ResultInvalid(
            f"the result of step {name!r} has {len(data)} bytes; at most {most} are kept: store "
            "larger things elsewhere and return their address"
        )
    return data


def read_result(adapter: TypeAdapter[Any], value: Any, name: str) -> Any:
    """The result as the function gave it. Raises `CodeChanged`."""
    try:
        return adapter.validate_python(value)
    except ValidationError as error:
        raise CodeChanged(
            f"the remembered result of step {name!r} no longer fits its type: {misfit(error)}"
        ) from error
