"""The inbox: a signed message from outside is handled once, with its effect (P4, P13, P16)."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest
from standardwebhooks.webhooks import Webhook

from earnest.domain import ids
from earnest.domain.errors import Busy, Conflict, InvalidRequest, NotFound, Unauthenticated
from earnest.domain.operation import Operation
from earnest.domain.run import Run
from earnest.engine.app import App
from earnest.engine.attempts.context import Context
from earnest.engine.messages import sourcing
from earnest.engine.messages.receiving import receive
from earnest.engine.process import scopes
from earnest.engine.process.actors import local
from earnest.engine.process.inboxes import InboxMessage, Refutes, Said, Settles, Signals
from earnest.store import inbox
from earnest.testing.clock import ManualClock
from tests.engine.bench import SCOPE, Bench
from tests.engine.conftest import MakeBench
from tests.engine.provider import Provider, Purchase, shop

ADMIN = local(SCOPE, "admin")
HOLD = Purchase(by="hold")

Handle = Callable[[InboxMessage], Any]


class Bank:
    """What the provider's callbacks say, and how they are sent."""

    def __init__(self) -> None:
        self.handled: list[str] = []
        self.fails = False
        self.says: Handle = lambda message: None
        self.secret = ""
        self.bench: Bench

    async def __call__(self, tx: asyncpg.Connection, message: InboxMessage) -> Any:
        self.handled.append(message.id)
        await tx.execute("INSERT INTO setting VALUES ($1, '')", f"row of {message.id}")
        if self.fails:
            raise RuntimeError("the app is broken")
        return self.says(message)

    async def opens(self, bench: Bench, app: App) -> None:
        async def handler(tx: asyncpg.Connection, message: InboxMessage) -> Any:
            return await self(tx, message)

        app.inbox("bank")(handler)
        self.bench = bench
        made = await sourcing.add_source(bench.engine, ADMIN, "bank", "bank")
        self.secret = made.secret or ""

    def signed(
        self, payload: Any, message_id: str = "msg_1", *, at: float = 0, secret: str = ""
    ) -> tuple[dict[str, str], bytes]:
        body = json.dumps(payload)
        when = datetime.now(UTC) + timedelta(seconds=at)
        signature = Webhook(secret or self.secret).sign(message_id, when, body)
        headers = {
            "webhook-id": message_id,
            "webhook-timestamp": str(int(when.timestamp())),
            "webhook-signature": signature,
        }
        return headers, body.encode()

    async def sends(self, payload: Any = None, message_id: str = "msg_1", **more: Any) -> bool:
        return await receive(self.bench.engine, "bank", *self.signed(payload, message_id, **more))


@pytest.fixture
def bank() -> Bank:
    return Bank()


@pytest.fixture
def provider() -> Provider:
    return Provider()


@pytest.fixture
async def bench(make_bench: MakeBench, bank: Bank, provider: Provider) -> Bench:
    app = shop(provider)

    @app.run("wait")
    async def wait(ctx: Context, name: str) -> Any:
        return await ctx.wait_signal(name)

    made = make_bench(app)
    await scopes.register(made.engine, SCOPE, "member")
    await bank.opens(made, app)
    return made


async def in_doubt(bench: Bench, provider: Provider) -> tuple[Run, Operation]:
    provider.drops(does=True)
    run = await bench.done("buy", HOLD)
    assert run.status == "unknown"
    return run, await bench.operation(run.run_id)


def shown(operation: Operation) -> str:
    return ids.show("op", operation.operation_id)


def settles(operation: Operation, receipt: str = "r-1") -> Handle:
    return lambda _: Settles(shown(operation), {"id": receipt})


# ---- what it settles ----------------------------------------------------------------------------


async def test_a_callback_settles_a_doubt_and_the_run_goes_on(
    bench: Bench, bank: Bank, provider: Provider
) -> None:
    recorded = []

    async def record(tx: asyncpg.Connection, call: Any, receipt: Any) -> None:
        recorded.append((call.id, receipt.id))

    provider.on_record = record
    run, operation = await in_doubt(bench, provider)
    bank.says = settles(operation)
    assert await bank.sends()
    await bench.drain()
    ended = await bench.find(run.run_id)
    assert (ended.status, ended.output) == ("succeeded", {"id": "r-1"})
    assert recorded == [(shown(operation), "r-1")]
    settled = await bench.again(operation)
    assert settled.resolution is not None
    assert settled.resolution["by"] == "inbox:bank"
    assert settled.resolution["message_id"] == "msg_1"
    assert len(provider.done) == 1


