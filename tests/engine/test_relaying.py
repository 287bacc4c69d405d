"""The relay: what was committed arrives at the sinks, at least once (P13)."""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import time
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from earnest.domain import ids
from earnest.domain.run import Run
from earnest.engine.app import App
from earnest.engine.attempts.context import Context
from earnest.engine.attempts.plain import PlainContext
from earnest.engine.attempts.working import Worker
from earnest.engine.messages import subscribing
from earnest.engine.messages.relaying import Relay, RelaySettings
from earnest.engine.messages.subscribing import Subscription
from earnest.engine.process import scopes
from earnest.engine.process.actors import local
from earnest.engine.process.engine import Engine
from earnest.engine.runs import submitting
from earnest.engine.runs.submitting import Request
from earnest.store import feed, messages, runs, sinks
from earnest.store.messages import Delivery
from earnest.store.sinks import Sink, SinkChange
from earnest.testing.clock import ManualClock
from tests.engine.receiver import Receiver

SCOPE = "shop"
ADMIN = local(SCOPE, "admin")
QUICK = RelaySettings(poll=timedelta(milliseconds=20))

app = App("shop")


@app.run("order.ship")
async def ship(ctx: Context, order: int) -> int:
    await ctx.publish("order.shipped", {"order": order})
    return order


@app.run("order.ship.plain")
def ship_plainly(ctx: PlainContext, order: int) -> int:
    ctx.publish("order.shipped", {"order": order})
    return order


@app.run("order.lose", retry_first="0s")
async def lose(ctx: Context, order: int) -> int:
    await ctx.publish("order.shipped", {"order": order})
    if ctx.attempt == 1:
        raise RuntimeError("the first attempt fails after it has published")
    return order


@app.run("order.change", retry_first="0s")
async def change(ctx: Context, order: int) -> int:
    await ctx.publish("order.shipped", {"attempt": ctx.attempt})
    raise RuntimeError("the next attempt publishes something else")


@app.run("order.misspell")
async def misspell(ctx: Context, said: dict[str, Any]) -> None:
    await ctx.publish(said["type"], said["payload"])


@pytest.fixture(autouse=True)
def _here_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EARNEST_ALLOW_PRIVATE_ADDRESSES", "127.0.0.0/8")


@pytest.fixture
async def engine(make_engine: Callable[..., Engine]) -> Engine:
    made = make_engine(app)
    await scopes.register(made, SCOPE, "ann")
    return made


@pytest.fixture
async def relay(engine: Engine) -> AsyncIterator[Relay]:
    made = Relay(engine, QUICK)
    yield made
    await made.close()


async def run_order(engine: Engine, order: Any = 7, kind: str = "order.ship") -> Run:
    submitted = await submitting.submit(engine, SCOPE, "ann", Request(kind, order))
    await Worker(engine, keeper=False).drain_once()
    found = await runs.find(engine.database, SCOPE, submitted.run.run_id)
    assert found is not None
    return found


async def add(engine: Engine, url: str, *types: str) -> Sink:
    asked = Subscription(url, types or ["order.shipped"])
    return (await subscribing.add_webhook(engine, ADMIN, asked)).sink


async def deliveries(engine: Engine, sink: Sink) -> list[Delivery]:
    """The oldest first."""
    found = await messages.of_sink(engine.database, SCOPE, sink.sink_id, None, 1000)
    return found[::-1]


@contextlib.asynccontextmanager
async def running(*relays: Relay) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(relay.run()) for relay in relays]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


# ---- what arrives -------------------------------------------------------------------------------


async def test_what_a_run_publishes_arrives_signed_with_its_run(
    engine: Engine, relay: Relay
) -> None:
    asked = ["order.shipped"]
    async with Receiver() as receiver:
        made = await subscribing.add_webhook(engine, ADMIN, Subscription(receiver.url, asked))
        run = await run_order(engine)
        assert await relay.relay_once() == 1
        (got,) = receiver.got
        assert made.secret is not None
        told = got.verify(made.secret)
    assert told["type"] == "order.shipped"
    assert told["data"] == {"order": 7, "run_id": ids.show("run", run.run_id)}
    assert got.id.startswith("msg_")
    assert got.headers["content-type"] == "application/json"


async def test_a_plain_handler_publishes_too(engine: Engine, relay: Relay) -> None:
    async with Receiver() as receiver:
        await add(engine, receiver.url)
        await run_order(engine, kind="order.ship.plain")
        await relay.relay_once()
        assert [got.told["type"] for got in receiver.got] == ["order.shipped"]


