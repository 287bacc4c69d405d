"""Effects at the simulator's banks: three that keep their side of the promise, and some that fail
to, each in the way in which real ones do."""

from __future__ import annotations

from typing import ClassVar
from uuid import uuid4

import httpx2
from pydantic import BaseModel

from earnest import Call, Effect, Refused


class RefundRequest(BaseModel):
    order_id: int = 17
    amount: str = "20.00"


class Receipt(BaseModel):
    id: str


class _Refund(Effect[RefundRequest, Receipt]):
    bank: ClassVar[str] = ""
    timeout = "10s"

    def __init__(self, client: httpx2.AsyncClient) -> None:
        self.client = client

    async def submit(self, call: Call, request: RefundRequest) -> Receipt:
        return await self.post(call.id, request)

    async def post(self, key: str, request: RefundRequest) -> Receipt:
        body = {"operation_id": key, **request.model_dump()}
        headers = {"Idempotency-Key": key}
        answer = await self.client.post(f"/bank/{self.bank}/refunds", json=body, headers=headers)
        answer.raise_for_status()
        return Receipt.model_validate_json(answer.content)


class Keyed(_Refund):
    kind, recovery, window, bank = "trial.keyed", "resend", "1h", "keyed"


class Queryable(_Refund):
    kind, recovery, bank = "trial.queryable", "lookup", "queryable"
    dedupes, absent_after = True, "5m"

    async def lookup(self, call: Call) -> Receipt | None:
        answer = await self.client.get(f"/bank/queryable/refunds/{call.id}")
        if answer.status_code == 404:
            return None
        answer.raise_for_status()
        return Receipt.model_validate_json(answer.content)


class Opaque(_Refund):
    kind, recovery, bank = "trial.opaque", "hold", "opaque"


# ---- those that do not keep it -----------------------------------------------------------------


class NewKeyForEachCall(Keyed):
    kind = "trial.new_key"

    async def submit(self, call: Call, request: RefundRequest) -> Receipt:
        return await self.post(uuid4().hex, request)


class TriesAgainByItself(Opaque):
    kind = "trial.tries_again"

    async def submit(self, call: Call, request: RefundRequest) -> Receipt:
        try:
            return await super().submit(call, request)
        except httpx2.HTTPError:
            return await super().submit(call, request)


class FailureIsRefusal(Queryable):
    kind = "trial.failure_is_refusal"

    async def submit(self, call: Call, request: RefundRequest) -> Receipt:
        try:
            return await super().submit(call, request)
        except httpx2.HTTPError as error:
            raise Refused("it did not work") from error


class RefusalIsDoubt(Queryable):
    kind = "trial.refusal_is_doubt"

    async def submit(self, call: Call, request: RefundRequest) -> Receipt:
        try:
            return await super().submit(call, request)
        except httpx2.HTTPError as error:
            raise RuntimeError("it did not work") from error


class FailureIsAbsence(Queryable):
    kind = "trial.failure_is_absence"

    async def lookup(self, call: Call) -> Receipt | None:
        try:
            return await super().lookup(call)
        except httpx2.HTTPError:
            return None


class MakesUpReceipts(Queryable):
    kind = "trial.makes_up"

    async def submit(self, call: Call, request: RefundRequest) -> Receipt:
        try:
            return await super().submit(call, request)
        except ValueError:
            return Receipt(id="unknown")


class BelievesAbsenceTooSoon(Queryable):
    kind, timeout, absent_after = "trial.too_soon", "30s", "5s"
