"""The guide to webhooks: a refund in doubt, the bank's callback, and what the shop hears of it."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import socket
import sys
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import httpx2
import pytest
import uvicorn
from cryptography.fernet import Fernet
from standardwebhooks.webhooks import Webhook

from earnest.assembly import Assembly, Config
from earnest.domain import ids
from earnest.doors.api.application import build_api
from earnest.engine.attempts.working import Worker
from earnest.engine.inspection.readiness import Readiness
from earnest.engine.messages.relaying import Relay
from earnest.engine.process import scopes
from earnest.engine.process.engine import Engine
from earnest.engine.runs import submitting
from earnest.engine.runs.submitting import Request
from earnest.store import operations, runs
from tests.docs.guides import reading

SCOPE = "default"


@asynccontextmanager
async def _served(app: Any) -> AsyncIterator[str]:
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off"))
    # It listens already: who comes before the server is ready waits for it.
    with socket.create_server(("127.0.0.1", 0)) as listener:
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        server.should_exit = True
        await serving


async def _earnest(block: str, database_url: str, **instead: str) -> list[dict[str, Any]]:
    """Runs the commands of a block; what each prints as JSON."""
    told = []
    for line in block.splitlines():
        words = [instead.get(word, word) for word in shlex.split(line)[1:]]
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "earnest", *words, "--json",
            env={**os.environ, "EARNEST_DATABASE_URL": database_url}, stdout=-1,
        )  # fmt: skip
        out, _ = await process.communicate()
        assert process.returncode == 0, line
        told.append(json.loads(out))
    return told


async def _says(url: str, secret: str, told: dict[str, str], message_id: str) -> int:
    body, when = json.dumps(told), datetime.now(UTC)
    headers = {
        "webhook-id": message_id,
        "webhook-timestamp": str(int(when.timestamp())),
        "webhook-signature": Webhook(secret).sign(message_id, when, body),
    }
    async with httpx2.AsyncClient() as client:
        return (await client.post(url, content=body, headers=headers)).status_code


async def _refund(engine: Engine, number: int) -> tuple[uuid.UUID, str]:
    """A run whose refund is in doubt; its id, and the operation's as the bank knows it."""
    order = {"number": number, "amount": "20.00"}
    request = Request("refund.process", order)
    run = (await submitting.submit(engine, SCOPE, "ann", request)).run
    await Worker(engine, keeper=False).drain_once()
    (operation,) = await operations.of_run(engine.database, SCOPE, run.run_id)
    assert operation.state == "unknown"
    return run.run_id, ids.show("op", operation.operation_id)


async def test_the_guide(database_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("EARNEST_SECRET_KEY", Fernet.generate_key().decode())
    monkeypatch.setenv("EARNEST_ALLOW_PRIVATE_ADDRESSES", "127.0.0.0/8")
    with reading("webhooks") as guide:
        shop, receiver = guide.module("shop.py"), guide.module("receiver.py")
        config = Config(home=tmp_path, database_url=database_url, apps=[shop.app])
        async with Assembly(config) as assembly, _served(receiver.receiver) as hooks:
            engine = assembly.engine
            await scopes.register(engine, SCOPE, "ann")
            place = {"https://shop.example/hooks": f"{hooks}/hooks"}
            (webhook,) = await _earnest(guide.text("subscribe.sh"), database_url, **place)
            (source,) = await _earnest(guide.text("source.sh"), database_url)
            monkeypatch.setenv("SHOP_SECRET", webhook["secret"])
            api = build_api(engine, ready=lambda: Readiness(True))
            async with _served(api) as url:
                await _story(engine, f"{url}/v1/inbox/bank", source["secret"], receiver)
            await _earnest(guide.text("replay.sh"), database_url)
            (sink,) = await _earnest(guide.text("nats.sh"), database_url)
            assert sink["prefix"] == "earnest"


async def _story(engine: Engine, inbox: str, secret: str, receiver: Any) -> None:
    relay = Relay(engine)
    run_id, operation_id = await _refund(engine, 1)
    told = {"type": "refund.made", "refund_for": operation_id, "id": "r-1"}
    assert [await _says(inbox, secret, told, "m1") for _ in range(2)] == [200, 200]
    assert await _says(inbox, "whsec_" + "QUJD" * 8, told, "m2") == 401
    await Worker(engine, keeper=False).drain_once()
    ended = await runs.find(engine.database, SCOPE, run_id)
    assert ended is not None
    assert ended.output == "r-1"

    _, operation_id = await _refund(engine, 2)
    told = {"type": "refund.rejected", "refund_for": operation_id, "reason": "closed"}
    assert await _says(inbox, secret, told, "m3") == 200
    await Worker(engine, keeper=False).drain_once()
    await relay.relay_once()
    await relay.close()
    heard = sorted(one["type"] for one in receiver.seen.values())
    assert heard == ["refund.asked", "refund.asked", "refund.done", "run.failed"]
