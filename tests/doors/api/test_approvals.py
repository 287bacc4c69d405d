"""Approvals from outside: who sees them, who decides, and what a decision is told (P11, P12)."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import httpx2
import pytest

from earnest.domain import canonical
from earnest.engine.process.principals import ensure_principal
from earnest.engine.process.tokens import issue_token
from earnest.testing.clock import ManualClock
from tests.doors.api.outside import Outside

ORDER = {"order_id": "17", "amount": "20.00"}


async def _asked(outside: Outside, kind: str = "shop.ask", who: str = "member") -> dict[str, Any]:
    """The approval that a new run waits for, as its owner reads it."""
    run = await outside.submit(kind, ORDER, who)
    await outside.drain()
    waits = (await outside.get(f"/v1/runs/{run['id']}", who)).json()["waiting_on"]
    answer = await outside.get(f"/v1/approvals/{waits[0]['approval_id']}", who)
    assert answer.status_code == 200, answer.text
    assert answer.headers["etag"] == '"1"'
    found: dict[str, Any] = answer.json()
    return found


async def _decide(
    outside: Outside, asked: dict[str, Any], decision: str, who: str = "approver", **changed: Any
) -> httpx2.Response:
    """About the approval as it was read; `digest` and `note` may be others, `version` too (`None`:
    no If-Match), and `key`."""
    body = {
        "decision": decision,
        "digest": changed.get("digest", asked["digest"]),
        "note": changed.get("note", ""),
    }
    version = changed.get("version", asked["version"])
    headers = {} if version is None else {"If-Match": f'"{version}"'}
    if "key" in changed:
        headers["Idempotency-Key"] = changed["key"]
    path = f"/v1/approvals/{asked['id']}/decision"
    return await outside.post(path, who, json=body, headers=headers)


async def _status(outside: Outside, asked: dict[str, Any]) -> str:
    found = (await outside.get(f"/v1/runs/{asked['run_id']}", "operator")).json()
    return f"{found['status']}"


async def _let_in(outside: Outside, name: str, principal: str, *roles: str) -> None:
    await ensure_principal(outside.engine, "demo", principal, roles)
    outside.tokens[name] = await issue_token(outside.engine, "demo", principal)


# ---- seeing ------------------------------------------------------------------------------------


async def test_an_approval_shows_exactly_what_was_asked_for_and_of_whom(outside: Outside) -> None:
    """P11: its digest can be computed again from what is shown."""
    asked = await _asked(outside)
    assert asked["proposal"] == ORDER
    assert asked["digest"] == canonical.digest(canonical.encode(ORDER)).hex()
    assert (asked["name"], asked["role"], asked["status"]) == ("order", "approver", "pending")
    assert (asked["decided_by"], asked["decided_at"], asked["note"]) == (None, None, "")
    assert asked["run"]["id"] == asked["run_id"]
    assert "input" not in asked["run"]


async def test_a_run_says_for_whose_decision_it_waits(outside: Outside) -> None:
    asked = await _asked(outside)
    run = (await outside.get(f"/v1/runs/{asked['run_id']}")).json()
    (wait,) = run["waiting_on"]
    assert wait["kind"] == "approval"
    assert (wait["approval_id"], wait["name"]) == (asked["id"], "order")
    assert (wait["role"], wait["expires_at"][:16]) == ("approver", asked["expires_at"][:16])


async def test_explain_says_who_may_decide_until_when_and_how(outside: Outside) -> None:
    asked = await _asked(outside)
    found = (await outside.get(f"/v1/runs/{asked['run_id']}/explain")).json()
    reason = next(one for one in found["reasons"] if one["code"] == "waits_for_approval")
    assert "role approver" in reason["detail"]
    assert reason["until"][:16] == asked["expires_at"][:16]
    assert reason["refs"] == [{"type": "approval", "id": asked["id"], "status": "pending"}]
    assert reason["moved_by"][0] == {
        "by": "approver",
        "call": f"POST /v1/approvals/{asked['id']}/decision",
        "command": f"earnest approvals approve {asked['id']}",
    }


async def test_an_approver_sees_what_is_addressed_to_it_and_nothing_else_of_the_run(
    outside: Outside,
) -> None:
    """P12."""
    asked = await _asked(outside)
    inbox = (await outside.get("/v1/approvals?status=pending", "approver")).json()
    assert inbox == {"items": [asked], "next_cursor": None}
    for part in ("", "/events", "/steps", "/operations", "/attempts", "/explain"):
        answer = await outside.get(f"/v1/runs/{asked['run_id']}{part}", "approver")
        assert answer.status_code == 404
    assert (await outside.get("/v1/runs", "approver")).status_code == 403


@pytest.mark.parametrize(
    ("who", "sees"),
    [
        *[(who, True) for who in ("member", "approver", "operator")],
        *[(who, False) for who in ("member2", "admin", "other member", "other operator")],
    ],
)
async def test_lists_hold_only_what_the_caller_may_see(
    outside: Outside, who: str, sees: bool
) -> None:
    """P12: and a single one looks as if it were not there."""
    asked = await _asked(outside)
    listed = await outside.get("/v1/approvals", who)
    assert listed.json()["items"] == ([asked] if sees else [])
    found = await outside.get(f"/v1/approvals/{asked['id']}", who)
    assert found.status_code == (200 if sees else 404)


async def test_a_list_goes_on_page_by_page_and_its_cursor_opens_no_other(outside: Outside) -> None:
    made = [await _asked(outside) for _ in range(3)]
    path = "/v1/approvals?status=pending&limit=2"
    first = (await outside.get(path, "approver")).json()
    cursor = first["next_cursor"]
    second = (await outside.get(f"{path}&cursor={cursor}", "approver")).json()
    found = [one["id"] for one in first["items"] + second["items"]]
    assert (found, second["next_cursor"]) == ([one["id"] for one in made], None)
    for other in ("/v1/approvals?limit=2", "/v1/approvals?status=approved&limit=2"):
        answer = await outside.get(f"{other}&cursor={cursor}", "approver")
        assert answer.status_code == 400
    assert (await outside.get(f"{path}&cursor={cursor}", "operator")).status_code == 400


# ---- deciding ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("decision", "status", "run"),
    [("approve", "approved", "succeeded"), ("reject", "rejected", "failed")],
)
async def test_a_decision_is_stored_and_moves_the_run(
    outside: Outside, decision: str, status: str, run: str
) -> None:
    """P11."""
    asked = await _asked(outside)
    answer = await _decide(outside, asked, decision, note="looked at")
    body = answer.json()
    assert (answer.status_code, answer.headers["etag"]) == (200, '"2"')
    assert (body["status"], body["decided_by"], body["note"]) == (status, "cleo", "looked at")
    await outside.drain()
    assert await _status(outside, asked) == run


async def test_a_decision_names_the_version_that_was_looked_at(outside: Outside) -> None:
    """A missing one is 428, a stale one 412; neither changes anything."""
    asked = await _asked(outside)
    missing = await _decide(outside, asked, "approve", version=None)
    stale = await _decide(outside, asked, "approve", version=9)
    assert (missing.status_code, missing.json()["code"]) == (428, "precondition_required")
    assert (stale.status_code, stale.json()["code"]) == (412, "version_mismatch")
    assert (await outside.get(f"/v1/approvals/{asked['id']}")).json() == asked


@pytest.mark.parametrize("version", [None, 1, 2, 9])
async def test_the_same_decision_again_is_fine_whatever_its_if_match(
    outside: Outside, version: int | None
) -> None:
    """P11."""
    asked = await _asked(outside)
    first = await _decide(outside, asked, "approve")
    again = await _decide(outside, asked, "approve", version=version)
    assert (again.status_code, again.json()) == (200, first.json())


async def test_the_other_decision_is_a_conflict(outside: Outside) -> None:
    """P11."""
    asked = await _asked(outside)
    await _decide(outside, asked, "approve")
    answer = await _decide(outside, asked, "reject")
    assert (answer.status_code, answer.json()["code"]) == (409, "conflict")


async def test_another_digest_is_a_changed_proposal(outside: Outside) -> None:
    """P11."""
    asked = await _asked(outside)
    for digest in ("0" * 64, "sha256:else"):
        answer = await _decide(outside, asked, "approve", digest=digest)
        assert answer.status_code == 409
        assert answer.json()["code"] == "proposal_changed"


async def test_what_comes_too_late_is_expired(outside: Outside, clock: ManualClock) -> None:
    """P11: before the engine has noticed, and after."""
    asked = await _asked(outside)
    await clock.advance(hours=1)
    for _ in range(2):
        answer = await _decide(outside, asked, "approve")
        assert (answer.status_code, answer.json()["code"]) == (409, "approval_expired")
        await outside.drain()
    assert await _status(outside, asked) == "failed"


async def test_a_decision_about_a_cancelled_run_says_so(outside: Outside) -> None:
    """P11, P20."""
    asked = await _asked(outside)
    await outside.post(f"/v1/runs/{asked['run_id']}/cancel")
    answer = await _decide(outside, asked, "approve")
    assert (answer.status_code, answer.json()["code"]) == (409, "conflict")
    assert "is cancelled" in answer.json()["detail"]
    closed = (await outside.get(f"/v1/approvals/{asked['id']}")).json()
    assert closed["status"] == "cancelled"


@pytest.mark.parametrize(
    ("who", "status"),
    [
        *[("member", 403), ("operator", 403), ("member2", 404), ("admin", 404), ("nobody", 404)],
        *[("other member", 404), ("other operator", 404), (None, 401), ("revoked", 401)],
    ],
)
async def test_who_lacks_the_role_decides_nothing(outside: Outside, who: Any, status: int) -> None:
    """P12: and whoever may not see it hears that there is none."""
    asked = await _asked(outside)
    for decision in ("approve", "reject"):
        assert (await _decide(outside, asked, decision, who)).status_code == status
    assert (await outside.get(f"/v1/approvals/{asked['id']}")).json() == asked


async def test_a_proposer_does_not_approve_itself_by_another_token(outside: Outside) -> None:
    """P11: keys belong to the principal."""
    await _let_in(outside, "both", "hal", "member", "approver")
    await _let_in(outside, "both again", "hal", "member", "approver")
    asked = await _asked(outside, "shop.ask_others", "both")
    for who in ("both", "both again"):
        answer = await _decide(outside, asked, "approve", who)
        assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")
    assert (await _decide(outside, asked, "approve")).status_code == 200
    own = await _asked(outside, "shop.ask", "both")
    assert (await _decide(outside, own, "approve", "both")).status_code == 200


async def test_eight_racing_decisions_have_one_truth(outside: Outside) -> None:
    """P11: four say yes, four say no; the half that agrees with the truth is told it."""
    asked = await _asked(outside)
    for number in range(8):
        await _let_in(outside, f"a{number}", f"approver {number}", "approver")
    answers = await asyncio.gather(
        *(
            _decide(outside, asked, "approve" if number % 2 else "reject", f"a{number}")
            for number in range(8)
        )
    )
    assert Counter(answer.status_code for answer in answers) == {200: 4, 409: 4}
    told = [answer.json() for answer in answers if answer.status_code == 200]
    assert told == [told[0]] * 4
    await outside.drain()
    expected = {"approved": "succeeded", "rejected": "failed"}[told[0]["status"]]
    assert await _status(outside, asked) == expected


async def test_a_key_is_told_as_a_replay_and_refused_for_anything_else(outside: Outside) -> None:
    """P7."""
    asked, other = await _asked(outside), await _asked(outside)
    first = await _decide(outside, asked, "approve", key="k")
    again = await _decide(outside, asked, "approve", key="k")
    assert "idempotency-replayed" not in first.headers
    assert (again.headers["idempotency-replayed"], again.json()) == ("true", first.json())
    for answer in (
        await _decide(outside, asked, "reject", key="k"),
        await _decide(outside, other, "approve", key="k"),
    ):
        assert (answer.status_code, answer.json()["code"]) == (409, "idempotency_conflict")


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"decision": "approve"},
        {"decision": "perhaps", "digest": "0" * 64},
        {"decision": "approve", "digest": 7},
        {"decision": "approve", "digest": "0" * 64, "note": "x" * 4001},
        {"decision": "approve", "digest": "0" * 64, "role": "admin"},
    ],
    ids=["nothing", "no digest", "no decision", "a number", "a long note", "an unknown member"],
)
async def test_what_is_no_decision_is_refused(outside: Outside, body: dict[str, Any]) -> None:
    asked = await _asked(outside)
    path = f"/v1/approvals/{asked['id']}/decision"
    answer = await outside.post(path, "approver", json=body, headers={"If-Match": '"1"'})
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request")


async def test_foreign_malformed_and_unknown_ids_look_the_same(outside: Outside) -> None:
    """P12."""
    asked = await _asked(outside)
    ids = [asked["run_id"], "apr_01m8pfskc6e458xvnxgwdfa6sq", "x", "apr_" + "9" * 26]
    for wrong in ids:
        answer = await outside.get(f"/v1/approvals/{wrong}", "approver")
        assert answer.status_code == 404
        answer = await _decide(outside, {**asked, "id": wrong}, "approve")
        assert answer.status_code == 404


async def test_a_decision_is_in_the_audit_with_the_token_that_made_it(outside: Outside) -> None:
    asked = await _asked(outside)
    await _decide(outside, asked, "approve")
    await _decide(outside, asked, "approve")
    items = (await outside.get("/v1/audit?action=approval.decided", "admin")).json()["items"]
    (entry,) = items
    assert (entry["subject"], entry["principal_id"]) == (asked["id"], "cleo")
    assert entry["token_id"] is not None
