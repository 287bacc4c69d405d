"""`earnest webhooks`, `outbox` and `inbox`: from a command to the far end, and back."""

from __future__ import annotations

import http.server
import json
import queue
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import httpx2
import pytest
from standardwebhooks.webhooks import Webhook

from tests.doors.cli.program import Program


@dataclass
class Hooks:
    """A receiver in a thread: what came, and the status that it answers."""

    url: str
    status: int = 200
    came: queue.Queue[tuple[dict[str, str], bytes]] = field(default_factory=queue.Queue)


@pytest.fixture
def hooks() -> Iterator[Hooks]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            found.came.put(({k.lower(): v for k, v in self.headers.items()}, body))
            self.send_response(found.status)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        found = Hooks(f"http://127.0.0.1:{server.server_address[1]}/")
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield found
        server.shutdown()


@pytest.fixture
def allowed(here: Program) -> Program:
    return here.on(EARNEST_ALLOW_PRIVATE_ADDRESSES="127.0.0.0/8")


def test_a_webhook_is_told_by_a_worker_what_its_secret_verifies(
    allowed: Program, hooks: Hooks
) -> None:
    add = ("webhooks", "add", hooks.url, "--type", "run.succeeded", "--json")
    made = allowed.good(*add).json
    assert made["secret"] not in allowed.good("webhooks", "list").out
    [listed] = allowed.good("webhooks", "list", "--json").json["items"]
    assert listed == {name: value for name, value in made.items() if name != "secret"}
    with allowed.started("worker"):
        allowed.good("runs", "submit", "demo.echo", '{"message": "hello"}')
        headers, body = hooks.came.get(timeout=20)
    assert Webhook(made["secret"]).verify(body, headers)["type"] == "run.succeeded"
    rotated = allowed.good("webhooks", "rotate", made["id"], "--json").json
    assert rotated["secret"] != made["secret"]
    paused = allowed.good("webhooks", "set", made["id"], "--state", "paused", "--json").json
    assert paused["state"] == "paused"
    assert "say --yes" in allowed.refused(2, "webhooks", "remove", made["id"])
    allowed.good("webhooks", "remove", made["id"], "--yes")
    assert allowed.good("webhooks", "list", "--json").json["items"] == []


def test_what_a_webhook_wants_no_more_is_replayed_by_a_filter(
    allowed: Program, hooks: Hooks
) -> None:
    hooks.status = 410
    add = ("webhooks", "add", hooks.url, "--type", "webhook.test", "--json")
    made = allowed.good(*add).json
    sent = allowed.good("webhooks", "test", made["id"], "--json").json["delivery_id"]
    [waiting] = allowed.good("outbox", "list", "--json").json["items"]
    assert (waiting["id"], waiting["state"]) == (sent, "pending")
    with allowed.started("worker") as worker:
        hooks.came.get(timeout=20)
        worker.wait_for_log("delivery.failed")
        assert worker.end() == 0  # by then it has stored what came of it
    [dead] = allowed.good("outbox", "dead-letters", "--json").json["items"]
    assert (dead["id"], dead["last_status"]) == (sent, 410)
    assert sent in allowed.good("outbox", "dead-letters").out
    assert "--yes" in allowed.refused(2, "outbox", "replay")
    assert "--yes" in allowed.refused(2, "outbox", "replay", "--type", "webhook.test")
    assert "disabled" in allowed.refused(1, "outbox", "replay", sent)
    allowed.good("webhooks", "set", made["id"], "--state", "active")
    hooks.status = 200
    by_filter = ("outbox", "replay", "--sink", made["id"], "--yes", "--json")
    assert [one["id"] for one in allowed.good(*by_filter).json["items"]] == [sent]
    with allowed.started("worker"):
        headers, _ = hooks.came.get(timeout=20)
    assert headers["webhook-id"] == dead["message_id"]


def test_an_address_inside_the_network_is_refused_unless_it_is_allowed(here: Program) -> None:
    add = ("webhooks", "add", "--type", "*")
    assert "https" in here.refused(1, *add, "http://127.0.0.1:9/")
    assert "EARNEST_ALLOW_PRIVATE_ADDRESSES" in here.refused(1, *add, "https://10.0.0.1/")
    wrong = here.on(EARNEST_ALLOW_PRIVATE_ADDRESSES="somewhere")
    assert "networks separated by commas" in wrong.refused(2, *add, "https://example.com/")


def test_a_key_that_is_none_is_said_in_one_line(here: Program) -> None:
    wrong = here.on(EARNEST_SECRET_KEY="secret")
    line = wrong.refused(2, "webhooks", "add", "--type", "*", "https://example.com/")
    assert "EARNEST_SECRET_KEY is not a key" in line


def test_sources_are_made_rotated_and_removed(here: Program) -> None:
    made = here.good("inbox", "sources", "add", "bank", "--json").json
    assert made["handler"] == "bank"
    own = "whsec_" + "QUJD" * 8
    rotate = ("inbox", "sources", "rotate", "bank", "--secret-from-stdin", "--json")
    assert "secret" not in here.good(*rotate, text=f"{own}\n").json
    assert own not in here.good("inbox", "sources", "list").out
    assert "is taken" in here.refused(1, "inbox", "sources", "add", "bank")
    assert "say --yes" in here.refused(2, "inbox", "sources", "remove", "bank")
    here.good("inbox", "sources", "remove", "bank", "--yes")
    assert here.good("inbox", "sources", "list", "--json").json["items"] == []


def test_a_server_takes_what_a_source_signs(here: Program) -> None:
    """The demo has no inbox: the message is right, and to come again when one is there."""
    made = here.good("inbox", "sources", "add", "bank", "--json").json
    body, when = json.dumps({"operation_id": "op_x"}), datetime.now(UTC)
    headers = {
        "webhook-id": "msg_1",
        "webhook-timestamp": str(int(when.timestamp())),
        "webhook-signature": Webhook(made["secret"]).sign("msg_1", when, body),
    }
    with here.started("serve", "--no-worker", "--port", "0") as server:
        to = f"{server.url}/v1/inbox/bank"
        assert httpx2.post(to, content=body).status_code == 401
        answer = httpx2.post(to, content=body, headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (503, "busy")


def test_nats_is_the_deployments(here: Program) -> None:
    made = here.good("outbox", "nats", "add", "--type", "run.*", "--json").json
    [listed] = here.good("outbox", "nats", "list", "--json").json["items"]
    assert (listed["id"], listed["prefix"]) == (made["id"], "earnest")
    assert here.good("webhooks", "list", "--json").json["items"] == []
    here.good("outbox", "nats", "remove", made["id"], "--yes")
    assert "prefix" in here.refused(1, "outbox", "nats", "add", "--type", "*", "--prefix", "a.>")
