"""POST /v1/runs: one request makes one run, and what cannot be stored is refused whole (P7)."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tests.doors.api.outside import Outside

ECHO = {"kind": "shop.echo", "input": {"said": "hello"}}


async def _count(outside: Outside) -> int:
    return len((await outside.get("/v1/runs", "operator")).json()["items"])


async def test_a_run_can_be_read_as_soon_as_its_submit_answers(outside: Outside) -> None:
    answer = await outside.post("/v1/runs", json=ECHO, headers={"Idempotency-Key": "order-17"})
    assert answer.status_code == 202
    body = answer.json()
    assert body["id"] == body["run_id"]
    assert answer.headers["location"] == f"/v1/runs/{body['id']}"
    assert answer.headers["etag"] == f'"{body["version"]}"'
    assert (await outside.get(answer.headers["location"])).json() == body


@pytest.mark.parametrize("again", ["order-17", '"order-17"', " order-17 "])
async def test_the_same_key_and_request_give_the_same_run_and_say_so(
    outside: Outside, again: str
) -> None:
    """P7; a key is the same bare and quoted."""
    first = await outside.post("/v1/runs", json=ECHO, headers={"Idempotency-Key": "order-17"})
    second = await outside.post("/v1/runs", json=ECHO, headers={"Idempotency-Key": again})
    assert second.status_code == 202
    assert second.json()["id"] == first.json()["id"]
    assert "idempotency-replayed" not in first.headers
    assert second.headers["idempotency-replayed"] == "true"
    assert await _count(outside) == 1


async def test_the_order_and_spacing_of_members_do_not_make_another_request(
    outside: Outside,
) -> None:
    """P7: the fingerprint is the canonical form of what was sent."""
    headers = {"Idempotency-Key": "k", "Content-Type": "application/json"}
    texts = [
        '{"kind":"shop.echo","input":{"a":1,"b":2}}',
        '{"input":{"b":2, "a":1},\n"kind":"shop.echo"}',
    ]
    made = [await outside.post("/v1/runs", content=text, headers=headers) for text in texts]
    assert made[0].json()["id"] == made[1].json()["id"]


@pytest.mark.parametrize(
    "other",
    [
        {"kind": "shop.echo", "input": {"said": "goodbye"}},
        {"kind": "shop.many", "input": 1},
        {**ECHO, "priority": 0},
        {**ECHO, "labels": {"a": "b"}},
    ],
)
async def test_the_same_key_with_another_request_is_a_conflict(
    outside: Outside, other: dict[str, Any]
) -> None:
    """P7; also when the other request only spells out a default: what was sent counts."""
    await outside.post("/v1/runs", json=ECHO, headers={"Idempotency-Key": "k"})
    answer = await outside.post("/v1/runs", json=other, headers={"Idempotency-Key": "k"})
    assert (answer.status_code, answer.json()["code"]) == (409, "idempotency_conflict")
    assert await _count(outside) == 1


async def test_a_key_belongs_to_who_asks(outside: Outside) -> None:
    made = [
        (await outside.submit("shop.echo", 1, who, key="k"))["id"]
        for who in ("member", "member2", "other member")
    ]
    assert len(set(made)) == 3


async def test_fifty_at_once_with_one_key_make_one_run(outside: Outside) -> None:
    """P7."""
    headers = {"Idempotency-Key": "k"}
    posts = (outside.post("/v1/runs", json=ECHO, headers=headers) for _ in range(50))
    answers = await asyncio.gather(*posts)
    assert {answer.status_code for answer in answers} == {202}
    assert len({answer.json()["id"] for answer in answers}) == 1
    fresh = [answer for answer in answers if "idempotency-replayed" not in answer.headers]
    assert len(fresh) == 1
    assert await _count(outside) == 1


async def test_fifty_at_once_with_two_requests_for_one_key_make_one_run(outside: Outside) -> None:
    """P7: of two requests that race for a key one wins, whole."""
    bodies = [{"kind": "shop.echo", "input": number % 2} for number in range(50)]
    headers = {"Idempotency-Key": "k"}
    posts = (outside.post("/v1/runs", json=body, headers=headers) for body in bodies)
    answers = await asyncio.gather(*posts)
    accepted = [answer.json() for answer in answers if answer.status_code == 202]
    refused = [answer.json()["code"] for answer in answers if answer.status_code != 202]
    assert (len(accepted), refused) == (25, ["idempotency_conflict"] * 25)
    assert len({run["id"] for run in accepted}) == 1


UNCLEAR: list[list[tuple[str, Any]]] = [
    [],
    [("Idempotency-Key", "")],
    [("Idempotency-Key", '""')],
    [("Idempotency-Key", "x" * 256)],
    [("Idempotency-Key", '"half')],
    [("Idempotency-Key", '"one", "two"')],
    [("Idempotency-Key", "one"), ("Idempotency-Key", "two")],
    [("Idempotency-Key", "one"), ("Idempotency-Key", "one")],
    [("Idempotency-Key", "tab\there")],
    [("Idempotency-Key", "schlüssel".encode())],
]


async def test_a_submit_without_one_clear_key_is_refused(outside: Outside) -> None:
    for headers in UNCLEAR:
        answer = await outside.post("/v1/runs", json=ECHO, headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request"), headers
        assert "Idempotency-Key" in answer.json()["detail"]
    assert await _count(outside) == 0


async def test_a_key_of_255_characters_is_taken_and_quotes_do_not_count(outside: Outside) -> None:
    key = "x" * 255
    assert (await outside.submit("shop.echo", 1, key=key))["id"] == (
        await outside.submit("shop.echo", 1, key=f'"{key}"')
    )["id"]


async def test_everything_that_was_asked_can_be_read_back(outside: Outside) -> None:
    asked: dict[str, Any] = {
        "conversation_id": "c-1",
        "lane": "default",
        "priority": 7,
        "not_before": "2035-01-01T00:00:00+01:00",
        "context": {"page": ["a", 1, None]},
        "labels": {"team": "blue"},
    }
    run = await outside.submit("shop.order", {"order_id": "o", "amount": "1"}, **asked)
    assert {name: run[name] for name in asked if name != "not_before"} == {
        name: value for name, value in asked.items() if name != "not_before"
    }
    assert run["due_at"] == "2034-12-31T23:00:00Z"
    assert run["input"] == {"order_id": "o", "amount": "1"}


WRONG: list[tuple[Any, str]] = [
    ({"input": 1}, "/kind"),
    ({"kind": 7}, "/kind"),
    ({"kind": ""}, "/kind"),
    ({**ECHO, "priority": 1001}, "/priority"),
    ({**ECHO, "priority": "1"}, "/priority"),
    ({**ECHO, "not_before": "2030-01-01T00:00:00"}, "/not_before"),
    ({**ECHO, "not_before": 1893456000}, "/not_before"),
    ({**ECHO, "not_before": "0001-01-01T00:00:00+23:59"}, "/not_before"),
    ({**ECHO, "not_before": "2030-02-30T00:00:00Z"}, "/not_before"),
    ({**ECHO, "labels": {"a": 1}}, "/labels/a"),
    ({**ECHO, "labels": {"a/b~c": 1}}, "/labels/a~1b~0c"),
    ({**ECHO, "context": []}, "/context"),
    ({**ECHO, "conversation_id": "x" * 201}, "/conversation_id"),
    ({**ECHO, "surprise": 1}, "/surprise"),
    ({"kind": "shop.order", "input": {"order_id": "o"}}, "/input/amount"),
    ({"kind": "shop.order"}, "/input"),
    ([], ""),
    ("text", ""),
]


async def test_a_problem_points_at_what_is_wrong(outside: Outside) -> None:
    for body, pointer in WRONG:
        answer = await outside.post("/v1/runs", json=body, headers={"Idempotency-Key": "k"})
        assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request"), body
        assert [error["pointer"] for error in answer.json()["errors"]] == [pointer], body
        assert answer.json()["errors"][0]["in"] == "body"
    assert await _count(outside) == 0


async def test_a_problem_does_not_repeat_the_value_that_was_wrong(outside: Outside) -> None:
    """P21."""
    body = {"kind": "shop.order", "input": {"order_id": {"secret": "hunter2"}, "amount": "1"}}
    answer = await outside.post("/v1/runs", json=body, headers={"Idempotency-Key": "k"})
    assert answer.status_code == 400
    assert "hunter2" not in answer.text


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"kind": "shop.none", "input": 1}, "no run kind"),
        ({**ECHO, "lane": "nowhere"}, "no lane"),
        ({**ECHO, "labels": {str(number): "x" for number in range(33)}}, "labels"),
    ],
)
async def test_what_the_engine_does_not_know_is_refused(
    outside: Outside, body: dict[str, Any], says: str
) -> None:
    answer = await outside.post("/v1/runs", json=body, headers={"Idempotency-Key": "k"})
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request")
    assert says in answer.json()["detail"]


async def test_an_unknown_kind_is_told_apart_by_its_reason(outside: Outside) -> None:
    answer = await outside.post("/v1/runs", json={"kind": "x"}, headers={"Idempotency-Key": "k"})
    assert answer.json()["reason"] == "unknown_kind"


async def test_a_refused_request_uses_up_no_key(outside: Outside) -> None:
    bad = {"kind": "shop.order", "input": {}}
    await outside.post("/v1/runs", json=bad, headers={"Idempotency-Key": "k"})
    assert (await outside.submit("shop.echo", 1, key="k"))["revision"] == 1


async def test_an_input_over_256_kib_is_refused_and_one_below_is_taken(outside: Outside) -> None:
    size = 256 * 1024
    assert await outside.submit("shop.echo", "x" * (size - 2))
    body = {"kind": "shop.echo", "input": "x" * size}
    answer = await outside.post("/v1/runs", json=body, headers={"Idempotency-Key": "k"})
    assert (answer.status_code, answer.json()["code"]) == (413, "payload_too_large")
    assert "artifact" in answer.json()["detail"]


async def test_any_json_comes_back_as_it_was_sent(outside: Outside) -> None:
    values: list[Any] = [None, True, 0, -1.5, "ä€𝄞", [], {}, [[{"": [None]}]], 10**30]
    for said in values:
        run = await outside.submit("shop.echo", said, key=f"key {said!r}".encode().hex())
        await outside.drain()
        found = (await outside.get(f"/v1/runs/{run['id']}")).json()
        assert (found["status"], found["input"], found["output"]) == ("succeeded", said, said)


async def test_a_trace_is_kept_with_the_run_and_a_malformed_one_is_not(outside: Outside) -> None:
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    bad = trace.replace("00f067aa0ba902b7", "0" * 16)
    for number, given in enumerate((trace, bad)):
        headers = {"Idempotency-Key": f"k{number}", "traceparent": given}
        assert (await outside.post("/v1/runs", json=ECHO, headers=headers)).status_code == 202
    async with outside.engine.database.connection() as tx:
        kept = await tx.fetch("SELECT traceparent FROM run ORDER BY idempotency_key")
    assert [row["traceparent"] for row in kept] == [trace, None]


async def test_an_answer_that_was_lost_is_found_again_by_its_key(outside: Outside) -> None:
    """P7 after time: the run has ended meanwhile, and is not made a second time."""
    first = await outside.submit("shop.echo", 1, key="k")
    await outside.drain()
    again = await outside.submit("shop.echo", 1, key="k")
    assert (again["id"], again["status"]) == (first["id"], "succeeded")
    assert json.dumps(again["output"]) == "1"
