"""Reaping: lapsed leases, dead processes, clocks that jump; by whoever is alive (P5, P18, P23)."""

from __future__ import annotations

import asyncio
import uuid
from contextlib import AsyncExitStack
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from earnest import Context
from earnest.engine.attempts import reaping
from earnest.engine.attempts.reaping import ClockWatch
from earnest.engine.process import instances
from earnest.engine.process.instances import Instance, process_name, this_host
from earnest.store.database import Database
from earnest.testing.clock import START, ManualClock
from tests.engine.bench import Bench
from tests.engine.conftest import MakeBench
from tests.engine.handlers import work
from tests.engine.provider import Order, Provider, shop


async def nothing(ctx: Context) -> None:
    pass


async def look(bench: Bench) -> int:
    return await bench.worker._reaper.look()


async def test_a_lapsed_lease_is_a_lost_attempt_and_the_next_one_runs_at_once(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P23: the run is not lost with its worker."""
    bench = make_bench(work(nothing))
    run_id = await bench.submit("work")
    await bench.claim()
    await clock.advance(seconds=44)
    assert await look(bench) == 0
    await clock.advance(seconds=1)
    assert await look(bench) == 1
    run = await bench.find(run_id)
    assert (run.status, run.failures, run.retry_at) == ("queued", 1, None)
    assert (await bench.told(run_id))[-2:] == ["attempt.lost", "run.retry_scheduled"]
    (attempt,) = await bench.attempts(run_id)
    assert (attempt.outcome, attempt.ended_at) == ("lost", clock.now)
    await bench.drain()
    assert await bench.status(run_id) == "succeeded"


async def test_without_attempts_left_a_lost_run_fails_and_says_why(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P23."""
    bench = make_bench(work(nothing, max_attempts=2))
    run_id = await bench.submit("work")
    for _ in range(2):
        await bench.claim()
        await clock.advance(seconds=45)
        await look(bench)
    run = await bench.find(run_id)
    assert (run.status, run.failures, (run.error or {})["code"]) == ("failed", 2, "lost")
    assert await bench.outcomes(run_id) == ["lost", "lost"]


async def test_a_lost_run_that_was_asked_to_stop_is_cancelled(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P20: nobody is left to stop it."""
    bench = make_bench(work(nothing))
    run_id = await bench.submit("work")
    await bench.claim()
    assert (await bench.cancel(run_id)).outcome == "requested"
    await clock.advance(seconds=45)
    await look(bench)
    assert await bench.status(run_id) == "cancelled"
    assert await bench.outcomes(run_id) == ["lost"]


async def test_of_a_lost_run_the_call_decides_first_and_the_cancel_after_it(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P3, P20: what may have happened is not passed over because a stop was asked."""
    provider = Provider()
    app = shop(provider)
    frozen, other = make_bench(app), make_bench(app)
    gate = provider.holds()
    run_id = await frozen.submit("buy", {"by": "hold"})
    task = asyncio.create_task(frozen.drain())
    await gate.reached()
    await frozen.cancel(run_id)
    await clock.advance(seconds=46)
    await look(other)
    assert await other.status(run_id) == "unknown"
    await other.resolve(await other.operation(run_id), "released")
    assert await other.status(run_id) == "cancelled"
    gate.open()
    await task


async def test_several_that_reap_at_once_move_each_run_once(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P5: each move is judged again under the lock."""
    app = work(nothing)
    benches = [make_bench(app) for _ in range(3)]
    run_ids = [await benches[0].submit("work") for _ in range(5)]
    await benches[0].claim()
    await clock.advance(seconds=45)
    moved = await asyncio.gather(*(look(bench) for bench in benches))
    assert sum(moved) == 5
    for run_id in run_ids:
        assert (await benches[0].told(run_id)).count("attempt.lost") == 1


async def test_one_run_whose_apps_hook_fails_does_not_hold_up_the_others(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P23, P24: it stays as it was and is tried again; the others are moved."""
    provider = Provider()
    app = shop(provider, max_attempts=2)

    async def unreachable(order: Order) -> None:
        raise TimeoutError

    async def broken(*_: object) -> None:
        raise KeyError("the app's own mistake")

    provider.on_prepare = unreachable
    bench = make_bench(app)
    first = (await bench.done("buy", {"by": "hold"})).run_id
    second = await bench.submit("buy", {"by": "hold"})
    await clock.advance(minutes=1)
    await bench.ripen()
    assert len(await bench.claim()) == 2
    await clock.advance(seconds=45)
    provider.on_released = broken
    await look(bench)
    assert await bench.status(first) == "running"
    assert await bench.status(second) == "queued"
    provider.on_released = None
    await look(bench)
    assert await bench.status(first) == "failed"


async def test_many_rows_on_which_somebody_sits_do_not_make_a_round_long(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P23: each is waited for but a moment; the next look finds it again."""
    bench = make_bench(work(nothing))
    *sat_on, free = [await bench.submit("work") for _ in range(12)]
    await bench.claim(limit=12)
    await clock.advance(seconds=45)
    async with AsyncExitStack() as sitting:
        for run_id in sat_on:
            await sitting.enter_async_context(bench.holding(run_id))
        async with asyncio.timeout(8):
            assert await look(bench) == 1
        assert await bench.status(free) == "queued"
    assert await look(bench) == len(sat_on)


# ---- clocks that jump --------------------------------------------------------------------------


LEASE = timedelta(seconds=45)


def test_clocks_that_go_together_are_trusted() -> None:
    """P5: two seconds of difference are a slow answer."""
    watch = ClockWatch(LEASE)
    assert watch.trusts(START, 100.0)
    assert watch.trusts(START + timedelta(seconds=10), 110.0)
    assert watch.trusts(START + timedelta(seconds=21.9), 120.0)


@pytest.mark.parametrize("jump", [60, -60, 3])
def test_after_a_jump_of_the_wall_clock_leases_are_not_judged_for_one_lease(jump: int) -> None:
    """P5: in the meantime the living renew theirs by the new clock."""
    watch = ClockWatch(LEASE)
    assert watch.trusts(START, 100.0)
    jumped = START + timedelta(seconds=jump)
    assert not watch.trusts(jumped, 100.0)
    assert not watch.trusts(jumped + timedelta(seconds=44), 144.0)
    assert watch.trusts(jumped + timedelta(seconds=45), 145.0)


async def test_a_reaper_that_sees_the_clock_jump_takes_no_lease_away(
    make_bench: MakeBench, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P5: but goes on waking and expiring."""
    bench = make_bench(work(nothing))
    here = SimpleNamespace(monotonic=lambda: 100.0)
    monkeypatch.setattr(reaping, "time", here)
    run_id = await bench.submit("work")
    await bench.claim()
    await look(bench)
    await clock.advance(seconds=45)
    here.monotonic = lambda: 160.0
    assert await look(bench) == 0
    assert await bench.status(run_id) == "running"
    here.monotonic = lambda: 205.0 + 60.0
    bench.worker._reaper._clocks = ClockWatch(LEASE)
    assert await look(bench) == 1
    assert await bench.status(run_id) == "queued"


# ---- processes that are gone -------------------------------------------------------------------


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The clock of the look for dead processes."""
    here = SimpleNamespace(monotonic=lambda: 100.0)
    monkeypatch.setattr(instances, "time", here)
    return here


async def enter(bench: Bench, instance: Instance) -> Any:
    """The connection of another process's keeper, which holds that process's lock."""
    connection = await bench.engine.database.connect()
    bench.engine.instance = instance
    assert await instance.enter(connection)
    return connection


ELSEWHERE = "another machine"


async def test_a_process_whose_lock_stays_free_loses_its_runs_before_their_leases_end(
    make_bench: MakeBench, clock: ManualClock, watch: SimpleNamespace
) -> None:
    """P23: seen free twice, some seconds apart; its connection may only have been renewed."""
    app = work(nothing)
    dying, other = make_bench(app), make_bench(app, dead_after=timedelta(milliseconds=100))
    keeper = await enter(dying, Instance(uuid.uuid4(), ELSEWHERE, "1:1"))
    run_id = await dying.submit("work")
    await dying.claim()
    assert await look(other) == 0
    await keeper.close()
    assert await look(other) == 0
    watch.monotonic = lambda: 100.05
    assert await look(other) == 0
    watch.monotonic = lambda: 100.2
    assert await look(other) == 1
    run = await other.find(run_id)
    assert (run.status, run.failures) == ("queued", 1)


async def test_a_process_that_came_back_in_time_keeps_its_runs(
    make_bench: MakeBench, clock: ManualClock, watch: SimpleNamespace
) -> None:
    """P23."""
    app = work(nothing)
    living, other = make_bench(app), make_bench(app, dead_after=timedelta(milliseconds=100))
    keeper = await enter(living, Instance(uuid.uuid4(), ELSEWHERE, "1:1"))
    run_id = await living.submit("work")
    await living.claim()
    await keeper.close()
    assert await look(other) == 0
    keeper = await enter(living, living.engine.instance)
    watch.monotonic = lambda: 200.0
    assert await look(other) == 0
    await keeper.close()
    assert await look(other) == 0
    assert await other.status(run_id) == "running"


async def test_a_process_of_this_machine_that_provably_ended_needs_no_second_look(
    make_bench: MakeBench, clock: ManualClock, watch: SimpleNamespace
) -> None:
    """P23."""
    app = work(nothing)
    dying, other = make_bench(app), make_bench(app)
    process = await asyncio.create_subprocess_exec("cat", stdin=asyncio.subprocess.PIPE)
    keeper = await enter(dying, Instance(uuid.uuid4(), this_host(), process_name(process.pid)))
    run_id = await dying.submit("work")
    await dying.claim()
    await keeper.close()
    assert await look(other) == 0
    await process.communicate(b"")
    assert await look(other) == 1
    assert await other.status(run_id) == "queued"


async def test_a_dead_process_is_buried_when_it_holds_nothing_any_more(
    make_bench: MakeBench, clock: ManualClock, watch: SimpleNamespace
) -> None:
    """P23: it is not looked at for ever."""
    app = work(nothing)
    dying, other = make_bench(app), make_bench(app, dead_after=timedelta(0))
    keeper = await enter(dying, Instance(uuid.uuid4(), ELSEWHERE, "1:1"))
    await dying.submit("work")
    await dying.claim()
    await keeper.close()
    await look(other)
    ended = "SELECT ended_at IS NOT NULL FROM instance WHERE instance_id = $1"
    assert await other.value(ended, dying.engine.instance.instance_id)


def test_an_ended_process_is_told_from_a_new_one_with_its_number() -> None:
    """P2: a number is used again; number and start together are not."""
    here = Instance()
    assert not instances.provably_ended(here.host, here.process)
    number = here.process.partition(":")[0]
    assert instances.provably_ended(here.host, f"{number}:1")
    assert not instances.provably_ended("", f"{number}:1")
    assert not instances.provably_ended(ELSEWHERE, f"{number}:1")


def test_a_living_process_that_proc_hides_has_not_provably_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """P2: with `hidepid`, those of other users look as if there were none."""
    here = Instance()
    seen = instances._read
    monkeypatch.setattr(instances, "_read", lambda path: "" if "stat" in path else seen(path))
    assert not instances.provably_ended(here.host, here.process)


# ---- the look before anything is dispatched ----------------------------------------------------


async def test_recovery_takes_over_from_an_earlier_life_and_leaves_the_living_alone(
    make_bench: MakeBench, clock: ManualClock, watch: SimpleNamespace
) -> None:
    """P18."""
    app = work(nothing)
    living, dead, starting = make_bench(app), make_bench(app), make_bench(app)
    keeper = await enter(living, Instance(uuid.uuid4(), ELSEWHERE, "1:1"))
    theirs = await living.submit("work")
    await living.claim()
    lapsed = await dead.submit("work")
    await dead.claim()
    await clock.advance(seconds=45)
    await living.execute(
        "UPDATE execution SET lease_until = clock() + interval '45s' WHERE run_id = $1", theirs
    )
    assert await starting.worker._reaper.recover() == 1
    assert await living.status(theirs) == "running"
    assert await dead.status(lapsed) == "queued"
    await keeper.close()


async def test_alone_on_a_server_every_lease_of_an_earlier_life_is_void_at_once(
    make_bench: MakeBench, clock: ManualClock, watch: SimpleNamespace
) -> None:
    """P18: the embedded server has just started and nobody else is connected."""
    app = work(nothing)
    earlier, starting = make_bench(app), make_bench(app)
    keeper = await enter(earlier, Instance(uuid.uuid4(), ELSEWHERE, "1:1"))
    run_id = await earlier.submit("work")
    await earlier.claim()
    await keeper.close()
    assert await starting.worker._reaper.recover(alone=False) == 0
    assert await starting.worker._reaper.recover(alone=True) == 1
    assert await starting.status(run_id) == "queued"


async def test_runs_that_cannot_be_moved_do_not_hold_up_the_others_however_many_they_are(
    make_bench: MakeBench, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P23: what could not be moved is put aside until all others had their turn."""
    monkeypatch.setattr(reaping, "BATCH", 3)
    bench = make_bench(work(nothing))
    runs = sorted([await bench.submit("work") for _ in range(8)])
    while await bench.claim():
        pass
    await clock.advance(seconds=45)
    async with bench.engine.database.connection() as sitting, sitting.transaction():
        await sitting.execute(
            "SELECT FROM execution WHERE run_id = ANY ($1::uuid[]) FOR UPDATE", runs[:7]
        )
        assert [await look(bench) for _ in range(3)] == [0, 0, 1]
        assert await bench.status(runs[7]) == "queued"
    assert await look(bench) == 7, "they are free again, and all had their turn"


async def test_a_call_that_cannot_be_doubted_does_not_hold_up_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """P3: those that fail take turns with the others, a batch at each look."""
    monkeypatch.setattr(reaping, "BATCH", 2)
    tried: list[str] = []

    async def find(most: int) -> list[tuple[str, uuid.UUID]]:
        return [("demo", uuid.UUID(int=number)) for number in range(5)][:most]

    async def try_one(key: tuple[str, uuid.UUID]) -> bool:
        tried.append(str(key[1].int))
        return False

    aside: reaping.Aside = set()
    for _ in range(4):
        assert await reaping._in_turn(find, try_one, aside) == 0
    assert "".join(tried) == "0123401"


async def _live(database: Database, *those: Instance) -> None:
    async with database.connection() as tx:
        for instance in those:
            await instance.enter(tx)


async def _end(database: Database, *those: Instance) -> None:
    for instance in those:
        await instance.leave(database)


async def test_processes_that_ended_are_forgotten_once_they_are_no_proof_for_anybody(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P2: what may have been sent keeps its sender, which provably ended."""
    provider = Provider()
    app = shop(provider)
    sender, other = make_bench(app), make_bench(app)
    gate = provider.holds()
    run_id = await sender.submit("buy", {"by": "hold"})
    task = asyncio.create_task(sender.drain())
    await gate.reached()
    holder = make_bench(app)
    await holder.submit("buy", {"by": "hold"})
    await holder.claim()
    plain, late, alive = Instance(), Instance(), Instance()
    database = other.engine.database
    ended = [sender.engine.instance, holder.engine.instance, plain]
    await _live(database, *ended, alive)
    await _end(database, *ended)
    await clock.advance(seconds=instances.KEPT.total_seconds() + 1)
    await _live(database, late)
    await _end(database, late)

    async def forget() -> int:
        return await database.promise("prune", lambda tx: instances.prune(tx, 50))

    assert await forget() == 1
    left = set(await other.value("SELECT array_agg(instance_id) FROM instance"))
    kept = {one.instance_id for one in (*ended[:2], late, alive)}
    assert kept <= left
    assert plain.instance_id not in left
    gate.open()
    await task
    assert await other.status(run_id) == "succeeded"
    assert await forget() == 2, "the call is known, and the run is held by nobody"
