"""An app for tests of the API: runs that echo, wait, fail and pay, and two banks in memory."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel

from earnest import App, Context, Effect, Inconclusive


class Order(BaseModel):
    """What a refund is asked for."""

    order_id: str
    amount: str


class Receipt(BaseModel):
    id: str


@dataclass
class Bank:
    """Accepts a payment and never answers, until told otherwise. `known` is what it would say."""

    silent: bool = True
    known: dict[str, Receipt] = field(default_factory=dict)

    def take(self, operation_id: str) -> Receipt:
        receipt = Receipt(id=f"r-{operation_id}")
        if self.silent:
            raise ConnectionResetError("the line went dead")
        self.known[operation_id] = receipt
        return receipt


class Opaque(Effect[Order, Receipt]):
    """A bank that cannot be asked."""

    kind = "shop.opaque"
    recovery = "hold"

    def __init__(self, bank: Bank) -> None:
        self._bank = bank

    async def submit(self, call: Any, request: Order) -> Receipt:
        return self._bank.take(call.id)


class Queryable(Effect[Order, Receipt]):
    """A bank that can be asked."""

    kind = "shop.queryable"
    recovery = "lookup"
    dedupes = True

    def __init__(self, bank: Bank) -> None:
        self._bank = bank

    async def submit(self, call: Any, request: Order) -> Receipt:
        return self._bank.take(call.id)

    async def lookup(self, call: Any) -> Receipt | None:
        if not self._bank.known:
            raise Inconclusive("the bank is closed")
        return self._bank.known.get(call.id)


def make_shop(bank: Bank) -> App:
    app = App("shop")
    app.effect(Opaque(bank))
    app.effect(Queryable(bank))
    _add_plain(app)
    _add_waiting(app)
    _add_paying(app)
    return app


def _add_plain(app: App) -> None:
    @app.run("shop.echo")
    async def echo(ctx: Context, said: Any) -> Any:
        return said

    @app.run("shop.order")
    async def order(ctx: Context, asked: Order) -> str:
        return await ctx.step("price", _price, asked.order_id)

    @app.run("shop.fail", max_attempts=1)
    async def fail(ctx: Context, why: str) -> None:
        raise RuntimeError(why)

    @app.run("shop.many")
    async def many(ctx: Context, count: int) -> int:
        for number in range(count):
            await ctx.step(f"step {number}", _price, str(number))
        return count

    @app.run("shop.parent")
    async def parent(ctx: Context, count: int) -> list[Any]:
        children = [await ctx.submit(echo, number, key=str(number)) for number in range(count)]
        return await ctx.wait(*children)


def _add_waiting(app: App) -> None:
    @app.run("shop.wait")
    async def wait(ctx: Context, name: str) -> Any:
        return await ctx.wait_signal(name)

    @app.run("shop.ask")
    async def ask(ctx: Context, asked: Any) -> str:
        return (await ctx.approve("order", asked, expires_in="1h")).decided_by

    @app.run("shop.ask_others", approver_may_be_proposer=False)
    async def ask_others(ctx: Context, asked: Any) -> str:
        return (await ctx.approve("order", asked, expires_in="1h")).decided_by

    @app.run("shop.sleep")
    async def sleep(ctx: Context, _: None) -> None:
        await asyncio.sleep(60)


def _add_paying(app: App) -> None:
    @app.run("shop.refund")
    async def refund(ctx: Context, asked: Order) -> str:
        return (await ctx.operation("refund", Opaque, asked)).id

    @app.run("shop.inquire")
    async def inquire(ctx: Context, asked: Order) -> str:
        return (await ctx.operation("refund", Queryable, asked)).id


async def _price(order_id: str) -> str:
    return f"{order_id} costs 20.00"
