"""The tour: two refunds on the demo's real processes, told while they happen.

The first is killed in the middle of its call and resumes by itself. The second is done by a bank
that then hangs up and answers no questions, so a person settles it. How often each was really paid
is read from the simulator's own log.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import httpx2

from earnest.apps.demo.staging import AMOUNT, ORDERS, SCOPE
from earnest.apps.demo.telling import tell, tell_blow, tell_chapter, tell_count, tell_event
from earnest.domain.errors import Failed
from earnest.testing.simulator import Simulator

if TYPE_CHECKING:
    from earnest.apps.demo.staying import Demo

SLOW_MS = 2500
PATIENCE = 60.0
_LOOK_EVERY = 0.1

React = Callable[[dict[str, Any]], Awaitable[None]]


class Tour:
    """One tour through a demo that runs."""

    def __init__(self, demo: Demo) -> None:
        self._demo = demo
        self._simulator = Simulator(demo.simulator_url)
        self._name = f"tour-{time.time_ns():x}"

    async def go(self) -> None:
        """Raises `Failed` when something did not come out as promised."""
        async with httpx2.AsyncClient(base_url=self._demo.url, timeout=10.0) as client:
            self._client = client
            async with asyncio.timeout(PATIENCE):
                counts = [await self._killed_in_the_middle(), await self._nobody_can_know()]
        if counts != [1, 1]:
            raise Failed(f"the refunds of the tour were paid {counts} times instead of once each")
        tell_chapter("Two refunds, one kill, one broken connection: each was paid once.")

    # ---- the two stories -------------------------------------------------------------------

    async def _killed_in_the_middle(self) -> int:
        order = ORDERS[0]
        tell_chapter(f"1. A refund of {AMOUNT} for order {order}, killed in the middle")
        tell("The bank can be asked what it did. This time it needs 2.5 seconds to answer.")
        await self._misbehave("slow", order, delay_ms=SLOW_MS)
        run_id = await self._ask_for_refund(order, "queryable")
        killed: list[int] = []

        async def kill_once(event: dict[str, Any]) -> None:
            pid = self._demo.worker.pid
            if event["type"] == "operation.submitting" and not killed and pid is not None:
                killed.append(pid)
                os.kill(pid, signal.SIGKILL)
                tell_blow(f"kill -9 {pid}: the worker is dead, the bank is still at work")

        started_at = time.monotonic()
        await self._follow(run_id, 0, "succeeded", kill_once)
        if not killed:
            raise Failed("the worker was not killed: the call was over too soon")
        tell(f"All this took {time.monotonic() - started_at:.1f} seconds; nobody helped.")
        return await self._count(order, run_id)

    async def _nobody_can_know(self) -> int:
        order = ORDERS[1]
        tell_chapter(f"2. A refund for order {order} at a bank that answers no questions")
        tell("The bank pays, and then the connection breaks before it says so.")
        await self._misbehave("accept_then_drop", order)
        run_id = await self._ask_for_refund(order, "opaque")
        seen = await self._follow(run_id, 0, "unknown", _let_pass)
        tell("It is on the desk: [bold]earnest operations list --state unknown[/]")
        await self._resolve(run_id, order)
        tell_blow("A person looks at the bank's statement, finds it there, and says so.")
        await self._follow(run_id, seen, "succeeded", _let_pass)
        return await self._count(order, run_id)

    # ---- steps -----------------------------------------------------------------------------

    async def _misbehave(self, mode: str, order: int, *, delay_ms: int = 0) -> None:
        await asyncio.to_thread(
            self._simulator.put_fault, "bank", mode, delay_ms=delay_ms, match=f'"order_id":{order}'
        )

    async def _ask_for_refund(self, order: int, bank: str) -> str:
        body = {
            "kind": "demo.refund",
            "input": {"order_id": order, "amount": AMOUNT, "bank": bank},
            "labels": {"order": str(order)},
        }
        key = {"Idempotency-Key": f"{self._name}-{order}"}
        answer = await self._call("member", "POST", "/v1/runs", json=body, headers=key)
        return str(answer["run_id"])

    async def _follow(self, run_id: str, seen: int, status: str, react: React) -> int:
        """Tells the run's events after `seen` as they come, until it is in `status`; returns the
        number of the last one."""
        while True:
            run = await self._run(run_id)
            for event in await self._events(run_id, seen):
                seen = event["seq"]
                tell_event(event["type"])
                await react(event)
            if run["status"] == status:
                return seen
            if run["status"] in ("failed", "cancelled", "blocked"):
                raise Failed(f"run {run_id} of the tour ended as {run['status']}: {run['error']}")
            await asyncio.sleep(_LOOK_EVERY)

    async def _resolve(self, run_id: str, order: int) -> None:
        """By what the bank's statement says, under the bank's own number."""
        operation = await self._operation(run_id)
        lines = await asyncio.to_thread(self._simulator.statement, "opaque")
        number = next(line["id"] for line in lines if line["order_id"] == order)
        verdict = {
            "outcome": "submitted",
            "receipt": {"id": number},
            "evidence": f"the bank's statement has {number} for order {order}",
        }
        await self._call(
            "operator",
            "POST",
            f"/v1/operations/{operation['id']}/resolution",
            json=verdict,
            headers={"If-Match": f'"{operation["version"]}"'},
        )

    async def _count(self, order: int, run_id: str) -> int:
        """How often the bank really paid, by its own log."""
        operation = await self._operation(run_id)
        truth = await asyncio.to_thread(self._simulator.truth, "bank")
        count = len([item for item in truth if item["operation_id"] == operation["id"]])
        tell_count(order, count)
        return count

    async def _operation(self, run_id: str) -> dict[str, Any]:
        page = await self._call("member", "GET", f"/v1/runs/{run_id}/operations")
        found: dict[str, Any] = page["items"][0]
        return found

    async def _run(self, run_id: str) -> dict[str, Any]:
        return await self._call("member", "GET", f"/v1/runs/{run_id}")

    async def _events(self, run_id: str, after: int) -> list[dict[str, Any]]:
        page = await self._call("member", "GET", f"/v1/runs/{run_id}/events?after_seq={after}")
        events: list[dict[str, Any]] = page["items"]
        return events

    async def _call(self, who: str, method: str, path: str, **more: Any) -> dict[str, Any]:
        token = self._demo.tokens[SCOPE][who]
        headers = {"Authorization": f"Bearer {token}", **more.pop("headers", {})}
        response = await self._client.request(method, path, headers=headers, **more)
        answer: dict[str, Any] = response.json()
        if response.is_error:
            raise Failed(f"{method} {path} was answered {response.status_code}: {answer['detail']}")
        return answer


async def _let_pass(_event: dict[str, Any]) -> None:
    """What happens is only told."""
