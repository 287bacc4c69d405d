"""Tokens, principals, scopes and the audit over HTTP."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest

from earnest.engine.process.access import read_token
from tests.doors.api.outside import Outside

BODY = {"principal_id": "ann", "name": "laptop"}


async def issued(outside: Outside, **more: Any) -> dict[str, Any]:
    answer = await outside.post("/v1/tokens", "admin", json=BODY, **more)
    assert answer.status_code == 201, answer.text
    made: dict[str, Any] = answer.json()
    return made


async def items(outside: Outside, path: str, who: str = "admin", **query: Any) -> list[Any]:
    answer = await outside.get(path, who, params={"limit": 100, **query})
    assert answer.status_code == 200, answer.text
    found: list[Any] = answer.json()["items"]
    return found


def problem(answer: httpx2.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["code"]


# ---- tokens --------------------------------------------------------------------------------------


async def test_a_tokens_text_is_in_the_answer_that_made_it_and_in_no_other(
    outside: Outside,
) -> None:
    """P21."""
    made = await issued(outside)
    outside.tokens["new"] = made["token"]
    assert (await outside.get("/v1/runs", "new")).status_code == 200
    assert read_token(made["token"])[0] == made["id"]
    for path in (f"/v1/tokens/{made['id']}", "/v1/tokens", "/v1/audit", "/v1/principals"):
        told = (await outside.get(path, "admin", params={"limit": 100})).text
        assert made["token"] not in told
        assert made["token"].split("_")[2][:32] not in told


async def test_the_same_key_and_body_issue_one_token(outside: Outside) -> None:
    """P7: the repeated answer names it, without its text."""
    key = {"Idempotency-Key": "laptop-1"}
    first = await outside.post("/v1/tokens", "admin", json=BODY, headers=key)
    again = await outside.post("/v1/tokens", "admin", json=BODY, headers=key)
    assert "idempotency-replayed" not in first.headers
    assert again.headers["idempotency-replayed"] == "true"
    assert (
        again.headers["location"] == first.headers["location"] == f"/v1/tokens/{again.json()['id']}"
    )
    assert {**again.json(), "token": first.json()["token"]} == first.json()
    other = await outside.post("/v1/tokens", "admin", json={**BODY, "name": "phone"}, headers=key)
    assert problem(other) == (409, "idempotency_conflict")


async def test_a_key_of_another_route_is_another_request(outside: Outside) -> None:
    key = {"Idempotency-Key": "once"}
    made = await issued(outside, headers=key)
    path = f"/v1/tokens/{made['id']}/rotate"
    assert problem(await outside.post(path, "admin", headers=key)) == (409, "idempotency_conflict")


@pytest.mark.parametrize(
    ("body", "about"),
    [
        ({"principal_id": "nobody there"}, "no principal"),
        ({"principal_id": "ann", "expires_at": "2001-01-01T00:00:00Z"}, "expired already"),
        ({"principal_id": "ann", "expires_at": "tomorrow"}, "a time looks like"),
        ({"principal_id": "ann", "roles": ["admin"]}, "Extra inputs"),
        ({}, "Field required"),
    ],
)
async def test_a_token_that_cannot_be_issued_is_refused_in_one_line(
    outside: Outside, body: dict[str, Any], about: str
) -> None:
    answer = await outside.post("/v1/tokens", "admin", json=body)
    assert problem(answer) == (400, "invalid_request")
    assert about in answer.json()["detail"]


async def test_a_rotated_token_is_followed_by_one_that_keeps_its_keys(outside: Outside) -> None:
    """P7: keys belong to the principal."""
    made = await issued(outside)
    outside.tokens["old"] = made["token"]
    run = await outside.submit("shop.echo", 1, "old", key="order-17")
    answer = await outside.post(
        f"/v1/tokens/{made['id']}/rotate", "admin", json={"overlap_seconds": 0}
    )
    assert answer.status_code == 201
    outside.tokens["new"] = answer.json()["token"]
    assert answer.json()["replaces"] == made["id"]
    assert (await outside.submit("shop.echo", 1, "new", key="order-17"))["id"] == run["id"]
    again = await outside.post(f"/v1/tokens/{made['id']}/rotate", "admin")
    assert problem(again) == (409, "conflict")
    assert again.json()["successor"] == answer.json()["id"]


async def test_an_overlap_is_bounded(outside: Outside) -> None:
    made = await issued(outside)
    path = f"/v1/tokens/{made['id']}/rotate"
    for overlap in (-1, 8 * 86400, "1"):
        answer = await outside.post(path, "admin", json={"overlap_seconds": overlap})
        assert problem(answer) == (400, "invalid_request")


async def test_a_revoked_token_is_told_so_in_the_list_and_revoking_again_is_harmless(
    outside: Outside,
) -> None:
    made = await issued(outside)
    first = await outside.call("DELETE", f"/v1/tokens/{made['id']}", "admin")
    again = await outside.call("DELETE", f"/v1/tokens/{made['id']}", "admin")
    assert first.json() == again.json()
    assert first.json()["revoked_at"]
    live = await items(outside, "/v1/tokens", principal_id="ann", live="true")
    assert made["id"] not in {one["id"] for one in live}
    assert made["id"] in {one["id"] for one in await items(outside, "/v1/tokens")}
    revoked = await items(
        outside, "/v1/audit", action="token.revoked", subject=f"token {made['id']}"
    )
    assert len(revoked) == 1


async def test_the_admins_own_last_token_is_not_revoked(outside: Outside) -> None:
    own = read_token(outside.tokens["admin"])[0]
    answer = await outside.call("DELETE", f"/v1/tokens/{own}", "admin")
    assert problem(answer) == (409, "conflict")
    assert "issue another admin's token first" in answer.json()["detail"]
    assert (await outside.get("/v1/tokens", "admin")).status_code == 200


async def test_a_tokens_cursor_opens_only_its_own_list(outside: Outside) -> None:
    page = (await outside.get("/v1/tokens", "admin", params={"limit": 1})).json()
    cursor = page["next_cursor"]
    assert cursor
    good = await outside.get("/v1/tokens", "admin", params={"limit": 1, "cursor": cursor})
    assert good.json()["items"][0]["id"] != page["items"][0]["id"]
    for path, who, more in (
        ("/v1/tokens", "admin", {"principal_id": "ann"}),
        ("/v1/tokens", "other admin", {}),
        ("/v1/audit", "admin", {}),
        ("/v1/principals", "admin", {}),
    ):
        refused = await outside.get(path, who, params={"cursor": cursor, **more})
        assert problem(refused) == (400, "invalid_request"), path


async def test_pages_of_tokens_hold_each_once(outside: Outside) -> None:
    seen: list[str] = []
    query: dict[str, Any] = {"limit": 2}
    while True:
        page = (await outside.get("/v1/tokens", "admin", params=query)).json()
        seen += [one["id"] for one in page["items"]]
        if page["next_cursor"] is None:
            break
        query["cursor"] = page["next_cursor"]
    assert len(seen) == len(set(seen)) == len(await items(outside, "/v1/tokens"))


# ---- principals ----------------------------------------------------------------------------------


async def test_a_principal_is_made_changed_and_disabled_by_who_looked_at_it(
    outside: Outside,
) -> None:
    path = "/v1/principals/zoe"
    made = await outside.call("PUT", path, "admin", json={"roles": ["member"]})
    assert (made.status_code, made.headers["etag"]) == (200, '"1"')
    change = {"roles": ["member", "approver"]}
    assert problem(await outside.call("PUT", path, "admin", json=change)) == (
        428,
        "precondition_required",
    )
    stale = await outside.call("PUT", path, "admin", json=change, headers={"If-Match": '"9"'})
    assert problem(stale) == (412, "version_mismatch")
    tag = {"If-Match": made.headers["etag"]}
    changed = await outside.call("PUT", path, "admin", json=change, headers=tag)
    assert (changed.json()["roles"], changed.headers["etag"]) == (["approver", "member"], '"2"')
    again = await outside.call("PUT", path, "admin", json=change, headers=tag)
    assert (again.status_code, again.json()) == (200, changed.json())
    off = {"roles": [], "disabled": True}
    disabled = await outside.call("PUT", path, "admin", json=off, headers={"If-Match": '"2"'})
    assert disabled.json()["disabled"]
    assert (await outside.get(path, "admin")).json() == disabled.json()
    told = await items(outside, "/v1/audit", subject="principal zoe")
    assert [one["action"] for one in told] == [
        "principal.disabled",
        "principal.changed",
        "principal.created",
    ]


async def test_the_last_admin_cannot_lock_the_scope_out(outside: Outside) -> None:
    tag = {"If-Match": '"1"'}
    body = {"roles": ["member"]}
    answer = await outside.call("PUT", "/v1/principals/eve", "admin", json=body, headers=tag)
    assert problem(answer) == (409, "conflict")
    assert "last admin of scope demo" in answer.json()["detail"]


async def test_new_roles_count_for_tokens_that_are_there(outside: Outside) -> None:
    made = await issued(outside)
    outside.tokens["fresh"] = made["token"]
    tag = {"If-Match": '"1"'}
    body = {"roles": ["approver"]}
    changed = await outside.call("PUT", "/v1/principals/ann", "admin", json=body, headers=tag)
    assert changed.status_code == 200
    assert (await outside.get("/v1/runs", "fresh")).status_code == 403


@pytest.mark.parametrize("body", [{"roles": ["root"]}, {}, {"roles": ["member"], "disabled": True}])
async def test_a_principal_that_cannot_be_is_refused(outside: Outside, body: Any) -> None:
    answer = await outside.call("PUT", "/v1/principals/zoe", "admin", json=body)
    assert problem(answer) == (400, "invalid_request")


# ---- scopes --------------------------------------------------------------------------------------


async def test_a_scope_is_made_with_an_admin_who_can_come_in(outside: Outside) -> None:
    key = {"Idempotency-Key": "acme"}
    body = {"id": "acme", "admin": "zoe"}
    made = await outside.post("/v1/scopes", "admin", json=body, headers=key)
    assert made.status_code == 201
    outside.tokens["zoe"] = made.json()["token"]
    assert [one["id"] for one in await items(outside, "/v1/principals", "zoe")] == ["zoe"]
    again = await outside.post("/v1/scopes", "admin", json=body, headers=key)
    assert again.headers["idempotency-replayed"] == "true"
    assert "token" not in again.json()
    assert problem(await outside.post("/v1/scopes", "admin", json=body)) == (409, "conflict")
    assert problem(await outside.post("/v1/scopes", "zoe", json={"id": "b"})) == (403, "forbidden")
    assert [one["id"] for one in await items(outside, "/v1/scopes")] == ["acme", "demo", "other"]
    told = await items(outside, "/v1/audit", "zoe")
    assert {one["principal_id"] for one in told} == {"demo/eve"}


# ---- the audit -----------------------------------------------------------------------------------


async def test_the_audit_tells_who_did_it_with_which_token_and_request(outside: Outside) -> None:
    run = await outside.submit("shop.wait", "go")
    await outside.drain()
    asked = {"X-Request-Id": "my-request"}
    await outside.post(f"/v1/runs/{run['id']}/cancel", "operator", headers=asked)
    (entry,) = await items(outside, "/v1/audit", action="run.cancelled")
    assert entry["id"].startswith("aud_")
    assert entry["subject"] == run["id"]
    assert (entry["principal_id"], entry["request_id"]) == ("dan", "my-request")
    assert entry["token_id"] == read_token(outside.tokens["operator"])[0]
    assert entry["detail"] == {"outcome": "cancelled", "runs": 1}


async def test_the_audit_is_narrowed_by_what_is_asked(outside: Outside) -> None:
    made = await issued(outside)
    (entry,) = await items(outside, "/v1/audit", subject=f"token {made['id']}")
    assert entry["principal_id"] == "eve"
    at = entry["created_at"]
    assert await items(outside, "/v1/audit", principal_id="eve", created_after=at)
    assert await items(outside, "/v1/audit", principal_id="eve", created_before=at) == []
    assert await items(outside, "/v1/audit", action="run.retried") == []
    assert (await outside.get("/v1/audit", "admin", params={"actions": "x"})).status_code == 400


async def test_pages_of_the_audit_hold_each_entry_once(outside: Outside) -> None:
    everything = [one["id"] for one in await items(outside, "/v1/audit")]
    seen: list[str] = []
    query: dict[str, Any] = {"limit": 3}
    while query:
        page = (await outside.get("/v1/audit", "admin", params=query)).json()
        seen += [one["id"] for one in page["items"]]
        cursor = page["next_cursor"]
        query = {"limit": 3, "cursor": cursor} if cursor else {}
    assert seen == everything
    assert len(seen) > 6
