"""People who decide, a shop whose refunds they decide about, and what a bank really did of it."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Any

import httpx2

from earnest import App, Context
from earnest.apps.demo.bank import BANKS, KeyedRefund, OpaqueRefund, QueryableRefund, RefundRequest
from earnest.domain import canonical
from earnest.domain.approval import Approval, Decision
from earnest.engine.approvals import deciding
from earnest.engine.approvals.deciding import Decided, Verdict
from earnest.engine.process.actors import Actor
from earnest.store import approvals
from earnest.testing.simulator import Simulator
from tests.engine.bench import MEMBER, SCOPE, Bench

ANN = Actor(SCOPE, "ann", frozenset({"approver"}))
BEN = Actor(SCOPE, "ben", frozenset({"approver"}))
PROPOSER = Actor(SCOPE, MEMBER, frozenset({"member", "approver"}))

_orders = count(1)

Ask = Callable[[Context, RefundRequest], Awaitable[Any]]


def an_order() -> str:
    """One that no other test uses: the simulator remembers what it did."""
    return f"approved-{uuid.uuid4().hex[:8]}-{next(_orders)}"


async def asks_first(ctx: Context, request: RefundRequest) -> Any:
    """One refund at the bank, approved by somebody before."""
    terms = ctx.approve(role="approver", expires_in="24h")
    return await ctx.operation("refund", BANKS["queryable"], request, approval=terms)


def refunds(simulator: Simulator, ask: Ask = asks_first, **terms: Any) -> App:
    """An app of one kind, `refund`: its input is an order and an amount."""
    app = App("refunds")
    for effect in (KeyedRefund, QueryableRefund, OpaqueRefund):
        app.effect(effect(simulator.url))

    @app.run("refund", **{"retry_first": "0s", **terms})
    async def refund(ctx: Context, asked: RefundRequest) -> Any:
        receipt = await ask(ctx, asked)
        return receipt.model_dump() if hasattr(receipt, "model_dump") else receipt

    return app


async def refund_asked_for(bench: Bench, order: str, amount: str = "20.00") -> uuid.UUID:
    """A run that waits for a decision."""
    run = await bench.done("refund", {"order_id": order, "amount": amount})
    assert run.status == "waiting", run.error
    return run.run_id


async def all_asked(bench: Bench, run_id: uuid.UUID) -> list[Approval]:
    """What the run has put to people, oldest first."""
    async with bench.engine.database.connection() as tx:
        return await approvals.of_run(tx, SCOPE, run_id)


async def asked(bench: Bench, run_id: uuid.UUID) -> Approval:
    """The only one."""
    (found,) = await all_asked(bench, run_id)
    return found


async def open_one(bench: Bench, run_id: uuid.UUID) -> Approval:
    """The only one that waits for a decision."""
    (found,) = [one for one in await all_asked(bench, run_id) if one.status == "pending"]
    return found


async def decide(
    bench: Bench, found: Approval, decision: str, actor: Actor = ANN, **changed: Any
) -> Decided:
    """A decision about the approval as it was read; `digest`, `note`, `version` and `key` may be
    others."""
    verdict = Verdict(
        Decision(decision), changed.pop("digest", found.digest.hex()), changed.pop("note", "")
    )
    terms = {"version": found.version, **changed}
    return await deciding.decide(bench.engine, actor, found.approval_id, verdict, **terms)


def sent_digests(simulator: Simulator, order: str) -> list[bytes]:
    """The digest of each request that the bank acted on, as it came there: what the operation's id
    was sent along with."""
    deeds = [deed for deed in simulator.truth("bank") if deed["request"]["order_id"] == order]
    requests = [
        {name: value for name, value in deed["request"].items() if name != "operation_id"}
        for deed in deeds
    ]
    return [canonical.digest(canonical.encode(request)) for request in requests]


async def close_banks(app: App) -> None:
    """Ends their connections."""
    for effect in app.effects.values():
        client = getattr(effect, "_client", None)
        if isinstance(client, httpx2.AsyncClient):
            await client.aclose()