async def test_events_of_runs_arrive_with_their_numbers(engine: Engine, relay: Relay) -> None:
    async with Receiver() as receiver:
        await add(engine, receiver.url, "run.*")
        await run_order(engine)
        await relay.relay_once()
        told = sorted((got.told for got in receiver.got), key=lambda one: one["data"]["seq"])
    assert [one["type"] for one in told] == ["run.submitted", "run.succeeded"]
    assert len({got.id for got in receiver.got}) == 2


async def test_each_sink_is_told_what_it_wants(engine: Engine, relay: Relay) -> None:
    async with Receiver() as one, Receiver() as other, Receiver() as third:
        await add(engine, one.url, "order.*", "run.succeeded")
        await add(engine, other.url, "*")
        await add(engine, third.url, "order", "orders.*", "order.shipped.*", "run")
        await run_order(engine)
        await relay.relay_once()
        assert sorted(got.told["type"] for got in one.got) == ["order.shipped", "run.succeeded"]
        assert {got.told["type"] for got in other.got} > {"order.shipped", "run.submitted"}
        assert third.got == []
        shared = [got for got in other.got if got.told["type"] == "order.shipped"]
        assert shared[0].id in {got.id for got in one.got}


async def test_a_new_sink_is_told_only_what_is_new(engine: Engine, relay: Relay) -> None:
    await run_order(engine, 1)
    async with Receiver() as receiver:
        # A message that no relay has spread yet goes to whoever is there when one does.
        assert await relay.relay_once() == 0
        await add(engine, receiver.url, "*")
        assert await relay.relay_once() == 0
        await run_order(engine, 2)
        await relay.relay_once()
        orders = {got.told["data"]["order"] for got in receiver.got if "order" in got.told["data"]}
    assert orders == {2}


async def test_what_a_run_publishes_is_told_once_over_all_its_attempts(
    engine: Engine, relay: Relay
) -> None:
    async with Receiver() as receiver:
        await add(engine, receiver.url)
        run = await run_order(engine, kind="order.lose")
        assert (run.status, run.attempt) == ("succeeded", 2)
        await relay.relay_once()
        assert len(receiver.got) == 1


async def test_another_message_under_the_same_name_is_changed_code(engine: Engine) -> None:
    run = await run_order(engine, kind="order.change")
    assert run.error is not None
    assert run.error["code"] == "code_changed"
    assert await engine.database.fetch("take_messages", 10) != []


@pytest.mark.parametrize(
    "said",
    [
        {"type": "run.succeeded", "payload": {}},
        {"type": "Shipped", "payload": {}},
        {"type": "order.shipped", "payload": {"text": "x" * 20_000}},
    ],
    ids=["the engine's own", "no type", "too large"],
)
async def test_what_is_no_message_is_refused(engine: Engine, said: dict[str, Any]) -> None:
    run = await run_order(engine, said, "order.misspell")
    assert run.error is not None
    assert run.error["code"] in ("invalid_request", "payload_too_large")
    assert await engine.database.fetch("take_messages", 10) == []


async def test_a_message_of_another_scopes_run_is_impossible(engine: Engine) -> None:
    """P12: the database refuses it."""
    run = await run_order(engine)
    await scopes.register(engine, "other", "eve")
    async with engine.database.connection() as tx:
        with pytest.raises(asyncpg.ForeignKeyViolationError):
            await messages.put(tx, "other", ids.new_id(), "order.shipped", run.run_id, b"{}")


# ---- what does not arrive at once ---------------------------------------------------------------


async def test_while_a_sink_is_down_nothing_is_lost(
    engine: Engine, relay: Relay, clock: ManualClock
) -> None:
    """P13: a minute without an answer."""
    async with Receiver(status=503) as receiver:
        sink = await add(engine, receiver.url)
        for order in range(30):
            await run_order(engine, order)
        for _ in range(12):
            await relay.relay_once()
            await clock.advance(seconds=5)
        down = len(receiver.got)
        assert 30 < down <= 30 * 5, "with pauses in between"
        receiver.status = 200
        await clock.advance(minutes=3)
        await relay.relay_once()
        arrived = [got.told["data"]["order"] for got in receiver.got[down:]]
    assert sorted(arrived) == list(range(30))
    assert {one.state for one in await deliveries(engine, sink)} == {"delivered"}


