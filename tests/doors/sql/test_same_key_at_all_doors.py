"""P7 across HTTP, Python and SQL: what was sent makes the request, whichever door it came through
and whichever came first."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from itertools import product
from typing import Any

import asyncpg
import httpx2
import pytest

from earnest import App, Context
from earnest.domain.errors import IdempotencyConflict
from earnest.doors.api.application import build_api
from earnest.engine.inspection.readiness import Readiness
from earnest.engine.process import announcing, binding, tokens
from earnest.engine.process.access import Doorkeeper
from earnest.engine.process.engine import Engine
from tests.sql_shop import PRINCIPAL, SCOPE, Order, SqlShop, make_app, open_shop


class NewOrder(Order):
    gift: bool = True


SHORT = {"order": 17}
SPELT_OUT = {"order": 17, "gift": False}
KEY = "order-17"


@dataclass
class Doors:
    """One principal at all doors. Each gives the id of a run, or `None` for a conflict."""

    shop: SqlShop
    app: App
    client: httpx2.AsyncClient
    token: str

    async def through(self, door: str, sent: Any) -> str | None:
        found: dict[str, Callable[[Any], Awaitable[str | None]]] = {
            "HTTP": self.http,
            "Python": self.python,
            "a typed value": self.typed,
            "many at once": self.many,
            "SQL": self.sql,
        }
        return await found[door](sent)

    async def http(self, sent: Any, **more: Any) -> str | None:
        answer = await self.client.post(
            "/v1/runs",
            json={"kind": "order.ship", "input": sent, **more},
            headers={"Authorization": f"Bearer {self.token}", "Idempotency-Key": KEY},
        )
        if answer.status_code == 409:
            assert answer.json()["code"] == "idempotency_conflict"
            return None
        run_id: str = answer.json()["id"]
        return run_id

    async def python(self, sent: Any) -> str | None:
        bound = binding.Binding(self.shop.engine, SCOPE, PRINCIPAL)
        kind = self.shop.engine.kinds.require("order.ship")
        with binding.acting_through(bound):
            try:
                return await self.app.submit(kind, sent, key=KEY)
            except IdempotencyConflict:
                return None

    async def typed(self, sent: Any) -> str | None:
        return await self.python(Order(**sent))

    async def many(self, sent: Any) -> str | None:
        bound = binding.Binding(self.shop.engine, SCOPE, PRINCIPAL)
        kind = self.shop.engine.kinds.require("order.ship")
        with binding.acting_through(bound):
            try:
                (run_id,) = await self.app.submit_many(kind, [sent], keys=[KEY])
            except IdempotencyConflict:
                return None
            return run_id

    async def sql(self, sent: Any) -> str | None:
        try:
            return await self.shop.submit_sql("order.ship", sent, KEY)
        except asyncpg.PostgresError as error:
            if error.sqlstate != "RK409":
                raise
            return None


@pytest.fixture
async def doors(make_engine: Callable[..., Engine]) -> AsyncIterator[Doors]:
    app = make_app()
    shop = await open_shop(make_engine(app))
    engine = shop.engine
    token = await tokens.issue_token(engine, SCOPE, PRINCIPAL)
    api = build_api(engine, ready=lambda: Readiness(True), doorkeeper=Doorkeeper(engine, 60))
    transport = httpx2.ASGITransport(api)
    async with httpx2.AsyncClient(transport=transport, base_url="http://earnest.test") as client:
        yield Doors(shop, app, client, token)


DOORS = ("HTTP", "Python", "a typed value", "many at once", "SQL")


@pytest.mark.parametrize(("first", "second"), [*product(DOORS, DOORS)])
@pytest.mark.parametrize("sent", [SHORT, SPELT_OUT], ids=["left out", "spelt out"])
async def test_the_same_request_gives_the_same_run_through_any_two_doors(
    doors: Doors, first: str, second: str, sent: Any
) -> None:
    """P7."""
    run_id = await doors.through(first, sent)
    assert run_id is not None
    assert await doors.through(second, sent) == run_id


@pytest.mark.parametrize(("first", "second"), [*product(DOORS, DOORS)])
@pytest.mark.parametrize("order", [(SHORT, SPELT_OUT), (SPELT_OUT, SHORT)], ids=["short", "long"])
async def test_a_default_that_is_spelt_out_makes_another_request_in_either_order(
    doors: Doors, first: str, second: str, order: tuple[Any, Any]
) -> None:
    """P7: the fingerprint is of what was sent, before defaults."""
    assert await doors.through(first, order[0]) is not None
    assert await doors.through(second, order[1]) is None
    assert await doors.shop.count() == 1


@pytest.mark.parametrize("door", ["Python", "SQL"])
async def test_a_body_that_says_more_than_kind_and_input_is_another_request(
    doors: Doors, door: str
) -> None:
    """P7: over HTTP the whole body is the request."""
    assert await doors.http(SHORT, labels={"from": "api"}) is not None
    assert await doors.through(door, SHORT) is None


async def test_a_request_repeated_after_a_default_changed_is_the_same_request(
    doors: Doors, make_engine: Callable[..., Engine]
) -> None:
    """P7: what a client sends again is what it sent, whatever code stands there by then."""
    run_id = await doors.python(SHORT)
    app = App("shop")

    @app.run("order.ship")
    async def ship(ctx: Context, order: NewOrder) -> None:
        pass

    doors.shop.engine, doors.app = make_engine(app), app
    await announcing.announce(doors.shop.engine)
    assert await doors.python(SHORT) == run_id
    assert await doors.sql(SHORT) == run_id


@pytest.mark.parametrize("door", ["HTTP", "Python"])
@pytest.mark.parametrize(
    "value",
    [
        {"z": [1, 2.5, True, None, {}], "a": {"é": "\u2028\"\\\n\x01<>&'", "Z": "", "aa": []}},
        {"\U0001f600": 1, "\uffff": 2, "": 0.1},
        "text",
        None,
    ],
)
async def test_sql_knows_any_json_that_was_sent_elsewhere(
    doors: Doors, door: str, value: Any
) -> None:
    """P7."""
    body = {"kind": "echo", "input": value}
    if door == "HTTP":
        answer = await doors.client.post(
            "/v1/runs",
            json=body,
            headers={"Authorization": f"Bearer {doors.token}", "Idempotency-Key": KEY},
        )
        run_id = answer.json()["id"]
    else:
        bound = binding.Binding(doors.shop.engine, SCOPE, PRINCIPAL)
        with binding.acting_through(bound):
            kind = doors.shop.engine.kinds.require("echo")
            run_id = await doors.app.submit(kind, value, key=KEY)
    assert await doors.shop.submit_sql("echo", value, KEY) == run_id
