"""Three banks that make refunds and differ in what they recognise.

| bank | recognises | can be asked |
| --- | --- | --- |
| keyed | the header `Idempotency-Key`: same key and body, same receipt; another body, 422 | no |
| queryable | the `operation_id`: the first receipt, whatever else the repetition says | yes |
| opaque | nothing: each call is a new refund | no |

Each lists what it did: `GET /bank/NAME/refunds?since=TIME&after=N&limit=M` answers
`{"items": [...], "next": N or null}`, a receipt with `at` for each; the opaque bank's without the
operation's id. `DELETE /bank/NAME/refunds/ID` makes the bank forget one that it made; the truth
still knows it.

A refund is asked for by `{"operation_id", "order_id", "amount"}`; further fields are kept and
ignored. The opaque bank calls back where the headers `Callback-Url` and `Callback-Secret` say, when
it has done it: `{"type": "refund.made", "operation_id", "id"}`, signed by the Standard Webhooks
rules under the receipt's id. The amount is a positive decimal number, as a number or as a string.
Without the header the keyed bank recognises nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import uuid4

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from earnest.testing.simulator.asking import Misasked, json_object, query_number
from earnest.testing.simulator.callbacks import CallbackPlace, Callbacks
from earnest.testing.simulator.effects import Effects
from earnest.testing.simulator.faults import EffectCall

Refund = Mapping[str, Any]
Receipt = dict[str, Any]

LONGEST_PAGE = 1000

DECIMAL = re.compile(r"[0-9]+(\.[0-9]+)?")


BANKS = ("keyed", "queryable", "opaque")


@dataclass(frozen=True, slots=True)
class Made:
    """A refund in a bank's own books."""

    bank: str
    number: int
    at: datetime
    receipt: Receipt

    def shown(self) -> dict[str, Any]:
        shown = {**self.receipt, "at": self.at.isoformat(timespec="microseconds")}
        if self.bank == "opaque":
            del shown["operation_id"]
        return shown


class Banks:
    """The refunds of the three banks of one simulator."""

    def __init__(self, effects: Effects) -> None:
        self._effects = effects
        self._by_key: dict[str, tuple[str, Receipt]] = {}
        self._by_operation: dict[str, Receipt] = {}
        self._callbacks = Callbacks()
        self._made: dict[str, list[Made]] = {name: [] for name in BANKS}
        self._count = 0

    def routes(self) -> list[BaseRoute]:
        """The routes of provider `bank`."""
        queryable = "/bank/queryable/refunds"
        return [
            Route("/bank/keyed/refunds", self._ask_keyed, methods=["POST"]),
            Route(queryable, self._ask_queryable, methods=["POST"]),
            Route(queryable + "/{operation_id}", self._look_up, methods=["GET"]),
            Route("/bank/opaque/refunds", self._ask_opaque, methods=["POST"]),
            Route("/bank/{bank}/refunds", self._list, methods=["GET"]),
            Route("/bank/{bank}/refunds/{refund_id}", self._forget, methods=["DELETE"]),
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
        receipts: list[str] = []
        place = CallbackPlace.of(request.headers)

        def call_back(times: int) -> None:
            if place is not None:
                told = {"type": "refund.made", "operation_id": refund["operation_id"]}
                self._callbacks.send(
                    place, f"msg_{receipts[0]}", {**told, "id": receipts[0]}, times
                )

        return await self._effects.perform(
            call, lambda: self._refund_blindly(refund, receipts), call_back
        )

    async def _look_up(self, request: Request) -> Response:
        receipt = self._by_operation.get(request.path_params["operation_id"])
        if receipt is None:
            return JSONResponse({"error": "no refund was made for this operation id"}, 404)
        return JSONResponse(receipt)

    async def _list(self, request: Request) -> Response:
        made, query = self._of(request), request.query_params
        after = query_number("after", query.get("after", "0"), least=0, most=10**9)
        limit = query_number("limit", query.get("limit", "100"), least=1, most=LONGEST_PAGE)
        since = _instant(query.get("since"))
        page = [one for one in made if one.number > after and one.at >= since][: limit + 1]
        more = page[limit - 1].number if len(page) > limit else None
        return JSONResponse({"items": [one.shown() for one in page[:limit]], "next": more})

    async def _forget(self, request: Request) -> Response:
        made, refund_id = self._of(request), request.path_params["refund_id"]
        kept = [one for one in made if one.receipt["id"] != refund_id]
        if len(kept) == len(made):
            return JSONResponse({"error": "no such refund"}, 404)
        self._made[request.path_params["bank"]] = kept
        for operation_id, receipt in [*self._by_operation.items()]:
            if receipt["id"] == refund_id:
                del self._by_operation[operation_id]
        return Response(status_code=204)

    def _of(self, request: Request) -> list[Made]:
        bank = request.path_params["bank"]
        if bank not in self._made:
            raise Misasked(f"unknown bank {bank!r}: use one of {', '.join(BANKS)}")
        return self._made[bank]

    # ---- doing it: no await from here on -------------------------------------------------------

    def _refund_by_key(self, key: str | None, refund: Refund) -> Response:
        if key is None:
            return JSONResponse(self._make("keyed", refund))
        body = json.dumps(refund, sort_keys=True)
        if key not in self._by_key:
            self._by_key[key] = body, self._make("keyed", refund)
        first_body, receipt = self._by_key[key]
        if body != first_body:
            return JSONResponse({"error": "this key was used for another request"}, 422)
        return JSONResponse(receipt)

    def _refund_by_operation(self, refund: Refund) -> Response:
        operation_id = refund["operation_id"]
        if operation_id not in self._by_operation:
            self._by_operation[operation_id] = self._make("queryable", refund)
        return JSONResponse(self._by_operation[operation_id])

    def _refund_blindly(self, refund: Refund, receipts: list[str]) -> Response:
        receipts.append(self._make("opaque", refund)["id"])
        return JSONResponse({"id": receipts[0]})

    def _make(self, bank: str, refund: Refund) -> Receipt:
        """Make one refund, for real: a new receipt and an entry in the truth log."""
        self._effects.truth.record("bank", "refund", refund["operation_id"], refund)
        asked = {name: refund[name] for name in ("operation_id", "order_id", "amount")}
        receipt = {"id": f"refund_{uuid4().hex}", **asked}
        self._count += 1
        self._made[bank].append(Made(bank, self._count, datetime.now(UTC), receipt))
        return receipt


def _instant(text: str | None) -> datetime:
    try:
        found = datetime.fromisoformat(text or "1970-01-01T00:00:00Z")
    except ValueError as error:
        raise Misasked("since must be a time, such as 2026-01-31T12:00:00Z") from error
    if found.tzinfo is None:
        raise Misasked("since must be a time with its zone, such as 2026-01-31T12:00:00Z")
    return found


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
