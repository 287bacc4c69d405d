"""Operations in doubt: the desk, look-ups, and a person's resolution with evidence (P3)."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx2

from tests.doors.api.outside import Outside
from tests.doors.api.shop import Bank, Receipt

ORDER = {"order_id": "17", "amount": "20.00"}
HAPPENED: dict[str, Any] = {
    "outcome": "submitted",
    "receipt": {"id": "r-1"},
    "evidence": "the bank's statement",
}
DID_NOT: dict[str, Any] = {"outcome": "released", "evidence": "the bank says no"}


async def _in_doubt(outside: Outside, kind: str = "shop.refund", key: str = "k") -> dict[str, Any]:
    """The one operation, in doubt, of a new run."""
    run = await outside.submit(kind, ORDER, key=key)
    await outside.drain()
    (operation,) = (await outside.get(f"/v1/runs/{run['id']}/operations")).json()["items"]
    assert operation["state"] == "unknown"
    found: dict[str, Any] = operation
    return found


async def _resolve(
    outside: Outside, operation: dict[str, Any], body: Any, version: str | None = None
) -> httpx2.Response:
    tag = f'"{operation["version"]}"' if version is None else version
    headers = {"If-Match": tag} if tag else {}
    path = f"/v1/operations/{operation['id']}/resolution"
    return await outside.post(path, "operator", json=body, headers=headers)


async def _status(outside: Outside, operation: dict[str, Any]) -> str:
    status: str = (await outside.get(f"/v1/runs/{operation['run_id']}")).json()["status"]
    return status


# ---- the desk ----------------------------------------------------------------------------------


async def test_the_desk_lists_what_is_in_doubt_longest_first(outside: Outside, bank: Bank) -> None:
    doubted = [(await _in_doubt(outside, key=f"k{n}"))["id"] for n in range(3)]
    bank.silent = False
    await outside.submit("shop.refund", ORDER, key="paid")
    await outside.drain()
    first = (await outside.get("/v1/operations?state=unknown&limit=2", "operator")).json()
    path = f"/v1/operations?state=unknown&limit=2&cursor={first['next_cursor']}"
    rest = (await outside.get(path, "operator")).json()
    assert [one["id"] for one in first["items"] + rest["items"]] == doubted
    assert rest["next_cursor"] is None
    assert all(one["unknown_since"] for one in first["items"])


async def test_all_operations_are_listed_by_pages_though_some_are_in_doubt(
    outside: Outside, bank: Bank
) -> None:
    for n in range(4):
        bank.silent = n % 2 == 0
        await outside.submit("shop.refund", ORDER, key=f"k{n}")
        await outside.drain()
    async with outside.engine.database.connection() as tx:
        await tx.execute("UPDATE operation SET unknown_since = now() WHERE state = 'unknown'")
    ids: list[str] = []
    page: dict[str, Any] = {}
    cursor = ""
    for _ in range(4):
        page = (await outside.get(f"/v1/operations?limit=1{cursor}", "operator")).json()
        ids += [one["id"] for one in page["items"]]
        cursor = f"&cursor={page['next_cursor']}"
    assert len(set(ids)) == 4
    assert page["next_cursor"] is None


async def test_one_operation_is_shown_with_its_history(outside: Outside) -> None:
    operation = await _in_doubt(outside)
    answer = await outside.get(f"/v1/operations/{operation['id']}")
    whole = answer.json()
    assert answer.headers["etag"] == f'"{whole["version"]}"'
    assert [move["move"] for move in whole["history"]] == ["reserve", "begin", "doubt"]
    assert [move["version"] for move in whole["history"]] == [1, 2, 3]
    assert whole["request"] == ORDER
    assert (whole["lookups"], whole["findings"], whole["receipt"]) == ([], [], None)


# ---- resolution --------------------------------------------------------------------------------


async def test_it_happened_resolves_the_run_with_the_receipt(outside: Outside) -> None:
    operation = await _in_doubt(outside)
    answer = await _resolve(outside, operation, {**HAPPENED, "note": "seen twice"})
    settled = answer.json()
    assert (answer.status_code, settled["state"]) == (200, "submitted")
    assert settled["receipt"] == HAPPENED["receipt"]
    assert settled["resolution"]["principal_id"] == "dan"
    assert settled["resolution"]["evidence"] == HAPPENED["evidence"]
    assert answer.headers["etag"] == f'"{settled["version"]}"' != f'"{operation["version"]}"'
    await outside.drain()
    assert await _status(outside, operation) == "succeeded"


async def test_it_did_not_happen_ends_the_run_as_not_done(outside: Outside) -> None:
    operation = await _in_doubt(outside)
    answer = await _resolve(outside, operation, DID_NOT)
    assert (answer.json()["state"], answer.json()["release_reason"]) == ("released", "given_up")
    await outside.drain()
    run = (await outside.get(f"/v1/runs/{operation['run_id']}")).json()
    assert (run["status"], run["error"]["code"]) == ("failed", "not_done")


async def test_a_resolution_must_name_the_version_that_was_looked_at(outside: Outside) -> None:
    operation = await _in_doubt(outside)
    for tag, status, code in (
        ("", 428, "precondition_required"),
        ("*", 428, "precondition_required"),
        (f'"{operation["version"] + 1}"', 412, "version_mismatch"),
        ('"1"', 412, "version_mismatch"),
        ('W/"3"', 412, "version_mismatch"),
        ('"another"', 412, "version_mismatch"),
        ("9" * 30, 412, "version_mismatch"),
    ):
        answer = await _resolve(outside, operation, DID_NOT, tag)
        assert (answer.status_code, answer.json()["code"]) == (status, code), tag
    assert await _status(outside, operation) == "unknown"
    assert (await _resolve(outside, operation, DID_NOT, str(operation["version"]))).is_success


async def test_the_same_resolution_again_is_harmless_and_another_is_a_conflict(
    outside: Outside,
) -> None:
    operation = await _in_doubt(outside)
    first = await _resolve(outside, operation, HAPPENED)
    for tag in (None, "", '"99"'):
        again = await _resolve(outside, operation, HAPPENED, tag)
        assert (again.status_code, again.json()) == (200, first.json())
        other = await _resolve(outside, operation, DID_NOT, tag)
        assert (other.status_code, other.json()["code"]) == (409, "conflict")


async def test_of_eight_who_decide_at_once_one_truth_comes_out(outside: Outside) -> None:
    operation = await _in_doubt(outside)
    verdicts = [HAPPENED, DID_NOT] * 4
    answers = await asyncio.gather(*(_resolve(outside, operation, one) for one in verdicts))
    whole = (await outside.get(f"/v1/operations/{operation['id']}")).json()
    for verdict, answer in zip(verdicts, answers, strict=True):
        agrees = verdict["outcome"] == whole["state"]
        assert answer.status_code == 200 if agrees else answer.status_code in (409, 412)
    moves = [move["move"] for move in whole["history"]]
    assert moves[:3] == ["reserve", "begin", "doubt"]
    assert len(moves) == 4


NO_RESOLUTIONS: list[Any] = [
    {"outcome": "maybe", "evidence": "x"},
    {"outcome": "released"},
    {"outcome": "released", "evidence": ""},
    {"outcome": "released", "evidence": "  "},
    {"outcome": "released", "evidence": "x" * 4001},
    {"outcome": "released", "evidence": "x", "receipt": {"id": "r"}},
    {"outcome": "submitted", "evidence": "x"},
    {"outcome": "submitted", "evidence": "x", "receipt": {"no": "id"}},
    {"outcome": "submitted", "evidence": "x", "receipt": "r\x00"},
    {"outcome": "released", "evidence": "x", "extra": 1},
    {"evidence": "x"},
    [],
]


async def test_a_resolution_that_is_none_is_refused(outside: Outside) -> None:
    operation = await _in_doubt(outside)
    for body in NO_RESOLUTIONS:
        answer = await _resolve(outside, operation, body)
        assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request"), body
    assert await _status(outside, operation) == "unknown"


# ---- look-up -----------------------------------------------------------------------------------


async def test_a_look_up_adopts_what_the_provider_knows(outside: Outside, bank: Bank) -> None:
    operation = await _in_doubt(outside, "shop.inquire")
    bank.known[operation["id"]] = Receipt(id="r-late")
    answer = await outside.post(f"/v1/operations/{operation['id']}/lookup", "operator")
    assert (answer.status_code, answer.json()["state"]) == (200, "submitted")
    assert answer.json()["receipt"] == {"id": "r-late"}
    assert [one["answer"] for one in answer.json()["lookups"]][-1] == "found"
    await outside.drain()
    assert await _status(outside, operation) == "succeeded"


async def test_a_look_up_that_settles_nothing_is_kept_and_shown(outside: Outside) -> None:
    operation = await _in_doubt(outside, "shop.inquire")
    before = len(operation["lookups"])
    answer = await outside.post(f"/v1/operations/{operation['id']}/lookup", "operator")
    asked = answer.json()["lookups"]
    assert (answer.status_code, answer.json()["state"]) == (200, "unknown")
    assert [one["number"] for one in asked] == list(range(1, len(asked) + 1))
    assert len(asked) == before + 1
    assert (asked[-1]["answer"], asked[-1]["detail"]) == ("inconclusive", "the bank is closed")


async def test_a_provider_that_cannot_be_asked_is_a_conflict(outside: Outside) -> None:
    operation = await _in_doubt(outside)
    answer = await outside.post(f"/v1/operations/{operation['id']}/lookup", "operator")
    assert (answer.status_code, answer.json()["code"]) == (409, "conflict")
    assert await _status(outside, operation) == "unknown"
