"""The OpenAPI 3.1 document: what the framework derives, put right where it does not know us.

What is said of an answer, a refusal, a header or a field is said once, in a component; a new route
takes all of it up by being declared with `Routes`.
"""

from __future__ import annotations

from collections.abc import Iterator
from http import HTTPStatus
from inspect import cleandoc
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import TypeAdapter

from earnest.doors.api import answers, shapes
from earnest.doors.api.examples import example_of
from earnest.doors.api.frames import MEDIA_TYPE as STREAM
from earnest.doors.api.links import add_links
from earnest.doors.api.routes import JsonRoute
from earnest.doors.api.words import PATH_PARTS, words_of

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
# OpenAPI has its own places for what these say.
_TRANSPORT = frozenset({"accept", "content-type", "authorization"})

Called = tuple[JsonRoute, dict[str, Any]]


def make_openapi(app: FastAPI) -> dict[str, Any]:
    document = get_openapi(
        title=app.title,
        version=app.version,
        description=app.description,
        openapi_version="3.1.0",
        routes=[route for route in app.routes if isinstance(route, JsonRoute)],
    )
    components = document.setdefault("components", {})
    called = list(_called(app, document))
    components["schemas"] = _schemas(components.get("schemas", {}), called)
    components["headers"] = answers.header_components()
    components["responses"] = {}
    components["securitySchemes"] = {"token": _TOKEN, "signature": _SIGNATURE}
    for route, operation in called:
        _put_right(operation)
        _describe_answers(route, operation, components)
    add_links(document)
    return document


def _called(app: FastAPI, document: dict[str, Any]) -> Iterator[Called]:
    for route in app.routes:
        if isinstance(route, JsonRoute):
            for method in route.methods or ():
                yield route, document["paths"][route.path][method.lower()]


# ---- shapes --------------------------------------------------------------------------------------


def _schemas(found: dict[str, Any], called: list[Called]) -> dict[str, Any]:
    """All shapes by name, each field with its sentence."""
    for name in ("HTTPValidationError", "ValidationError"):
        found.pop(name, None)
    more = [shapes.Problem, shapes.ResyncProblem]  # which no model names
    more += [shape for route, _ in called if route.frames for shape in route.frames.shapes.values()]
    for shape in more:
        found.update(_schemas_of(shape))
    for name, schema in found.items():
        _describe_fields(name, schema)
    return dict(sorted(found.items()))


def _schemas_of(shape: Any) -> dict[str, Any]:
    """A shape by name, with those that it is made of."""
    schema = TypeAdapter(shape).json_schema(ref_template=shapes.REFERENCE, mode="serialization")
    inner: dict[str, Any] = schema.pop("$defs", {})
    return {**inner, shape.__name__: schema}


def _describe_fields(shape: str, schema: dict[str, Any]) -> None:
    schema.pop("title", None)
    _make_whole(schema)
    for field, part in schema.get("properties", {}).items():
        part.pop("title", None)
        words = words_of(shape, field)
        if words is not None:
            part.setdefault("description", words[0])
    if "description" in schema:
        schema["description"] = " ".join(cleandoc(schema["description"]).split())


def _make_whole(schema: Any) -> None:
    """The framework keeps bounds as floats; those of integers are integers."""
    for part in schema.values() if isinstance(schema, dict) else schema:
        if isinstance(part, dict | list):
            _make_whole(part)
    if isinstance(schema, dict) and schema.get("type") == "integer":
        whole = {key: int(value) for key, value in schema.items() if isinstance(value, float)}
        schema.update(whole)


# ---- calls ---------------------------------------------------------------------------------------


def _put_right(operation: dict[str, Any]) -> None:
    # The framework's own validation answer: ours is a problem with status 400.
    operation["responses"].pop("422", None)
    parameters = [_parameter(one) for one in operation.pop("parameters", ()) if _is_ours(one)]
    if parameters:
        operation["parameters"] = parameters
    if operation.get("description", "").rstrip(".") == operation["summary"].rstrip("."):
        operation.pop("description", None)


def _is_ours(parameter: dict[str, Any]) -> bool:
    return parameter["in"] != "header" or parameter["name"].lower() not in _TRANSPORT


def _parameter(parameter: dict[str, Any]) -> dict[str, Any]:
    parameter["schema"].pop("title", None)
    _make_whole(parameter["schema"])
    if parameter["in"] == "path" and parameter["name"] in PATH_PARTS:
        text, limits = PATH_PARTS[parameter["name"]]
        return {"description": text, **parameter, "schema": {**parameter["schema"], **limits}}
    if parameter["in"] == "query" and "description" in parameter["schema"]:
        return {"description": parameter["schema"].pop("description"), **parameter}
    return parameter


def _describe_answers(
    route: JsonRoute, operation: dict[str, Any], components: dict[str, Any]
) -> None:
    schemas, told = components["schemas"], operation["responses"]
    for status, answer in told.items():
        if answer["description"] == "Successful Response":
            answer["description"] = HTTPStatus(int(status)).phrase
        body = answer.get("content", {}).get("application/json")
        if body is not None:
            body["example"] = example_of(body["schema"], schemas)
        if route.frames is not None and STREAM in answer.get("content", {}):
            answer["content"][STREAM] = route.frames.content(schemas)
    for status, codes in answers.by_status(route.codes).items():
        name = answers.problem_name(codes)
        components["responses"].setdefault(name, answers.problem_component(codes))
        told[str(status)] = {"$ref": f"#/components/responses/{name}"}
    operation["responses"] = dict(sorted(told.items()))
