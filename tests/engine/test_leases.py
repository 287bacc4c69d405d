"""Leases: who owns a running run, and for how long; how they are renewed and lost (P5, P6)."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Coroutine
from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from earnest import App, Context
from earnest.domain.errors import SettingInvalid
from earnest.engine.attempts.settling import Ending, Settled, Wish
from earnest.engine.process.settings import EngineSettings
from earnest.engine.runs import leasing
from earnest.engine.runs.leasing import HeldLease, Leases, boot_seconds
from earnest.store.executions import Claimed
from earnest.testing.clock import ManualClock
from tests.engine.bench import Bench
from tests.engine.conftest import MakeBench
from tests.engine.provider import Provider, shop

LEASE = EngineSettings().lease


def idle() -> App:
    app = App("idle")

    @app.run("idle")
    async def idle(ctx: Context, value: int) -> int:
        return value

    return app


class Holder:
    """What a worker's keeper has: leases, and what was told about each."""

    def __init__(self) -> None:
        self.leases = Leases(LEASE)
        self.lost: list[Claimed] = []
        self.cancelled: list[Claimed] = []

    def hold(self, claimed: Claimed) -> HeldLease:
        return self.leases.hold(
            claimed,
            boot_seconds(),
            lambda: self.lost.append(claimed),
            lambda: self.cancelled.append(claimed),
        )

    async def renew(self, bench: Bench) -> None:
        async with bench.engine.database.connection() as tx:
            await leasing.renew(tx, self.leases, LEASE)


async def claim_one(bench: Bench) -> Claimed:
    await bench.submit("idle", 1)
    (claimed,) = await bench.claim()
    return claimed


async def take_away(bench: Bench, claimed: Claimed, clock: ManualClock) -> Claimed:
    """The lease runs out, the reaper takes the run, and somebody claims it anew."""
    await clock.advance(seconds=LEASE.total_seconds() + 1)
    await bench.worker._reaper.look()
    (newer,) = await bench.claim()
    assert newer.run_id == claimed.run_id
    return newer


