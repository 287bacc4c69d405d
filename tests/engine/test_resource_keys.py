"""Resource keys: one live intent for one thing (P15); and what was only reserved ends with its
run."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import pytest

from earnest import Blocked, Context, Failed
from earnest.domain import ids
from earnest.domain.errors import NotSent
from earnest.store import operations
from earnest.store.operations import NewOperation, Note
from earnest.testing.clock import ManualClock
from tests.engine.bench import MEMBER, SCOPE, Bench
from tests.engine.conftest import MakeBench
from tests.engine.provider import Order, Provider, shop

GALLERY = {"by": "hold", "resource": "gallery 4001"}


async def test_a_second_intent_for_the_same_thing_is_refused(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P15: it is told which operation means it already; nothing was sent for it."""
    provider = Provider()
    bench = make_bench(shop(provider, max_attempts=1))
    first = await bench.done("buy", GALLERY)
    second = await bench.done("buy", GALLERY)
    assert (first.status, second.status) == ("succeeded", "failed")
    assert second.error is not None
    assert second.error["code"] == "resource_busy"
    taken_by = (await bench.operation(first.run_id)).operation_id
    assert second.error["operation_id"] == ids.show("op", taken_by)
    assert len(provider.calls) == 1
    assert await bench.operations(second.run_id) == []


async def test_of_many_at_once_one_wins(make_bench: MakeBench, clock: ManualClock) -> None:
    """P15."""
    provider = Provider()
    bench = make_bench(shop(provider, max_attempts=1))
    for _ in range(6):
        await bench.submit("buy", GALLERY)
    await bench.drain()
    assert len(provider.done) == 1
    assert await bench.value("SELECT count(*) FROM operation") == 1
    assert await bench.value("SELECT count(*) FROM execution WHERE status = 'succeeded'") == 1


@pytest.mark.parametrize(
    "other",
    [{"resource": "gallery 4002"}, {"by": "passing"}, {"resource": None}],
    ids=["another thing", "another effect", "no key"],
)
async def test_what_is_not_the_same_thing_goes_its_own_way(
    make_bench: MakeBench, clock: ManualClock, other: dict[str, Any]
) -> None:
    """P15."""
    bench = make_bench(shop(Provider(), max_attempts=1))
    await bench.done("buy", GALLERY)
    assert (await bench.done("buy", {**GALLERY, **other})).status == "succeeded"


async def test_a_doubt_keeps_the_thing(make_bench: MakeBench, clock: ManualClock) -> None:
    """P15: it may exist."""
    provider = Provider()
    bench = make_bench(shop(provider, max_attempts=1))
    provider.drops(does=True)
    first = await bench.done("buy", GALLERY)
    assert first.status == "unknown"
    assert (await bench.done("buy", GALLERY)).status == "failed"
    await bench.cancel(first.run_id)
    assert (await bench.done("buy", GALLERY)).status == "failed"
    await bench.resolve(await bench.operation(first.run_id), "released")
    assert (await bench.done("buy", GALLERY)).status == "succeeded"


