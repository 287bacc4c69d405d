"""Submitting: what fits becomes one run, what does not is refused in one clear line (P7)."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Any

import pytest
from pydantic import BaseModel, Field

import earnest
from earnest import App, Context
from earnest.domain.errors import (
    EarnestError,
    IdempotencyConflict,
    InvalidRequest,
    PayloadTooLarge,
    SettingInvalid,
    UnknownKind,
)
from earnest.engine.runs import submitting
from earnest.engine.runs.submitting import Request
from earnest.testing.clock import ManualClock
from tests.engine.bench import MEMBER, SCOPE, Bench
from tests.engine.conftest import MakeBench
from tests.engine.test_standing_operations import bound


class Line(BaseModel):
    article: str
    count: int = Field(gt=0)


class Order(BaseModel):
    number: int
    lines: list[Line] = []
    note: str = ""


def shop() -> App:
    app = App("shop")

    @app.run("ship", lane="parcels", max_attempts=7, deadline="7d")
    async def ship(ctx: Context, order: Order) -> int:
        return order.number

    @app.run("anything")
    async def anything(ctx: Context, value: Any) -> Any:
        return value

    return app


async def nothing_is_stored(bench: Bench) -> bool:
    return await bench.value("SELECT count(*) FROM run") == 0


# ---- what fits ---------------------------------------------------------------------------------


async def test_a_run_is_readable_when_its_submit_returns(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P7: with what was asked, and the terms of its kind."""
    bench = make_bench(shop())
    request = Request(
        "ship", {"number": "17", "note": "quick"}, "order-17", priority=3,
        conversation_id="talk", context={"asked": "by mail"}, labels={"shop": "north"},
    )  # fmt: skip
    submitted = await submitting.submit(bench.engine, SCOPE, MEMBER, request)
    run = await bench.find(submitted.run.run_id)
    assert run == submitted.run
    assert run.input == {"number": 17, "lines": [], "note": "quick"}
    assert (run.status, run.lane, run.max_attempts) == ("queued", "parcels", 7)
    assert (run.priority, run.conversation_id, run.principal_id) == (3, "talk", MEMBER)
    assert (run.context, run.labels) == ({"asked": "by mail"}, {"shop": "north"})
    assert (run.revision, run.lineage_id, run.retry_of) == (1, run.run_id, None)
    assert run.deadline_at is not None
    assert (run.deadline_at - run.created_at).days == 7
    (event,) = await bench.events(run.run_id)
    assert (event.seq, event.type) == (1, "run.submitted")
    assert event.payload == {"kind": "ship", "lane": "parcels"}