async def test_each_claim_has_a_greater_fence_and_an_owner_token_of_its_own(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P6."""
    bench = make_bench(idle())
    first = await claim_one(bench)
    second = await take_away(bench, first, clock)
    assert second.fence == first.fence + 1
    assert second.owner_token != first.owner_token
    assert [attempt.number for attempt in await bench.attempts(first.run_id)] == [1, 2]


async def test_workers_that_claim_at_once_never_claim_the_same_run(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P6: each run is worked once, by one of them."""
    app = idle()
    benches = [make_bench(app, claim_batch=3) for _ in range(4)]
    run_ids = [await benches[0].submit("idle", number) for number in range(30)]
    counts = await asyncio.gather(*(bench.drain() for bench in benches))
    assert sum(counts) == 30
    for run_id in run_ids:
        assert await benches[0].outcomes(run_id) == ["succeeded"]


async def test_a_renewal_lasts_one_lease_from_now_by_the_clock_of_the_database(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P6."""
    bench, holder = make_bench(idle()), Holder()
    claimed = await claim_one(bench)
    held = holder.hold(claimed)
    believed = held.until
    now = await clock.advance(seconds=30)
    await holder.renew(bench)
    assert await bench.lease_until(claimed.run_id) == now + LEASE
    assert held.until > believed
    assert holder.lost == []


async def test_an_expired_lease_is_never_revived(make_bench: MakeBench, clock: ManualClock) -> None:
    """P6: nobody has taken the run yet, and still the renewal is refused."""
    bench, holder = make_bench(idle()), Holder()
    claimed = await claim_one(bench)
    holder.hold(claimed)
    ended_at = await bench.lease_until(claimed.run_id)
    await clock.advance(seconds=LEASE.total_seconds())
    await holder.renew(bench)
    assert await bench.lease_until(claimed.run_id) == ended_at
    assert holder.lost == [claimed]


async def test_the_renewal_of_an_earlier_owner_is_refused_and_touches_nothing(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P5, P6."""
    bench, holder = make_bench(idle()), Holder()
    stale = await claim_one(bench)
    await take_away(bench, stale, clock)
    until = await bench.lease_until(stale.run_id)
    await clock.advance(seconds=5)
    holder.hold(stale)
    await holder.renew(bench)
    assert holder.lost == [stale]
    assert await bench.lease_until(stale.run_id) == until


async def test_a_lost_attempt_does_not_take_the_lease_of_the_newer_one_beside_it(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P6: a worker may claim a run again while its own lost attempt still ends its call."""
    bench, holder = make_bench(idle()), Holder()
    stale = await claim_one(bench)
    holder.hold(stale)
    newer = await take_away(bench, stale, clock)
    held = holder.hold(newer)
    assert holder.lost == [stale]
    now = await clock.advance(seconds=5)
    await holder.renew(bench)
    assert holder.lost == [stale]
    assert held.valid()
    assert await bench.lease_until(newer.run_id) == now + LEASE


async def test_a_busy_row_is_skipped_and_lets_no_other_lease_lapse(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P6: somebody sits on one row; the others are renewed at once, and the one is not lost."""
    bench, holder = make_bench(idle()), Holder()
    for number in range(3):
        await bench.submit("idle", number)
    busy, *others = await bench.claim()
    for claimed in (busy, *others):
        holder.hold(claimed)
    before = await bench.lease_until(busy.run_id)
    now = await clock.advance(seconds=20)
    async with bench.holding(busy.run_id):
        await holder.renew(bench)
        assert await bench.lease_until(busy.run_id) == before
    assert [await bench.lease_until(one.run_id) for one in others] == [now + LEASE] * 2
    assert holder.lost == []
    await holder.renew(bench)
    assert await bench.lease_until(busy.run_id) == now + LEASE


async def test_a_foreign_key_check_does_not_make_a_row_busy(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P6."""
    bench, holder = make_bench(idle()), Holder()
    claimed = await claim_one(bench)
    holder.hold(claimed)
    now = await clock.advance(seconds=20)
    other = await bench.engine.database.connect()
    try:
        async with other.transaction():
            await other.execute(
                "SELECT FROM execution WHERE run_id = $1 FOR KEY SHARE", claimed.run_id
            )
            await holder.renew(bench)
    finally:
        await other.close()
    assert await bench.lease_until(claimed.run_id) == now + LEASE


async def test_a_run_that_was_just_settled_is_no_refusal(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P6: its attempt must not be told that it lost the lease."""
    bench, holder = make_bench(idle()), Holder()
    claimed = await claim_one(bench)
    holder.hold(claimed)
    await bench.settle(claimed, Wish.SUCCEED, output=b"1")
    await holder.renew(bench)
    assert holder.lost == []


async def test_a_renewal_tells_once_that_a_stop_was_asked(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P20."""
    bench, holder = make_bench(idle()), Holder()
    claimed = await claim_one(bench)
    holder.hold(claimed)
    await bench.cancel(claimed.run_id)
    await holder.renew(bench)
    await holder.renew(bench)
    assert holder.cancelled == [claimed]


async def test_a_holder_stops_believing_by_its_own_clock_without_asking_anybody(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P5: the database is away or slow; the deadline counts from before the lease was asked for."""
    bench, holder = make_bench(idle()), Holder()
    claimed = await claim_one(bench)
    held = holder.leases.hold(
        claimed, boot_seconds() - LEASE.total_seconds(), lambda: holder.lost.append(claimed), print
    )
    assert not held.valid()
    leasing.drop_lapsed(holder.leases)
    assert holder.lost == [claimed]


@pytest.mark.parametrize("wish", list(Wish))
async def test_a_stale_fence_cannot_settle_a_run_whatever_it_wishes(
    make_bench: MakeBench, clock: ManualClock, wish: Wish
) -> None:
    """P5."""
    bench = make_bench(idle())
    stale = await claim_one(bench)
    await take_away(bench, stale, clock)
    before = await bench.find(stale.run_id)
    assert await bench.settle(stale, wish, output=b"1") is Settled.FENCED
    assert await bench.find(stale.run_id) == before
    assert await bench.outcomes(stale.run_id) == ["lost", None]


@pytest.mark.parametrize("wish", list(Wish))
async def test_an_expired_lease_settles_nothing_even_before_anybody_took_the_run(
    make_bench: MakeBench, clock: ManualClock, wish: Wish
) -> None:
    """P5, P6."""
    bench = make_bench(idle())
    claimed = await claim_one(bench)
    await clock.advance(seconds=LEASE.total_seconds())
    assert await bench.settle(claimed, wish, output=b"1") is Settled.FENCED
    assert await bench.status(claimed.run_id) == "running"


async def test_another_owner_token_cannot_settle_a_run_under_its_fence(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P6."""
    bench = make_bench(idle())
    claimed = await claim_one(bench)
    impostor = replace(claimed, owner_token=uuid.uuid4())
    assert await bench.settle(impostor, Wish.SUCCEED, output=b"1") is Settled.FENCED
    assert await bench.status(claimed.run_id) == "running"


async def test_a_group_of_successes_settles_only_what_its_owners_still_hold(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P5: the guards of the group statement are judged for each run."""
    bench = make_bench(idle())
    stale = await claim_one(bench)
    await take_away(bench, stale, clock)
    good = await claim_one(bench)
    settler = bench.worker._settler
    assert await settler._succeed([(stale, b"1"), (good, b"2")]) == [False, True]
    assert await bench.status(stale.run_id) == "running"
    assert (await bench.find(good.run_id)).output == 2


Writes = Callable[[Bench, Claimed], Coroutine[Any, Any, bool]]


async def succeeds(bench: Bench, claimed: Claimed) -> bool:
    """Its group leaves a row out on which somebody sits; alone it waits."""
    ending = Ending(Wish.SUCCEED, output=b"1")
    return await bench.worker._settler.settle(claimed, ending) is Settled.SUCCEEDED


async def parks(bench: Bench, claimed: Claimed) -> bool:
    return await bench.settle(claimed, Wish.PARK) is not Settled.FENCED


@pytest.mark.parametrize("write", [succeeds, parks])
@pytest.mark.parametrize(("seconds", "owns"), [(44, True), (45, False)])
async def test_a_lease_is_judged_by_the_clock_at_the_moment_its_row_is_locked(
    make_bench: MakeBench, clock: ManualClock, write: Writes, seconds: int, owns: bool
) -> None:
    """P5: one that ran out while the statement waited for the lock has run out."""
    bench = make_bench(idle())
    claimed = await claim_one(bench)
    async with bench.holding(claimed.run_id):
        writing = asyncio.create_task(write(bench, claimed))
        await bench.wait_for_lock_waiters()
        await clock.advance(seconds=seconds)
    assert await writing is owns
    if not owns:
        assert await bench.status(claimed.run_id) == "running"
        assert await bench.told(claimed.run_id) == ["run.submitted", "attempt.started"]


async def test_every_write_of_the_owner_renews_its_lease(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P6: a step, an event, progress, a child, an intent, and the begin of a call."""
    provider, seen = Provider(), list[timedelta]()
    app = shop(provider)

    async def left(_: object = None) -> None:
        until = await bench.lease_until(run.run_id)
        assert until is not None
        seen.append(until - clock.now)
        await clock.advance(seconds=20)

    @app.run("busy", lane="busy")
    async def busy(ctx: Context, value: int) -> None:
        writes: list[Callable[[], Awaitable[object]]] = [
            lambda: ctx.step("step", str, 1),
            lambda: ctx.emit("it.happened", {}),
            lambda: ctx.progress(1),
            lambda: ctx.submit(app.kinds["buy"], {"by": "hold"}),
            lambda: ctx.operation("pay", app.effects["test.hold"], {"number": 1}),
        ]
        await left()
        for write in writes:
            await write()
            await left()

    provider.on_prepare = left  # between the intent and the begin of the call
    bench = make_bench(app)
    run = await bench.find(await bench.submit("busy", 1))
    bench.worker.lanes = ["busy"]
    await bench.drain()
    assert await bench.status(run.run_id) == "succeeded"
    assert seen == [LEASE] * 7


def test_a_lease_must_be_renewed_at_least_three_times_while_it_lasts() -> None:
    """P6: checked at start, in one line."""
    with pytest.raises(SettingInvalid, match="renew at least three times a lease"):
        EngineSettings(lease=timedelta(seconds=30), renew_every=timedelta(seconds=11))
    assert EngineSettings(lease=timedelta(seconds=30), renew_every=timedelta(seconds=10))
