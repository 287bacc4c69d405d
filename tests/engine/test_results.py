"""Results that cannot be stored fail their own run, and nobody else's (P4)."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel, TypeAdapter

from earnest import App, Context
from earnest.domain.errors import ResultInvalid
from earnest.testing.clock import ManualClock
from tests.engine.conftest import MakeBench
from tests.engine.handlers import work

LOOP: list[Any] = []
LOOP.append(LOOP)

UNSTORABLE = {
    "NUL": ("a\x00b", "a NUL character at $"),
    "NUL inside": ({"list": ["a\x00b"]}, "a NUL character at $.list[0]"),
    "NUL in a key": ({"a\x00b": 1}, "a NUL character"),
    "infinite": ({"number": float("inf")}, "is not a JSON number"),
    "not a number": (float("nan"), "is not a JSON number"),
    "surrogate": ("\ud800", "half of a surrogate pair"),
    "no JSON": (object(), "cannot be stored"),
    "circular": (LOOP, "cannot be stored"),
    "oversize": ("x" * 1024 * 1024, "at most 1048576 are kept"),
}


@pytest.mark.parametrize(("value", "says"), UNSTORABLE.values(), ids=UNSTORABLE)
async def test_a_result_that_cannot_be_stored_fails_the_run_in_one_line(
    make_bench: MakeBench, clock: ManualClock, value: Any, says: str
) -> None:
    """P4: at once; a later attempt would only return it again."""

    async def handler(ctx: Context) -> Any:
        return value

    bench = make_bench(work(handler))
    run = await bench.done("work")
    assert (run.status, run.failures) == ("failed", 1)
    assert run.error is not None
    assert run.error["code"] == "result_invalid"
    assert says in run.error["detail"]
    assert "\n" not in run.error["detail"]


@pytest.mark.parametrize(("value", "says"), UNSTORABLE.values(), ids=UNSTORABLE)
async def test_a_steps_result_that_cannot_be_stored_is_refused_in_one_line(
    make_bench: MakeBench, clock: ManualClock, value: Any, says: str
) -> None:
    """P4: the handler sees it; nothing is remembered."""
    seen: list[str] = []

    async def handler(ctx: Context) -> str:
        try:
            await ctx.step("odd", lambda: value)
        except ResultInvalid as error:
            seen.append(error.detail)
        return "went on"

    bench = make_bench(work(handler))
    run = await bench.done("work")
    assert run.output == "went on"
    (detail,) = seen
    assert "the result of step 'odd'" in detail
    assert says in detail
    assert await bench.value("SELECT count(*) FROM step") == 0


class Answer(BaseModel):
    number: int


async def test_a_result_of_another_type_than_declared_fails_the_run(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P4: who waits for it counts on the type."""
    app = App("typed")

    @app.run("typed")
    async def typed(ctx: Context, value: Any) -> Answer:
        return value

    bench = make_bench(app)
    run = await bench.done("typed", {"number": "many"})
    assert (run.error or {})["code"] == "result_invalid"


async def test_one_result_that_cannot_be_stored_does_not_fail_those_beside_it(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P4."""

    async def handler(ctx: Context) -> str:
        return "a\x00b" if ctx.labels["number"] == "3" else ctx.labels["number"]

    bench = make_bench(work(handler))
    run_ids = [await bench.submit("work", labels={"number": str(n)}) for n in range(6)]
    await bench.drain()
    statuses = [await bench.status(run_id) for run_id in run_ids]
    assert statuses == ["succeeded"] * 3 + ["failed"] + ["succeeded"] * 2


async def test_a_group_that_the_database_refuses_is_split_until_the_one_bad_item_is_alone(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P4: nobody pays for another's mistake; the bad one is tried again when its lease ends."""

    async def handler(ctx: Context) -> str:
        return ctx.labels["number"]

    bench = make_bench(work(handler))
    await bench.execute(
        "ALTER TABLE execution ADD CONSTRAINT picky CHECK (output IS DISTINCT FROM '\"5\"'::jsonb)"
    )
    run_ids = [await bench.submit("work", labels={"number": str(n)}) for n in range(12)]
    await bench.drain()
    statuses = [await bench.status(run_id) for run_id in run_ids]
    assert statuses == ["succeeded"] * 5 + ["running"] + ["succeeded"] * 6
    await bench.execute("ALTER TABLE execution DROP CONSTRAINT picky")
    await clock.advance(seconds=45)
    await bench.drain()
    assert (await bench.find(run_ids[5])).output == "5"


async def test_a_step_that_the_database_refuses_fails_alone(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P4: those written in the same moment are there."""

    async def handler(ctx: Context) -> str:
        return await ctx.step("number", str, ctx.labels["number"])

    bench = make_bench(work(handler, retry_first="1m"))
    await bench.execute("ALTER TABLE step ADD CONSTRAINT picky CHECK (result <> '\"5\"'::jsonb)")
    run_ids = [await bench.submit("work", labels={"number": str(n)}) for n in range(12)]
    await bench.drain()
    statuses = [await bench.status(run_id) for run_id in run_ids]
    assert statuses == ["succeeded"] * 5 + ["queued"] + ["succeeded"] * 6


@pytest.mark.parametrize("value", [None, 0, "", [], {"ä": "\n\t\u2028"}, 2**63, 1.5, "x" * 1000])
async def test_every_other_result_comes_back_as_it_was(
    make_bench: MakeBench, clock: ManualClock, value: Any
) -> None:
    """P4."""

    async def handler(ctx: Context) -> Any:
        return value

    run = await make_bench(work(handler)).done("work")
    assert (run.status, run.output) == ("succeeded", value)


async def test_what_does_not_fit_is_told_without_its_values(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P21: pydantic's own words quote the value, which may be a secret."""
    app = App("secrets")

    @app.run("reads", max_attempts=1)
    async def reads(ctx: Context, value: int) -> int:
        return TypeAdapter(int).validate_python("hunter2")

    bench = make_bench(app)
    run = await bench.done("reads", 1)
    assert run.error is not None
    assert run.error["detail"].startswith("ValidationError: the whole: Input should be")
    assert "hunter2" not in str(run.error) + str(await bench.events(run.run_id))
