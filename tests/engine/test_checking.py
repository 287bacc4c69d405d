"""New code against runs in flight: what is said of them is what then happens to them."""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from pydantic import BaseModel

import earnest
from earnest import App, Context, Failed, NotSent, PlainContext, Refused, SignalTimedOut
from earnest.domain.errors import SettingInvalid
from earnest.domain.run import RunStatus
from earnest.engine.inspection import checking
from earnest.engine.inspection.checking import Asked, Checked
from earnest.engine.inspection.replaying import HistoryEnds
from earnest.engine.process import binding
from earnest.engine.process.engine import Engine
from earnest.testing.clock import ManualClock
from tests.engine.bench import Bench
from tests.engine.conftest import MakeBench
from tests.engine.handlers import plain_work, work
from tests.engine.provider import Gate, Hold, Order, Provider, shop

Handler = Callable[[Context], Awaitable[Any]]


async def say(word: str) -> str:
    return word


async def sleep_first(ctx: Context) -> str:
    """Two steps, a wait, and a third one."""
    await ctx.step("price", say, "20")
    await ctx.step("stock", say, "7")
    await ctx.wait_signal("go")
    return await ctx.step("ship", say, "sent")


async def check(engine: Engine, **asked: Any) -> list[Checked]:
    told = Asked(**{"seconds": 2.0, **asked})
    runs = await checking.list_runs(engine, told)
    return [one async for one in checking.check(engine, runs, told) if one is not None]


async def check_one(engine: Engine, **asked: Any) -> Checked:
    (found,) = await check(engine, **asked)
    return found


async def error_of(bench: Bench, run_id: uuid.UUID) -> str:
    error = (await bench.find(run_id)).error
    assert error is not None
    return str(error["code"])


# ---- runs that wait, and what is made of their handler ------------------------------------------


async def unchanged_with_more_behind(ctx: Context) -> str:
    await sleep_first(ctx)
    return await ctx.step("mail", say, "told")


async def other_argument(ctx: Context) -> str:
    await ctx.step("price", say, "25")
    await ctx.step("stock", say, "7")
    await ctx.wait_signal("go")
    return "done"


async def renamed(ctx: Context) -> str:
    await ctx.step("price", say, "20")
    await ctx.step("in stock", say, "7")
    await ctx.wait_signal("go")
    return "done"


async def put_between(ctx: Context) -> str:
    await ctx.step("price", say, "20")
    await ctx.step("fraud", say, "none")
    await ctx.step("stock", say, "7")
    await ctx.wait_signal("go")
    return "done"


async def left_out(ctx: Context) -> str:
    await ctx.step("price", say, "20")
    return "done"


async def fails_between(ctx: Context) -> str:
    await ctx.step("price", say, "20")
    raise KeyError("amount")


async def fails_at_the_end(ctx: Context) -> str:
    await ctx.step("price", say, "20")
    await ctx.step("stock", say, "7")
    raise KeyError("amount")


async def gives_up(ctx: Context) -> str:
    await ctx.step("price", say, "20")
    await ctx.step("stock", say, "7")
    raise Failed("we ship no more")


async def other_type(ctx: Context) -> str:
    await ctx.step("price", say_list, "20")
    return "done"


async def say_list(word: str) -> list[int]:
    return [int(word)]


async def other_wait(ctx: Context) -> str:
    await ctx.step("price", say, "20")
    await ctx.step("stock", say, "7")
    await ctx.sleep("1h")
    await ctx.wait_signal("go")
    return await ctx.step("ship", say, "sent")


async def other_signal(ctx: Context) -> str:
    await ctx.step("price", say, "20")
    await ctx.step("stock", say, "7")
    await ctx.wait_signal("stop")
    return "done"


async def other_signal_in_time(ctx: Context) -> str:
    await ctx.step("price", say, "20")
    await ctx.step("stock", say, "7")
    await ctx.wait_signal("stop", timeout="1h")
    return "done"