async def test_a_callback_that_comes_again_does_nothing(
    bench: Bench, bank: Bank, provider: Provider
) -> None:
    _, operation = await in_doubt(bench, provider)
    bank.says = settles(operation)
    assert await bank.sends()
    version = (await bench.again(operation)).version
    assert not await bank.sends()
    assert bank.handled == ["msg_1"]
    assert (await bench.again(operation)).version == version


async def test_of_many_that_come_at_once_one_is_handled(bench: Bench, bank: Bank) -> None:
    taken = await asyncio.gather(*(bank.sends() for _ in range(5)))
    assert sorted(taken) == [False] * 4 + [True]
    assert await bench.value("SELECT count(*) FROM setting WHERE name LIKE 'row of %'") == 1


async def test_another_message_about_what_is_settled_moves_nothing(
    bench: Bench, bank: Bank, provider: Provider
) -> None:
    _, operation = await in_doubt(bench, provider)
    bank.says = settles(operation)
    await bank.sends(message_id="first")
    settled = await bench.again(operation)
    assert await bank.sends(message_id="second")
    assert await bench.again(operation) == settled
    assert await bench.findings(operation) == []


async def test_a_callback_that_comes_before_the_calls_own_answer_is_that_answer(
    bench: Bench, bank: Bank, provider: Provider
) -> None:
    gate = provider.holds()
    run_id = await bench.submit("buy", HOLD)
    async with bench.at_work():
        await gate.reached()
        operation = await bench.operation(run_id)
        bank.says = settles(operation, f"receipt of {shown(operation)}")
        await bank.sends()
        assert (await bench.again(operation)).state == "submitted"
        gate.open()
        await bench.until(run_id, "succeeded")
    assert await bench.findings(operation) == []


async def test_a_receipt_of_another_request_settles_nothing(
    bench: Bench, bank: Bank, provider: Provider
) -> None:
    provider.drops(does=True)
    provider.answers.extend([RuntimeError("the look-up is broken")] * 5)
    run = await bench.done("buy", Purchase(by="lookup"))
    operation = await bench.operation(run.run_id)
    bank.says = settles(operation, "another one's")
    assert await bank.sends()
    assert (await bench.again(operation)).state == "unknown"
    assert [one["kind"] for one in await bench.findings(operation)] == ["mismatched_callback"]


async def test_what_was_refuted_is_refused_in_the_run(
    bench: Bench, bank: Bank, provider: Provider
) -> None:
    run, operation = await in_doubt(bench, provider)
    bank.says = lambda _: Refutes(shown(operation), "the account was closed")
    await bank.sends()
    await bench.drain()
    ended = await bench.find(run.run_id)
    assert ended.error is not None
    assert (ended.status, ended.error["code"]) == ("failed", "refused")
    assert "the account was closed" in ended.error["detail"]
    assert (await bench.again(operation)).release_reason == "refused"
    assert len(provider.calls) == 1


async def test_a_refutal_during_the_call_is_to_come_again(
    bench: Bench, bank: Bank, provider: Provider
) -> None:
    gate = provider.holds(raises=ConnectionError("the line broke"))
    run_id = await bench.submit("buy", HOLD)
    async with bench.at_work():
        await gate.reached()
        operation = await bench.operation(run_id)
        bank.says = lambda _: Refutes(shown(operation), "no")
        with pytest.raises(Busy):
            await bank.sends()
        gate.open()
        await bench.until(run_id, "unknown")
    assert await bank.sends()
    assert (await bench.again(operation)).state == "released"


async def test_a_refutal_of_what_was_done_is_for_people(
    bench: Bench, bank: Bank, provider: Provider
) -> None:
    run = await bench.done("buy", HOLD)
    operation = await bench.operation(run.run_id)
    bank.says = lambda _: Refutes(shown(operation), "taken back")
    assert await bank.sends()
    assert (await bench.again(operation)).state == "submitted"
    assert [one["kind"] for one in await bench.findings(operation)] == ["contradicted"]


async def test_a_receipt_for_what_was_released_is_a_finding(
    bench: Bench, bank: Bank, provider: Provider
) -> None:
    provider.refuses()
    run = await bench.done("buy", HOLD)
    operation = await bench.operation(run.run_id)
    bank.says = settles(operation)
    assert await bank.sends()
    assert (await bench.again(operation)).state == "released"
    assert [one["kind"] for one in await bench.findings(operation)] == ["late_receipt"]


