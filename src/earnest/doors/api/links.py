"""Links of the OpenAPI document: which calls take the id that an answer brings.

Generated: a call that makes a thing, or lists things, is linked to every call whose path names one
of that kind. A shape is of the kind whose path its own `id` opens.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

NAMED_BY = {
    "Run": "run_id",
    "RunSummary": "run_id",
    "Operation": "operation_id",
    "OperationSummary": "operation_id",
    "Approval": "approval_id",
    "Artifact": "artifact_id",
    "IssuedToken": "token_id",
    "Token": "token_id",
    "Principal": "principal_id",
    "NewWebhook": "webhook_id",
    "Webhook": "webhook_id",
    "Delivery": "delivery_id",
    "NewSource": "source_name",
    "Source": "source_name",
    "Scope": "scope_id",
    "Sweep": "sweep_id",
}
"""The part of a path that names a thing of that shape."""

_BY_NAME = frozenset({"source_name"})


def add_links(document: dict[str, Any]) -> None:
    """Puts the links into the answers of the document."""
    takers = _takers(document)
    for operation in _operations(document):
        for answer in operation["responses"].values():
            for part, place in _brought(answer, document["components"]["schemas"]):
                links = {
                    f"{name}_of_{part}": {"operationId": name, "parameters": {part: place}}
                    for name in takers.get(part, ())
                }
                if links:
                    answer.setdefault("links", {}).update(links)


def _takers(document: Mapping[str, Any]) -> dict[str, list[str]]:
    """By the part of a path: the calls of which it is the only one."""
    found: dict[str, list[str]] = {}
    for operation in _operations(document):
        parts = [one["name"] for one in operation.get("parameters", ()) if one["in"] == "path"]
        for part in parts:
            if not set(parts) & set(NAMED_BY.values()) - {part}:
                found.setdefault(part, []).append(operation["operationId"])
    return found


def _operations(document: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for methods in document["paths"].values():
        yield from methods.values()


def _brought(answer: Mapping[str, Any], schemas: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Which part of a path the answer's body holds, and where."""
    schema = answer.get("content", {}).get("application/json", {}).get("schema", {})
    shape = schema.get("$ref", "").rpartition("/")[2]
    items = schemas.get(shape, {}).get("properties", {}).get("items", {}).get("items", {})
    for name, where in ((shape, ""), (items.get("$ref", "").rpartition("/")[2], "/items/0")):
        if (part := NAMED_BY.get(name)) is not None:
            field = "name" if part in _BY_NAME else "id"
            yield part, f"$response.body#{where}/{field}"