async def same_signal_in_time(ctx: Context) -> str:
    await ctx.step("price", say, "20")
    await ctx.step("stock", say, "7")
    await ctx.wait_signal("go", timeout="1h")
    return "done"


async def result_that_cannot_be_stored(ctx: Context) -> Any:
    await ctx.step("price", say, "20")
    await ctx.step("stock", say, "7")
    return object()


async def catches_it(ctx: Context) -> str:
    try:
        await ctx.step("price", say, "25")
    except earnest.CodeChanged:
        await ctx.step("stock", say, "7")
    await ctx.wait_signal("go")
    return "done"


@pytest.mark.parametrize(
    ("new", "verdict", "code", "then"),
    [
        (sleep_first, "fits", "", "succeeded"),
        (unchanged_with_more_behind, "fits", "", "succeeded"),
        (catches_it, "fits", "", "succeeded"),
        (other_wait, "fits", "", "waiting"),
        (other_signal, "unclear", "waits_elsewhere", "waiting"),
        (other_signal_in_time, "unclear", "waits_elsewhere", "waiting"),
        (same_signal_in_time, "fits", "", "succeeded"),
        (gives_up, "fits", "", "failed"),
        (other_argument, "breaks", "code_changed", "failed"),
        (other_type, "breaks", "code_changed", "failed"),
        (fails_between, "breaks", "handler_failed", "failed"),
        (fails_at_the_end, "breaks", "handler_failed", "failed"),
        (result_that_cannot_be_stored, "breaks", "result_invalid", "failed"),
        (renamed, "unclear", "left_behind", "succeeded"),
        (put_between, "unclear", "left_behind", "succeeded"),
        (left_out, "fits", "", "succeeded"),
    ],
)
async def test_what_is_said_of_a_parked_run_is_what_happens_then(
    make_bench: MakeBench, new: Handler, verdict: str, code: str, then: str
) -> None:
    old = make_bench(work(sleep_first))
    run = await old.done("work")
    assert run.status is RunStatus.WAITING
    bench = make_bench(work(new, max_attempts=1))
    found = await check_one(bench.engine)
    assert (found.verdict, found.code) == (verdict, code), found.detail
    assert (found.run_id, found.kind, found.status) == (run.run_id, "work", "waiting")
    await old.execute("UPDATE execution SET max_attempts = 1")
    await bench.signal(run.run_id, "go")
    await bench.drain()
    ended = await bench.find(run.run_id)
    assert ended.status == then, ended.error
    if verdict == "breaks":
        assert await error_of(bench, run.run_id) == code


async def test_a_changed_event_or_sleep_is_told_as_its_author_wrote_it(
    make_bench: MakeBench,
) -> None:
    async def old(ctx: Context) -> None:
        await ctx.emit("order.priced", {"price": 20})
        await ctx.sleep("1h")

    async def other_event(ctx: Context) -> None:
        await ctx.emit("order.priced", {"price": 21})

    async def other_sleep(ctx: Context) -> None:
        await ctx.emit("order.priced", {"price": 20})
        await ctx.sleep("2h")

    await make_bench(work(old)).done("work")
    for changed, named in ((other_event, "emit 'order.priced'"), (other_sleep, "sleep")):
        found = await check_one(make_bench(work(changed)).engine)
        assert (found.verdict, found.code) == ("breaks", "code_changed")
        assert found.detail.startswith(f"{named} was called with other arguments")
        assert "#" not in found.detail


async def test_a_check_changes_nothing_and_repeats_no_step(make_bench: MakeBench) -> None:
    tries: list[str] = []

    async def noted(word: str) -> str:
        tries.append(word)
        return word

    async def handler(ctx: Context) -> str:
        await ctx.step("price", noted, "20")
        await ctx.emit("order.priced", {"price": 20})
        await ctx.progress(1, 2)
        await ctx.text("it costs 20")
        await ctx.wait_signal("go")
        await ctx.progress(2, 2)
        await ctx.text("it goes")
        await ctx.emit("order.gone", {})
        return await ctx.step("ship", noted, "sent")

    bench = make_bench(work(handler))
    run = await bench.done("work")
    await bench.signal(run.run_id, "go")
    before = await everything(bench)
    found = await check_one(bench.engine)
    assert (found.verdict, found.detail) == ("fits", "its record ends at emit 'order.gone'")
    assert await everything(bench) == before
    assert tries == ["20"]