async def test_what_was_surely_not_done_gives_the_thing_free(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P15."""
    provider = Provider()
    bench = make_bench(shop(provider, max_attempts=1))
    provider.refuses()
    assert (await bench.done("buy", GALLERY)).status == "failed"
    assert (await bench.done("buy", GALLERY)).status == "succeeded"


async def test_an_effect_may_give_the_thing_free_when_it_is_done(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P15: `keeps_resource = False`."""
    provider = Provider()
    bench = make_bench(shop(provider, max_attempts=1))
    once = {**GALLERY, "by": "passing"}
    for _ in range(2):
        assert (await bench.done("buy", once)).status == "succeeded"
    assert len(set(provider.done)) == 2


async def test_a_thing_that_was_freed_is_made_anew_only_under_a_new_id(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P15: the old operation stays as its tombstone; freeing twice is harmless."""
    provider = Provider()
    bench = make_bench(shop(provider, max_attempts=1))
    first = await bench.done("buy", GALLERY)
    operation = await bench.operation(first.run_id)
    for _ in range(2):
        async with bench.engine.database.connection() as tx, tx.transaction():
            await operations.free_resource(tx, operation, Note("free", "app"))
    assert await bench.moves(operation) == ["reserve", "begin", "confirm", "free"]
    tombstone = await bench.again(operation)
    assert (tombstone.state, tombstone.live) == ("submitted", False)
    second = await bench.done("buy", GALLERY)
    assert second.status == "succeeded"
    assert len(set(provider.done)) == 2


async def test_a_thing_that_another_took_meanwhile_is_not_tried_again(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P15: not sent, it was given free; somebody else has it now."""
    provider = Provider()
    bench = make_bench(shop(provider, max_attempts=2, retry_first="1m"))
    provider.is_not_reached()
    first = await bench.done("buy", GALLERY)
    assert first.status == "queued"
    assert (await bench.done("buy", GALLERY)).status == "succeeded"
    await clock.advance(minutes=1)
    await bench.drain()
    after = await bench.find(first.run_id)
    assert (after.status, (after.error or {})["code"]) == ("failed", "resource_busy")
    assert len(provider.done) == 1


# ---- what was only reserved --------------------------------------------------------------------


async def reserved(bench: Bench, provider: Provider) -> uuid.UUID:
    """A run with an operation that was reserved and not begun, waiting for its next attempt."""

    async def fail(order: Order) -> None:
        raise TimeoutError

    provider.on_prepare = fail
    run_id = (await bench.done("buy", GALLERY)).run_id
    assert (await bench.operation(run_id)).state == "reserved"
    return run_id


async def cancels(bench: Bench, run_id: uuid.UUID, clock: ManualClock) -> str:
    await bench.cancel(run_id)
    return "cancelled"


async def expires(bench: Bench, run_id: uuid.UUID, clock: ManualClock) -> str:
    await clock.advance(hours=2)
    await bench.worker._reaper.look()
    return "failed"


async def fails(bench: Bench, run_id: uuid.UUID, clock: ManualClock) -> str:
    await clock.advance(minutes=1)
    await bench.drain()
    return "failed"


async def is_lost(bench: Bench, run_id: uuid.UUID, clock: ManualClock) -> str:
    await clock.advance(minutes=1)
    await bench.ripen()
    await bench.claim()
    await clock.advance(seconds=46)
    await bench.worker._reaper.look()
    return "failed"


@pytest.mark.parametrize("ends", [cancels, expires, fails, is_lost])
async def test_every_final_move_of_a_run_releases_what_it_had_only_reserved(
    make_bench: MakeBench, clock: ManualClock, ends: Any
) -> None:
    """P15: in its own transaction; the thing is free again."""
    provider = Provider()
    bench = make_bench(shop(provider, max_attempts=2, retry_first="1m", deadline="1h"))
    run_id = await reserved(bench, provider)
    status = await ends(bench, run_id, clock)
    assert await bench.status(run_id) == status
    operation = await bench.operation(run_id)
    assert (operation.state, operation.release_reason) == ("released", "given_up")
    told = await bench.told(run_id)
    assert told.index("operation.released") < told.index(f"run.{status}")
    assert await bench.value("SELECT reserved FROM execution WHERE run_id = $1", run_id) == 0
    provider.on_prepare = None
    assert (await bench.done("buy", GALLERY)).status == "succeeded"


@pytest.mark.parametrize("ending", [None, Blocked("no credits"), Failed("for good")])
async def test_a_run_that_ends_beside_its_reserved_operation_releases_it(
    make_bench: MakeBench, clock: ManualClock, ending: Exception | None
) -> None:
    """P15: also when it succeeds, which then takes the path that looks twice."""
    provider = Provider()
    app = shop(provider)

    async def fail(order: Order) -> None:
        raise NotSent("nobody there")

    provider.on_prepare = fail

    @app.run("gives up")
    async def gives_up(ctx: Context, value: int) -> None:
        with pytest.raises(NotSent):
            await ctx.operation("pay", app.effects["test.hold"], Order(number=1))
        if ending is not None:
            raise ending

    bench = make_bench(app)
    run = await bench.done("gives up", 1)
    assert run.final
    operation = await bench.operation(run.run_id)
    assert (operation.state, operation.release_reason) == ("released", "given_up")


async def test_a_run_that_parks_keeps_what_it_has_reserved(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P15: it is not over."""
    provider, tries = Provider(), list[int]()
    app = shop(provider)

    async def fail_once(order: Order) -> None:
        tries.append(1)
        if len(tries) == 1:
            raise NotSent("nobody there")

    provider.on_prepare = fail_once

    @app.run("parks")
    async def parks(ctx: Context, value: int) -> Any:
        if ctx.attempt == 1:
            with pytest.raises(NotSent):
                await ctx.operation("pay", app.effects["test.hold"], Order(number=1))
            await ctx.sleep("1h")
        return await ctx.operation("pay", app.effects["test.hold"], Order(number=1))

    bench = make_bench(app)
    run = await bench.done("parks", 1)
    assert run.status == "waiting"
    assert (await bench.operation(run.run_id)).state == "reserved"
    await clock.advance(hours=1)
    await bench.drain()
    assert await bench.status(run.run_id) == "succeeded"
    assert await bench.moves(await bench.operation(run.run_id)) == ["reserve", "begin", "confirm"]


@pytest.mark.parametrize("resource", ["", "x" * 501, "a\x00b", "a\ud800b"])
async def test_a_resource_key_that_cannot_be_kept_is_refused(
    make_bench: MakeBench, clock: ManualClock, resource: str
) -> None:
    """P15: in one line, and nothing is reserved."""
    provider = Provider()
    app = shop(provider)

    @app.run("odd", max_attempts=1)
    async def odd(ctx: Context, value: int) -> None:
        await ctx.operation("pay", app.effects["test.hold"], {"number": 1}, resource_key=resource)

    bench = make_bench(app)
    run = await bench.done("odd", 1)
    assert run.error == {
        "code": "invalid_request", "detail": "a resource key has 1 to 500 characters, "
        "as a text without NUL and halves of surrogate pairs",
    }  # fmt: skip
    assert await bench.operations(run.run_id) == []


async def test_an_intent_that_is_not_yet_committed_is_waited_for(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P15: who comes second in the same moment finds it."""
    provider = Provider()
    bench = make_bench(shop(provider, max_attempts=1))
    other = await bench.engine.database.connect()
    terms = bench.engine.effects["test.hold"].terms()
    intent = NewOperation(
        SCOPE, ids.new_id(), None, MEMBER, "alone", terms, GALLERY["resource"], b"{}", b"", 0
    )
    run_id = await bench.submit("buy", GALLERY)
    async with other.transaction():
        assert await operations.reserve(other, intent, Note("reserve", "owner"))
        drained = asyncio.create_task(bench.drain())
        await bench.wait_for_lock_waiters()
    await other.close()
    await drained
    run = await bench.find(run_id)
    assert (run.error or {})["operation_id"] == ids.show("op", intent.operation_id)
    assert provider.calls == []