async def test_operations_of_other_scopes_are_not_there(
    bench: Bench, bank: Bank, provider: Provider
) -> None:
    """P12: a source settles what is of its own scope."""
    _, operation = await in_doubt(bench, provider)
    await scopes.register(bench.engine, "other", "eve")
    made = await sourcing.add_source(bench.engine, local("other", "eve"), "eves", "bank")
    bank.says = settles(operation)
    headers, body = bank.signed({}, secret=made.secret or "")
    assert await receive(bench.engine, "eves", headers, body)
    assert (await bench.again(operation)).state == "unknown"
    entry = await inbox.find_entry(bench.engine.database, "other", "eves", "msg_1")
    assert entry is not None
    assert entry["outcome"] == [{"said": "settles", "outcome": "no such operation"}]


async def test_a_message_wakes_the_run_that_waits_for_its_signal(bench: Bench, bank: Bank) -> None:
    run = await bench.done("wait", "paid")
    bank.says = lambda message: Signals(ids.show("run", run.run_id), "paid", message.payload)
    assert await bank.sends({"amount": 20})
    await bench.drain()
    assert (await bench.find(run.run_id)).output == {"amount": 20}


async def test_several_things_are_done_together_or_not_at_all(
    bench: Bench, bank: Bank, provider: Provider
) -> None:
    _, one = await in_doubt(bench, provider)
    _, other = await in_doubt(bench, provider)
    said: list[Said] = [
        Settles(shown(one), {"id": "r-1"}),
        Settles(shown(other), {"no receipt": True}),
    ]
    bank.says = lambda _: said
    with pytest.raises(Busy):
        await bank.sends()
    assert (await bench.again(one)).state == "unknown"
    said[1] = Settles(shown(other), {"id": "r-2"})
    assert await bank.sends()
    assert {(await bench.again(each)).state for each in (one, other)} == {"submitted"}


async def test_a_handler_that_fails_leaves_nothing_and_is_called_again(
    bench: Bench, bank: Bank
) -> None:
    bank.fails = True
    with pytest.raises(Busy):
        await bank.sends()
    assert await bench.value("SELECT count(*) FROM setting WHERE name LIKE 'row of %'") == 0
    bank.fails = False
    assert await bank.sends()
    assert bank.handled == ["msg_1", "msg_1"]
    assert await bench.value("SELECT count(*) FROM setting WHERE name LIKE 'row of %'") == 1


@pytest.mark.parametrize(
    "make",
    [
        lambda: Settles(None, {}),  # type: ignore[arg-type]
        lambda: Refutes("op_1", 7),  # type: ignore[arg-type]
        lambda: Signals("run_1", 7),  # type: ignore[arg-type]
        lambda: "op_1",
        lambda: [{"operation_id": "op_1"}],
    ],
    ids=["no id", "no text", "no name", "a text", "a dictionary"],
)
async def test_what_a_handler_may_not_say_is_its_failure_and_leaves_nothing(
    bench: Bench, bank: Bank, make: Callable[[], Any]
) -> None:
    """Such as null where a provider's message should have an id."""
    bank.says = lambda _: make()
    with pytest.raises(Busy):
        await bank.sends()
    assert await bench.value("SELECT count(*) FROM inbox_entry") == 0
    bank.says = lambda _: None
    assert await bank.sends()


async def test_a_process_without_the_handler_leaves_the_message_to_others(
    bench: Bench, bank: Bank
) -> None:
    bench.engine.inboxes.clear()
    with pytest.raises(Busy):
        await bank.sends()
    assert await bench.value("SELECT count(*) FROM inbox_entry") == 0


# ---- who is let in ------------------------------------------------------------------------------


def _tampered(bank: Bank) -> tuple[str, dict[str, str], bytes]:
    headers, _ = bank.signed({"amount": 20})
    return "bank", headers, b'{"amount": 2000}'


def _of_another(bank: Bank) -> tuple[str, dict[str, str], bytes]:
    return "bank", *bank.signed({}, secret="whsec_" + "QUJD" * 8)


def _changed(name: str, value: str) -> Callable[[Bank], tuple[str, dict[str, str], bytes]]:
    def change(bank: Bank) -> tuple[str, dict[str, str], bytes]:
        headers, body = bank.signed({})
        return "bank", {**headers, name: value}, body

    return change