async def test_a_sink_that_nobody_listens_at_is_told_later(
    engine: Engine, relay: Relay, clock: ManualClock
) -> None:
    async with Receiver() as receiver:
        url = receiver.url
    sink = await add(engine, url)
    await run_order(engine)
    assert await relay.relay_once() == 1
    (waiting,) = await deliveries(engine, sink)
    assert (waiting.state, waiting.attempts, waiting.last_error) == ("pending", 1, "ConnectError")
    assert waiting.due_at > clock.now


async def test_retry_after_is_heeded(engine: Engine, relay: Relay, clock: ManualClock) -> None:
    async with Receiver(status=429, headers={"Retry-After": "120"}) as receiver:
        await add(engine, receiver.url)
        await run_order(engine)
        await relay.relay_once()
        await clock.advance(seconds=119)
        assert await relay.relay_once() == 0
        await clock.advance(seconds=2)
        assert await relay.relay_once() == 1


async def test_the_pauses_grow_and_end(clock: ManualClock) -> None:
    settings = RelaySettings()
    waits = [settings.wait(attempts).total_seconds() for attempts in range(1, 21)]
    for attempts, wait in enumerate(waits, 1):
        meant = min(2 * 3.0 ** (attempts - 1), 6 * 3600)
        assert 0.75 * meant <= wait <= 1.25 * meant
    assert 2 * 86400 < sum(waits) < 5 * 86400
    assert settings.wait(1, timedelta(days=30)) == timedelta(days=1)


async def test_a_redirect_is_not_followed(engine: Engine, relay: Relay) -> None:
    async with Receiver() as elsewhere:
        async with Receiver(status=302, headers={"Location": elsewhere.url}) as receiver:
            sink = await add(engine, receiver.url)
            await run_order(engine)
            await relay.relay_once()
        (waiting,) = await deliveries(engine, sink)
        assert (waiting.last_status, waiting.state) == (302, "pending")
        assert elsewhere.got == []


async def test_a_delivery_whose_relay_is_gone_is_sent_by_another(
    engine: Engine, relay: Relay, clock: ManualClock
) -> None:
    async with Receiver() as receiver:
        sink = await add(engine, receiver.url)
        await run_order(engine)
        gone = Relay(engine, QUICK)
        await gone.spread()
        (taken,) = await gone.take()
        assert await relay.relay_once() == 0
        await clock.advance(seconds=61)
        assert await relay.relay_once() == 1
        (arrived,) = await deliveries(engine, sink)
        assert (arrived.state, arrived.attempts) == ("delivered", 2)
    async with engine.database.connection() as tx:
        assert not await messages.put_off(tx, taken, timedelta(0), None, "late")
    assert (await deliveries(engine, sink))[0].state == "delivered"


async def test_many_relays_send_each_message_once(engine: Engine) -> None:
    async with Receiver() as receiver:
        await add(engine, receiver.url)
        for order in range(20):
            await run_order(engine, order)
        async with running(*(Relay(engine, QUICK) for _ in range(3))):
            await receiver.until(20)
        orders = sorted(got.told["data"]["order"] for got in receiver.got)
    assert orders == list(range(20))


async def test_a_sink_that_does_not_answer_holds_up_no_other(engine: Engine) -> None:
    """P17."""
    slow = Receiver(release=asyncio.Event())
    async with slow, Receiver() as quick:
        await add(engine, slow.url)
        await add(engine, quick.url)
        for order in range(15):
            await run_order(engine, order)
        few = RelaySettings(poll=timedelta(milliseconds=20), per_sink=3, at_once=8)
        async with running(Relay(engine, few)):
            await quick.until(15)
            await slow.until(3)
            assert len(slow.got) == 3, "as many as one sink has places"
            assert slow.release is not None
            slow.release.set()
            await slow.until(15)


async def _rate(engine: Engine, count: int = 150) -> float:
    """Runs a second, from the submit to the last one's end; each publishes once."""
    orders = list(range(count))
    began = time.perf_counter()
    await submitting.submit_many(engine, SCOPE, "ann", "order.ship", orders)
    await Worker(engine, keeper=False).drain_once()
    return count / (time.perf_counter() - began)


