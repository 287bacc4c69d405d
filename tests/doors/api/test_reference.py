"""The contract as a document and as a page."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tests.doors.api.outside import Outside

METHODS = {"get", "head", "post", "put", "delete", "patch"}


@pytest.fixture
def document(outside: Outside) -> dict[str, Any]:
    return outside.app.openapi()


def _operations(document: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    return [
        (method, path, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]


async def test_the_document_is_open_and_is_what_the_application_means(
    outside: Outside, document: dict[str, Any]
) -> None:
    answer = await outside.get("/openapi.json", None)
    assert answer.json() == json.loads(json.dumps(document))
    assert answer.json()["openapi"].startswith("3.1")


def test_every_reference_in_the_document_leads_somewhere(document: dict[str, Any]) -> None:
    names = set(re.findall(r'"#/components/schemas/(\w+)"', json.dumps(document)))
    assert names - set(document["components"]["schemas"]) == set()
    assert names == set(document["components"]["schemas"]), "no schema without a use"


def test_every_refusal_is_a_problem_and_the_frameworks_own_is_not_there(
    document: dict[str, Any],
) -> None:
    for _, path, operation in _operations(document):
        assert "422" not in operation["responses"], path
        for status, answer in operation["responses"].items():
            if int(status) >= 400:
                told = document["components"]["responses"][answer["$ref"].rpartition("/")[2]]
                assert list(told["content"]) == ["application/problem+json"], (path, status)


def test_every_call_but_the_open_ones_names_its_token_and_a_summary(
    document: dict[str, Any],
) -> None:
    for method, path, operation in _operations(document):
        assert method in METHODS
        assert operation["summary"], path
        assert not operation["summary"].endswith(".")
        if path.startswith("/v1/"):
            assert operation["security"], path
            assert {"401", "500", "503"} <= set(operation["responses"])
    assert list(document["components"]["securitySchemes"]) == ["token", "signature"]


def test_every_call_has_a_name_of_its_own(document: dict[str, Any]) -> None:
    names = [operation["operationId"] for _, _, operation in _operations(document)]
    assert len(names) == len(set(names))
    assert all(re.fullmatch("[a-z_]+", name) for name in names)


def test_a_submit_needs_its_key_in_the_document_too(document: dict[str, Any]) -> None:
    parameters = document["paths"]["/v1/runs"]["post"]["parameters"]
    needed = [parameter["name"] for parameter in parameters if parameter["required"]]
    assert needed == ["Idempotency-Key"]


async def test_the_page_shows_every_call_and_loads_nothing_from_anywhere(
    outside: Outside, document: dict[str, Any]
) -> None:
    answer = await outside.get("/docs", None)
    assert answer.headers["content-type"].startswith("text/html")
    assert answer.headers["content-security-policy"].startswith("default-src 'none'")
    for _, path, operation in _operations(document):
        assert f"<code>{path}</code>" in answer.text
        assert operation["summary"].replace("'", "&#x27;") in answer.text
    links = set(re.findall(r"(?:src|href)=(\S+?)>", answer.text))
    assert {link for link in links if not link.startswith("'#")} == {"/openapi.json"}
    for anchor in re.findall(r"href='#(\S+?)'", answer.text):
        assert f"id='{anchor}'" in answer.text, anchor
    assert "<script" not in answer.text
