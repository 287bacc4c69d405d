"""What holds for every call: problems, request ids, sizes, media types, methods, faults."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from earnest.domain.errors import DatabaseUnavailable
from earnest.doors.api.gate import MAX_BODY_BYTES
from earnest.store.database import Database
from tests.doors.api.outside import Outside

KEY = {"Idempotency-Key": "k"}
JSON = {**KEY, "Content-Type": "application/json"}


async def _refused(outside: Outside, status: int, code: str, content: Any, **headers: str) -> str:
    """The detail of the refusal that a body gets."""
    answer = await outside.post("/v1/runs", content=content, headers={**JSON, **headers})
    assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text
    assert (await outside.get("/v1/runs")).json()["items"] == []
    detail: str = answer.json()["detail"]
    return detail


# ---- request ids and headers -------------------------------------------------------------------


async def test_every_answer_has_a_request_id_of_its_own(outside: Outside) -> None:
    paths = ["/v1/runs", "/v1/runs/none", "/none", "/livez", "/readyz", "/docs"]
    answers = [await outside.get(path) for path in paths]
    assert len({answer.headers["x-request-id"] for answer in answers}) == len(paths)


async def test_a_sane_request_id_is_the_callers_and_another_is_not(outside: Outside) -> None:
    sane = await outside.get("/v1/runs/none", headers={"X-Request-Id": "trace-1.A_b"})
    assert sane.headers["x-request-id"] == sane.json()["request_id"] == "trace-1.A_b"
    for insane in ("", "x" * 129, "a b", "ä", '"', "a\tb"):
        headers = {"X-Request-Id": insane.encode()}
        answer = await outside.get("/v1/runs", headers=headers)
        assert answer.headers["x-request-id"] != insane


async def test_authenticated_answers_are_not_kept_by_anybody(outside: Outside) -> None:
    for path in ("/v1/runs", "/v1/runs/none", "/v1/none"):
        assert (await outside.get(path)).headers["cache-control"] == "no-store"


async def test_a_refusal_without_a_valid_token_says_how_to_come_in(outside: Outside) -> None:
    answer = await outside.get("/v1/runs", None)
    assert (answer.status_code, answer.json()["code"]) == (401, "unauthenticated")
    assert answer.headers["www-authenticate"].startswith("Bearer")


async def test_a_token_is_taken_in_one_form_only(outside: Outside) -> None:
    token = outside.tokens["member"]
    for bad in ("", "Bearer", "Bearer ", "Basic {}", "{}", "Bearer {} {}", "Bearer {},"):
        headers = {"Authorization": bad.format(token, token)}
        assert (await outside.get("/v1/runs", None, headers=headers)).status_code == 401, bad
    for good in (f"Bearer {token}", f"bearer  {token}"):
        headers = {"Authorization": good}
        assert (await outside.get("/v1/runs", None, headers=headers)).status_code == 200


async def test_two_tokens_at_once_are_none(outside: Outside) -> None:
    token = f"Bearer {outside.tokens['member']}"
    headers = [("Authorization", token), ("Authorization", token)]
    assert (await outside.get("/v1/runs", None, headers=headers)).status_code == 401


async def test_a_token_in_the_address_opens_nothing(outside: Outside) -> None:
    for name in ("token", "access_token"):
        path = f"/v1/runs?{name}={outside.tokens['member']}"
        assert (await outside.get(path, None)).status_code == 401


# ---- paths and methods -------------------------------------------------------------------------


async def test_an_unknown_path_is_a_problem(outside: Outside) -> None:
    for path in ("/none", "/v1/none", "/v1/runs/", "/v1", "/", "/v1//runs", "/v1/runs/a/none"):
        answer = await outside.get(path)
        assert (answer.status_code, answer.json()["code"]) == (404, "not_found"), path


async def test_an_unknown_path_under_the_private_ones_needs_a_token_first(outside: Outside) -> None:
    assert (await outside.get("/v1/none", None)).status_code == 401
    assert (await outside.get("/api/none", None)).status_code == 401
    assert (await outside.get("/none", None)).status_code == 404


WRONG_METHODS = [
    ("PUT", "/v1/runs", "GET, POST"),
    ("DELETE", "/v1/runs", "GET, POST"),
    ("OPTIONS", "/v1/runs", "GET, POST"),
    ("POST", "/v1/runs/x", "GET"),
    ("GET", "/v1/runs/x/cancel", "POST"),
    ("TRACE", "/v1/operations", "GET"),
    ("POST", "/readyz", "GET"),
    ("BREW", "/v1/runs", "GET, POST"),
]


async def test_a_wrong_method_is_told_all_the_right_ones(outside: Outside) -> None:
    for method, path, allow in WRONG_METHODS:
        answer = await outside.call(method, path)
        assert (answer.status_code, answer.json()["code"]) == (405, "method_not_allowed")
        assert answer.headers["allow"] == allow, (method, path)


# ---- bodies ------------------------------------------------------------------------------------


NOT_JSON = ["{", "", "{'kind': 1}", '{"kind": NaN}', '{"a": 1e999}', b"\xff", '"\\ud800"', "{} {}"]


async def test_a_body_that_is_not_json_is_refused(outside: Outside) -> None:
    for text in [*NOT_JSON, "[" * 9999]:
        await _refused(outside, 400, "invalid_request", text)


async def test_a_nul_anywhere_in_the_body_is_refused(outside: Outside) -> None:
    nul = "a\x00b"
    values: dict[str, Any] = {
        "input": {"deep": [nul]},
        "kind": nul,
        "context": {nul: 1},
        "labels": {"a": nul},
    }
    for place, value in values.items():
        body = {"kind": "shop.echo", "input": 1, place: value}
        assert "NUL" in await _refused(outside, 400, "invalid_request", json.dumps(body))


async def test_half_of_a_surrogate_pair_in_a_body_is_refused_as_what_it_is(
    outside: Outside,
) -> None:
    body = '{"kind":"shop.echo","input":{"deep":["\\ud800"]}}'
    detail = await _refused(outside, 400, "invalid_request", body)
    assert "half of a surrogate pair at $.input.deep[0] is no character" in detail


async def test_a_body_nested_too_deeply_is_refused_and_brackets_in_strings_do_not_count(
    outside: Outside,
) -> None:
    def body(depth: int) -> str:
        return '{"kind":"shop.echo","input":' + "[" * depth + "]" * depth + "}"

    assert "nested" in await _refused(outside, 400, "invalid_request", body(100))
    deepest = await outside.post("/v1/runs", content=body(99), headers=JSON)
    assert deepest.status_code == 202
    assert await outside.submit("shop.echo", ['["[{' * 500, "\\" * 7])


async def test_a_body_of_another_media_type_is_refused(outside: Outside) -> None:
    content = '{"kind": "shop.echo"}'
    for media in ("text/plain", "application/x-www-form-urlencoded", "", "json"):
        await _refused(outside, 415, "unsupported_media_type", content, **{"Content-Type": media})


async def test_the_media_types_of_json_are_taken(outside: Outside) -> None:
    for media in ("application/json; charset=utf-8", "Application/Vnd.x+JSON"):
        headers = {**KEY, "Content-Type": media}
        answer = await outside.post("/v1/runs", content='{"kind": "shop.echo"}', headers=headers)
        assert answer.status_code == 202


async def test_a_body_over_a_mebibyte_is_refused(outside: Outside) -> None:
    big = b" " * (MAX_BODY_BYTES + 1)
    assert str(MAX_BODY_BYTES) in await _refused(outside, 413, "payload_too_large", big)


async def test_a_body_over_a_mebibyte_is_refused_though_it_was_not_announced(
    outside: Outside,
) -> None:
    read = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal read
        for _ in range(1000):
            read += 64 * 1024
            yield b" " * 64 * 1024

    await _refused(outside, 413, "payload_too_large", endless())
    assert read <= MAX_BODY_BYTES + 2 * 64 * 1024


async def test_a_body_of_exactly_a_mebibyte_is_read(outside: Outside) -> None:
    text = '{"kind": "shop.none"}'
    await _refused(outside, 400, "invalid_request", text.ljust(MAX_BODY_BYTES))


async def test_nothing_is_read_of_a_body_before_its_sender_is_known(outside: Outside) -> None:
    read = False

    async def body() -> AsyncIterator[bytes]:
        nonlocal read
        read = True
        yield b"{}"

    for headers in ({}, {"Content-Length": str(MAX_BODY_BYTES * 9)}):
        sent = {**JSON, **headers}
        answer = await outside.post("/v1/runs", None, content=body(), headers=sent)
        assert (answer.status_code, read) == (401, False)


async def test_a_length_that_is_no_number_is_refused(outside: Outside) -> None:
    for length in ("x", "-1", "1e3", "²"):
        headers = {**JSON, "Content-Length": length.encode()}
        answer = await outside.post("/v1/runs", content=iter_nothing(), headers=headers)
        assert answer.status_code == 400


async def iter_nothing() -> AsyncIterator[bytes]:
    yield b""


# ---- queries -----------------------------------------------------------------------------------


WRONG_QUERIES = {
    "limit=0": "/limit",
    "limit=101": "/limit",
    "limit=many": "/limit",
    "status=asleep": "/status",
    "staus=queued": "/staus",
    "created_after=yesterday": "/created_after",
    "created_before=2030-01-01": "/created_before",
    "label=blue": "/label/0",
    "kind=a%00b": "/kind",
    "q=%00": "/q",
    "label=a:%00": "/label/0",
}


async def test_a_query_that_cannot_be_meant_is_refused(outside: Outside) -> None:
    for query, pointer in WRONG_QUERIES.items():
        answer = await outside.get(f"/v1/runs?{query}")
        assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request")
        assert answer.json()["errors"][0]["pointer"] == pointer
        assert answer.json()["errors"][0]["in"] == "query"


# ---- faults of our own -------------------------------------------------------------------------


async def test_what_breaks_inside_is_told_without_details_and_logged_with_its_id(
    outside: Outside, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """P21: not even the log repeats what the error said, which may be what the caller sent."""

    async def broken(*_: object) -> None:
        raise ValueError("hunter2")

    monkeypatch.setattr(Database, "fetchrow", broken)
    answer = await outside.get("/v1/runs/run_01m8pfskc6e458xvnxgwdfa6sq")
    logged = capsys.readouterr().out
    assert (answer.status_code, answer.json()["code"]) == (500, "internal_error")
    assert answer.json()["request_id"] in logged
    assert "ValueError" in logged
    assert "hunter2" not in answer.text + logged


@pytest.mark.parametrize(
    "error",
    [
        DatabaseUnavailable("the database at postgres://user:hunter2@host does not answer"),
        asyncpg.LockNotAvailableError("canceling statement due to lock timeout"),
        asyncpg.QueryCanceledError("canceling statement due to statement timeout"),
    ],
)
async def test_a_database_that_cannot_serve_is_busy_and_says_when_to_come_back(
    outside: Outside, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    async def unavailable(*_: object) -> None:
        raise error

    await outside.get("/v1/runs")
    monkeypatch.setattr(Database, "fetch", unavailable)
    answer = await outside.get("/v1/runs")
    assert (answer.status_code, answer.json()["code"]) == (503, "busy")
    assert int(answer.headers["retry-after"]) >= 1
    assert "hunter2" not in answer.text
