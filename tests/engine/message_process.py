"""A program that pays, tells of it and relays: a process of its own, which a test kills.

    python -m tests.engine.message_process URL HOW RECEIVER

HOW is `outbox` (the message is stored with the receipt), `handler` (a run publishes it), `direct`
(it is sent after the commit, as one does without an outbox), `relay` (only relays) or `receive`
(handles the message in the variable TOLD). It ends when there is nothing left to send.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import asyncpg
import httpx2
from pydantic import BaseModel

import earnest
from earnest.engine.attempts.working import Worker
from earnest.engine.messages.receiving import receive
from earnest.engine.messages.relaying import Relay, RelaySettings
from earnest.engine.process.engine import Engine
from earnest.engine.process.inboxes import InboxMessage
from earnest.testing import crashing

SCOPE = "shop"
LEASE = timedelta(milliseconds=500)

app = earnest.App("shop")


class Order(BaseModel):
    number: int


class Receipt(BaseModel):
    id: str


class Pay(earnest.Effect[Order, Receipt]):
    """Pays at once; its record is a row of the app's own and, where that is the way, a message."""

    kind = "shop.pay"
    recovery = "hold"
    tells = True

    async def submit(self, call: earnest.Call, request: Order) -> Receipt:
        return Receipt(id=f"paid {request.number}")

    async def record(self, tx: asyncpg.Connection, call: earnest.Call, receipt: Receipt) -> None:
        await tx.execute("INSERT INTO setting VALUES ($1, $2)", receipt.id, call.id)
        if self.tells:
            await earnest.publish(tx, call, "order.paid", {"operation": call.id})


class PayDirectly(Pay):
    """The negative control."""

    kind = "shop.pay.directly"
    tells = False


@app.run("shop.tell")
async def tell(ctx: earnest.Context, number: int) -> None:
    await ctx.publish("order.paid", {"number": number})


@app.inbox("shop")
async def shop(tx: asyncpg.Connection, message: InboxMessage) -> None:
    """A row for each time that it is done: more than one would show."""
    number = await tx.fetchval("SELECT count(*) FROM setting WHERE name LIKE 'told of %'")
    await tx.execute("INSERT INTO setting VALUES ($1, '')", f"told of {message.id} {number}")


async def run(url: str, how: str, receiver: str) -> None:
    opened = earnest.open(app, database_url=url, scope=SCOPE, home=Path("/nonexistent"))
    async with opened as assembly:
        if how == "direct":
            async with earnest.operation("order-1", PayDirectly, Order(number=1)) as receipt:
                await _send(receiver, receipt)
        elif how == "outbox":
            async with earnest.operation("order-1", Pay, Order(number=1)):
                pass
        elif how == "handler":
            await app.submit(tell, 1, key="order-1")
            await Worker(assembly.engine, keeper=False).drain_once()
        elif how == "receive":
            headers, body = json.loads(os.environ["TOLD"])
            await receive(assembly.engine, "shop", headers, body.encode())
        await _relay(assembly.engine)


async def _send(receiver: str, receipt: Any) -> None:
    async with httpx2.AsyncClient() as client:
        await client.post(receiver, json={"paid": receipt.id})


async def _relay(engine: Engine) -> None:
    relay = Relay(engine, RelaySettings(lease=LEASE))
    await relay.relay_once()
    await relay.close()


if __name__ == "__main__":
    crashing.install_from_environment()
    asyncio.run(run(*sys.argv[1:]))
