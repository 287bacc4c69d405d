"""A bank in the test's own process that lists what it did, page by page, or goes wrong."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
from pydantic import BaseModel

from earnest import App, Call, Context, Effect, Inconclusive, Listed

PAGE = 3

# A bank's "absent" is proof for all that was moved so far, by the database's clock.
ABSENT_IS_PROOF = """
SELECT NOT EXISTS (
    SELECT FROM operation WHERE clock() < absent_after * 1.5
        + greatest(submitting_at, unknown_since, submitted_at, released_at))
"""


class Order(BaseModel):
    number: int
    amount: str = "20.00"


class Receipt(BaseModel):
    id: str
    number: int


@dataclass
class Deed:
    """One thing really done."""

    operation_id: str | None
    receipt: Receipt
    at: datetime
    request: Order
    scope_id: str | None = None


@dataclass
class Bank:
    """`breaks_after`: its list fails after so many. `before_page` is called with the number of each
    page before it is read. `trouble`: the share of calls whose answer is lost, done or not."""

    deeds: list[Deed] = field(default_factory=list)
    breaks_after: int | None = None
    before_page: Callable[[int], Any] | None = None
    tells_ids: bool = True
    tells_receipts: bool = True
    tells_requests: bool = False
    tells_scopes: bool = False
    cannot_be_asked: bool = False
    ahead: timedelta = timedelta(0)
    trouble: float = 0.0
    drops: list[bool] = field(default_factory=list)
    recorded: list[str] = field(default_factory=list)
    lists: int = 0
    asked: list[str] = field(default_factory=list)

    def do(self, operation_id: str | None, number: int, *, dedupes: bool = False) -> Receipt:
        if dedupes:
            for deed in self.deeds:
                if deed.operation_id == operation_id:
                    return deed.receipt
        receipt = Receipt(id=f"r-{uuid.uuid4().hex}", number=number)
        at = datetime.now(UTC) + self.ahead
        self.deeds.append(Deed(operation_id, receipt, at, Order(number=number)))
        return receipt

    def call(self, call: Call, order: Order, *, dedupes: bool) -> Receipt:
        """`drops`: of the next calls the answer is lost, after doing it or before."""
        lost = bool(self.drops) or random.random() < self.trouble
        does = self.drops.pop(0) if self.drops else not lost or random.random() < 0.5
        receipt = self.do(call.id, order.number, dedupes=dedupes) if does else None
        if does:
            self.deeds[-1].scope_id = self.deeds[-1].scope_id or call.scope_id
        if lost or receipt is None:
            raise ConnectionError("the line broke")
        return receipt

    def forget(self, operation_id: str) -> None:
        self.deeds = [one for one in self.deeds if one.operation_id != operation_id]

    async def list(self, time: datetime) -> AsyncIterator[Listed]:
        self.lists += 1
        number = place = 0
        while True:
            if self.before_page is not None:
                self.before_page(number)
            page, number = self.deeds[place : place + PAGE], number + 1
            place += PAGE
            for deed in page:
                if self.breaks_after is not None and place - PAGE >= self.breaks_after:
                    raise ConnectionError("the list broke off")
                if deed.at >= time:
                    yield self.show(deed)
            await asyncio.sleep(0)
            if len(page) < PAGE:
                return

    def show(self, deed: Deed) -> Listed:
        return Listed(
            at=deed.at,
            external_ref=deed.receipt.id,
            operation_id=deed.operation_id if self.tells_ids else None,
            receipt=deed.receipt if self.tells_receipts else None,
            request=deed.request if self.tells_requests else None,
            scope_id=deed.scope_id if self.tells_scopes else None,
        )


class _Pay(Effect[Order, Receipt]):
    def __init__(self, bank: Bank) -> None:
        self.bank = bank

    async def submit(self, call: Call, request: Order) -> Receipt:
        return self.bank.call(call, request, dedupes=self.dedupes)

    def list_since(self, time: datetime) -> AsyncIterator[Listed]:
        return self.bank.list(time)

    def matches(self, request: Order, receipt: Receipt) -> bool:
        return request.number == receipt.number

    async def record(self, tx: asyncpg.Connection, call: Call, receipt: Receipt) -> None:
        self.bank.recorded.append(call.id)


class Hold(_Pay):
    kind = "listed.hold"
    recovery = "hold"


class Resend(_Pay):
    kind = "listed.resend"
    recovery = "resend"
    window = "1h"
    dedupes = True


class Lookup(_Pay):
    kind = "listed.lookup"
    recovery = "lookup"
    dedupes = True
    absent_after = "0.1s"

    async def lookup(self, call: Call) -> Receipt | None:
        self.bank.asked.append(call.id)
        if self.bank.cannot_be_asked:
            raise Inconclusive("the counter is closed")
        found = [one.receipt for one in self.bank.deeds if one.operation_id == call.id]
        return found[0] if found else None


class Unlisted(Effect[Order, Receipt]):
    """A bank without lists."""

    kind = "unlisted.hold"

    async def submit(self, call: Call, request: Order) -> Receipt:
        return Receipt(id="r-1", number=request.number)


EFFECTS: dict[str, type[_Pay]] = {"hold": Hold, "resend": Resend, "lookup": Lookup}


class Purchase(BaseModel):
    by: str
    number: int = 17


def listing_shop(banks: dict[str, Bank]) -> App:
    """An app with an effect at each bank, and `buy`, which does one of them."""
    app = App("listing-shop")
    for by, bank in banks.items():
        app.effect(EFFECTS[by](bank))
    app.effect(Unlisted())

    @app.run("buy", max_attempts=8, retry_first="0s")
    async def buy(ctx: Context, asked: Purchase) -> Receipt:
        return await ctx.operation("pay", EFFECTS[asked.by], Order(number=asked.number))

    return app
