"""The guide to approvals: its handlers ask, its requests decide, and its tables are true."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from types import ModuleType
from typing import Any

from earnest.doors.api.application import build_api
from earnest.engine.inspection.readiness import Readiness
from earnest.engine.process.engine import Engine
from earnest.engine.process.principals import ensure_principal
from earnest.engine.process.scopes import ensure_scope
from earnest.engine.process.tokens import issue_token
from earnest.testing.clock import ManualClock
from tests.docs.guides import Guide, reading
from tests.doors.api.outside import Outside

PEOPLE = {"member": ["member"], "approver": ["approver"], "both": ["member", "approver"]}


async def test_the_guide(
    make_engine: Callable[..., Engine], clock: ManualClock, database_url: str
) -> None:
    with reading("approvals") as guide:
        shop = guide.module("shop.py")
        guide.module("letter.py")
        guide.module("strict.py")
        asked = shlex.split(guide.text("list.sh"))
        engine = make_engine(shop.app)
        async with _outside(engine, await _tokens(engine)) as outside:
            await a_refund_is_sent_as_it_was_approved(guide, outside, shop)
            await a_letter_hears_what_was_said(outside, clock)
            await a_proposer_is_excluded(outside)
            await the_answers_are_those_of_the_table(guide, outside)
    assert asked == ["earnest", "approvals", "list", "--status", "pending"]


def _outside(engine: Engine, tokens: dict[str, str]) -> Outside:
    return Outside(build_api(engine, ready=lambda: Readiness(True)), engine, tokens)


async def _tokens(engine: Engine) -> dict[str, str]:
    await ensure_scope(engine, "demo")
    for name, roles in PEOPLE.items():
        await ensure_principal(engine, "demo", name, roles)
    return {name: await issue_token(engine, "demo", name) for name in PEOPLE}


async def _asked(outside: Outside, kind: str, value: Any, who: str = "member") -> dict[str, Any]:
    run = await outside.submit(kind, value, who)
    await outside.drain()
    found = (await outside.get("/v1/approvals?status=pending", "approver")).json()["items"]
    (approval,) = [one for one in found if one["run_id"] == run["id"]]
    return dict(approval)


async def _ended(outside: Outside, approval: dict[str, Any], who: str = "member") -> dict[str, Any]:
    await outside.drain()
    return dict((await outside.get(f"/v1/runs/{approval['run_id']}", who)).json())


async def a_refund_is_sent_as_it_was_approved(
    guide: Guide, outside: Outside, shop: ModuleType
) -> None:
    approval = await _asked(outside, "order.refund", {"order": 17, "amount": "20.00"})
    assert shop.sent == []
    line, tag, _, body = guide.text("decision.http").strip().split("\n")
    method, path = line.replace("{id}", approval["id"]).split()
    answer = await outside.call(
        method,
        path,
        "approver",
        headers={"If-Match": tag.removeprefix("If-Match: ")},
        json=json.loads(body.replace("{digest}", approval["digest"])),
    )
    assert (answer.status_code, answer.json()["note"]) == (200, "a good customer")
    assert (await _ended(outside, approval))["output"] == "receipt 1"
    assert [one.model_dump() for one in shop.sent] == [approval["proposal"]]


async def _decide(
    outside: Outside, approval: dict[str, Any], decision: str, who: str = "approver", note: str = ""
) -> int:
    path = f"/v1/approvals/{approval['id']}/decision"
    body = {"decision": decision, "digest": approval["digest"], "note": note}
    return (await outside.post(path, who, json=body, headers={"If-Match": '"1"'})).status_code


async def a_letter_hears_what_was_said(outside: Outside, clock: ManualClock) -> None:
    letters = [await _asked(outside, "letter.send", f"Dear {n}") for n in range(3)]
    await _decide(outside, letters[0], "approve")
    await _decide(outside, letters[1], "reject", note="too long")
    heard = [await _ended(outside, one) for one in letters[:2]]
    await clock.advance(hours=2)
    heard.append(await _ended(outside, letters[2]))
    assert [one["output"] for one in heard] == [
        "approved by approver",
        "not sent: too long",
        "not sent: nobody looked at it",
    ]


async def a_proposer_is_excluded(outside: Outside) -> None:
    approval = await _asked(outside, "payout", "20.00", "both")
    assert await _decide(outside, approval, "approve", "both") == 403
    assert await _decide(outside, approval, "approve") == 200
    assert (await _ended(outside, approval, "both"))["output"] == "approver"


async def the_answers_are_those_of_the_table(guide: Guide, outside: Outside) -> None:
    """The page names every status that the route may answer a decision with."""
    page = guide.path.read_text(encoding="utf-8")
    table = page.split("| answer | when |")[1].split("\n\n")[0]
    told = set(re.findall(r"\b[2-4]\d\d\b", table))
    route = outside.app.openapi()["paths"]["/v1/approvals/{approval_id}/decision"]["post"]
    assert told == set(route["responses"]) - {"400", "401", "413", "415", "500", "503"}
