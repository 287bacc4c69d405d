"""Results of steps: by the type that the function declares, to JSON and back."""

from __future__ import annotations

from typing import Any, get_type_hints

from pydantic import TypeAdapter, ValidationError

from earnest.domain import canonical
from earnest.domain.errors import CodeChanged, ResultInvalid
from earnest.engine.foreign_code import foreign_code
from earnest.engine.typed_json import encode_typed, misfit


def result_type(function: Any) -> TypeAdapter[Any]:
    """What the function says that it returns; anything where it does not say."""
    try:
        hints = get_type_hints(function, include_extras=True)
    except (NameError, TypeError):
        hints = {}
    return TypeAdapter(hints.get("return", Any))


def encode_result(adapter: TypeAdapter[Any], value: Any, name: str, most: int) -> bytes:
    """The result as it is kept. Raises `ResultInvalid`."""
    try:
        with foreign_code:
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
