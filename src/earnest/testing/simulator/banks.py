"""Three banks that make refunds and differ in what they recognise.

| bank | recognises | can be asked |
| --- | --- | --- |
| keyed | the header `Idempotency-Key`: same key and body, same receipt; another body, 422 | no |
| queryable | the `operation_id`: the first receipt, whatever else the repetition says | yes |
| opaque | nothing: each call is a new refund | no |

A refund is asked for by `{"operation_id", "order_id", "amount"}`; further fields are kept and
ignored. The amount is a positive decimal number, as a number or as a string. Without the header
the keyed bank recognises nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any
from uuid import uuid4

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from earnest.testing.simulator.asking import Misasked, json_object
from earnest.testing.simulator.effects import Effects
from earnest.testing.simulator.faults import EffectCall

Refund = Mapping[str, Any]
Receipt = dict[str, Any]

DECIMAL = re.compile(r"[0-9]+(\.[0-9]+)?")


class Banks:
    """The refunds of the three banks of one simulator."""

    def __init__(self, effects: Effects) -> None:
        self._effects = effects
        self._by_key: dict[str, tuple[str, Receipt]] = {}
        self._by_operation: dict[str, Receipt] = {}

    def routes(self) -> list[BaseRoute]:
        """The routes of provider `bank`."""
        queryable = "/bank/queryable/refunds"
        return [
            Route("/bank/keyed/refunds", self._ask_keyed, methods=["POST"]),
            Route(queryable, self._ask_queryable, methods=["POST"]),
            Route(queryable + "/{operation_id}", self._look_up, methods=["GET"]),
            Route("/bank/opaque/refunds", self._ask_opaque, methods=["POST"]),
        ]

    # ---- what a caller may ask -----------------------------------------------------------------

    async def _ask_keyed(self, request: Request) -> Response:
        key = request.headers.get("idempotency-key")
        call, refund = await _read(request)
        return await self._effects.perform(call, lambda: self._refund_by_key(key, refund))

    async def _ask_queryable(self, request: Request) -> Response:
        call, refund = await _read(request)
        return await self._effects.perform(call, lambda: self._refund_by_operation(refund))

    async def _ask_opaque(self, request: Request) -> Response:
        call, refund = await _read(request)
        return await self._effects.perform(call, lambda: self._refund_blindly(refund))

    async def _look_up(self, request: Request) -> Response:
        receipt = self._by_operation.get(request.path_params["operation_id"])
        if receipt is None:
            return JSONResponse({"error": "no refund was made for this operation id"}, 404)
        return JSONResponse(receipt)

    # ---- doing it: no await from here on -------------------------------------------------------

    def _refund_by_key(self, key: str | None, refund: Refund) -> Response:
        if key is None:
            return JSONResponse(self._make(refund))
        body = json.dumps(refund, sort_keys=True)
        if key not in self._by_key:
            self._by_key[key] = body, self._make(refund)
        first_body, receipt = self._by_key[key]
        if body != first_body:
            return JSONResponse({"error": "this key was used for another request"}, 422)
        return JSONResponse(receipt)

    def _refund_by_operation(self, refund: Refund) -> Response:
        operation_id = refund["operation_id"]
        if operation_id not in self._by_operation:
            self._by_operation[operation_id] = self._make(refund)
        return JSONResponse(self._by_operation[operation_id])

    def _refund_blindly(self, refund: Refund) -> Response:
        return JSONResponse({"id": self._make(refund)["id"]})

    def _make(self, refund: Refund) -> Receipt:
        """Make one refund, for real: a new receipt and an entry in the truth log."""
        self._effects.truth.record("bank", "refund", refund["operation_id"], refund)
        asked = {name: refund[name] for name in ("operation_id", "order_id", "amount")}
        return {"id": f"refund_{uuid4().hex}", **asked}


async def _read(request: Request) -> tuple[EffectCall, Refund]:
    """The call as the fault rules see it, and the refund it asks for; raises `Misasked`."""
    raw = await request.body()
    refund = json_object(raw)
    operation_id, order_id = refund.get("operation_id"), refund.get("order_id")
    if not isinstance(operation_id, str) or not operation_id:
        raise Misasked("operation_id must be a non-empty string")
    if isinstance(order_id, bool) or not isinstance(order_id, int | str) or order_id == "":
        raise Misasked("order_id must be a non-empty string or a whole number")
    if not _is_amount(refund.get("amount")):
        raise Misasked('amount must be a positive decimal number, such as 20.5 or "20.50"')
    return EffectCall("bank", request.url.path, raw.decode()), refund


def _is_amount(value: object) -> bool:
    if isinstance(value, str):
        return DECIMAL.fullmatch(value) is not None and Decimal(value) > 0
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0
