"""The OpenAPI 3.1 document: what the framework derives, put right where it does not know us."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import TypeAdapter

from earnest.doors.api import shapes
from earnest.doors.api.routes import JsonRoute

_TOKEN = {
    "type": "http",
    "scheme": "bearer",
    "bearerFormat": "ern_<id>_<secret><check>",
    "description": "Roles named with a call: one of them opens it. They do not include each other.",
}
_SIGNATURE = {
    "type": "apiKey",
    "in": "header",
    "name": "webhook-signature",
    "description": "Standard Webhooks: signed with the secret of the source.",
}


def make_openapi(app: FastAPI) -> dict[str, Any]:
    document = get_openapi(
        title=app.title,
        version=app.version,
        description=app.description,
        openapi_version="3.1.0",
        routes=[route for route in app.routes if isinstance(route, JsonRoute)],
    )
    for operations in document["paths"].values():
        for operation in operations.values():
            _put_right(operation)
    components = document.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    for name in ("Problem", "RunSnapshot"):  # shown by refusals and streams, which no model names
        schemas.update(_schemas_of(name))
    components["schemas"] = dict(sorted(schemas.items()))
    components["securitySchemes"] = {"token": _TOKEN, "signature": _SIGNATURE}
    return document


def _put_right(operation: dict[str, Any]) -> None:
    # The framework's own validation answer: ours is a problem with status 400.
    operation["responses"].pop("422", None)
    if not operation.get("parameters"):
        operation.pop("parameters", None)
    if operation.get("description", "").rstrip(".") == operation["summary"].rstrip("."):
        operation.pop("description", None)


def _schemas_of(name: str) -> dict[str, Any]:
    """A shape by name, with those that it is made of."""
    schema = TypeAdapter(getattr(shapes, name)).json_schema(
        ref_template=shapes.REFERENCE, mode="serialization"
    )
    inner: dict[str, Any] = schema.pop("$defs", {})
    return {**inner, name: schema}
