"""Refunds: what is asked of the bank, and the run that asks it."""

from __future__ import annotations

import os

import httpx2
from pydantic import BaseModel

from earnest import App, Call, Context, Effect

app = App("shop")
bank = httpx2.AsyncClient(base_url=os.environ.get("BANK_URL", "http://127.0.0.1:8399"))


class RefundRequest(BaseModel):
    order_id: int
    amount: str


class Receipt(BaseModel):
    id: str


class Refund(Effect[RefundRequest, Receipt]):
    """Money back to the customer. The bank can be asked what it knows of an operation."""

    kind = "bank.refund"
    recovery = "lookup"
    dedupes = True
    absent_after = "5m"

    async def submit(self, call: Call, request: RefundRequest) -> Receipt:
        body = {"operation_id": call.id, **request.model_dump()}
        answer = await bank.post("/bank/queryable/refunds", json=body)
        answer.raise_for_status()
        return Receipt.model_validate(answer.json())

    async def lookup(self, call: Call) -> Receipt | None:
        answer = await bank.get(f"/bank/queryable/refunds/{call.id}")
        if answer.status_code == 404:
            return None
        answer.raise_for_status()
        return Receipt.model_validate(answer.json())


class Order(BaseModel):
    id: int
    paid: str


@app.run("order.refund", max_attempts=5)
async def refund(ctx: Context, order: Order) -> str:
    request = RefundRequest(order_id=order.id, amount=order.paid)
    receipt = await ctx.operation("refund", Refund, request)
    return receipt.id


async def give_back(order: Order) -> str:
    """What the shop's web page calls; pressed twice, it is one refund. Returns the run's id."""
    return await app.submit(refund, order, key=f"refund-{order.id}")