REFUSED: dict[str, Callable[[Bank], tuple[str, dict[str, str], bytes]]] = {
    "tampered": _tampered,
    "of another": _of_another,
    "old": lambda bank: ("bank", *bank.signed({}, at=-400)),
    "of the future": lambda bank: ("bank", *bank.signed({}, at=400)),
    "unknown source": lambda bank: ("shop", *bank.signed({})),
    "impossible source": lambda bank: ("../\x00", *bank.signed({})),
    "another id": _changed("webhook-id", "msg_2"),
    "no id": _changed("webhook-id", ""),
    "too long an id": lambda bank: ("bank", *bank.signed({}, "m" * 300)),
    "no signature": _changed("webhook-signature", ""),
    "no version": _changed("webhook-signature", "abc"),
    "no base64": _changed("webhook-signature", "v1,é"),
    "no time": _changed("webhook-timestamp", "soon"),
    "another time": _changed("webhook-timestamp", str(int(time.time()) - 7)),
    "no headers": lambda bank: ("bank", {}, b"{}"),
    "no text": lambda bank: ("bank", bank.signed({})[0], b"\xff\xfe"),
}


@pytest.mark.parametrize("how", REFUSED)
async def test_what_is_not_signed_is_refused_and_nobody_is_told_why(
    bench: Bench, bank: Bank, how: str
) -> None:
    with pytest.raises(Unauthenticated) as refused:
        await receive(bench.engine, *REFUSED[how](bank))
    assert refused.value.detail == "the message was not taken"
    assert bank.handled == []


async def test_a_body_that_is_no_json_is_the_handlers_business(bench: Bench, bank: Bank) -> None:
    when = datetime.now(UTC)
    headers = {
        "webhook-id": "m",
        "webhook-timestamp": str(int(when.timestamp())),
        "webhook-signature": Webhook(bank.secret).sign("m", when, "plain"),
    }
    seen: list[Any] = []
    bank.says = lambda message: seen.append((message.payload, message.body))
    assert await receive(bench.engine, "bank", headers, b"plain")
    assert seen == [(None, b"plain")]


async def test_a_rotated_secret_is_good_until_the_overlap_ends(
    bench: Bench, bank: Bank, clock: ManualClock
) -> None:
    rotated = await sourcing.rotate_source(bench.engine, ADMIN, "bank", timedelta(hours=1))
    assert rotated.secret
    assert await bank.sends(message_id="old")
    assert await bank.sends(message_id="new", secret=rotated.secret)
    await clock.advance(minutes=61)
    with pytest.raises(Unauthenticated):
        await bank.sends(message_id="later")
    assert await bank.sends(message_id="later", secret=rotated.secret)


async def test_a_source_takes_the_secret_that_its_sender_made(bench: Bench, bank: Bank) -> None:
    given = "whsec_" + "QUJD" * 8
    made = await sourcing.add_source(bench.engine, ADMIN, "bank-2", "bank", given)
    assert made.secret is None
    assert await receive(bench.engine, "bank-2", *bank.signed({}, secret=given))
    for bad in ("whsec_QUJD", "whsec_not base64!", ""):
        with pytest.raises(InvalidRequest, match="base64"):
            await sourcing.add_source(bench.engine, ADMIN, "bank-3", "bank", bad)


async def test_a_source_that_was_removed_takes_nothing_and_knows_what_it_took(
    bench: Bench, bank: Bank
) -> None:
    assert await bank.sends()
    await sourcing.remove_source(bench.engine, ADMIN, "bank")
    with pytest.raises(Unauthenticated):
        await bank.sends(message_id="msg_2")
    with pytest.raises(NotFound):
        await sourcing.remove_source(bench.engine, ADMIN, "bank")
    made = await sourcing.add_source(bench.engine, ADMIN, "bank", "bank", bank.secret)
    assert made.source.name == "bank"
    assert not await bank.sends()


async def test_a_name_belongs_to_one_source_in_the_deployment(bench: Bench) -> None:
    await scopes.register(bench.engine, "other", "eve")
    with pytest.raises(Conflict, match="taken"):
        await sourcing.add_source(bench.engine, local("other", "eve"), "bank", "bank")


async def test_a_stored_secret_is_sealed(bench: Bench, bank: Bank) -> None:
    """P21: a copy of the database tells nobody how to sign."""
    stored = await bench.value("SELECT secret FROM inbox_source")
    assert bank.secret.encode() not in stored
    assert bench.engine.sealer.open(stored) == bank.secret
