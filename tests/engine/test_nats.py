"""NATS JetStream as a sink, on a real server: what a stream holds is what was told (P13)."""

from __future__ import annotations

import asyncio
import shutil
import socket
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.js import JetStreamContext
from nats.js.api import StreamConfig

from earnest.domain.errors import InvalidRequest
from earnest.engine.app import App
from earnest.engine.attempts.context import Context
from earnest.engine.attempts.working import Worker
from earnest.engine.messages import subscribing
from earnest.engine.messages.nats import NatsSender
from earnest.engine.messages.relaying import Relay, RelaySettings
from earnest.engine.messages.subscribing import Subscription
from earnest.engine.process import scopes
from earnest.engine.process.actors import local
from earnest.engine.process.engine import Engine
from earnest.engine.runs import submitting
from earnest.engine.runs.submitting import Request
from earnest.store import messages
from earnest.testing.clock import ManualClock

SERVER = shutil.which("nats-server", path="/usr/sbin:/usr/bin:/usr/local/bin")

pytestmark = pytest.mark.skipif(
    SERVER is None, reason="nats-server is not installed; scripts/system-packages does it"
)

app = App("shop")


@app.run("order.ship")
async def ship(ctx: Context, order: int) -> int:
    await ctx.publish("order.shipped", {"order": order})
    return order


@dataclass
class Nats:
    """A server of the test's own, which it may stop and start again on the same port."""

    folder: Path
    port: int
    process: asyncio.subprocess.Process | None = None

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    async def start(self) -> None:
        assert SERVER is not None
        self.process = await asyncio.create_subprocess_exec(
            SERVER, "-js", "-a", "127.0.0.1", "-p", str(self.port), "-sd", str(self.folder),
            stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert self.process.stderr is not None
        async with asyncio.timeout(20):
            while b"Server is ready" not in await self.process.stderr.readline():
                pass

    async def stop(self) -> None:
        if self.process is not None:
            self.process.terminate()
            await self.process.communicate()
            self.process = None

    async def held(self) -> list[tuple[str, dict[str, Any], bytes]]:
        """All that the stream holds: subject, headers, body."""
        client = await nats.connect(self.url)
        try:
            stream = client.jetstream()
            count = (await stream.stream_info("all")).state.messages
            found = [await stream.get_msg("all", seq) for seq in range(1, count + 1)]
        finally:
            await client.close()
        return [(str(one.subject), dict(one.headers or {}), one.data or b"") for one in found]

    async def make_stream(self, *subjects: str) -> None:
        client = await nats.connect(self.url)
        stream: JetStreamContext = client.jetstream()
        await stream.add_stream(StreamConfig(name="all", subjects=list(subjects)))
        await client.close()


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Nats]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    made = Nats(tmp_path, port)
    await made.start()
    yield made
    await made.stop()


@pytest.fixture
async def engine(make_engine: Callable[..., Engine]) -> Engine:
    made = make_engine(app)
    for scope in ("shop", "shop.eu"):
        await scopes.register(made, scope, "ann")
    return made


@pytest.fixture
async def relay(engine: Engine, server: Nats) -> AsyncIterator[Relay]:
    settings = RelaySettings(timeout=timedelta(seconds=2))
    made = Relay(engine, settings, {"nats": NatsSender(server.url)})
    yield made
    await made.close()


async def ships(engine: Engine, order: int, scope: str = "shop") -> None:
    await submitting.submit(engine, scope, "ann", Request("order.ship", order))
    await Worker(engine, keeper=False).drain_once()


async def add(engine: Engine, scope: str = "shop", prefix: str = "earnest") -> None:
    asked = Subscription(prefix, ["order.*"])
    await subscribing.add_nats(engine, local(scope), asked)


async def test_a_message_is_in_the_stream_under_scope_and_type(
    engine: Engine, relay: Relay, server: Nats
) -> None:
    await server.make_stream("earnest.>")
    await add(engine)
    await ships(engine, 7)
    assert await relay.relay_once() == 1
    ((subject, headers, body),) = await server.held()
    assert subject == "earnest.shop.order.shipped"
    assert headers["Nats-Msg-Id"].startswith("msg_")
    assert b'"order":7' in body.replace(b" ", b"")


async def test_a_permission_on_one_scope_opens_no_other(
    engine: Engine, relay: Relay, server: Nats
) -> None:
    """P12: `shop.eu` is no part of `shop`."""
    await server.make_stream("mine.>")
    for scope in ("shop", "shop.eu"):
        await add(engine, scope, "mine")
        await ships(engine, 1, scope)
    await relay.relay_once()
    subjects = sorted(subject for subject, _, _ in await server.held())
    assert subjects == ["mine.shop.order.shipped", "mine.shop~eu.order.shipped"]
    with pytest.raises(InvalidRequest, match="prefix"):
        await add(engine, prefix="mine.*")


async def test_what_is_told_twice_is_in_the_stream_once(
    engine: Engine, relay: Relay, server: Nats, clock: ManualClock
) -> None:
    await server.make_stream("earnest.>")
    await add(engine)
    await ships(engine, 7)
    await relay.spread()
    (taken,) = await relay.take()
    sender = NatsSender(server.url)
    assert (await sender.send(taken, 5)).arrived
    await sender.close()
    await clock.advance(seconds=61)
    assert await relay.relay_once() == 1, "it was sent and not marked"
    assert len(await server.held()) == 1


async def test_while_the_server_is_away_nothing_is_lost(
    engine: Engine, relay: Relay, server: Nats, clock: ManualClock
) -> None:
    await server.make_stream("earnest.>")
    await add(engine)
    await ships(engine, 1)
    await relay.relay_once()
    await server.stop()
    for order in (2, 3):
        await ships(engine, order)
    await relay.relay_once()
    only = messages.DeliveryFilter()
    waiting = await messages.pending(engine.database, "shop", only, None, 10)
    assert len(waiting) == 2
    assert all(str(one.last_error).startswith("nats: ") for one in waiting)
    await server.start()
    await clock.advance(minutes=1)
    await relay.relay_once()
    assert len(await server.held()) == 3


async def test_what_no_stream_takes_is_tried_again(
    engine: Engine, relay: Relay, server: Nats, clock: ManualClock
) -> None:
    await add(engine)
    await ships(engine, 1)
    await relay.relay_once()
    await server.make_stream("earnest.>")
    await clock.advance(minutes=1)
    await relay.relay_once()
    assert len(await server.held()) == 1


async def test_without_an_address_it_is_said_what_to_set(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("EARNEST_NATS_URL", raising=False)
    await add(engine)
    await ships(engine, 1)
    relay = Relay(engine)
    await relay.relay_once()
    await relay.close()
    (waiting,) = await messages.pending(
        engine.database, "shop", messages.DeliveryFilter(), None, 10
    )
    assert "EARNEST_NATS_URL" in str(waiting.last_error)
