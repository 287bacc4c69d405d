"""A provider's callback from end to end over real sockets: the simulator's opaque bank does a
refund, drops the answer, and calls back (P2, P3, P13)."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import httpx2
import pytest
import uvicorn
from pydantic import BaseModel

from earnest import App, Call, Context, Effect, InboxMessage, Settles
from earnest.doors.api.application import build_api
from earnest.engine.inspection.readiness import Readiness
from earnest.engine.messages import sourcing
from earnest.engine.process import scopes
from earnest.engine.process.actors import local
from earnest.testing.simulator import Simulator
from tests.engine.bench import SCOPE, Bench
from tests.engine.conftest import MakeBench


class Order(BaseModel):
    order_id: str
    amount: str = "20.00"


class Receipt(BaseModel):
    id: str


class CallingBack(Effect[Order, Receipt]):
    """The opaque bank: it cannot be asked, and calls back."""

    kind = "test.calling_back"
    recovery = "hold"

    def __init__(self, bank: str) -> None:
        self.bank = bank
        self.place = {"Callback-Url": "", "Callback-Secret": ""}

    async def submit(self, call: Call, request: Order) -> Receipt:
        asked = {"operation_id": call.id, **request.model_dump()}
        async with httpx2.AsyncClient() as client:
            url = f"{self.bank}/bank/opaque/refunds"
            answer = await client.post(url, json=asked, headers=self.place)
        answer.raise_for_status()
        return Receipt.model_validate(answer.json())


@pytest.fixture
def bank(simulator: Simulator) -> CallingBack:
    return CallingBack(simulator.url)


@pytest.fixture
async def bench(make_bench: MakeBench, bank: CallingBack) -> AsyncIterator[Bench]:
    """An engine whose API is served, with a source for the bank."""
    app = App("refunds")
    app.effect(bank)

    @app.run("refund")
    async def refund(ctx: Context, order: Order) -> Receipt:
        return await ctx.operation("refund", CallingBack, order)

    @app.inbox("bank")
    async def told(tx: asyncpg.Connection, message: InboxMessage) -> Settles:
        await tx.execute("INSERT INTO setting VALUES ($1, '')", f"told by {message.id}")
        return Settles(message.payload["operation_id"], {"id": message.payload["id"]})

    made = make_bench(app)
    await scopes.register(made.engine, SCOPE, "member")
    source = await sourcing.add_source(made.engine, local(SCOPE), "bank", "bank")
    api = build_api(made.engine, ready=lambda: Readiness(True))
    server = uvicorn.Server(uvicorn.Config(api, log_level="error", lifespan="off"))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1/inbox/bank"
        bank.place = {"Callback-Url": url, "Callback-Secret": source.secret or ""}
        yield made
        server.should_exit = True
        await serving


def _done(simulator: Simulator, order: str) -> list[Any]:
    return [one for one in simulator.truth("bank") if one["request"]["order_id"] == order]


@pytest.mark.parametrize("fault", ["accept_then_drop", "error_after", "garbage"])
async def test_a_lost_answer_is_made_good_by_the_callback(
    bench: Bench, simulator: Simulator, fault: str
) -> None:
    order = f"called back after {fault}"
    simulator.put_fault("bank", fault, match=order)
    run_id = await bench.submit("refund", {"order_id": order})
    async with bench.at_work():
        run = await bench.until(run_id, "succeeded")
    (operation,) = await bench.operations(run_id)
    assert run.output == operation.receipt
    assert len(_done(simulator, order)) == 1


async def test_a_callback_that_comes_twice_is_handled_once(
    bench: Bench, simulator: Simulator
) -> None:
    order = "called back twice"
    simulator.put_fault("bank", "duplicate_callback", match=order)
    run_id = await bench.submit("refund", {"order_id": order})
    async with bench.at_work():
        await bench.until(run_id, "succeeded")
        await bench.wait_until_true(
            "SELECT count(*) = 1 FROM setting WHERE name LIKE 'told by msg_%'"
        )
    (operation,) = await bench.operations(run_id)
    assert await bench.findings(operation) == []
    assert len(_done(simulator, order)) == 1