async def everything(bench: Bench) -> list[Any]:
    tables = (
        "run",
        "execution",
        "step",
        "event",
        "operation",
        "signal",
        "past_attempt",
        "instance",
        "text_delta",
    )
    return [
        await bench.value(f"SELECT array_agg(t::text ORDER BY t::text) FROM {table} AS t")
        for table in tables
    ]


# ---- operations ----------------------------------------------------------------------------------


def buys(provider: Provider, name: str = "payment", amount: str = "20.00") -> App:
    """Pays, waits, and ends."""

    async def handler(ctx: Context) -> Any:
        receipt = await ctx.operation(name, Hold, Order(number=17, amount=amount))
        await ctx.wait_signal("go")
        return receipt

    app = work(handler)
    app.effects.update(shop(provider).effects)
    return app


async def test_a_paid_operation_is_found_again_and_not_called(make_bench: MakeBench) -> None:
    provider = Provider()
    run = await make_bench(buys(provider)).done("work")
    assert run.status == "waiting"
    bench = make_bench(buys(provider))
    found = await check_one(bench.engine)
    assert (found.verdict, found.detail) == ("fits", "its record ends at a wait for signal 'go'")
    assert len(provider.done) == 1


async def test_a_renamed_operation_is_told_before_it_is_paid_twice(make_bench: MakeBench) -> None:
    provider = Provider()
    run = await make_bench(buys(provider)).done("work")
    bench = make_bench(buys(provider, name="refund"))
    found = await check_one(bench.engine)
    assert (found.verdict, found.code) == ("unclear", "left_behind")
    assert "operation 'refund'" in found.detail
    assert "operation 'payment' (submitted)" in found.detail
    assert len(provider.done) == 1
    await bench.signal(run.run_id, "go")
    await bench.drain()
    assert len(provider.done) == 2


async def test_a_payment_that_new_code_does_not_ask_for_is_told(make_bench: MakeBench) -> None:
    """It has been paid, and the run would end as if it had not."""

    async def pays_nothing(ctx: Context) -> None:
        return None

    provider = Provider()
    await make_bench(buys(provider)).done("work")
    found = await check_one(make_bench(work(pays_nothing)).engine)
    assert (found.verdict, found.code) == ("unclear", "left_behind")
    assert "operation 'payment' (submitted)" in found.detail


async def test_another_request_breaks_and_is_not_sent(make_bench: MakeBench) -> None:
    provider = Provider()
    run = await make_bench(buys(provider)).done("work")
    bench = make_bench(buys(provider, amount="25.00"))
    found = await check_one(bench.engine)
    assert (found.verdict, found.code) == ("breaks", "code_changed")
    assert "operation 'payment' was asked for with another request" in found.detail
    await bench.signal(run.run_id, "go")
    await bench.drain()
    assert await error_of(bench, run.run_id) == "code_changed"
    assert len(provider.done) == 1


async def test_a_run_in_doubt_is_followed_to_its_doubt(make_bench: MakeBench) -> None:
    provider = Provider()
    provider.drops(does=True)
    run = await make_bench(buys(provider)).done("work")
    assert run.status == "unknown"
    found = await check_one(make_bench(buys(provider)).engine)
    assert (found.verdict, found.status) == ("fits", "unknown")
    assert found.detail == "its record ends at operation 'payment' (unknown)"
    changed = await check_one(make_bench(buys(provider, amount="1.00")).engine)
    assert (changed.verdict, changed.code) == ("breaks", "code_changed")


