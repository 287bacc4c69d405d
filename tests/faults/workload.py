"""The app that is killed: every kind of promise that a run can make, against the three banks.

Each effect keeps a book of its own in the same database, written in the commit of the receipt, so
that a test can see whether the app's rows and the engine's tell the same.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any, Literal

import asyncpg
import httpx2
from pydantic import BaseModel, ConfigDict

from earnest.domain.errors import SignalTimedOut
from earnest.engine.app import App
from earnest.engine.attempts.context import Context
from earnest.engine.attempts.plain import PlainContext
from earnest.engine.process.effects import Call, Effect

PRICE = "20.00"
BOOK = """
CREATE TABLE public.book (
    line bigserial PRIMARY KEY, operation_id uuid NOT NULL, said text NOT NULL
)
"""

Bank = Literal["keyed", "queryable", "careful", "opaque"]


class Ask(BaseModel):
    order_id: str
    amount: str = PRICE


class Receipt(BaseModel):
    model_config = ConfigDict(extra="allow")

    id: str


class _Refund(Effect[Ask, Receipt]):
    """One POST to one bank."""

    provider = "bank"
    timeout = "3s"
    bank = ""

    def __init__(self, simulator_url: str) -> None:
        # The simulator speaks plain HTTP; loading certificates takes longer than a whole case.
        self._client = httpx2.AsyncClient(
            base_url=simulator_url, timeout=None, trust_env=False, verify=False
        )

    async def close(self) -> None:
        await self._client.aclose()

    async def submit(self, call: Call, request: Ask) -> Receipt:
        response = await self._client.post(
            f"/bank/{self.bank}/refunds",
            json={"operation_id": call.id, **request.model_dump()},
            headers={"Idempotency-Key": call.id} if self.bank == "keyed" else {},
        )
        response.raise_for_status()
        return Receipt.model_validate_json(response.content)

    async def record(self, tx: asyncpg.Connection, call: Call, receipt: Receipt) -> None:
        await _write(tx, call, receipt.id)

    async def released(self, tx: asyncpg.Connection, call: Call, reason: str) -> None:
        await _write(tx, call, f"released: {reason}")


class Keyed(_Refund):
    kind = "faults.keyed"
    recovery = "resend"
    window = "1h"
    bank = "keyed"


class Queryable(_Refund):
    kind = "faults.queryable"
    recovery = "lookup"
    dedupes = True
    absent_after = "300ms"
    bank = "queryable"

    async def lookup(self, call: Call) -> Receipt | None:
        response = await self._client.get(f"/bank/queryable/refunds/{call.id}")
        if response.status_code == 404:
            return None
        response.raise_for_status()
        return Receipt.model_validate_json(response.content)


class Careful(Queryable):
    """At a bank that is not known to recognise a repetition: that a refund is absent is proof only
    once the process that sent it has surely ended."""

    kind = "faults.careful"
    dedupes = False


class Opaque(_Refund):
    kind = "faults.opaque"
    bank = "opaque"


REFUNDS: dict[str, type[_Refund]] = {
    "keyed": Keyed,
    "queryable": Queryable,
    "careful": Careful,
    "opaque": Opaque,
}


async def _write(tx: asyncpg.Connection, call: Call, said: str) -> None:
    statement = "INSERT INTO public.book (operation_id, said) VALUES ($1, $2)"
    await tx.execute(statement, call.operation_id, said)


class Order(BaseModel):
    order_id: str
    bank: Bank


class Done(BaseModel):
    price: str
    receipt_id: str
    echoed: str


async def close_app(app: App) -> None:
    """Closes the connections to the banks."""
    for effect in app.effects.values():
        if isinstance(effect, _Refund):
            await effect.close()


def make_app(simulator_url: str) -> App:
    app = App("faults")
    for effect in REFUNDS.values():
        app.effect(effect(simulator_url))
    echo = app.run("echo", max_attempts=20, pure=True)(_echo)
    endless = app.run("endless", max_attempts=20)(_endless)
    app.run("refund", max_attempts=20, retry_first="50ms")(_refund)
    app.run("hurried", max_attempts=20, retry_first="50ms", timeout="200ms")(_refund)
    app.run("plain", max_attempts=20, retry_first="50ms")(_plain)
    app.run("approved", max_attempts=20, retry_first="50ms")(_approved)
    app.run("undecided", max_attempts=20, retry_first="50ms")(_undecided)
    app.run("signalled", max_attempts=20)(_signalled)
    app.run("parked", max_attempts=20)(_parked)
    app.run("expiring", max_attempts=20, deadline="500ms")(_parked)
    app.run("flaky", max_attempts=20, retry_first="50ms", retry_longest="100ms")(_flaky)

    @app.run("order", max_attempts=20, retry_first="50ms")
    async def order(ctx: Context, order: Order) -> Done:
        """Every promise in a row: steps, an event, a refund, a timed park, a child."""
        price = await ctx.step("price", _price, order.order_id)
        await ctx.emit("order.priced", {"price": price})
        ask = Ask(order_id=order.order_id, amount=price)
        receipt = await ctx.operation("refund", REFUNDS[order.bank], ask)
        await _park_for_a_moment(ctx)
        echoed = await ctx.run(echo, order.order_id)
        await ctx.step("file", _file, receipt.id)
        return Done(price=price, receipt_id=receipt.id, echoed=echoed)

    @app.run("family", max_attempts=20)
    async def family(ctx: Context, nothing: None) -> str:
        """Waits for a child that never ends."""
        return await ctx.run(endless, None)

    return app


async def _park_for_a_moment(ctx: Context) -> None:
    try:
        await ctx.wait_signal("never", timeout="150ms")
    except SignalTimedOut:
        return


async def _price(order_id: str) -> str:
    return PRICE


def _file(receipt_id: str) -> float:
    return time.time()


async def _echo(ctx: Context, said: str) -> str:
    return said


async def _endless(ctx: Context, nothing: None) -> str:
    while True:
        await ctx.progress(0)
        await asyncio.sleep(0.1)


async def _refund(ctx: Context, order: Order) -> str:
    receipt = await ctx.operation("refund", REFUNDS[order.bank], Ask(order_id=order.order_id))
    return receipt.id


async def _approved(ctx: Context, order: Order) -> str:
    """Somebody decides about the refund first."""
    receipt = await ctx.operation(
        "refund", REFUNDS[order.bank], Ask(order_id=order.order_id), approval=ctx.approve()
    )
    return receipt.id


async def _undecided(ctx: Context, order: Order) -> str:
    terms = ctx.approve(expires_in="500ms")
    await ctx.operation("refund", REFUNDS[order.bank], Ask(order_id=order.order_id), approval=terms)
    return "decided"


def _plain(ctx: PlainContext, order: Order) -> str:
    price = ctx.step("price", lambda: PRICE)
    ask = Ask(order_id=order.order_id, amount=price)
    receipt: Receipt = ctx.operation("refund", REFUNDS[order.bank], ask)
    return receipt.id


async def _signalled(ctx: Context, nothing: None) -> list[Any]:
    return [await ctx.wait_signal("go"), await ctx.wait_signal("go")]


async def _parked(ctx: Context, nothing: None) -> str:
    await ctx.wait_signal("never")
    return "never"


async def _flaky(ctx: Context, nothing: None) -> str:
    if ctx.attempt <= 2:
        raise RuntimeError(f"attempt {ctx.attempt} fails, as asked")
    return "at last"
