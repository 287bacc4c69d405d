"""Inputs that SQL stored and that do not fit: refused for good by the first attempt, unless other
code is about that may take them."""

from __future__ import annotations

from typing import Any

import pytest

from earnest import App, Context
from earnest.domain import ids
from earnest.domain.run import Run
from earnest.engine.attempts.working import Worker
from earnest.engine.process import announcing
from earnest.engine.runs import retrying
from earnest.store import runs
from earnest.testing.clock import ManualClock
from tests.sql_shop import PRINCIPAL, SCOPE, SqlShop

SECRET = "4000-1234-5678-9010"


def changed_app() -> App:
    """The shop's next version, whose orders are texts."""
    app = App("shop")

    @app.run("order.ship")
    async def ship(ctx: Context, order: dict[str, str]) -> str:
        return f"shipped {order['order']}"

    return app


async def outcomes(shop: SqlShop, run: Run) -> list[str | None]:
    found = await runs.attempts(shop.engine.database, SCOPE, run.run_id)
    return [one.outcome and one.outcome.value for one in found]


async def test_an_input_that_does_not_fit_fails_at_its_first_attempt(shop: SqlShop) -> None:
    run_id = await shop.submit_sql("order.ship", {"order": "seventeen", "gift": 1})
    await shop.worker.drain_once()
    run = await shop.find(run_id)
    assert run.status == "failed"
    assert run.error is not None
    assert run.error["code"] == "input_invalid"
    assert run.error["detail"] == (
        "the input does not fit order.ship: order: Input should be a valid integer, unable to "
        "parse string as an integer"
    )
    assert [error["pointer"] for error in run.error["errors"]] == ["/input/order"]
    assert await outcomes(shop, run) == ["failed"]


@pytest.mark.parametrize("by_sql", [True, False])
async def test_an_input_that_does_not_fit_is_not_repeated_in_the_error(
    shop: SqlShop, by_sql: bool
) -> None:
    """P21."""
    if by_sql:
        run_id = await shop.submit_sql("order.ship", {"order": SECRET})
    else:
        run_id = ids.show("run", (await shop.submit("order.ship", {"order": 17})).run_id)
        await shop.value(
            """UPDATE run SET input = jsonb_build_object('order', $1::text) RETURNING 1""", SECRET
        )
    await shop.worker.drain_once()
    run = await shop.find(run_id)
    assert run.error is not None
    assert run.error["code"] == ("input_invalid" if by_sql else "code_changed")
    assert SECRET not in str(run.error)


async def test_a_persons_retry_of_it_fails_at_once_too(shop: SqlShop) -> None:
    run_id = await shop.submit_sql("order.ship", {"order": "seventeen"})
    await shop.worker.drain_once()
    failed = await shop.find(run_id)
    again = await retrying.retry(shop.engine, SCOPE, failed.run_id, by=PRINCIPAL)
    await shop.worker.drain_once()
    run = await shop.find(ids.show("run", again.run.run_id))
    assert run.error is not None
    assert (run.error["code"], await outcomes(shop, run)) == ("input_invalid", ["failed"])


async def test_while_other_code_is_announced_an_input_that_does_not_fit_waits_for_it(
    shop: SqlShop, clock: ManualClock, make_engine: Any
) -> None:
    """A deployment: the new code has started, the old one still takes its runs."""
    new = make_engine(changed_app())
    assert await announcing.announce(new) == ["order.ship"]
    run_id = await shop.submit_sql("order.ship", {"order": "seventeen"})
    await shop.worker.drain_once()
    run = await shop.find(run_id)
    assert (run.status, run.failures) == ("queued", 1)
    assert run.error is not None
    assert run.error["code"] == "code_changed"
    assert run.error["detail"].endswith("other code for it was announced, which may take it")
    await clock.advance(minutes=1)
    await Worker(new, keeper=False).drain_once()
    assert (await shop.find(run_id)).output == "shipped seventeen"


async def test_an_input_from_python_that_no_longer_fits_waits_for_the_old_code(
    shop: SqlShop, make_engine: Any
) -> None:
    """It fitted once: only what nobody has checked can have been wrong from the beginning."""
    run = await shop.submit("order.ship", {"order": 17})
    new = make_engine(changed_app())
    await announcing.announce(new)
    await Worker(new, keeper=False).drain_once()
    found = await shop.find(ids.show("run", run.run_id))
    assert found.status == "queued"
    assert found.error is not None
    assert found.error["code"] == "code_changed"


async def test_an_input_from_sql_gets_its_defaults_when_it_is_run(shop: SqlShop) -> None:
    run_id = await shop.submit_sql("order.ship", {"order": "17"})
    await shop.worker.drain_once()
    run = await shop.find(run_id)
    assert (run.input, run.output) == ({"order": "17"}, "shipped 17")