async def test_a_remembered_refusal_is_answered_as_it_was(make_bench: MakeBench) -> None:
    async def handler(ctx: Context) -> str:
        try:
            await ctx.operation("payment", Hold, Order(number=17))
        except Refused as refusal:
            await ctx.step("note", say, refusal.detail)
        await ctx.wait_signal("go")
        return "done"

    provider = Provider()
    provider.refuses()
    app = work(handler)
    app.effects.update(shop(provider).effects)
    bench = make_bench(app)
    await bench.done("work")
    found = await check_one(bench.engine)
    assert (found.verdict, found.detail) == ("fits", "its record ends at a wait for signal 'go'")


async def test_what_an_attempt_did_after_a_call_that_failed_is_not_missed(
    make_bench: MakeBench,
) -> None:
    """The call was not sent, the handler went on, and the next attempt begins with the call."""

    async def handler(ctx: Context) -> str:
        try:
            await ctx.operation("payment", Hold, Order(number=17))
        except NotSent:
            await ctx.step("note", say, "later")
        await ctx.wait_signal("go")
        return "done"

    provider = Provider()
    provider.is_not_reached()
    app = work(handler)
    app.effects.update(shop(provider).effects)
    bench = make_bench(app)
    await bench.done("work")
    found = await check_one(bench.engine)
    assert (found.verdict, found.detail) == (
        "fits", "its record ends at operation 'payment' (released)"
    )  # fmt: skip


# ---- children, timers, signals -------------------------------------------------------------------


def family(value: int = 1, *, waits: bool = True) -> App:
    app = App("family")

    @app.run("child")
    async def child(ctx: Context, value: int) -> int:
        return int(await ctx.wait_signal("go"))

    @app.run("parent", retry_first="0s")
    async def parent(ctx: Context, _: None) -> int:
        found = await ctx.run(child, value)
        if waits:
            await ctx.sleep("1h")
        return found

    return app


async def test_a_parent_is_followed_to_the_child_it_waits_for(make_bench: MakeBench) -> None:
    bench = make_bench(family())
    await bench.done("parent")
    by_kind = {found.kind: found for found in await check(make_bench(family()).engine)}
    assert by_kind["parent"].detail == "its record ends at a wait for children"
    assert by_kind["child"].detail == "its record ends at a wait for signal 'go'"


async def test_a_child_with_another_input_breaks(make_bench: MakeBench) -> None:
    await make_bench(family()).done("parent")
    bench = make_bench(family(2))
    found = await check(bench.engine, kinds=["parent"])
    assert [(one.kind, one.code) for one in found] == [("parent", "code_changed")]
    assert "child 'child' was submitted with another kind or input" in found[0].detail


async def test_the_output_of_a_child_and_the_time_it_sleeps_are_found_again(
    make_bench: MakeBench,
) -> None:
    bench = make_bench(family())
    run = await bench.done("parent")
    child = await bench.value("SELECT run_id FROM run WHERE kind = 'child'")
    await bench.signal(child, "go", 7)
    await bench.drain()
    assert (await bench.told(run.run_id))[-1] == "run.waiting"
    found = await check_one(make_bench(family()).engine)
    assert (found.verdict, found.detail) == ("fits", "its record ends at a wait for time")
    awake = await check_one(make_bench(family(waits=False)).engine)
    assert (awake.verdict, awake.detail) == ("fits", "its handler ends")


