"""Nothing fails or is lost because somebody sits on the row of a run for a while (P23)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from earnest import App, Context, Refused
from earnest.store.database import Database
from tests.engine.bench import Bench
from tests.engine.conftest import MakeBench
from tests.engine.provider import Hold, Order, Provider, Purchase, shop


@pytest.fixture
async def impatient(database_url: str) -> AsyncIterator[Database]:
    settings = {"lock_timeout": "50ms"}
    async with Database(database_url, settings=settings, sat_on=0) as database:
        yield database


async def waits_twice(bench: Bench) -> None:
    """Returns after two of its statements have waited for a lock in vain: what is stored, and the
    doubt that would be stored instead."""
    for _ in range(2):
        await bench.wait_for_lock_waiters()
        await bench.wait_until_true(
            "SELECT count(*) = 0 FROM pg_stat_activity"
            " WHERE datname = current_database() AND wait_event_type = 'Lock'"
        )


@pytest.mark.parametrize(
    ("turn", "state", "last_move"),
    [
        ({}, "submitted", "confirm"),
        ({"does": False, "raises": Refused("no such order")}, "released", "release"),
        ({"raises": ConnectionError("the line broke")}, "unknown", "doubt"),
    ],
    ids=["receipt", "refusal", "doubt"],
)
async def test_what_came_of_a_call_waits_for_a_row_on_which_somebody_sits(
    make_bench: MakeBench,
    impatient: Database,
    turn: dict[str, object],
    state: str,
    last_move: str,
) -> None:
    provider = Provider()
    gate = provider.holds(**turn)
    bench, looking = make_bench(shop(provider, max_attempts=1)), make_bench(shop(provider))
    bench.engine.database = impatient
    run_id = await bench.submit("buy", {"by": "hold"})
    draining = asyncio.create_task(bench.drain())
    await gate.reached()
    async with looking.holding(run_id):
        gate.open()
        await waits_twice(looking)
    await draining
    operation = await looking.operation(run_id)
    assert operation.state == state
    assert await looking.moves(operation) == ["reserve", "begin", last_move]
    assert (await looking.find(run_id)).output == operation.receipt


VERBS: dict[str, Callable[[Context, App], Awaitable[object]]] = {
    "operation": lambda ctx, app: ctx.operation("pay", Hold, Order(number=17)),
    "sleep": lambda ctx, app: ctx.sleep("1ms"),
    "child": lambda ctx, app: ctx.submit(app.kinds["buy"], Purchase(by="hold"), detached=True),
    "step": lambda ctx, app: ctx.step("one", str, 1),
}


@pytest.mark.parametrize("verb", VERBS)
async def test_no_verb_fails_because_somebody_sits_on_the_row_of_its_run(
    make_bench: MakeBench, impatient: Database, verb: str
) -> None:
    app = shop(Provider())
    begun, go_on = asyncio.Event(), asyncio.Event()

    @app.run("work", max_attempts=1)
    async def work(ctx: Context, value: None) -> None:
        begun.set()
        await go_on.wait()
        await VERBS[verb](ctx, app)

    bench, looking = make_bench(app), make_bench(app)
    bench.engine.database = impatient
    run_id = await bench.submit("work")
    draining = asyncio.create_task(bench.drain())
    await begun.wait()
    async with looking.holding(run_id):
        go_on.set()
        if verb != "step":  # which takes no lock that it would have to wait for
            await waits_twice(looking)
    await draining
    assert await looking.outcomes(run_id) == ["succeeded"]
