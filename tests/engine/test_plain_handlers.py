"""Handlers that are plain functions: the same verbs, from a thread of their own."""

from __future__ import annotations

import asyncio
import inspect
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from earnest import Context, Failed, PlainContext
from earnest.domain.errors import FencedOut
from earnest.testing.clock import ManualClock
from tests.engine.conftest import MakeBench
from tests.engine.handlers import fails_once, plain_work
from tests.engine.provider import Hold, Order, Provider


async def test_a_plain_handler_has_every_verb(make_bench: MakeBench, clock: ManualClock) -> None:
    """P5: and each is remembered as for other handlers."""
    provider, calls = Provider(), list[int]()
    pay = Hold(provider)

    def add(value: int) -> int:
        calls.append(value)
        return value + 1

    def handler(ctx: PlainContext) -> Any:
        found = ctx.step("add", add, 1)
        ctx.emit("it.happened", {"found": found})
        ctx.progress(1, 2)
        receipt = ctx.operation("pay", pay, Order(number=17))
        child = ctx.run(app.kinds["child"], 5)
        ctx.sleep("1m")
        said = ctx.wait_signal("go")
        fails_once(ctx)
        return [found, receipt.id[:7], child, said, ctx.labels, ctx.cancelled]

    app = plain_work(handler, max_attempts=2)

    @app.run("child")
    async def child(ctx: Context, value: int) -> int:
        return value * 2

    bench = make_bench(app)
    run_id = (await bench.done("work", labels={"order": "17"})).run_id
    assert await bench.status(run_id) == "waiting"
    await clock.advance(minutes=1)
    await bench.drain()
    await bench.signal(run_id, "go", "now")
    await bench.drain()
    run = await bench.find(run_id)
    assert run.output == [2, "receipt", 10, "now", {"order": "17"}, False]
    assert (calls, len(provider.done)) == ([1], 1)


def test_a_plain_handler_lacks_no_verb_and_no_fact_of_the_other_context() -> None:
    """P5: one set of verbs, with and without `await`."""
    of_the_engine = {"engine", "claimed", "lease", "rememberer"}
    of_the_engine |= {"close", "finish_calls", "flush_text"}
    public = {name for name in vars(Context) if not name.startswith("_")} - of_the_engine
    assert public <= set(dir(PlainContext))
    for name in public:
        verb = getattr(Context, name)
        if inspect.isfunction(verb):
            own = inspect.signature(getattr(PlainContext, name))
            assert list(own.parameters) == list(inspect.signature(verb).parameters), name


async def test_threads_with_keys_find_their_own_results(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P5."""
    calls: list[str] = []

    def part(name: str) -> str:
        calls.append(name)
        return name * 2

    def handler(ctx: PlainContext) -> list[str]:
        order = ("a", "b") if ctx.attempt == 1 else ("b", "a")
        with ThreadPoolExecutor() as pool:
            found = pool.map(lambda key: ctx.keyed_step("part", key, part, key), order)
        fails_once(ctx)
        return [*found, str(ctx.submitted_context)]

    bench = make_bench(plain_work(handler))
    run = await bench.done("work", context={"by": "mail"})
    assert run.output == ["bb", "aa", "{'by': 'mail'}"]
    assert sorted(calls) == ["a", "b"]


async def test_a_plain_handler_runs_beside_the_event_loop(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P17: two that wait for each other both end, so neither holds up the loop."""
    both = threading.Barrier(2)

    def handler(ctx: PlainContext) -> int:
        return both.wait(10) * 0

    bench = make_bench(plain_work(handler))
    first, second = await bench.submit("work"), await bench.submit("work")
    await bench.drain()
    assert [await bench.status(run) for run in (first, second)] == ["succeeded"] * 2


async def test_what_a_plain_handler_raises_is_told_as_of_any_other(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P22: `Failed` is for good, anything else is tried again."""

    def handler(ctx: PlainContext) -> None:
        fails_once(ctx)
        raise Failed("for good")

    run = await make_bench(plain_work(handler)).done("work")
    assert (run.status, run.failures) == ("failed", 2)
    assert run.error == {"code": "failed", "detail": "for good"}


async def test_threads_of_one_handler_that_repeat_a_name_need_keys(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P5: also when the one has just got its result, since next time it may be the later one."""

    def handler(ctx: PlainContext) -> str:
        done, ended = threading.Event(), threading.Event()

        def other() -> None:
            ctx.step("part", int)
            done.set()
            ended.wait(10)

        with ThreadPoolExecutor() as pool:
            pool.submit(other)
            done.wait(10)
            try:
                ctx.step("part", int)
            finally:
                ended.set()
        return "not told"

    run = await make_bench(plain_work(handler, max_attempts=1)).done("work")
    assert (run.error or {}).get("code") == "name_needed"


async def test_one_thread_after_the_other_may_repeat_a_name(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P5: what is sequential needs no key."""

    def handler(ctx: PlainContext) -> list[int]:
        found = list[int]()
        thread = threading.Thread(target=lambda: found.append(ctx.step("part", int)))
        thread.start()
        thread.join()
        return [*found, ctx.step("part", int)]

    run = await make_bench(plain_work(handler, max_attempts=1)).done("work")
    assert (run.error, run.output) == (None, [0, 0])


class Stuck:
    """A plain handler that is in the middle of its own work when it is stopped."""

    def __init__(self) -> None:
        self.inside, self.go_on = threading.Event(), threading.Event()
        self.raised: list[BaseException] = []
        self.ended = threading.Event()
        self.saw_cancelled = False

    def handler(self, ctx: PlainContext) -> None:
        self.inside.set()
        self.go_on.wait(10)
        self.saw_cancelled = ctx.cancelled
        try:
            ctx.step("late", int)
        except BaseException as error:
            self.raised.append(error)
        finally:
            self.ended.set()


async def test_a_plain_handler_that_is_cancelled_writes_nothing_any_more(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P5, P20: a thread cannot be ended from outside; what it does later is refused."""
    stuck = Stuck()
    bench = make_bench(plain_work(stuck.handler))
    async with bench.at_work():
        run_id = await bench.submit("work")
        await wait_in_thread(stuck.inside)
        assert (await bench.cancel(run_id)).outcome == "requested"
        await bench.until(run_id, "cancelled")
    events = await bench.told(run_id)
    stuck.go_on.set()
    await wait_in_thread(stuck.ended)
    assert stuck.saw_cancelled
    assert [type(error) for error in stuck.raised] == [FencedOut]
    assert await bench.told(run_id) == events


async def wait_in_thread(event: threading.Event) -> None:
    assert await asyncio.to_thread(event.wait, 10)
