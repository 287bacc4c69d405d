"""Examples made from schemas: the words' own where there is one, else the plainest value that fits.

They are part of the contract: a test holds every one of them against its schema.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from earnest.doors.api.words import words_of

INSTANT = "2026-01-31T12:00:00Z"
_PLAIN: dict[str, Any] = {"integer": 1, "number": 0.5, "boolean": False, "null": None}


def example_of(schema: Mapping[str, Any], schemas: Mapping[str, Any]) -> Any:
    """A value that the schema takes. References are looked up in `schemas`."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return _of_shape(name, schemas)
    if schema.get("examples"):
        return schema["examples"][0]
    if "const" in schema or "enum" in schema:
        return schema.get("const", schema.get("enum", [None])[0])
    if "anyOf" in schema:
        return example_of(schema["anyOf"][0], schemas)
    return _of_type(schema, schemas)


def _of_shape(name: str, schemas: Mapping[str, Any]) -> Any:
    schema = schemas[name]
    if "properties" not in schema:
        return example_of(schema, schemas)
    told = schema["properties"].items()
    # What is not always there, and what there is to wait for, is not shown.
    shown = [(one, part) for one, part in told if one in schema.get("required", ())]
    return {one: _of_field(name, one, part, schemas) for one, part in shown}


def _of_field(shape: str, field: str, schema: Mapping[str, Any], schemas: Mapping[str, Any]) -> Any:
    words = words_of(shape, field)
    if words is not None and words[1] is not None and not _is_closed(schema, words[1], schemas):
        return words[1]
    if any(one.get("type") == "null" for one in schema.get("anyOf", ())):
        return None
    return example_of(schema, schemas)


def _is_closed(schema: Mapping[str, Any], value: Any, schemas: Mapping[str, Any]) -> bool:
    """Whether the schema lists its values and this is not one of them."""
    if "$ref" in schema:
        return _is_closed(schemas[schema["$ref"].rpartition("/")[2]], value, schemas)
    listed = schema.get("enum", [schema["const"]] if "const" in schema else None)
    return listed is not None and value not in listed


def _of_type(schema: Mapping[str, Any], schemas: Mapping[str, Any]) -> Any:
    kind = schema.get("type")
    if kind == "array":
        items = schema.get("items", {})
        return [example_of(items, schemas)] if items else []
    if kind == "object":
        return {}
    if kind == "string":
        return INSTANT if schema.get("format") == "date-time" else "text"
    return _PLAIN.get(str(kind))
