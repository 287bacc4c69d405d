"""Webhooks, dead letters, and their replay over HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from earnest.engine.messages.relaying import Relay, RelaySettings
from tests.doors.api.outside import Outside
from tests.engine.receiver import Receiver

BODY = {"url": "https://example.com/hooks", "types": ["run.*"]}
ONE_TRY = RelaySettings(most_attempts=1)


@pytest.fixture(autouse=True)
def _settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EARNEST_ALLOW_PRIVATE_ADDRESSES", "127.0.0.0/8")


@pytest.fixture
async def relay(outside: Outside) -> AsyncIterator[Relay]:
    made = Relay(outside.engine, ONE_TRY)
    yield made
    await made.close()


async def add(outside: Outside, who: str = "admin", **more: Any) -> dict[str, Any]:
    answer = await outside.post("/v1/webhooks", who, json={**BODY, **more})
    assert answer.status_code == 201, answer.text
    made: dict[str, Any] = answer.json()
    return made


async def test_a_secret_is_in_the_answer_that_made_it_and_in_no_other(outside: Outside) -> None:
    """P21."""
    answer = await outside.post("/v1/webhooks", "admin", json=BODY)
    made = answer.json()
    secret = made["secret"]
    assert secret.startswith("whsec_")
    assert answer.headers["location"] == f"/v1/webhooks/{made['id']}"
    others = [
        await outside.get("/v1/webhooks", "admin"),
        await outside.get(f"/v1/webhooks/{made['id']}", "admin"),
        await outside.get(f"/v1/webhooks/{made['id']}/deliveries", "admin"),
        await outside.get("/v1/audit", "admin"),
    ]
    for other in others:
        assert other.status_code == 200
        assert secret not in other.text
        assert secret.removeprefix("whsec_") not in other.text


async def test_the_same_key_makes_one_webhook(outside: Outside) -> None:
    """P7."""
    key = {"Idempotency-Key": "hook-1"}
    first = await outside.post("/v1/webhooks", "admin", json=BODY, headers=key)
    again = await outside.post("/v1/webhooks", "admin", json=BODY, headers=key)
    assert again.json()["id"] == first.json()["id"]
    assert again.headers["idempotency-replayed"] == "true"
    assert "secret" not in again.json()
    other = await outside.post("/v1/webhooks", "admin", json={**BODY, "types": ["*"]}, headers=key)
    assert other.json()["code"] == "idempotency_conflict"
    assert len((await outside.get("/v1/webhooks", "admin")).json()["items"]) == 1


REFUSED: dict[str, dict[str, Any]] = {
    "plain http to the outside": {"url": "ftp://example.com"},
    "no host": {"url": "https://"},
    "a password": {"url": "https://ann:secret@example.com/"},
    "metadata": {"url": "http://169.254.169.254/latest"},
    "a private network": {"url": "https://10.0.0.1/"},
    "another protocol": {"url": "https://example.com:25/"},
    "no types": {"types": []},
    "no type": {"types": ["Run!"]},
    "a star inside": {"types": ["run.*.x"]},
}


@pytest.mark.parametrize("how", REFUSED)
async def test_what_cannot_be_called_or_told_is_refused(outside: Outside, how: str) -> None:
    answer = await outside.post("/v1/webhooks", "admin", json={**BODY, **REFUSED[how]})
    assert answer.status_code == 400, answer.text
    assert "secret" not in answer.json()["detail"]


async def test_a_webhook_is_changed_where_it_is_still_as_it_was_read(outside: Outside) -> None:
    made = await add(outside)
    path = f"/v1/webhooks/{made['id']}"
    changed = await outside.call("PATCH", path, "admin", json={"types": ["*"], "state": "paused"})
    assert (changed.json()["types"], changed.json()["state"]) == (["*"], "paused")
    assert changed.headers["etag"] == '"2"'
    stale = await outside.call(
        "PATCH", path, "admin", json={"state": "active"}, headers={"If-Match": '"1"'}
    )
    assert stale.json()["code"] == "version_mismatch"
    again = await outside.call(
        "PATCH", path, "admin", json={"state": "active"}, headers={"If-Match": '"2"'}
    )
    assert again.json()["state"] == "active"


async def test_a_webhook_that_was_removed_is_gone(outside: Outside) -> None:
    made = await add(outside)
    path = f"/v1/webhooks/{made['id']}"
    assert (await outside.call("DELETE", path, "admin")).status_code == 204
    assert (await outside.call("DELETE", path, "admin")).status_code == 404
    assert (await outside.get(path, "admin")).status_code == 404


async def test_webhooks_are_listed_page_by_page(outside: Outside) -> None:
    made = [await add(outside, description=str(n)) for n in range(3)]
    first = (await outside.get("/v1/webhooks?limit=2", "admin")).json()
    rest = (await outside.get(f"/v1/webhooks?cursor={first['next_cursor']}", "admin")).json()
    shown = [one["id"] for one in first["items"] + rest["items"]]
    assert shown == [one["id"] for one in made]


async def test_what_an_admin_changes_is_in_the_audit(outside: Outside) -> None:
    made = await add(outside)
    path = f"/v1/webhooks/{made['id']}"
    await outside.call("PATCH", path, "admin", json={"state": "paused"})
    await outside.post(f"{path}/rotate", "admin")
    await outside.call("DELETE", path, "admin")
    items = (await outside.get(f"/v1/audit?subject={made['id']}", "admin")).json()["items"]
    assert [one["action"] for one in reversed(items)] == [
        "webhook.created",
        "webhook.changed",
        "webhook.rotated",
        "webhook.removed",
    ]


async def test_a_test_message_arrives_signed_with_the_old_and_the_new_secret(
    outside: Outside, relay: Relay
) -> None:
    async with Receiver() as receiver:
        made = await add(outside, url=receiver.url)
        path = f"/v1/webhooks/{made['id']}"
        rotated = (await outside.post(f"{path}/rotate", "admin")).json()
        assert rotated["rotating_until"] is not None
        again = (await outside.post(f"{path}/rotate", "admin")).json()
        sent = await outside.post(f"{path}/test", "admin")
        assert sent.status_code == 202
        assert await relay.relay_once() == 1
        (got,) = receiver.got
        for secret in (made["secret"], rotated["secret"], again["secret"]):
            assert got.verify(secret)["type"] == "webhook.test"
        at_once = {"overlap_seconds": 0}
        last = (await outside.post(f"{path}/rotate", "admin", json=at_once)).json()
        await outside.post(f"{path}/test", "admin")
        await relay.relay_once()
        assert receiver.got[1].verify(last["secret"])
        with pytest.raises(Exception, match="No matching signature"):
            receiver.got[1].verify(made["secret"])
    listed = (await outside.get(f"{path}/deliveries", "admin")).json()["items"]
    assert [one["state"] for one in listed] == ["delivered", "delivered"]
    assert listed[-1]["message_id"] == got.id


async def test_a_dead_letter_is_seen_and_sent_again(outside: Outside, relay: Relay) -> None:
    async with Receiver(status=500) as receiver:
        made = await add(outside, url=receiver.url, types=["run.succeeded"])
        await outside.submit("shop.echo", "a secret input")
        await outside.drain()
        await relay.relay_once()
        (dead,) = (await outside.get("/v1/outbox/dead-letters", "operator")).json()["items"]
        assert (dead["state"], dead["last_status"], dead["type"]) == ("dead", 500, "run.succeeded")
        query = f"/v1/outbox/dead-letters?sink_id={made['id']}&type=run.failed"
        assert (await outside.get(query, "operator")).json()["items"] == []
        receiver.status = 204
        path = f"/v1/outbox/dead-letters/{dead['id']}/replay"
        assert (await outside.post(path, "operator")).json()["state"] == "pending"
        await relay.relay_once()
        first, second = receiver.got
        assert first.id == second.id == dead["message_id"]
        assert first.body == second.body
        assert (await outside.post(path, "operator")).json()["state"] == "delivered"
    assert (await outside.get("/v1/outbox/dead-letters", "operator")).json()["items"] == []
    audit = (await outside.get("/v1/audit?action=delivery.replayed", "admin")).json()["items"]
    assert [one["subject"] for one in audit] == [dead["id"]]


async def test_a_disabled_webhooks_letters_wait_until_it_is_active(
    outside: Outside, relay: Relay
) -> None:
    async with Receiver(status=410) as receiver:
        made = await add(outside, url=receiver.url, types=["run.submitted"])
        await outside.submit("shop.echo", 1)
        await relay.relay_once()
        path = f"/v1/webhooks/{made['id']}"
        shown = (await outside.get(path, "admin")).json()
        assert (shown["state"], shown["why"]) == ("disabled", "the webhook answered 410")
        (dead,) = (await outside.get("/v1/outbox/dead-letters", "admin")).json()["items"]
        replay = f"/v1/outbox/dead-letters/{dead['id']}/replay"
        assert (await outside.post(replay, "admin")).status_code == 409
        receiver.status = 200
        await outside.call("PATCH", path, "admin", json={"state": "active"})
        assert (await outside.post(replay, "admin")).status_code == 200
        await relay.relay_once()
        assert len(receiver.got) == 2


async def test_a_scope_hears_nothing_of_another(outside: Outside, relay: Relay) -> None:
    """P12."""
    async with Receiver() as receiver:
        made = await add(outside, "other admin", url=receiver.url, types=["*"])
        await outside.submit("shop.echo", 1)
        await outside.drain()
        assert await relay.relay_once() == 0
        for who in ("admin", "member", "operator"):
            answer = await outside.get(f"/v1/webhooks/{made['id']}", who)
            assert answer.status_code == 404
    assert receiver.got == []