async def test_the_same_key_and_request_give_the_same_run(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P7: also after it has ended; the form in which the input was written does not matter."""
    bench = make_bench(shop())
    first = await bench.submit("ship", {"number": 17}, key="order-17")
    await bench.drain()
    for same in ({"number": "17"}, Order(number=17), {"note": "", "number": 17, "lines": []}):
        assert await bench.submit("ship", same, key="order-17") == first
    assert await bench.value("SELECT count(*) FROM run") == 1


@pytest.mark.parametrize(
    ("kind", "input"), [("ship", {"number": 18}), ("anything", {"number": 17})]
)
async def test_the_same_key_with_another_request_is_a_conflict(
    make_bench: MakeBench, clock: ManualClock, kind: str, input: Any
) -> None:
    """P7: it names the run that has the key."""
    bench = make_bench(shop())
    await bench.submit("ship", {"number": 17}, key="order-17")
    with pytest.raises(IdempotencyConflict, match="was used for another request") as conflict:
        await bench.submit(kind, input, key="order-17")
    assert conflict.value.fields["run_id"].startswith("run_")
    assert await bench.value("SELECT count(*) FROM run") == 1


class Tagged(BaseModel):
    tags: dict[str, set[int]]


@pytest.mark.parametrize("kind", ["tag", "anything"])
async def test_the_same_members_in_a_set_are_the_same_request(
    make_bench: MakeBench, clock: ManualClock, kind: str
) -> None:
    """P7: a set shows its members in another order in another process."""
    app = shop()

    @app.run("tag")
    async def tag(ctx: Context, asked: Tagged) -> None:
        pass

    one, same = Tagged(tags={"a": {0, 8}}), Tagged(tags={"a": {8, 0}})
    assert one == same
    assert list(one.tags["a"]) != list(same.tags["a"])
    bench = make_bench(app)
    run_id = await bench.submit(kind, one, key="order-17")
    assert await bench.submit(kind, same, key="order-17") == run_id
    assert (await bench.find(run_id)).input == {"tags": {"a": [0, 8]}}


async def test_many_at_once_with_one_key_make_one_run(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P7."""
    bench = make_bench(shop())
    many = [bench.submit("ship", {"number": 17}, key="order-17") for _ in range(20)]
    assert len(set(await asyncio.gather(*many))) == 1
    assert await bench.value("SELECT count(*) FROM run") == 1


async def test_a_key_belongs_to_its_principal_and_scope(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P7, P12."""
    bench = make_bench(shop())
    request = Request("ship", {"number": 17}, "order-17")
    made = {
        (await submitting.submit(bench.engine, scope, principal, request)).run.run_id
        for scope in (SCOPE, "other")
        for principal in (MEMBER, "another")
    }
    assert len(made) == 4


async def test_without_a_key_every_submit_makes_a_run(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P7."""
    bench = make_bench(shop())
    made = {await bench.submit("ship", {"number": 17}) for _ in range(3)}
    assert len(made) == 3


# ---- many in one commit ------------------------------------------------------------------------


async def submit_many(bench: Bench, inputs: list[Any], keys: Any = None) -> list[Any]:
    return await submitting.submit_many(bench.engine, SCOPE, MEMBER, "ship", inputs, keys)


async def test_many_submits_in_one_commit_come_back_in_order(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P7: those whose key is known give the run that is there."""
    bench = make_bench(shop())
    known = await bench.submit("ship", {"number": 2}, key="2")
    made = await submit_many(bench, [{"number": n} for n in (1, 2, 3)], ["1", "2", None])
    assert made[1] == known
    assert [(await bench.find(run_id)).input["number"] for run_id in made] == [1, 2, 3]
    assert await bench.value("SELECT count(*) FROM run") == 3
    await bench.drain()
    assert [await bench.status(run_id) for run_id in made] == ["succeeded"] * 3


async def test_one_that_does_not_fit_or_conflicts_stores_none_of_them(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P7."""
    bench = make_bench(shop())
    with pytest.raises(InvalidRequest):
        await submit_many(bench, [{"number": 1}, {"number": "many"}])
    with pytest.raises(InvalidRequest, match="2 inputs came with 1 keys; give one each"):
        await submit_many(bench, [{"number": 1}, {"number": 2}], ["1"])
    assert await nothing_is_stored(bench)
    await bench.submit("ship", {"number": 2}, key="2")
    with pytest.raises(IdempotencyConflict):
        await submit_many(bench, [{"number": 1}, {"number": 3}], ["1", "2"])
    assert await bench.value("SELECT count(*) FROM run") == 1


async def test_a_key_that_stands_twice_among_many_gives_one_run_or_a_conflict(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P7."""
    bench = make_bench(shop())
    first, second = await submit_many(bench, [{"number": 1}] * 2, ["1", "1"])
    assert first == second
    with pytest.raises(IdempotencyConflict):
        await submit_many(bench, [{"number": 5}, {"number": 6}], ["5", "5"])
    assert await bench.value("SELECT count(*) FROM run") == 1


# ---- what does not fit -------------------------------------------------------------------------


async def refused(bench: Bench, error: type[EarnestError], **request: Any) -> EarnestError:
    """The error that a submit raises, on one line; nothing is stored."""
    with pytest.raises(error) as raised:
        await bench.submit(request.pop("kind", "anything"), request.pop("input", 1), **request)
    assert "\n" not in raised.value.detail
    assert await nothing_is_stored(bench)
    return raised.value


async def test_an_unknown_kind_is_refused_and_the_known_ones_are_named(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P7."""
    error = await refused(make_bench(shop()), UnknownKind, kind="shipp")
    assert error.detail == "no run kind 'shipp' is registered; known are: anything, ship"


@pytest.mark.parametrize(
    ("input", "pointers"),
    [
        ({}, ["/input/number"]),
        ({"number": "many"}, ["/input/number"]),
        ("seventeen", ["/input"]),
        (None, ["/input"]),
        (
            {"number": 1, "lines": [{"article": "a", "count": 1}, {"count": 0}]},
            ["/input/lines/1/article", "/input/lines/1/count"],
        ),
    ],
    ids=["missing", "of another type", "no object", "null", "deep inside"],
)
async def test_an_input_of_another_shape_is_refused_with_a_pointer_to_each_place(
    make_bench: MakeBench, clock: ManualClock, input: Any, pointers: list[str]
) -> None:
    """P7: JSON pointers into the request."""
    error = await refused(make_bench(shop()), InvalidRequest, kind="ship", input=input)
    assert error.detail.startswith("the input does not fit ship: ")
    assert [place["pointer"] for place in error.fields["errors"]] == pointers
    assert all(place["detail"] and place["code"] for place in error.fields["errors"])


async def test_a_pointer_escapes_what_means_something_in_it(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P7: RFC 6901."""
    app = App("shop")

    @app.run("count")
    async def count(ctx: Context, counts: dict[str, int]) -> None:
        pass

    error = await refused(
        make_bench(app), InvalidRequest, kind="count", input={"a/b": "x", "c~d": "x"}
    )
    pointers = [place["pointer"] for place in error.fields["errors"]]
    assert pointers == ["/input/a~1b", "/input/c~0d"]


@pytest.mark.parametrize(
    ("input", "says"),
    [
        ("a\x00b", "a NUL character at $"),
        ({"deep": ["a\x00b"]}, "a NUL character at $.deep[0]"),
        ({"number": float("nan")}, "is not a JSON number"),
        ({"number": float("inf")}, "is not a JSON number"),
        ("\ud800", "cannot be stored"),
        (object(), "cannot be stored"),
    ],
    ids=["NUL", "NUL inside", "NaN", "infinite", "surrogate", "no JSON"],
)
async def test_an_input_that_cannot_be_stored_is_refused(
    make_bench: MakeBench, clock: ManualClock, input: Any, says: str
) -> None:
    """P7."""
    error = await refused(make_bench(shop()), InvalidRequest, input=input)
    assert "the input of anything cannot be stored" in error.detail
    assert says in error.detail


async def test_an_oversize_input_is_refused_and_told_what_to_do(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P7: 256 KiB."""
    bench = make_bench(shop())
    error = await refused(bench, PayloadTooLarge, input="x" * (256 * 1024 - 1))
    assert "the input has 262145 bytes; at most 262144 are taken" in error.detail
    assert await bench.submit("anything", "x" * (256 * 1024 - 2))


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"key": ""}, "an idempotency key has 1 to 255"),
        ({"key": "k" * 256}, "an idempotency key has 1 to 255"),
        ({"key": 17}, "an idempotency key has 1 to 255"),
        ({"key": "a\x00b"}, "cannot be stored"),
        ({"conversation_id": "x" * 256}, "conversation and traceparent have at most 255"),
        ({"conversation_id": 17}, "conversation and traceparent have at most 255"),
        ({"conversation_id": "a\x00b"}, "cannot be stored"),
        ({"traceparent": "\ud800"}, "cannot be stored"),
        ({"lane": "express"}, "there is no lane 'express'; there are: default, parcels"),
        ({"priority": 1001}, "priority is a whole number from -1000 to 1000"),
        ({"priority": -1001}, "priority is a whole number from -1000 to 1000"),
        ({"priority": 0.5}, "priority is a whole number from -1000 to 1000"),
        ({"not_before": datetime(2030, 1, 1)}, "not_before needs a time zone"),  # noqa: DTZ001
        ({"labels": {str(n): "x" for n in range(33)}}, "at most 32 labels"),
        ({"labels": {"a": "x" * 201}}, "of at most 200 characters"),
        ({"labels": {"a": 17}}, "of at most 200 characters"),
        ({"labels": {"x" * 201: "a"}}, "of at most 200 characters"),
        ({"labels": {"a": "a\x00b"}}, "labels cannot be stored"),
        ({"context": {"a": object()}}, "context cannot be stored"),
    ],
)
async def test_every_other_part_of_a_request_is_checked(
    make_bench: MakeBench, clock: ManualClock, asked: dict[str, Any], says: str
) -> None:
    """P7: in one line that says what to do."""
    error = await refused(make_bench(shop()), InvalidRequest, **asked)
    assert says in error.detail


# ---- through the app ---------------------------------------------------------------------------


async def test_a_program_submits_through_its_app(make_bench: MakeBench, clock: ManualClock) -> None:
    """P7: `app.submit` answers with the id that people see."""
    app = shop()
    bench = make_bench(app)
    with bound(bench):
        first = await app.submit(
            app.kinds["ship"], Order(number=17), key="order-17", labels={"shop": "north"}
        )
        assert await app.submit(app.kinds["ship"], Order(number=17), key="order-17") == first
        both = await app.submit_many(
            app.kinds["ship"], [Order(number=17), Order(number=18)], keys=["order-17", None]
        )
    assert both[0] == first
    assert first.startswith("run_")
    assert await bench.value("SELECT count(*) FROM run") == 2


async def test_a_program_that_has_not_opened_earnest_is_told_how() -> None:
    """P7."""
    app = shop()
    with pytest.raises(SettingInvalid, match="Earnest is not open in this process"):
        await app.submit(app.kinds["ship"], Order(number=17))


def test_a_handler_can_be_called_as_the_function_it_is() -> None:
    """For tests of one's own code."""
    app = App("plain")

    @app.run("double")
    def double(ctx: earnest.PlainContext, value: int) -> int:
        return value * 2

    assert double(None, 21) == 42
