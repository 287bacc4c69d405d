"""The three recoveries against real banks over real sockets; effects are counted at the far end,
in the simulator's own process (P1, P2, P3)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from itertools import count
from typing import Any, ClassVar

import httpx2
import pytest
from pydantic import BaseModel

from earnest import App, Call, Context, Effect
from earnest.testing.clock import ManualClock
from earnest.testing.simulator import Simulator
from tests.engine.bench import Bench
from tests.engine.conftest import MakeBench
from tests.engine.far_end import TRUST, closed_port

_orders = count(1)


class Refund(BaseModel):
    order_id: str
    amount: str = "20.00"


class Receipt(BaseModel):
    id: str


class _Bank(Effect[Refund, Receipt]):
    bank: ClassVar[str] = ""
    timeout = "10s"

    def __init__(self, url: str, client: httpx2.AsyncClient) -> None:
        self.url, self.client = url, client

    async def submit(self, call: Call, request: Refund) -> Receipt:
        body = {"operation_id": call.id, **request.model_dump()}
        headers = {"Idempotency-Key": call.id}
        response = await self.client.post(
            f"{self.url}/bank/{self.bank}/refunds", json=body, headers=headers
        )
        response.raise_for_status()
        return Receipt.model_validate_json(response.content)


class Keyed(_Bank):
    kind, recovery, window, bank = "sim.keyed", "resend", "1h", "keyed"


class Queryable(_Bank):
    kind, recovery, bank = "sim.queryable", "lookup", "queryable"
    dedupes, absent_after = True, "5m"

    async def lookup(self, call: Call) -> Receipt | None:
        response = await self.client.get(f"{self.url}/bank/queryable/refunds/{call.id}")
        if response.status_code == 404:
            return None
        response.raise_for_status()
        return Receipt.model_validate_json(response.content)


class Opaque(_Bank):
    kind, recovery, bank = "sim.opaque", "hold", "opaque"


BANKS: dict[str, type[_Bank]] = {"keyed": Keyed, "queryable": Queryable, "opaque": Opaque}


@pytest.fixture
async def client() -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(verify=TRUST, trust_env=False, timeout=None) as opened:
        yield opened


def refunds(bank: _Bank) -> App:
    app = App("refunds")
    app.effect(bank)

    @app.run("refund", retry_first="1m", max_attempts=3)
    async def refund(ctx: Context, order_id: str) -> Receipt:
        return await ctx.operation("refund", type(bank), Refund(order_id=order_id))

    return app


def done(simulator: Simulator, order_id: str) -> list[dict[str, Any]]:
    """What the bank really did about this order."""
    return [deed for deed in simulator.truth("bank") if deed["request"]["order_id"] == order_id]


async def settled(bench: Bench, clock: ManualClock, order_id: str) -> str:
    """The status of the run after enough time for whatever recovery there is."""
    run_id = await bench.submit("refund", order_id)
    await bench.drain()
    for _ in range(3):
        await clock.advance(minutes=5)
        await bench.drain()
    run = await bench.find(run_id)
    if run.status == "succeeded":
        operation = await bench.operation(run_id)
        assert run.output == operation.receipt
    return run.status.value


RECOVERED = ("succeeded", 1)
OUTCOMES = {
    "none": {"keyed": RECOVERED, "queryable": RECOVERED, "opaque": RECOVERED},
    "accept_then_drop": {"keyed": RECOVERED, "queryable": RECOVERED, "opaque": ("unknown", 1)},
    "error_after": {"keyed": RECOVERED, "queryable": RECOVERED, "opaque": ("unknown", 1)},
    "garbage": {"keyed": RECOVERED, "queryable": RECOVERED, "opaque": ("unknown", 1)},
    "error_before": {"keyed": RECOVERED, "queryable": RECOVERED, "opaque": ("unknown", 0)},
    "refuse": {"keyed": ("failed", 0), "queryable": ("failed", 0), "opaque": ("failed", 0)},
}


@pytest.mark.parametrize("bank", BANKS)
@pytest.mark.parametrize("fault", OUTCOMES)
async def test_each_bank_pays_at_most_once_whatever_goes_wrong_once(
    make_bench: MakeBench,
    clock: ManualClock,
    simulator: Simulator,
    client: httpx2.AsyncClient,
    bank: str,
    fault: str,
) -> None:
    """P1, P2, P3: and where it can be known, exactly once."""
    order_id = f"{bank}-{fault}-{next(_orders)}"
    await asyncio.to_thread(simulator.put_fault, "bank", fault, match=order_id)
    bench = make_bench(refunds(BANKS[bank](simulator.url, client)))
    status = await settled(bench, clock, order_id)
    deeds = await asyncio.to_thread(done, simulator, order_id)
    assert (status, len(deeds)) == OUTCOMES[fault][bank]
    operation_ids = {deed["operation_id"] for deed in deeds}
    assert len(operation_ids) == len(deeds)


@pytest.mark.parametrize("bank", BANKS)
async def test_a_bank_that_answers_too_late_pays_once(
    make_bench: MakeBench,
    clock: ManualClock,
    simulator: Simulator,
    client: httpx2.AsyncClient,
    bank: str,
) -> None:
    """P2, P3: it does it after the caller has given up."""
    order_id = f"{bank}-slow-{next(_orders)}"
    hurried = type("Hurried", (BANKS[bank],), {"timeout": "50ms"})
    await asyncio.to_thread(simulator.put_fault, "bank", "slow", delay_ms=300, match=order_id)
    bench = make_bench(refunds(hurried(simulator.url, client)))
    run_id = await bench.submit("refund", order_id)
    await bench.worker._claim_all()
    await asyncio.wait(set(bench.worker._attempts))
    assert await bench.status(run_id) == "unknown"
    arrived = asyncio.to_thread(wait_until_done, simulator, order_id)
    assert len(await arrived) == 1
    await bench.drain()
    expected = "unknown" if bank == "opaque" else "succeeded"
    assert await bench.status(run_id) == expected
    assert len(await asyncio.to_thread(done, simulator, order_id)) == 1


def wait_until_done(simulator: Simulator, order_id: str) -> list[dict[str, Any]]:
    before = len(simulator.truth("bank"))
    while not (deeds := done(simulator, order_id)):
        before = len(simulator.wait_for_truth(before + 1, "bank"))
    return deeds


@pytest.mark.parametrize("bank", BANKS)
async def test_a_bank_where_nobody_listens_is_tried_again_and_pays_once(
    make_bench: MakeBench,
    clock: ManualClock,
    simulator: Simulator,
    client: httpx2.AsyncClient,
    bank: str,
) -> None:
    """P2: a refused connection is no doubt."""
    order_id = f"{bank}-closed-{next(_orders)}"
    effect = BANKS[bank](f"http://{closed_port()}", client)
    bench = make_bench(refunds(effect))
    run_id = await bench.submit("refund", order_id)
    await bench.drain()
    operation = await bench.operation(run_id)
    assert (operation.state, operation.release_reason) == ("released", "not_sent")
    effect.url = simulator.url
    await clock.advance(minutes=1)
    await bench.drain()
    assert await bench.status(run_id) == "succeeded"
    assert len(await asyncio.to_thread(done, simulator, order_id)) == 1


async def test_a_keyed_bank_is_sent_the_same_again_within_one_attempt(
    make_bench: MakeBench, clock: ManualClock, simulator: Simulator, client: httpx2.AsyncClient
) -> None:
    """P2: with the engine's own pauses the run never leaves its worker."""
    order_id = f"keyed-again-{next(_orders)}"
    await asyncio.to_thread(
        simulator.put_fault, "bank", "accept_then_drop", count=2, match=order_id
    )
    pauses = (timedelta(milliseconds=1), timedelta(milliseconds=2))
    bench = make_bench(refunds(Keyed(simulator.url, client)), resend_waits=pauses)
    run = await bench.done("refund", order_id)
    assert (run.status, run.attempt) == ("succeeded", 1)
    operation = await bench.operation(run.run_id)
    assert operation.send_count == 3
    assert len(await asyncio.to_thread(done, simulator, order_id)) == 1
