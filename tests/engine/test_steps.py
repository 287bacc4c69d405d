"""Steps: named results that a later attempt finds and does not make again."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import pytest
from pydantic import BaseModel

from earnest import Context
from earnest.domain.errors import InvalidRequest, NameNeeded
from earnest.store import facts
from earnest.testing.clock import ManualClock
from tests.engine.bench import SCOPE, Bench
from tests.engine.conftest import MakeBench
from tests.engine.handlers import counted, fails_once, work


class Quote(BaseModel):
    amount: int


class TextQuote(BaseModel):
    amount: str


async def quote(amount: int) -> Quote:
    return Quote(amount=amount)


async def text_quote(amount: int) -> TextQuote:
    return TextQuote(amount=str(amount))


async def remembered(bench: Bench, run_id: uuid.UUID) -> dict[str, Any]:
    found = await facts.steps(bench.engine.database, SCOPE, run_id)
    return {step.name: step.result for step in found}


async def test_a_later_attempt_does_not_redo_what_is_remembered(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P5, P23: and it gets the very same result."""
    calls, price = counted({"amount": "20.00"})

    async def handler(ctx: Context) -> Any:
        found = await ctx.step("quote", price, 17)
        fails_once(ctx)
        return found

    bench = make_bench(work(handler))
    run = await bench.done("work")
    assert run.output == {"amount": "20.00"}
    assert calls == [(17,)]
    (told,) = await bench.events(run.run_id, "step.completed")
    assert told.payload == {"name": "quote", "attempt": 1}


