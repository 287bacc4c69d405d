"""The relay: what was committed arrives at the sinks, at least once (P13)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import Any

import pytest

from earnest.engine.app import App
from earnest.engine.attempts.context import Context
from earnest.engine.attempts.working import Worker
from earnest.engine.messages import subscribing
from earnest.engine.messages.relaying import Relay, RelaySettings
from earnest.engine.messages.subscribing import Subscription
from earnest.engine.process import scopes
from earnest.engine.process.actors import Actor, local
from earnest.engine.process.engine import Engine
from earnest.engine.runs import submitting
from earnest.engine.runs.submitting import Request
from tests.engine.receiver import Receiver

SCOPE = "shop"
QUICK = RelaySettings(first_wait=timedelta(0), poll=timedelta(milliseconds=20))

app = App("shop")


@app.run("order.ship")
async def ship(ctx: Context, order: int) -> int:
    await ctx.publish("order.shipped", {"order": order})
    return order


@pytest.fixture(autouse=True)
def _here_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EARNEST_ALLOW_PRIVATE_ADDRESSES", "127.0.0.0/8")


@pytest.fixture
async def engine(make_engine: Callable[..., Engine]) -> Engine:
    made = make_engine(app)
    await scopes.register(made, SCOPE, "ann")
    return made


@pytest.fixture
def admin() -> Actor:
    return local(SCOPE, "admin")


@pytest.fixture
async def relay(engine: Engine) -> AsyncIterator[Relay]:
    made = Relay(engine, QUICK)
    yield made
    await made.close()


async def run_order(engine: Engine, order: int = 7) -> Any:
    submitted = await submitting.submit(engine, SCOPE, "ann", Request("order.ship", order))
    await Worker(engine, keeper=False).drain_once()
    return submitted.run


async def test_what_a_run_publishes_arrives_signed_with_its_run(
    engine: Engine, relay: Relay, admin: Actor
) -> None:
    async with Receiver() as receiver:
        made = await subscribing.add_webhook(
            engine, admin, Subscription(receiver.url, ["order.shipped"])
        )
        await run_order(engine)
        assert await relay.relay_once() == 1
        (got,) = receiver.got
        assert made.secret is not None
        told = got.verify(made.secret)
    assert told["type"] == "order.shipped"
    assert told["data"]["order"] == 7
    assert told["data"]["run_id"].startswith("run_")
    assert got.id.startswith("msg_")


async def test_events_of_runs_arrive_with_their_numbers(
    engine: Engine, relay: Relay, admin: Actor
) -> None:
    async with Receiver() as receiver:
        await subscribing.add_webhook(engine, admin, Subscription(receiver.url, ["run.*"]))
        await run_order(engine)
        await relay.relay_once()
        told = sorted((got.told for got in receiver.got), key=lambda one: one["data"]["seq"])
    assert [one["type"] for one in told] == ["run.submitted", "run.succeeded"]
    assert len({got.id for got in receiver.got}) == 2
