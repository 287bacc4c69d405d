"""The one call of an operation: how it can end, and what is stored of it (P1, P2, P3)."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from earnest import Blocked, Context, Failed, InDoubt, NotSent, Refused
from earnest.testing.clock import ManualClock
from tests.engine.bench import Bench
from tests.engine.conftest import MakeBench
from tests.engine.handlers import fails_once
from tests.engine.provider import Hold, Order, Provider, Receipt, shop

HELD = {"by": "hold"}


async def test_the_receipt_of_a_call_is_stored_and_ends_the_operation(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P1, P4: reserve, begin, confirm, each with its event and its line of history."""
    provider = Provider()
    bench = make_bench(shop(provider))
    run = await bench.done("buy", HELD)
    operation = await bench.operation(run.run_id)
    assert (run.status, operation.state) == ("succeeded", "submitted")
    assert operation.receipt == run.output
    assert operation.external_ref == operation.receipt["id"]
    assert await bench.moves(operation) == ["reserve", "begin", "confirm"]
    assert await bench.told(run.run_id) == [
        "run.submitted", "attempt.started", "operation.reserved", "operation.submitting",
        "operation.submitted", "run.succeeded",
    ]  # fmt: skip


async def test_nothing_is_sent_before_its_intent_is_committed(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P1: the provider itself looks, from another connection, when the call arrives."""
    provider = Provider()
    gate = provider.holds()
    bench = make_bench(shop(provider))
    run_id = await bench.submit("buy", HELD)
    task = asyncio.create_task(bench.drain())
    await gate.reached()
    operation = await bench.operation(run_id)
    assert operation.state == "submitting"
    assert operation.request == {"number": 17, "amount": "20.00"}
    assert operation.send_token is not None
    assert operation.call_until == clock.now + operation.timeout
    assert (operation.send_count, operation.attempt) == (1, 1)
    assert operation.instance_id == bench.engine.instance.instance_id
    assert (await bench.find(run_id)).in_doubt == 1
    gate.open()
    await task


async def test_no_event_carries_the_request(make_bench: MakeBench, clock: ManualClock) -> None:
    """P21."""
    provider = Provider()
    bench = make_bench(shop(provider))
    provider.drops(does=True)
    run = await bench.done("buy", HELD)
    for event in await bench.events(run.run_id):
        assert "20.00" not in str(event.payload)


async def test_the_same_id_is_sent_in_every_attempt(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P2."""
    provider = Provider()
    bench = make_bench(shop(provider, retry_first="0s"))
    provider.is_not_reached()
    run = await bench.done("buy", HELD)
    assert run.status == "succeeded"
    first, second = (call for call, _ in provider.calls)
    assert first.id == second.id
    assert [first.sends, second.sends] == [1, 2]


# ---- surely not done ---------------------------------------------------------------------------


async def test_a_refusal_is_remembered_and_raised_again_without_a_call(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P2: the handler may catch it; a later attempt meets the same one."""
    provider, seen = Provider(), list[Refused]()
    app = shop(provider)

    @app.run("careful", retry_first="0s")
    async def careful(ctx: Context, value: int) -> str:
        try:
            await ctx.operation("pay", app.effects["test.hold"], Order(number=17))
        except Refused as refusal:
            seen.append(refusal)
        fails_once(ctx)
        return "not paid"

    bench = make_bench(app)
    provider.next(does=False, raises=Refused("no such order", fields={"http_status": 404}))
    run = await bench.done("careful", 1)
    operation = await bench.operation(run.run_id)
    assert (run.output, operation.state, operation.release_reason) == (
        "not paid", "released", "refused",
    )  # fmt: skip
    assert [(one.detail, one.fields) for one in seen] == [
        ("no such order", {"http_status": 404})
    ] * 2
    assert len(provider.calls) == 1
    assert await bench.moves(operation) == ["reserve", "begin", "release"]


async def test_an_unhandled_refusal_fails_the_run_for_good(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P2."""
    provider = Provider()
    provider.refuses()
    run = await make_bench(shop(provider)).done("buy", HELD)
    assert (run.status, run.failures) == ("failed", 1)
    assert run.error == {"code": "refused", "detail": "no such order"}


async def test_a_refusal_is_a_refusal_whatever_it_says(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P2: what cannot be kept of its text and fields is left out."""
    provider = Provider()
    odd = {"thing": object(), "body": "x" * 100_000}
    provider.next(does=False, raises=Refused("a\x00b", fields=odd))
    bench = make_bench(shop(provider))
    run = await bench.done("buy", HELD)
    operation = await bench.operation(run.run_id)
    assert (run.status, operation.release_reason) == ("failed", "refused")
    assert operation.refusal == run.error == {"code": "refused", "detail": "ab"}


async def test_a_refusal_while_preparing_sends_nothing(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P1: and it is as definite as the provider's own."""
    provider = Provider()

    async def refuse(order: Order) -> None:
        raise Refused("too expensive")

    provider.on_prepare = refuse
    bench = make_bench(shop(provider))
    run = await bench.done("buy", HELD)
    operation = await bench.operation(run.run_id)
    assert (run.error or {})["detail"] == "too expensive"
    assert (operation.state, operation.release_reason) == ("released", "refused")
    assert (provider.calls, operation.send_count) == ([], 0)


async def test_preparing_is_bounded_as_the_call_is(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P1: a provider that does not answer does not hold the run for ever."""

    class Hurried(Hold):
        timeout = "20ms"

    async def hangs(order: Order) -> None:
        await asyncio.Event().wait()

    provider = Provider(on_prepare=hangs)
    app = shop(provider, max_attempts=1)
    app.effects["test.hold"] = Hurried(provider)
    bench = make_bench(app)
    run = await bench.done("buy", HELD)
    assert (run.error or {})["detail"].startswith("TimeoutError")
    assert (await bench.operation(run.run_id)).release_reason == "given_up"
    assert provider.calls == []


async def test_preparing_may_fail_and_is_tried_again_with_the_same_intent(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P1, P2: nothing was begun."""
    provider, tries = Provider(), list[Order]()

    async def unreachable_once(order: Order) -> None:
        tries.append(order)
        if len(tries) == 1:
            raise TimeoutError

    provider.on_prepare = unreachable_once
    bench = make_bench(shop(provider, retry_first="0s"))
    run = await bench.done("buy", HELD)
    assert run.status == "succeeded"
    assert len(tries) == 2
    assert await bench.moves(await bench.operation(run.run_id)) == ["reserve", "begin", "confirm"]


async def test_what_was_not_sent_is_tried_again_under_the_same_id_with_a_new_fence(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P2: by the next attempt, not within the one that failed to send."""
    provider = Provider()
    bench = make_bench(shop(provider, retry_first="1m"))
    provider.is_not_reached()
    run = await bench.done("buy", HELD)
    assert (run.status, (run.error or {})["code"]) == ("queued", "not_sent")
    released = await bench.operation(run.run_id)
    assert (released.state, released.release_reason) == ("released", "not_sent")
    assert (released.refusal or {})["code"] == "not_sent"
    await clock.advance(minutes=1)
    await bench.drain()
    done = await bench.operation(run.run_id)
    assert await bench.status(run.run_id) == "succeeded"
    assert (done.operation_id, done.attempt, done.send_count) == (released.operation_id, 2, 2)
    assert done.refusal is None
    assert await bench.moves(done) == [
        "reserve", "begin", "release", "reserve again", "begin", "confirm",
    ]  # fmt: skip
    assert len(provider.done) == 1


# ---- doubt -------------------------------------------------------------------------------------


GARBAGE: list[Any] = [{"no": "id"}, 17, {"id": "a\x00b"}, "<html>", object()]


@pytest.mark.parametrize(
    "error",
    [
        ConnectionError("the line broke"),
        TimeoutError(),
        ValueError("what is this"),
        KeyError("id"),
        RuntimeError("a\x00b\ud800" + "x" * 100_000),
        ExceptionGroup("several", [Refused("no"), NotSent("no")]),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_whatever_else_is_raised_during_the_call_is_doubt(
    make_bench: MakeBench, clock: ManualClock, error: BaseException
) -> None:
    """P3: the provider may have done it."""
    provider = Provider()
    provider.next(raises=error)
    bench = make_bench(shop(provider))
    run = await bench.done("buy", HELD)
    operation = await assert_in_doubt(bench, run)
    (*_, doubt) = await bench.history(operation)
    assert doubt.detail["why"].startswith(type(error).__name__)


@pytest.mark.parametrize("answer", GARBAGE, ids=lambda answer: repr(answer)[:12])
async def test_an_answer_that_is_no_receipt_is_doubt(
    make_bench: MakeBench, clock: ManualClock, answer: Any
) -> None:
    """P3."""
    provider = Provider()
    provider.next(answers=answer)
    bench = make_bench(shop(provider))
    run = await bench.done("buy", HELD)
    operation = await assert_in_doubt(bench, run)
    (*_, doubt) = await bench.history(operation)
    assert "the answer is not a receipt" in doubt.detail["why"]


async def test_an_effect_that_cannot_name_its_receipt_is_in_doubt(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P3: its own code failed after the call."""

    class Nameless(Hold):
        def external_ref(self, receipt: Receipt) -> str | None:
            raise AttributeError("no name")

    provider = Provider()
    app = shop(provider)
    app.effects["test.hold"] = Nameless(provider)
    bench = make_bench(app)
    run = await bench.done("buy", HELD)
    await assert_in_doubt(bench, run)


async def assert_in_doubt(bench: Bench, run: Any) -> Any:
    operation = await bench.operation(run.run_id)
    assert (run.status, operation.state, run.in_doubt) == ("unknown", "unknown", 1)
    assert await bench.moves(operation) == ["reserve", "begin", "doubt"]
    told = await bench.told(run.run_id)
    assert told[-2:] == ["operation.unknown", "run.unknown"]
    return operation


async def test_a_call_that_takes_too_long_is_in_doubt(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P3: the effect's own time-out bounds the call."""

    class Hurried(Hold):
        timeout = "20ms"

    provider = Provider()
    gate = provider.holds()
    app = shop(provider)
    app.effects["test.hold"] = Hurried(provider)
    bench = make_bench(app)
    run = await bench.done("buy", HELD)
    assert not gate.opened.is_set()
    operation = await assert_in_doubt(bench, run)
    (*_, doubt) = await bench.history(operation)
    assert doubt.detail["why"].startswith("TimeoutError")


@pytest.mark.parametrize("swallows", [InDoubt, Exception])
async def test_a_handler_that_swallows_a_doubt_does_not_succeed(
    make_bench: MakeBench, clock: ManualClock, swallows: type[Exception]
) -> None:
    """P3: whatever it makes of it, the run waits for the outcome."""
    provider = Provider()
    app = shop(provider)

    @app.run("careless")
    async def careless(ctx: Context, value: int) -> str:
        with contextlib.suppress(swallows):
            await ctx.operation("pay", app.effects["test.hold"], Order(number=17))
        await ctx.emit("all.is.well", {})
        return "paid, surely"

    bench = make_bench(app)
    provider.drops(does=True)
    run = await bench.done("careless", 1)
    assert (run.status, run.output) == ("unknown", None)
    assert await bench.outcomes(run.run_id) == ["doubted"]
    await bench.resolve(await bench.operation(run.run_id), "submitted", {"id": "found"})
    await bench.drain()
    assert (await bench.find(run.run_id)).output == "paid, surely"


@pytest.mark.parametrize("ending", ["fails", "parks", "blocks"])
async def test_no_other_ending_passes_over_a_doubt_either(
    make_bench: MakeBench, clock: ManualClock, ending: str
) -> None:
    """P3: fail and park are guarded as succeed is."""
    provider = Provider()
    app = shop(provider)

    @app.run("careless")
    async def careless(ctx: Context, value: int) -> None:
        with pytest.raises(InDoubt):
            await ctx.operation("pay", app.effects["test.hold"], Order(number=17))
        if ending == "parks":
            await ctx.wait_signal("go")
        raise Blocked("no") if ending == "blocks" else Failed("no")

    bench = make_bench(app)
    provider.drops(does=True)
    run = await bench.done("careless", 1)
    assert run.status == "unknown"


async def test_a_kind_may_fail_over_a_doubt_and_leaves_it_on_the_desk(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P3: `on_unknown="fail"`."""
    provider = Provider()
    bench = make_bench(shop(provider, on_unknown="fail"))
    provider.drops(does=True)
    run = await bench.done("buy", HELD)
    assert (run.status, (run.error or {})["code"]) == ("failed", "unknown_execution")
    operation = await bench.operation(run.run_id)
    assert operation.state == "unknown"
    settled = await bench.resolve(operation, "submitted", {"id": "found"})
    assert settled.state == "submitted"
    assert await bench.status(run.run_id) == "failed"
    assert await bench.drain() == 0


# ---- changed requests --------------------------------------------------------------------------


async def test_a_request_that_changed_between_attempts_sends_nothing(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P2: the id stands for the first request; another one under it is `CodeChanged`."""
    provider = Provider()
    app = shop(provider)

    @app.run("changes", retry_first="1m")
    async def changes(ctx: Context, value: int) -> Any:
        order = Order(number=ctx.attempt)
        return await ctx.operation("pay", app.effects["test.hold"], order)

    bench = make_bench(app)
    provider.is_not_reached()
    run_id = (await bench.done("changes", 1)).run_id
    await clock.advance(minutes=1)
    await bench.drain()
    run = await bench.find(run_id)
    assert (run.error or {})["code"] == "code_changed"
    assert "nothing was sent" in (run.error or {})["detail"]
    assert len(provider.calls) == 1


async def test_a_changed_request_does_not_get_the_receipt_of_the_first_one(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P2."""
    provider = Provider()
    app = shop(provider)

    @app.run("changes", retry_first="1m")
    async def changes(ctx: Context, value: int) -> Any:
        order = Order(number=ctx.attempt)
        receipt = await ctx.operation("pay", app.effects["test.hold"], order)
        fails_once(ctx)
        return receipt

    bench = make_bench(app)
    run_id = (await bench.done("changes", 1)).run_id
    await clock.advance(minutes=1)
    await bench.drain()
    run = await bench.find(run_id)
    assert (run.error or {})["code"] == "code_changed"
    assert len(provider.calls) == 1


@pytest.mark.parametrize("sent_before", [True, False])
async def test_another_effect_under_the_same_name_sends_nothing_and_gets_no_receipt(
    make_bench: MakeBench, clock: ManualClock, sent_before: bool
) -> None:
    """P2: the intent is of its effect too, although the request is the same."""
    provider = Provider()
    app = shop(provider)

    @app.run("changes", retry_first="1m")
    async def changes(ctx: Context, value: int) -> Any:
        kind = "test.hold" if ctx.attempt == 1 else "test.passing"
        receipt = await ctx.operation("pay", app.effects[kind], Order(number=1))
        fails_once(ctx)
        return receipt

    bench = make_bench(app)
    if not sent_before:
        provider.is_not_reached()
    run_id = (await bench.done("changes", 1)).run_id
    await clock.advance(minutes=1)
    await bench.drain()
    run = await bench.find(run_id)
    assert (run.error or {})["code"] == "code_changed"
    assert len(provider.calls) == 1


async def test_a_stored_receipt_that_no_longer_fits_its_effect_is_told_as_changed_code(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P2: one clear line, and nothing is sent again."""
    provider = Provider()
    app = shop(provider)

    @app.run("changes", retry_first="1m")
    async def changes(ctx: Context, value: int) -> Any:
        receipt = await ctx.operation("pay", app.effects["test.hold"], Order(number=17))
        fails_once(ctx)
        return receipt

    bench = make_bench(app)
    run_id = (await bench.done("changes", 1)).run_id
    await bench.execute("UPDATE operation SET receipt = '{\"older\": true}'")
    await clock.advance(minutes=1)
    await bench.drain()
    run = await bench.find(run_id)
    assert (run.error or {})["code"] == "code_changed"
    assert "the receipt of operation 'pay' no longer fits test.hold" in (run.error or {})["detail"]
    assert len(provider.calls) == 1


async def test_what_was_done_is_found_done_by_every_later_attempt(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P2."""
    provider = Provider()
    app = shop(provider)

    @app.run("fails later", retry_first="0s")
    async def fails_later(ctx: Context, value: int) -> Any:
        receipt = await ctx.operation("pay", app.effects["test.hold"], Order(number=17))
        fails_once(ctx)
        return receipt

    run = await make_bench(app).done("fails later", 1)
    assert run.output == {"id": f"receipt of {provider.done[0]}"}
    assert len(provider.done) == 1


async def test_operations_of_one_name_are_told_apart_by_their_order(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P2: `pay`, `pay#2`, with ids of their own that every attempt finds again."""
    provider = Provider()
    app = shop(provider)

    @app.run("pays twice", retry_first="0s")
    async def pays_twice(ctx: Context, value: int) -> None:
        for number in (1, 2):
            await ctx.operation("pay", app.effects["test.hold"], Order(number=number))
        fails_once(ctx)

    bench = make_bench(app)
    run = await bench.done("pays twice", 1)
    names = {operation.name for operation in await bench.operations(run.run_id)}
    assert names == {"pay", "pay#2"}
    assert len(set(provider.done)) == len(provider.done) == 2


async def test_parallel_operations_of_one_name_need_keys_and_nothing_is_sent_without(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P2."""
    provider = Provider()
    gate = provider.holds()
    app = shop(provider)

    @app.run("pays beside", max_attempts=1)
    async def pays_beside(ctx: Context, keys: list[str | None]) -> None:
        effect = app.effects["test.hold"]
        async with asyncio.TaskGroup() as group:
            for number, key in enumerate(keys):
                order = Order(number=number)
                group.create_task(ctx.operation("pay", effect, order, key=key))
            gate.open()

    bench = make_bench(app)
    refused = await bench.done("pays beside", [None, None])
    assert (refused.error or {})["code"] == "name_needed"
    provider.done.clear()
    good = await bench.done("pays beside", ["a", "b"])
    assert good.status == "succeeded"
    names = {operation.name for operation in await bench.operations(good.run_id)}
    assert names == {"pay#a", "pay#b"}
    assert len(set(provider.done)) == 2


async def test_a_request_that_does_not_fit_the_effect_reserves_nothing(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P1: one clear line."""
    provider = Provider()
    app = shop(provider)

    @app.run("wrong", max_attempts=1)
    async def wrong(ctx: Context, value: int) -> None:
        await ctx.operation("pay", app.effects["test.hold"], {"number": "many"})

    bench = make_bench(app)
    run = await bench.done("wrong", 1)
    assert (run.error or {})["code"] == "invalid_request"
    assert "the request does not fit test.hold" in (run.error or {})["detail"]
    assert await bench.operations(run.run_id) == []
