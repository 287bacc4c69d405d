"""The contract for people is the contract for programs, and everything in it is told."""

from __future__ import annotations

from typing import Any

import jsonschema_rs
import pytest

from earnest.domain.event import ENGINE_TYPES
from earnest.doors.api.codes import CODES
from earnest.doors.api.events_told import EVENTS
from earnest.doors.api.words import FIELDS, PATH_PARTS
from scripts.contract_docs import document, pages


@pytest.fixture(scope="module")
def told() -> dict[str, Any]:
    return document()


def test_the_pages_are_what_the_code_says() -> None:
    """Made anew by `python -m scripts.contract_docs`."""
    for path, text in pages().items():
        assert path.read_text("utf-8") == text, f"{path.name} is stale"


def test_every_field_of_every_body_is_told(told: dict[str, Any]) -> None:
    """Where one is not, add its sentence to `words.py`, or a `description` to the field."""
    silent = [
        f"{name}.{field}"
        for name, schema in told["components"]["schemas"].items()
        for field, part in schema.get("properties", {}).items()
        if not part.get("description")
    ]
    assert silent == []


def test_no_sentence_is_about_a_field_that_is_not_there(told: dict[str, Any]) -> None:
    schemas = told["components"]["schemas"]
    there = {field for schema in schemas.values() for field in schema.get("properties", {})}
    there |= {
        f"{name}.{field}" for name in schemas for field in schemas[name].get("properties", {})
    }
    assert set(FIELDS) - there == set()
    parts = {
        one["name"]
        for operation in _operations(told)
        for one in operation.get("parameters", [])
        if one["in"] == "path"
    }
    assert parts <= set(PATH_PARTS), "tell what the part of a path is in `words.py`"


def test_every_parameter_and_shape_is_told(told: dict[str, Any]) -> None:
    for operation in _operations(told):
        for one in operation.get("parameters", []):
            assert one.get("description") or one["in"] == "query", (operation["summary"], one)
    untold = [
        name
        for name, schema in told["components"]["schemas"].items()
        if "properties" in schema and len(schema["properties"]) > 25 and not schema["description"]
    ]
    assert untold == []


def test_every_example_fits_its_schema(told: dict[str, Any]) -> None:
    examples = list(_examples(told, told["components"]))
    for place, schema, value in examples:
        whole = {**schema, "components": told["components"]}
        errors = [
            error.message for error in jsonschema_rs.Draft202012Validator(whole).iter_errors(value)
        ]
        assert errors == [], place
    assert len(examples) >= 60


def test_every_code_is_told_by_some_call(told: dict[str, Any]) -> None:
    """One that nothing answers is not in the list."""
    codes = {code for name in told["components"]["responses"] for code in name.split(".")}
    assert set(CODES) - codes == {"method_not_allowed"}


def test_the_events_that_are_told_are_the_engines() -> None:
    later = {"grant.acquired", "grant.committed", "grant.released"}
    assert set(EVENTS) == ENGINE_TYPES - later


def _operations(told: dict[str, Any]) -> list[dict[str, Any]]:
    return [operation for methods in told["paths"].values() for operation in methods.values()]


def _examples(told: dict[str, Any], components: dict[str, Any]) -> Any:
    for operation in _operations(told):
        for status, answer in operation["responses"].items():
            content = answer.get("content", {}).get("application/json")
            if content is not None:
                yield f"{operation['operationId']} {status}", content["schema"], content["example"]
    for name, answer in components["responses"].items():
        content = answer["content"]["application/problem+json"]
        for example in content["examples"].values():
            yield name, content["schema"], example["value"]
