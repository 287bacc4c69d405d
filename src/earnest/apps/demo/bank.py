"""Refunds at the simulator's three banks, one effect for each recovery."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any

import httpx2
from pydantic import BaseModel, ConfigDict

from earnest.engine.process.effects import Call, Effect, Listed

_PAGE = 200


class RefundRequest(BaseModel):
    """What is refunded. The amount is passed on as it was written."""

    order_id: int | str
    amount: int | float | str


class Receipt(BaseModel):
    """A bank's receipt: its id, and whatever else it says."""

    model_config = ConfigDict(extra="allow")

    id: str


class _BankEffect(Effect[RefundRequest, Receipt]):
    """What the three have in common: one POST to a bank of the simulator."""

    provider = "bank"
    timeout = "10s"
    absent_after = "5s"
    bank = ""

    def __init__(self, simulator_url: str) -> None:
        self._client = httpx2.AsyncClient(base_url=simulator_url, timeout=None)

    async def submit(self, call: Call, request: RefundRequest) -> Receipt:
        response = await self._client.post(
            f"/bank/{self.bank}/refunds",
            json={"operation_id": call.id, **request.model_dump(mode="json")},
            headers=self._headers(call),
        )
        response.raise_for_status()
        return Receipt.model_validate_json(response.content)

    def _headers(self, call: Call) -> dict[str, str]:
        return {}

    async def list_since(self, time: datetime) -> AsyncIterator[Listed]:
        """What the bank did, page by page. The opaque one tells no operations and no receipts."""
        asked = {"since": time.isoformat(), "limit": str(_PAGE), "after": "0"}
        while True:
            response = await self._client.get(f"/bank/{self.bank}/refunds", params=asked)
            response.raise_for_status()
            page = response.json()
            for refund in page["items"]:
                at, told = datetime.fromisoformat(refund.pop("at")), refund.get("operation_id")
                receipt = Receipt(**refund) if told else None
                yield Listed(at, refund["id"], operation_id=told, receipt=receipt)
            if page["next"] is None:
                return
            asked["after"] = str(page["next"])

    def matches(self, request: RefundRequest, receipt: Receipt) -> bool:
        said: dict[str, Any] = receipt.model_dump()
        return all(
            name not in said or str(said[name]) == str(value)
            for name, value in request.model_dump().items()
        )


class KeyedRefund(_BankEffect):
    """The bank honours an idempotency key for a day: what is in doubt is sent again."""

    kind = "bank.keyed.refund"
    recovery = "resend"
    window = "24h"
    bank = "keyed"

    def _headers(self, call: Call) -> dict[str, str]:
        return {"Idempotency-Key": call.id}


class QueryableRefund(_BankEffect):
    """The bank can be asked about an operation and recognises a repeated one."""

    kind = "bank.queryable.refund"
    recovery = "lookup"
    dedupes = True
    bank = "queryable"

    async def lookup(self, call: Call) -> Receipt | None:
        response = await self._client.get(f"/bank/queryable/refunds/{call.id}")
        if response.status_code == 404:
            return None
        response.raise_for_status()
        return Receipt.model_validate_json(response.content)


class OpaqueRefund(_BankEffect):
    """The bank recognises nothing and answers no questions: a doubt waits for a person."""

    kind = "bank.opaque.refund"
    recovery = "hold"
    bank = "opaque"


BANKS: dict[str, type[_BankEffect]] = {
    "keyed": KeyedRefund,
    "queryable": QueryableRefund,
    "opaque": OpaqueRefund,
}