async def test_a_signal_that_came_too_late_stays_so(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    async def handler(ctx: Context) -> str:
        try:
            await ctx.wait_signal("paid", timeout="1h")
        except SignalTimedOut:
            await ctx.step("remind", say, "please pay")
        return str(await ctx.wait_signal("paid"))

    bench = make_bench(work(handler))
    run = await bench.done("work")
    await clock.advance(hours=2)
    await bench.drain()
    assert await bench.value("SELECT count(*) FROM step WHERE name = 'remind'") == 1
    found = await check_one(bench.engine)
    assert (found.verdict, found.detail) == ("fits", "its record ends at a wait for signal 'paid'")
    await bench.signal(run.run_id, "paid", 17)
    await bench.drain()
    assert (await bench.find(run.run_id)).output == "17"


# ---- branches ------------------------------------------------------------------------------------


def branches(word: str) -> Handler:
    async def handler(ctx: Context) -> Any:
        async def one() -> str:
            await ctx.step("first", say, "1")
            return str(await ctx.wait_signal("go"))

        async def other() -> str:
            await asyncio.sleep(0)
            await ctx.step("second", say, word)
            await ctx.step("third", say, "3")
            return str(await ctx.wait_signal("on"))

        return await asyncio.gather(one(), other())

    return handler


async def test_each_branch_is_followed_to_its_own_end(make_bench: MakeBench) -> None:
    """A branch that waits does not hide what another one would meet."""

    async def recorded(ctx: Context) -> Any:
        await ctx.step("first", say, "1")
        await ctx.step("second", say, "2")
        await ctx.step("third", say, "3")
        await ctx.wait_signal("go")

    await make_bench(work(recorded)).done("work")
    same = await check_one(make_bench(work(branches("2"))).engine)
    assert same.verdict == "fits", same.detail
    assert same.detail == "its record ends at a wait for signal 'go', a wait for signal 'on'"
    changed = await check_one(make_bench(work(branches("two"))).engine)
    assert (changed.verdict, changed.code) == ("breaks", "code_changed")


# ---- plain handlers ------------------------------------------------------------------------------


def plain(word: str) -> Callable[[PlainContext], Any]:
    def handler(ctx: PlainContext) -> str:
        ctx.step("price", str.upper, word)
        ctx.wait_signal("go")
        return str(ctx.step("ship", str.upper, "sent"))

    return handler


@pytest.mark.parametrize(("word", "verdict"), [("twenty", "fits"), ("ten", "breaks")])
async def test_plain_handlers_are_checked_as_well(
    make_bench: MakeBench, word: str, verdict: str
) -> None:
    run = await make_bench(plain_work(plain("twenty"))).done("work")
    bench = make_bench(plain_work(plain(word)))
    found = await check_one(bench.engine)
    assert found.verdict == verdict, found.detail
    await bench.signal(run.run_id, "go")
    await bench.drain()
    assert (await bench.find(run.run_id)).status == ("succeeded" if verdict == "fits" else "failed")


# ---- inputs and kinds ----------------------------------------------------------------------------


def takes(input_type: Any) -> App:
    app = App("takes")

    async def handler(ctx: Context, value: Any) -> Any:
        await ctx.wait_signal("go")

    handler.__annotations__["value"] = input_type
    app.run("takes", retry_first="0s", max_attempts=1)(handler)
    return app


class Small(BaseModel):
    number: int


class Larger(BaseModel):
    number: int
    currency: str


@pytest.mark.parametrize("attempted", [True, False])
async def test_an_input_that_no_longer_fits_breaks_the_run(
    make_bench: MakeBench, attempted: bool
) -> None:
    old = make_bench(takes(Small))
    run_id = await old.submit("takes", {"number": 17})
    if attempted:
        await old.drain()
    fits = await check_one(make_bench(takes(Small)).engine)
    assert fits.verdict == "fits"
    bench = make_bench(takes(Larger))
    found = await check_one(bench.engine)
    assert (found.verdict, found.code) == ("breaks", "code_changed")
    assert "/input/currency" in found.detail
    if attempted:
        await bench.signal(run_id, "go")
    await bench.drain()
    assert await error_of(bench, run_id) == "code_changed"


async def test_a_kind_that_is_gone_breaks_its_runs_unless_it_is_anothers(
    make_bench: MakeBench,
) -> None:
    await make_bench(work(sleep_first)).done("work")
    bench = make_bench(App("other"))
    found = await check_one(bench.engine)
    assert (found.verdict, found.code) == ("breaks", "unknown_kind")
    assert "'work'" in found.detail
    assert await check(bench.engine, known_only=True) == []


# ---- failures ------------------------------------------------------------------------------------


async def test_a_run_that_fails_as_it_did_before_is_not_broken_by_the_new_code(
    make_bench: MakeBench,
) -> None:
    """The same code says so of its own runs that wait for their next attempt."""

    async def handler(ctx: Context) -> None:
        await ctx.step("price", say, "20")
        raise RuntimeError("the bank is closed")

    bench = make_bench(work(handler, retry_first="1h"))
    run = await bench.done("work")
    assert (run.status, run.attempt) == ("queued", 1)
    found = await check_one(bench.engine)
    assert (found.verdict, found.status) == ("fits", "queued")
    assert found.detail == "it fails as its last attempt did: RuntimeError: the bank is closed"


async def test_a_run_that_is_being_worked_on_is_checked_where_it_stands(
    make_bench: MakeBench,
) -> None:
    """As if its worker were lost now: the next attempt goes on after the last fact."""
    gate = Gate()

    async def slow(word: str) -> str:
        await gate.pass_through()
        return word

    async def handler(ctx: Context) -> None:
        await ctx.step("price", say, "20")
        await ctx.step("stock", slow, "7")

    old = make_bench(work(handler))
    await old.submit("work")
    task = asyncio.create_task(old.drain())
    await gate.reached()
    fits = await check_one(make_bench(work(sleep_first)).engine)
    assert (fits.status, fits.verdict) == ("running", "fits")
    assert fits.detail == "its record ends at step 'stock'"
    changed = await check_one(make_bench(work(other_argument)).engine)
    assert (changed.verdict, changed.code) == ("breaks", "code_changed")
    gate.open()
    await task


# ---- handlers that do not end, or look elsewhere -------------------------------------------------


async def test_a_handler_that_takes_too_long_is_left_and_the_next_one_is_checked(
    make_bench: MakeBench,
) -> None:
    """One waits for ever, one blocks its event loop for longer than it gets."""
    free = threading.Event()

    async def waits(ctx: Context) -> None:
        await asyncio.Event().wait()

    async def blocks(ctx: Context) -> None:
        free.wait(20)

    app = App("slow")
    old = App("slow")
    for name, handler in {"blocks": blocks, "fits": sleep_first, "waits": waits}.items():
        app.run(name)(with_input(handler))
        old.run(name)(with_input(sleep_first))
    bench = make_bench(old)
    for name in old.kinds:
        await bench.submit(name)
    await bench.drain()
    found = await check(make_bench(app).engine, seconds=0.2)
    free.set()
    assert {one.kind: (one.verdict, one.code) for one in found} == {
        "blocks": ("unclear", "too_long"),
        "fits": ("fits", ""),
        "waits": ("unclear", "too_long"),
    }


def with_input(handler: Handler) -> Any:
    async def take(ctx: Context, _: Any) -> Any:
        return await handler(ctx)

    return take


async def test_what_a_handler_asks_of_the_engine_beside_its_context_is_not_done(
    make_bench: MakeBench,
) -> None:
    """A run that it submits by the app, an operation standing alone: neither is made by a check."""
    provider = Provider()
    app = shop(provider)

    @app.run("work")
    async def by_the_app(ctx: Context, how: str) -> None:
        await ctx.step("price", say, "20")
        if how == "submit":
            await app.submit(app.kinds["work"], "submit")
        else:
            async with earnest.operation("order-17", Hold, Order(number=17)):
                pass

    old = App("old")

    @old.run("work")
    async def parks(ctx: Context, how: str) -> None:
        await ctx.step("price", say, "20")
        await ctx.wait_signal("go")

    bench = make_bench(old)
    for how in ("submit", "operation"):
        await bench.submit("work", how)
    await bench.drain()
    found = await check(make_bench(app).engine)
    assert [(one.verdict, one.detail) for one in found] == [
        ("fits", "its record ends at the database")
    ] * 2
    assert await bench.value("SELECT count(*) FROM run") == 2
    assert provider.done == []


Asks = Callable[[PlainContext], Any]


def by_ways(app: App, database_url: str) -> dict[str, Asks]:
    """How a plain handler can reach Earnest without its context; each would really do it."""
    blocking = earnest.blocking(app, database_url=database_url)

    def submit() -> str:
        return blocking.submit(app.kinds["work"], "again")

    def operation() -> None:
        with blocking.operation("order-17", Hold, Order(number=17)):
            pass

    def in_a_thread(work: Callable[[], object]) -> None:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()

    async def opened() -> None:
        async with earnest.open(app, database_url=database_url):
            await app.submit(app.kinds["work"], "again")

    return {
        "submit": lambda _: submit(),
        "operation": lambda _: operation(),
        "thread": lambda _: in_a_thread(operation),
        "to_thread": lambda _: asyncio.run(asyncio.to_thread(submit)),
        "open": lambda _: in_a_thread(lambda: asyncio.run(opened())),
    }


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("way", ["submit", "operation", "thread", "to_thread", "open"])
async def test_a_process_that_only_checks_does_nothing_in_any_of_its_threads(
    make_bench: MakeBench, database_url: str, way: str
) -> None:
    provider = Provider()
    app = shop(provider)

    @app.run("work")
    def reaches_around(ctx: PlainContext, _: Any) -> None:
        tried.append(way)
        ways[way](ctx)

    async def waits(ctx: Context) -> None:
        await ctx.wait_signal("go")

    tried: list[str] = []
    ways = by_ways(app, database_url)
    bench = make_bench(work(waits))
    await bench.done("work")
    with checking.alone():
        found = await check_one(make_bench(app).engine)
    assert tried == [way]
    assert found.verdict == "fits", found.detail
    assert await bench.value("SELECT count(*) FROM run") == 1
    assert await bench.value("SELECT count(*) FROM operation") == 0
    assert provider.done == []


async def test_what_was_opened_before_is_not_used_while_a_process_only_checks(
    database_url: str,
) -> None:
    app = work(sleep_first)
    async with earnest.open(app, database_url=database_url):
        with checking.alone(), pytest.raises(HistoryEnds):
            await app.submit(app.kinds["work"], "again")
        assert await app.submit(app.kinds["work"], "again")


# ---- which runs ----------------------------------------------------------------------------------


async def test_runs_that_will_not_be_attempted_again_are_not_checked(make_bench: MakeBench) -> None:
    bench = make_bench(work(sleep_first))
    ended = await bench.done("work")
    await bench.signal(ended.run_id, "go")
    await bench.drain()
    stopped = await bench.done("work")
    await bench.cancel(stopped.run_id)
    assert await check(bench.engine) == []


async def test_a_part_of_many_is_checked_and_it_is_the_same_part(make_bench: MakeBench) -> None:
    bench = make_bench(work(sleep_first))
    for _ in range(40):
        await bench.submit("work")
    assert len(await check(bench.engine)) == 40
    assert len(await check(bench.engine, limit=7)) == 7
    some = {one.run_id for one in await check(bench.engine, percent=50)}
    assert 5 < len(some) < 35
    assert {one.run_id for one in await check(bench.engine, percent=50)} == some


async def test_a_run_that_ends_while_others_are_checked_is_left_out(make_bench: MakeBench) -> None:
    bench = make_bench(work(sleep_first))
    run = await bench.done("work")
    asked = Asked()
    listed = await checking.list_runs(bench.engine, asked)
    await bench.cancel(run.run_id)
    assert [one async for one in checking.check(bench.engine, listed, asked)] == [None]


async def test_what_acts_through_the_process_meanwhile_does_not_act_on_nothing(
    make_bench: MakeBench,
) -> None:
    """A program may check while it works."""

    async def looks(ctx: Context) -> str:
        await ctx.step("price", say, "20")
        begun.set()
        await asyncio.to_thread(go_on.wait)
        return "done"

    begun, go_on = threading.Event(), threading.Event()
    await make_bench(work(sleep_first)).done("work")
    replaced = make_bench(work(looks))
    checked = asyncio.create_task(check_one(replaced.engine))
    await asyncio.to_thread(begun.wait)
    try:
        with pytest.raises(SettingInvalid, match="not open in this process"):
            binding.current()
    finally:
        go_on.set()
    await checked
