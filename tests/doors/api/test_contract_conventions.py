"""The conventions, at every route that the OpenAPI document shows; a new one is tried by itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from earnest.doors.api.gate import MAX_BODY_BYTES
from earnest.engine.process.engine import Engine
from earnest.store.blobs_folder import FolderBlobs
from scripts.contract_docs import document
from tests.doors.api.conftest import PEOPLE
from tests.doors.api.matrix import Case, ask, expected, make
from tests.doors.api.outside import Outside
from tests.doors.api.samples import request_of
from tests.doors.api.test_authorisation import every_case

DOCUMENT = document()

REPEATED_WITHOUT_A_KEY = {
    "POST /v1/inbox/{source}": "the message's own id says whether it came before",
    "POST /v1/inbox-sources": "a name is made once",
    "POST /v1/inbox-sources/{source_name}/rotate": "the secret before stays good meanwhile",
    "POST /v1/webhooks/{webhook_id}/rotate": "the secret before stays good meanwhile",
    "POST /v1/webhooks/{webhook_id}/test": "a test is a test",
}
"""Where a request that came twice does no harm and no key is taken."""

BAD_BODIES: dict[str, bytes] = {
    "not JSON": b"{",
    "two values": b"{} {}",
    "NaN": b'{"x": NaN}',
    "infinity": b'{"x": 1e999}',
    "a name twice": b'{"x": 1, "x": 2}',
    "not UTF-8": b'{"x": "\xff"}',
    "half of a pair": b'{"x": "\\ud800"}',
    "NUL": b'{"x": "\\u0000"}',
    "too deep": b"[" * 5000 + b"]" * 5000,
}


def operation(case: Case) -> dict[str, Any]:
    method, path = case.route
    found: dict[str, Any] = DOCUMENT["paths"][path][method.lower()]
    return found


def takes(case: Case, place: str, name: str) -> bool:
    told = operation(case).get("parameters", [])
    return any(one["in"] == place and one["name"] == name for one in told)


def takes_json(case: Case) -> bool:
    return "application/json" in operation(case).get("requestBody", {}).get("content", {})


PRIVATE = [case for case in every_case() if case.rule.roles]
LISTS = [case for case in PRIVATE if takes(case, "query", "limit")]
KEYED = [case for case in PRIVATE if takes(case, "header", "Idempotency-Key")]
BODIES = [case for case in PRIVATE if takes_json(case)]


def opener(case: Case) -> str:
    """Somebody to whom the route opens."""
    return next(who for who in PEOPLE if expected(case, who) == 200)


@pytest.fixture(autouse=True)
def _place(engine: Engine, tmp_path: Path) -> None:
    engine.blobs = FolderBlobs(tmp_path / "artifacts")


def test_every_post_takes_a_key_or_needs_none() -> None:
    without = {str(case) for case in every_case() if case.route[0] == "POST"} - set(map(str, KEYED))
    assert without == set(REPEATED_WITHOUT_A_KEY)


def test_who_takes_a_version_may_say_that_it_is_stale_or_missing() -> None:
    for case in PRIVATE:
        if takes(case, "header", "If-Match"):
            assert {"412", "428"} <= set(operation(case)["responses"]), case


@pytest.mark.parametrize("case", LISTS, ids=str)
async def test_a_limit_is_from_1_to_100_and_a_cursor_is_the_lists_own(
    outside: Outside, case: Case
) -> None:
    path, who = case.route[1].format(**await make(outside, case)), opener(case)
    for limit in ("0", "101", "-1", "many", "1.5", ""):
        answer = await outside.get(f"{path}?limit={limit}", who)
        assert answer.status_code == 400, limit
        assert answer.json()["errors"][0]["pointer"] == "/limit"
    for limit in ("1", "100"):
        assert (await outside.get(f"{path}?limit={limit}", who)).status_code == 200
    for number in range(2):
        await outside.submit("shop.echo", 1, "member2", key=f"k{number}")
    foreign = (await outside.get("/v1/runs?limit=1", "member2")).json()["next_cursor"]
    assert foreign
    for cursor in (foreign, foreign[:-2] + "AA", "", "x", "ä", "A" * 700):
        answer = await outside.get(path, who, params={"cursor": cursor})
        assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request"), cursor


@pytest.mark.parametrize("case", KEYED, ids=str)
async def test_a_key_is_said_once_and_is_not_too_long(outside: Outside, case: Case) -> None:
    """Nothing was done: with a good key the same request is still the first."""
    parameters, who = await make(outside, case), opener(case)
    for keys in (["a", "a"], ["x" * 256], ['"open'], [""], ["ä"]):
        request = await request_of(outside, case.route, who, parameters)
        others = {**request.pop("headers")}
        others.pop("Idempotency-Key", None)
        headers = [*others.items(), *(("Idempotency-Key", key.encode()) for key in keys)]
        path = case.route[1].format(**parameters)
        answer = await outside.call(case.route[0], path, who, headers=headers, **request)
        assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request"), keys


@pytest.mark.parametrize("case", BODIES, ids=str)
async def test_a_body_that_is_not_clean_json_is_refused(outside: Outside, case: Case) -> None:
    parameters, who = await make(outside, case), opener(case)
    path, method = case.route[1].format(**parameters), case.route[0]
    request = await request_of(outside, case.route, who, parameters)
    headers = {**request["headers"], "Content-Type": "application/json"}
    for what, body in BAD_BODIES.items():
        answer = await outside.call(method, path, who, headers=headers, content=body)
        assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request"), what
    unknown = await outside.call(method, path, who, headers=headers, content=b'{"no such": 1}')
    told = {error["pointer"] for error in unknown.json()["errors"]}
    assert (unknown.status_code, "/no such" in told) == (400, True)
    big = await outside.call(
        method, path, who, headers=headers, content=b" " * (MAX_BODY_BYTES + 1)
    )
    assert big.status_code == 413
    text = {**headers, "Content-Type": "text/plain"}
    other = await outside.call(method, path, who, headers=text, content=b"{}")
    assert (other.status_code, other.json()["code"]) == (415, "unsupported_media_type")


@pytest.mark.parametrize("case", [case for case in PRIVATE if case.route[0] == "GET"], ids=str)
async def test_an_etag_is_the_version_in_the_body(outside: Outside, case: Case) -> None:
    answer = await ask(outside, case, opener(case), await make(outside, case))
    if answer.headers.get("content-type") == "application/json" and "version" in answer.json():
        assert answer.headers["etag"] == f'"{answer.json()["version"]}"'


async def test_a_method_that_a_path_does_not_know_is_told_the_others(outside: Outside) -> None:
    """HEAD and OPTIONS, too, where they are not there."""
    for path, methods in DOCUMENT["paths"].items():
        known = {method.upper() for method in methods}
        for method in {"GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE"} - known:
            answer = await outside.call(method, path.replace("{", "").replace("}", ""), "admin")
            allowed = set(answer.headers["allow"].split(", "))
            assert answer.status_code == 405, (method, path)
            assert known <= allowed, (method, path)


def test_the_generated_tests_try_what_there_is() -> None:
    assert min(map(len, (LISTS, KEYED, BODIES))) >= 10
    assert sum(1 for _ in _declared_headers("Idempotency-Replayed")) >= 5


def _declared_headers(name: str) -> Iterator[str]:
    for case in PRIVATE:
        for answer in operation(case)["responses"].values():
            if name in answer.get("headers", {}):
                yield str(case)
