"""Changed code is tried on runs that wait for a decision, or have heard it (P11): what a check says
is what happens then."""

from __future__ import annotations

from typing import Any

import pytest

from earnest import App, ApprovalRejected, Context
from earnest.engine.inspection import checking
from earnest.engine.inspection.checking import Asked, Checked
from earnest.engine.process.engine import Engine
from earnest.testing.clock import ManualClock
from tests.engine.conftest import MakeBench
from tests.engine.deciders import all_asked, asked, decide
from tests.engine.handlers import Handler, work
from tests.engine.provider import Hold, Order, Provider


def app_of(handler: Handler, provider: Provider, **terms: Any) -> App:
    app = work(handler, **terms)
    app.effect(Hold(provider))
    return app


async def check_one(engine: Engine) -> Checked:
    asked_for = Asked()
    listed = await checking.list_runs(engine, asked_for)
    (found,) = [one async for one in checking.check(engine, listed, asked_for)]
    assert found is not None
    return found


async def as_it_was(ctx: Context) -> Any:
    terms = ctx.approve(expires_in="1h")
    return (await ctx.operation("pay", Hold, Order(number=1), approval=terms)).id


async def other_request(ctx: Context) -> Any:
    return (await ctx.operation("pay", Hold, Order(number=2), approval=ctx.approve())).id


async def no_approval(ctx: Context) -> Any:
    return (await ctx.operation("pay", Hold, Order(number=1))).id


async def other_name(ctx: Context) -> Any:
    return (await ctx.operation("pay it", Hold, Order(number=1), approval=ctx.approve())).id


async def catches_it(ctx: Context) -> Any:
    try:
        return await as_it_was(ctx)
    except ApprovalRejected:
        return "no"


WAITS = "its record ends at a wait for approval 'pay'"


@pytest.mark.parametrize(
    ("handler", "said", "then"),
    [
        (as_it_was, ("fits", "", WAITS), "waiting"),
        (other_request, ("breaks", "code_changed", None), "failed"),
        (no_approval, ("breaks", "code_changed", None), "failed"),
        (other_name, ("unclear", "left_behind", None), "waiting"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
async def test_a_run_that_waits_for_a_decision_is_followed_to_it(
    make_bench: MakeBench,
    clock: ManualClock,
    handler: Handler,
    said: tuple[str, str, str | None],
    then: str,
) -> None:
    """P11: nothing is sent, whatever the new code asks for."""
    provider = Provider()
    bench = make_bench(app_of(as_it_was, provider))
    run_id = (await bench.done("work")).run_id
    new = make_bench(app_of(handler, provider, max_attempts=1))
    found = await check_one(new.engine)
    assert (found.verdict, found.code) == said[:2]
    assert said[2] in (None, found.detail)
    await new.execute("UPDATE execution SET max_attempts = 1")
    await new.execute(
        "UPDATE execution SET status = 'queued', waiting_on = NULL WHERE run_id = $1", run_id
    )
    await new.drain()
    assert (await new.find(run_id)).status == then
    assert provider.calls == []


@pytest.mark.parametrize(
    ("decision", "handler", "said", "then"),
    [
        ("approve", as_it_was, ("fits", ""), ("succeeded", 1)),
        ("approve", other_request, ("breaks", "code_changed"), ("failed", 0)),
        ("approve", no_approval, ("breaks", "code_changed"), ("failed", 0)),
        ("reject", as_it_was, ("fits", ""), ("failed", 0)),
        ("reject", catches_it, ("fits", ""), ("succeeded", 0)),
    ],
    ids=lambda value: getattr(value, "__name__", value if isinstance(value, str) else ""),
)
async def test_a_run_that_has_heard_its_decision_is_followed_beyond_it(
    make_bench: MakeBench,
    clock: ManualClock,
    decision: str,
    handler: Handler,
    said: tuple[str, str],
    then: tuple[str, int],
) -> None:
    """P11."""
    provider = Provider()
    bench = make_bench(app_of(as_it_was, provider))
    run_id = (await bench.done("work")).run_id
    await decide(bench, await asked(bench, run_id), decision)
    new = make_bench(app_of(handler, provider))
    found = await check_one(new.engine)
    assert (found.verdict, found.code) == said
    await new.execute("UPDATE execution SET max_attempts = 1")
    await new.drain()
    assert ((await new.find(run_id)).status, len(provider.done)) == then


async def test_a_check_puts_nothing_to_anybody_and_gives_nothing_up(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """A check reads."""
    provider = Provider()
    bench = make_bench(app_of(as_it_was, provider))
    run_id = (await bench.done("work")).run_id
    await decide(bench, await asked(bench, run_id), "reject")
    before = (await all_asked(bench, run_id), await bench.operations(run_id))
    for handler in (as_it_was, other_name, catches_it):
        await check_one(make_bench(app_of(handler, provider)).engine)
    assert (await all_asked(bench, run_id), await bench.operations(run_id)) == before
    assert before[1][0].state == "reserved"