async def test_runs_are_as_fast_while_a_sink_is_down(engine: Engine) -> None:
    """P17: side by side, in turns, with a sink that answers and with one that hangs."""
    silent = Receiver(release=asyncio.Event())
    rates: dict[str, list[float]] = {"up": [], "down": []}
    async with silent, Receiver() as answering:
        places = {"up": answering.url, "down": silent.url}
        sink = await add(engine, answering.url, "order.shipped", "run.*")
        async with running(Relay(engine, RelaySettings(timeout=timedelta(seconds=60)))):
            await _rate(engine)
            for _ in range(4):
                for name, url in places.items():
                    change = SinkChange(address=url)
                    await subscribing.change_sink(engine, ADMIN, sink.sink_id, change)
                    rates[name].append(await _rate(engine))
    up, down = (statistics.median(rates[name]) for name in ("up", "down"))
    print(f"runs/s with a sink that is up {up:.0f}, that is down {down:.0f}")
    assert down > 0.7 * up


async def test_a_paused_sink_is_told_everything_later(engine: Engine, relay: Relay) -> None:
    async with Receiver() as receiver:
        sink = await add(engine, receiver.url, "order.shipped", "run.succeeded")
        paused = SinkChange(state="paused")
        await subscribing.change_sink(engine, ADMIN, sink.sink_id, paused)
        await run_order(engine)
        assert await relay.relay_once() == 0
        active = SinkChange(state="active")
        await subscribing.change_sink(engine, ADMIN, sink.sink_id, active)
        assert await relay.relay_once() == 2


async def test_a_disabled_sink_begins_anew(engine: Engine, relay: Relay) -> None:
    async with Receiver() as receiver:
        sink = await add(engine, receiver.url, "*")
        await subscribing.change_sink(engine, ADMIN, sink.sink_id, SinkChange(state="disabled"))
        await run_order(engine, 1)
        await relay.relay_once()
        await subscribing.change_sink(engine, ADMIN, sink.sink_id, SinkChange(state="active"))
        assert await relay.relay_once() == 0
        await run_order(engine, 2)
        await relay.relay_once()
        told = [got.told["data"] for got in receiver.got]
        assert {one["order"] for one in told if "order" in one} == {2}


async def test_a_sink_for_which_much_waits_leaves_the_rest_in_the_feed(
    engine: Engine, clock: ManualClock
) -> None:
    async with Receiver(status=503) as receiver:
        sink = await add(engine, receiver.url, "run.*")
        for order in range(6):
            await run_order(engine, order)
        few = Relay(engine, RelaySettings(backlog=4, page=3))
        await few.relay_once()
        behind = await deliveries(engine, sink)
        assert len(behind) <= 6
        async with engine.database.connection() as tx:
            needed = await messages.lowest_position_needed(tx, SCOPE)
        head = (await feed.bounds(engine.database, [SCOPE]))[SCOPE].head
        assert needed is not None
        assert needed < head, "what it has not read must not be pruned"
        receiver.status = 200
        for _ in range(6):
            await clock.advance(minutes=5)
            await few.relay_once()
        await few.close()
        seen = {(got.told["data"]["run_id"], got.told["data"]["seq"]) for got in receiver.got}
    assert len(seen) == 12


async def test_what_arrived_is_pruned_and_dead_letters_stay(
    engine: Engine, clock: ManualClock
) -> None:
    async with Receiver() as receiver, Receiver(status=500) as broken:
        sink, dead = await add(engine, receiver.url), await add(engine, broken.url)
        await run_order(engine)
        relay = Relay(engine, RelaySettings(most_attempts=1))
        await relay.relay_once()
        await clock.advance(hours=25)
        await relay.prune()
        await relay.close()
    assert await deliveries(engine, sink) == []
    assert [one.state for one in await deliveries(engine, dead)] == ["dead"]


async def test_a_sink_that_is_removed_takes_its_deliveries_along(
    engine: Engine, relay: Relay
) -> None:
    async with Receiver(status=500) as receiver:
        sink = await add(engine, receiver.url)
        await run_order(engine)
        await relay.relay_once()
        await subscribing.remove_sink(engine, ADMIN, sink.sink_id)
        assert await deliveries(engine, sink) == []
        assert await sinks.find(engine.database, SCOPE, sink.sink_id) is None


async def test_no_secret_and_no_payload_is_logged(
    engine: Engine, relay: Relay, capsys: pytest.CaptureFixture[str]
) -> None:
    """P21."""
    async with Receiver(status=500) as receiver:
        asked = Subscription(f"{receiver.url}?token=hidden", ["order.shipped"])
        made = await subscribing.add_webhook(engine, ADMIN, asked)
        await run_order(engine, 424242)
        await relay.relay_once()
        (failed,) = await deliveries(engine, made.sink)
    told = capsys.readouterr().out
    assert "delivery.failed" in told
    for hidden in (made.secret or "", "hidden", "424242"):
        assert hidden not in told + str(failed.last_error)
