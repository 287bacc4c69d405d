"""What is said once and comes twice is refused, on every route; and which form of an answer is
meant."""

from __future__ import annotations

from typing import Any

import pytest

from tests.doors.api.outside import Outside


def of_document(document: dict[str, Any], place: str) -> list[tuple[str, str, dict[str, Any]]]:
    """Every parameter of that place that the document declares: method, path, parameter."""
    return [
        (method, path, parameter)
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
        for parameter in operation.get("parameters", [])
        if parameter["in"] == place
    ]


def filled(path: str, run_id: str) -> str:
    return (
        path.replace("{run_id}", run_id).replace("{name}", "go").replace("{", "").replace("}", "")
    )


async def test_a_parameter_that_is_no_list_is_refused_when_it_comes_twice(outside: Outside) -> None:
    """On every route: which of two was meant nobody knows."""
    run = await outside.submit("shop.echo", 1)
    document = (await outside.get("/openapi.json", None)).json()
    asked = 0
    for method, path, parameter in of_document(document, "query"):
        if parameter["schema"].get("type") == "array" or method != "get":
            continue
        name, place = parameter["name"], filled(path, run["id"])
        for second in ("1", "2"):  # also when both say the same
            answer = await outside.get(f"{place}?{name}=1&{name}={second}", "admin")
            told = answer.json()
            assert (answer.status_code, told["code"]) == (400, "invalid_request"), (path, name)
            assert told["errors"][0]["pointer"] == f"/{name}"
            assert told["errors"][0]["in"] == "query"
            assert "send it once" in told["detail"]
        asked += 1
    assert asked >= 20


async def test_a_parameter_that_is_a_list_may_come_several_times(outside: Outside) -> None:
    assert (await outside.get("/v1/runs?label=a:b&label=c:d")).status_code == 200


async def test_a_header_that_a_route_takes_is_refused_when_it_comes_twice(outside: Outside) -> None:
    """For a page too, which would not look at the place of a stream."""
    run = await outside.submit("shop.echo", 1)
    document = (await outside.get("/openapi.json", None)).json()
    asked = set()
    for method, path, parameter in of_document(document, "header"):
        name = parameter["name"]
        if name == "traceparent" or not path.startswith("/v1/runs"):
            continue
        place = filled(path, run["id"])
        answer = await outside.call(method.upper(), place, headers=[(name, "1"), (name, "1")])
        assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request"), (path, name)
        assert answer.json()["detail"] == f"there are two {name} headers; send one"
        asked.add(name)
    assert asked >= {"Idempotency-Key", "Last-Event-ID"}


STREAM, PAGE = "text/event-stream", "application/json"


@pytest.mark.parametrize(
    ("accept", "given"),
    [
        ("text/event-stream", STREAM),
        ("TEXT/Event-Stream", STREAM),
        ("text/event-stream;charset=utf-8", STREAM),
        ("text/event-stream, */*", STREAM),
        ("application/json, text/event-stream", STREAM),
        ("application/json;q=0.5, text/event-stream;q=0.6", STREAM),
        ("text/*", STREAM),
        ("text/event-stream;q=0.001", STREAM),
        ("*/*;q=0.1, text/event-stream;q=0.1", STREAM),
        ('text/plain;note="a, b;q=0", text/event-stream', STREAM),
        ("text/event-stream;q=0", PAGE),
        ("text/event-stream; Q=0.000", PAGE),
        ("text/event-stream;q=0, */*", PAGE),
        ("text/event-stream;q=0, text/*", PAGE),
        ("text/event-stream;q=0.5, application/json", PAGE),
        ("text/event-stream;q=0.5, application/*;q=0.6", PAGE),
        ("text/event-stream;q=many", PAGE),
        ("text/event-stream;q=1.5", PAGE),
        ("text/event-streams", PAGE),
        ('application/json;note="text/event-stream"', PAGE),
        ("application/json", PAGE),
        ("*/*", PAGE),
        ("text/html", PAGE),
        ("", PAGE),
    ],
)
async def test_who_asks_is_given_the_form_that_it_wants_more(
    outside: Outside, accept: str, given: str
) -> None:
    """RFC 9110: a quality of 0 is a refusal, and the closest range counts."""
    run = await outside.submit("shop.echo", 1)
    for path in (f"/v1/runs/{run['id']}/events", "/v1/events"):
        answer = await outside.get(path, headers={"Accept": accept})
        assert answer.headers["content-type"].partition(";")[0] == given


async def test_the_form_may_be_said_in_several_headers(outside: Outside) -> None:
    """They are one list."""
    lines = [("Accept", "application/json;q=0.5"), ("Accept", "text/event-stream")]
    answer = await outside.get("/v1/events", headers=lines)
    assert answer.headers["content-type"].startswith(STREAM)
