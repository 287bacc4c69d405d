"""Providers' callbacks over HTTP, and the sources from which they may come."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import httpx2
import pytest
from standardwebhooks.webhooks import Webhook

from earnest.engine.process.engine import Engine
from earnest.engine.process.inboxes import InboxMessage, Settles
from tests.doors.api.outside import Outside

ORDER = {"order_id": "17", "amount": "20.00"}


@pytest.fixture(autouse=True)
def _handler(engine: Engine) -> None:
    async def settle(tx: Any, message: InboxMessage) -> Settles:
        return Settles(message.payload["operation_id"], {"id": message.payload["receipt"]})

    engine.inboxes.add("bank", settle)


async def add(outside: Outside, who: str = "admin", **body: Any) -> dict[str, Any]:
    answer = await outside.post("/v1/inbox-sources", who, json={"name": "bank", **body})
    assert answer.status_code == 201, answer.text
    made: dict[str, Any] = answer.json()
    return made


async def send(
    outside: Outside, secret: str, payload: Any, *, to: str = "bank", message_id: str = "msg_1"
) -> httpx2.Response:
    body, when = json.dumps(payload), datetime.now(UTC)
    headers = {
        "webhook-id": message_id,
        "webhook-timestamp": str(int(when.timestamp())),
        "webhook-signature": Webhook(secret).sign(message_id, when, body),
    }
    return await outside.post(f"/v1/inbox/{to}", None, content=body, headers=headers)


async def test_a_signed_callback_settles_a_doubt_once(outside: Outside) -> None:
    made = await add(outside)
    run = await outside.submit("shop.refund", ORDER)
    await outside.drain()
    (operation,) = (await outside.get(f"/v1/runs/{run['id']}/operations")).json()["items"]
    assert operation["state"] == "unknown"
    told = {"operation_id": operation["id"], "receipt": "r-17"}
    answers = [(await send(outside, made["secret"], told)).json() for _ in range(3)]
    assert answers == [{"status": "handled"}, {"status": "repeated"}, {"status": "repeated"}]
    await outside.drain()
    ended = (await outside.get(f"/v1/runs/{run['id']}")).json()
    assert ended["status"] == "succeeded"
    settled = (await outside.get(f"/v1/operations/{operation['id']}", "operator")).json()
    assert settled["receipt"] == {"id": "r-17"}
    assert settled["resolution"]["by"] == "inbox:bank"


async def test_a_bad_signature_and_an_unknown_source_are_answered_alike(outside: Outside) -> None:
    await add(outside)
    other = "whsec_" + "QUJD" * 8
    answers = [
        await send(outside, other, {}),
        await send(outside, other, {}, to="nobody"),
        await send(outside, other, {}, to="%00"),
        await outside.post("/v1/inbox/bank", None, content=b"{}"),
        await outside.post("/v1/inbox/bank", "admin", content=b"{}"),
    ]
    told = []
    for answer in answers:
        assert answer.status_code == 401
        told.append({**answer.json(), "instance": "", "request_id": ""})
    assert all(one == told[0] for one in told)


async def test_what_cannot_be_handled_now_is_to_come_again(outside: Outside) -> None:
    made = await add(outside, handler="nobody wrote it")
    answer = await send(outside, made["secret"], {})
    assert answer.status_code == 503
    assert int(answer.headers["retry-after"]) > 0


async def test_a_secret_is_shown_once_and_can_be_changed(outside: Outside) -> None:
    """P21."""
    made = await add(outside)
    listed = await outside.get("/v1/inbox-sources", "admin")
    assert [one["name"] for one in listed.json()["items"]] == ["bank"]
    assert made["secret"] not in listed.text
    at_once = {"overlap_seconds": 0}
    rotated = (await outside.post("/v1/inbox-sources/bank/rotate", "admin", json=at_once)).json()
    nothing = {"operation_id": "op_x", "receipt": "r"}
    assert (await send(outside, made["secret"], nothing)).status_code == 401
    assert (await send(outside, rotated["secret"], nothing)).json() == {"status": "handled"}


async def test_a_source_that_was_removed_is_unknown(outside: Outside) -> None:
    made = await add(outside)
    path = "/v1/inbox-sources/bank"
    assert (await outside.call("DELETE", path, "other admin")).status_code == 404
    assert (await outside.call("DELETE", path, "admin")).status_code == 204
    assert (await outside.call("DELETE", path, "admin")).status_code == 404
    assert (await send(outside, made["secret"], {})).status_code == 401


async def test_a_name_that_is_taken_is_a_conflict(outside: Outside) -> None:
    await add(outside)
    answer = await outside.post("/v1/inbox-sources", "other admin", json={"name": "bank"})
    assert answer.status_code == 409
    bad = await outside.post("/v1/inbox-sources", "admin", json={"name": "../etc"})
    assert bad.status_code == 400


async def test_changes_of_sources_are_in_the_audit(outside: Outside) -> None:
    await add(outside)
    await outside.post("/v1/inbox-sources/bank/rotate", "admin")
    await outside.call("DELETE", "/v1/inbox-sources/bank", "admin")
    items = (await outside.get("/v1/audit?subject=source bank", "admin")).json()["items"]
    actions = [one["action"] for one in reversed(items)]
    assert actions == ["source.created", "source.rotated", "source.removed"]