async def test_a_step_that_failed_is_not_remembered(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P5: the next attempt makes it."""
    tries: list[int] = []

    async def handler(ctx: Context) -> Any:
        async def flaky() -> int:
            tries.append(ctx.attempt)
            fails_once(ctx)
            return 5

        return await ctx.step("flaky", flaky)

    run = await make_bench(work(handler)).done("work")
    assert (run.output, tries) == (5, [1, 2])


async def test_a_result_comes_back_as_the_type_that_its_function_declares(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P5: in the first attempt as in every later one."""
    seen: list[object] = []

    async def handler(ctx: Context) -> None:
        seen.append(await ctx.step("quote", quote, 3))
        fails_once(ctx)

    await make_bench(work(handler)).done("work")
    assert seen == [Quote(amount=3), Quote(amount=3)]


async def test_a_plain_function_of_a_step_does_not_block_the_event_loop(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P17: it runs in a thread; the loop goes on beside it."""
    loop = asyncio.get_running_loop()

    def asks_the_loop() -> str:
        return asyncio.run_coroutine_threadsafe(answer(), loop).result(10)

    async def answer() -> str:
        return "the loop goes on"

    async def handler(ctx: Context) -> Any:
        return await ctx.step("ask", asks_the_loop)

    assert (await make_bench(work(handler)).done("work")).output == "the loop goes on"


# ---- names -------------------------------------------------------------------------------------


async def test_repeated_names_are_numbered_in_the_order_they_are_asked_for(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P5: the same numbers in every attempt, so that each finds its own result."""
    calls: list[int] = []

    async def double(value: int) -> int:
        calls.append(value)
        return value * 2

    async def handler(ctx: Context) -> Any:
        results = [await ctx.step("double", double, value) for value in (1, 2, 3)]
        fails_once(ctx)
        return results

    bench = make_bench(work(handler))
    run = await bench.done("work")
    assert run.output == [2, 4, 6]
    assert calls == [1, 2, 3]
    assert await remembered(bench, run.run_id) == {"double": 2, "double#2": 4, "double#3": 6}


async def test_parallel_branches_that_repeat_a_name_need_keys(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P5: their order may change between attempts, and a result would go to the wrong one."""
    _, slow = counted()

    async def handler(ctx: Context) -> Any:
        return await asyncio.gather(ctx.step("part", slow, 1), ctx.step("part", slow, 2))

    run = await make_bench(work(handler)).done("work")
    assert run.status == "failed"
    assert run.error is not None
    assert run.error["code"] == "name_needed"
    assert "give each an explicit key=" in run.error["detail"]


async def test_parallel_branches_with_keys_find_their_own_results_in_any_order(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P5."""
    calls: list[str] = []

    async def part(name: str) -> str:
        calls.append(name)
        return name * 2

    async def handler(ctx: Context) -> Any:
        order = ("a", "b") if ctx.attempt == 1 else ("b", "a")
        results = await asyncio.gather(*(ctx.keyed_step("part", key, part, key) for key in order))
        fails_once(ctx)
        return sorted(results)

    run = await make_bench(work(handler)).done("work")
    assert run.output == ["aa", "bb"]
    assert sorted(calls) == ["a", "b"]


async def test_a_name_may_be_repeated_after_the_parallel_branch_has_ended(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P5: what is sequential needs no key."""
    _, count = counted(1)

    async def handler(ctx: Context) -> Any:
        await asyncio.gather(ctx.step("part", count))
        return await ctx.step("part", count)

    bench = make_bench(work(handler))
    run = await bench.done("work")
    assert list(await remembered(bench, run.run_id)) == ["part", "part#2"]


@pytest.mark.parametrize("key_first", [True, False])
async def test_a_key_that_looks_like_a_number_does_not_take_another_steps_result(
    make_bench: MakeBench, clock: ManualClock, key_first: bool
) -> None:
    """P5: `count#2` would be both the second `count` and the one with the key `2`."""
    _, one = counted(1)
    _, two = counted(2)

    async def handler(ctx: Context) -> Any:
        if key_first:
            await ctx.keyed_step("count", "2", one)
        await ctx.step("count", two)
        await ctx.step("count", two)
        if not key_first:
            await ctx.keyed_step("count", "2", one)

    run = await make_bench(work(handler)).done("work")
    assert run.error is not None
    assert run.error["code"] == "name_needed"


async def test_a_key_is_used_once(make_bench: MakeBench, clock: ManualClock) -> None:
    """P5."""
    _, count = counted()

    async def handler(ctx: Context) -> Any:
        await ctx.keyed_step("part", "a", count)
        with pytest.raises(NameNeeded, match="was used before"):
            await ctx.keyed_step("part", "a", count)
        return "told"

    assert (await make_bench(work(handler)).done("work")).output == "told"


async def test_steps_waits_and_events_have_each_their_own_room_of_names(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P5: a step may be called `sleep`, or like an event, and is still its own."""
    _, count = counted(7)

    async def handler(ctx: Context) -> Any:
        await ctx.sleep("0s")
        await ctx.emit("order.paid", {})
        results = [await ctx.step(name, count) for name in ("sleep", "emit:order.paid")]
        fails_once(ctx)
        return results

    run = await make_bench(work(handler)).done("work")
    assert (run.error, run.output) == (None, [7, 7])


@pytest.mark.parametrize("name", ["", "a" * 201, "a#2", "a\x00b", "a\ud800b"])
async def test_a_name_that_cannot_be_kept_is_refused(
    make_bench: MakeBench, clock: ManualClock, name: str
) -> None:
    """P5: before anything is done."""
    calls, count = counted()

    async def handler(ctx: Context) -> Any:
        with pytest.raises(InvalidRequest, match="a name has 1 to 200 characters"):
            await ctx.step(name, count)
        return "told"

    assert (await make_bench(work(handler)).done("work")).output == "told"
    assert calls == []


@pytest.mark.parametrize("key", ["", "a" * 201, "a\x00b", "a\ud800b"])
async def test_a_key_that_cannot_be_kept_is_refused(
    make_bench: MakeBench, clock: ManualClock, key: str
) -> None:
    """P5."""
    calls, count = counted()

    async def handler(ctx: Context) -> Any:
        with pytest.raises(InvalidRequest, match="a key has 1 to 200 characters"):
            await ctx.keyed_step("part", key, count)
        return "told"

    assert (await make_bench(work(handler)).done("work")).output == "told"
    assert calls == []


# ---- code that changed -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "amount", "says"),
    [
        (quote, 2, "was called with other arguments"),
        (text_quote, 1, "no longer fits its type"),
    ],
)
async def test_changed_code_is_told_and_the_old_code_can_go_on(
    make_bench: MakeBench, clock: ManualClock, function: Any, amount: int, says: str
) -> None:
    """P5: a clear error and no wrong result."""

    async def old(ctx: Context) -> Any:
        found = await ctx.step("quote", quote, 1)
        fails_once(ctx)
        return found

    async def changed(ctx: Context) -> Any:
        return await ctx.step("quote", function, amount)

    before = make_bench(work(old, retry_first="1m"))
    after = make_bench(work(changed, retry_first="1m"))
    run_id = (await before.done("work")).run_id
    await clock.advance(minutes=1)
    await after.drain()
    run = await after.find(run_id)
    assert run.error is not None
    assert run.error["code"] == "code_changed"
    assert says in run.error["detail"]
    await clock.advance(minutes=2)
    await before.drain()
    assert (await before.find(run_id)).output == {"amount": 1}


async def test_a_set_is_the_same_argument_in_whatever_order_it_shows_its_members(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P5: the order differs from process to process."""
    calls, count = counted(1)

    async def handler(ctx: Context) -> Any:
        found = await ctx.step("count", count, [{0, 8} if ctx.attempt == 1 else {8, 0}])
        fails_once(ctx)
        return found

    assert (await make_bench(work(handler)).done("work")).output == 1
    assert len(calls) == 1


async def test_things_that_are_no_data_may_be_passed_along(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P5: a client is another object in each attempt and counts as its type."""
    calls, count = counted(1)

    class Client:
        pass

    async def handler(ctx: Context) -> Any:
        found = await ctx.step("ask", count, Client(), 17)
        fails_once(ctx)
        return found

    assert (await make_bench(work(handler)).done("work")).output == 1
    assert len(calls) == 1
