"""The connection breaks around a commit: nobody knows whether it was stored, so the traces are read
before anything is done again (P2, P4, P23).

The server really ends the connections, at the crash points before and after each commit.
"""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from earnest import App, Context
from earnest.domain import ids
from earnest.domain.crash_points import PROMISES
from earnest.domain.errors import DatabaseUnavailable
from earnest.engine.attempts import reaping
from earnest.engine.attempts.settling import Settled, Wish
from earnest.engine.process.engine import Engine
from earnest.engine.runs import submitting
from earnest.store.database import Database
from earnest.testing.clock import ManualClock
from tests.engine import deciders
from tests.engine.bench import MEMBER, SCOPE, Bench
from tests.engine.conftest import MakeBench
from tests.engine.handlers import work
from tests.engine.provider import Order, Provider, shop
from tests.store.wire import Wire

AtPoints = Callable[[Callable[[str], None]], None]


BEHIND_A_COMMIT = frozenset(f"{name}.after" for name in PROMISES)


class Cut:
    """Ends every connection to the database, once at each of the points, when it is passed for the
    `nth` time. Behind a commit its reply is lost with them: whoever waits for it is told so."""

    def __init__(self, url: str, *points: str, nth: int = 1) -> None:
        self.url = url
        self.left = dict.fromkeys(points, nth)

    def __call__(self, point: str) -> None:
        if point not in self.left:
            return
        self.left[point] -= 1
        if self.left[point] == 0:
            del self.left[point]
            thread = threading.Thread(target=lambda: asyncio.run(self._cut()))
            thread.start()
            thread.join(20)  # nothing of this process goes on meanwhile
            if point in BEHIND_A_COMMIT:
                raise ConnectionResetError("the reply was lost")

    async def _cut(self) -> None:
        connection = await asyncpg.connect(self.url)
        others = """FROM pg_stat_activity
            WHERE datname = current_database() AND pid <> pg_backend_pid()
              AND backend_type = 'client backend'"""
        await connection.execute(f"SELECT pg_terminate_backend(pid) {others}")
        while await connection.fetchval(f"SELECT count(*) {others}"):  # noqa: ASYNC110
            await asyncio.sleep(0)
        await connection.close()


# ---- one long story ----------------------------------------------------------------------------


def long_story(provider: Provider, calls: list[int]) -> App:
    """A run that does a bit of everything."""
    app = shop(provider)

    async def count(value: int) -> int:
        calls.append(value)
        return value

    @app.run("child")
    async def child(ctx: Context, value: int) -> int:
        return value * 2

    @app.run("story")
    async def story(ctx: Context, value: int) -> list[Any]:
        found = await ctx.step("count", count, value)
        await ctx.emit("it.began", {"value": found})
        receipt = await ctx.operation("pay", app.effects["test.hold"], Order(number=1))
        said = await ctx.wait_signal("go")
        doubled = await ctx.run(child, found)
        await ctx.sleep("1m")
        return [found, receipt.id, said, doubled]

    return app


async def tell(bench: Bench, clock: ManualClock) -> uuid.UUID:
    run_id = await bench.submit("story", 7)
    await bench.drain()
    await bench.signal(run_id, "go", "now")
    await bench.drain()
    await clock.advance(minutes=1)
    await bench.drain()
    return run_id


STORY = [
    "run.submitted", "attempt.started", "step.completed", "it.began", "operation.reserved",
    "operation.submitting", "operation.submitted", "run.waiting", "signal.received", "run.woken",
    "attempt.started", "run.waiting", "run.woken", "attempt.started", "run.waiting", "run.woken",
    "attempt.started", "run.succeeded",
]  # fmt: skip


def around(*names: str) -> list[str]:
    return [f"{name}.{side}" for name in names for side in ("before", "after")]


@pytest.mark.parametrize(
    ("names", "nth"),
    [
        (("submit", "claim"), 1),
        (("submit", "claim"), 2),
        (("step", "emit"), 1),
        (("reserve", "begin", "call"), 1),
        (("record", "confirm"), 1),
        (("park", "signal", "settle", "wake"), 1),
        (("park", "settle"), 2),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else str(value),
)
async def test_a_connection_that_breaks_around_a_commit_changes_nothing_of_the_story(
    make_bench: MakeBench, clock: ManualClock, at_points: AtPoints, names: tuple[str], nth: int
) -> None:
    """P2, P4, P23: nothing is lost, nothing is there twice."""
    provider, calls = Provider(), list[int]()
    bench = make_bench(long_story(provider, calls))
    cut = Cut(bench.engine.database.url, *around(*names), nth=nth)
    at_points(cut)
    run_id = await tell(bench, clock)
    assert not cut.left
    run = await bench.find(run_id)
    assert run.output == [7, f"receipt of {provider.done[0]}", "now", 14]
    assert len(provider.calls) == len(provider.done) == 1
    assert (calls, run.failures) == ([7], 0)
    told = await bench.events(run_id)
    assert [event.seq for event in told] == list(range(1, len(told) + 1))
    assert without_what_was_handed_back([event.type for event in told]) == STORY
    assert await bench.value("SELECT count(*) FROM run") == 2
    operation = await bench.operation(run_id)
    assert await bench.moves(operation) == ["reserve", "begin", "confirm"]
    assert await bench.findings(operation) == []


def without_what_was_handed_back(types: list[str]) -> list[str]:
    """A claim whose reply was lost is handed back before anything is claimed again."""
    if "run.resumed" not in types:
        return types
    handed_back = types.index("run.resumed")
    assert types[handed_back - 1] == "attempt.started"
    return types[: handed_back - 1] + types[handed_back + 1 :]


# ---- the moves of people and reapers -----------------------------------------------------------


async def doubt_and_resolve(bench: Bench, provider: Provider, clock: ManualClock) -> list[str]:
    provider.drops(does=True)
    run = await bench.done("buy", {"by": "hold"})
    await bench.resolve(await bench.operation(run.run_id), "submitted", {"id": "found"})
    await bench.drain()
    return await story_of(bench, run.run_id)


async def look_up(bench: Bench, provider: Provider, clock: ManualClock) -> list[str]:
    provider.drops(does=False)
    run = await bench.done("buy", {"by": "dedupes"})
    await clock.advance(minutes=5)
    await bench.drain()
    return await story_of(bench, run.run_id)


async def refuse(bench: Bench, provider: Provider, clock: ManualClock) -> list[str]:
    provider.refuses()
    run = await bench.done("buy", {"by": "hold"})
    return await story_of(bench, run.run_id)


async def cancel(bench: Bench, provider: Provider, clock: ManualClock) -> list[str]:
    run_id = await bench.submit("buy", {"by": "hold"})
    answer = await bench.cancel(run_id)
    assert answer.outcome == "cancelled"
    return await story_of(bench, run_id)


async def retry(bench: Bench, provider: Provider, clock: ManualClock) -> list[str]:
    run_id = await bench.submit("buy", {"by": "hold"})
    await bench.cancel(run_id)
    new = await bench.retry(run_id)
    assert new.revision == 2
    assert await bench.value("SELECT count(*) FROM run WHERE lineage_id = $1", run_id) == 2
    return await story_of(bench, run_id)


async def lose(bench: Bench, provider: Provider, clock: ManualClock) -> list[str]:
    run_id = await bench.submit("buy", {"by": "hold"})
    await bench.claim()
    await clock.advance(seconds=45)
    await bench.drain()
    return await story_of(bench, run_id)


async def expire(bench: Bench, provider: Provider, clock: ManualClock) -> list[str]:
    run_id = await bench.submit("buy", {"by": "hold"})
    await clock.advance(hours=1)
    await bench.drain()
    return await story_of(bench, run_id)


async def decide(bench: Bench, provider: Provider, clock: ManualClock) -> list[str]:
    """About a run that asks before it pays; once it is decided, and once nobody did in time."""
    run_id = await bench.submit("ask")
    await bench.drain()
    made = await deciders.decide(bench, await deciders.asked(bench, run_id), "approve")
    assert (made.approval.status, made.approval.version) == ("approved", 2)
    late = await bench.submit("ask")
    await bench.drain()
    await clock.advance(minutes=30)
    await bench.drain()
    audited = await bench.value("SELECT count(*) FROM audit WHERE subject = $1",
                                ids.show("apr", made.approval.approval_id))  # fmt: skip
    return [str(audited), *await story_of(bench, run_id), *await story_of(bench, late)]


async def story_of(bench: Bench, run_id: uuid.UUID) -> list[str]:
    """Status, events and moves of the run's operation."""
    found = [await bench.status(run_id), *await bench.told(run_id)]
    for operation in await bench.operations(run_id):
        found += await bench.moves(operation)
    return found


Tale = Callable[[Bench, Provider, ManualClock], Awaitable[list[str]]]


@pytest.mark.parametrize(
    ("tale", "points"),
    [
        (doubt_and_resolve, ("doubt", "settle", "resolve")),
        (look_up, ("look_up", "resolve")),
        (refuse, ("release",)),
        (cancel, ("cancel",)),
        (retry, ("retry",)),
        (lose, ("reap",)),
        (expire, ("expire",)),
        (decide, ("park", "decide", "begin", "expire")),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
async def test_every_other_move_is_made_once_too(
    make_bench: MakeBench, clock: ManualClock, at_points: AtPoints, tale: Tale, points: tuple[str]
) -> None:
    """P4, P23: the same story as without the break."""
    provider = Provider()
    app = shop(provider, deadline="1h")

    @app.run("ask")
    async def ask(ctx: Context, nothing: None) -> str:
        terms = ctx.approve(expires_in="30m")
        order = Order(number=17)
        receipt = await ctx.operation("pay", app.effects["test.hold"], order, approval=terms)
        return receipt.id

    bench = make_bench(app)
    expected = await tale(bench, provider, clock)
    cut = Cut(bench.engine.database.url, *around(*points))
    at_points(cut)
    assert await tale(bench, provider, clock) == expected
    assert not cut.left


async def test_a_claim_whose_reply_was_lost_is_handed_back_before_another_lane_is_claimed(
    make_bench: MakeBench, clock: ManualClock, at_points: AtPoints
) -> None:
    """P23: what another claim finds after it does not make it forgotten."""
    app = App("lanes")

    for name in ("a", "b"):

        @app.run(name, lane=name, max_attempts=1)
        async def kind(ctx: Context, value: Any) -> int:
            return ctx.attempt

    bench = make_bench(app)
    run_ids = [await bench.submit(name) for name in ("a", "b")]
    at_points(Cut(bench.engine.database.url, "claim.after"))
    await bench.drain()
    assert [await bench.status(run_id) for run_id in run_ids] == ["succeeded", "succeeded"]
    outcomes = sorted([await bench.outcomes(run_id) for run_id in run_ids])
    assert outcomes == [["handed_back", "succeeded"], ["succeeded"]]


# ---- one by one --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wish", "settled"),
    [
        (Wish.SUCCEED, Settled.SUCCEEDED),
        (Wish.PARK, Settled.WAITING),
        (Wish.HAND_BACK, Settled.QUEUED),
        (Wish.RETRY, Settled.QUEUED),
        (Wish.BLOCK, Settled.BLOCKED),
        (Wish.STOP, Settled.CANCELLED),
    ],
)
async def test_an_owner_whose_reply_was_lost_finds_its_own_ending_and_is_not_fenced_out(
    make_bench: MakeBench, clock: ManualClock, at_points: AtPoints, wish: Wish, settled: Settled
) -> None:
    """P5, P6: the owner token tells, also when somebody has claimed the run since."""

    async def nothing(ctx: Context) -> None:
        pass

    bench = make_bench(work(nothing))
    run_id = await bench.submit("work")
    (claimed,) = await bench.claim()
    name = "park" if wish is Wish.PARK else "settle"
    at_points(Cut(bench.engine.database.url, f"{name}.after"))
    assert await bench.settle(claimed, wish, output=b"1") is settled
    events = await bench.told(run_id)
    assert await bench.settle(claimed, wish, output=b"1") is settled
    assert await bench.told(run_id) == events


async def test_a_group_of_successes_whose_reply_was_lost_is_stored_once(
    make_bench: MakeBench, clock: ManualClock, at_points: AtPoints
) -> None:
    """P4."""

    async def handler(ctx: Context) -> int:
        return ctx.attempt

    bench = make_bench(work(handler))
    run_ids = [await bench.submit("work") for _ in range(5)]
    at_points(Cut(bench.engine.database.url, "settle.after"))
    await bench.drain()
    for run_id in run_ids:
        assert (await bench.find(run_id)).output == 1
        assert (await bench.told(run_id)).count("run.succeeded") == 1
        assert await bench.outcomes(run_id) == ["succeeded"]


@asynccontextmanager
async def inserted_and_undone(tx: asyncpg.Connection, run_id: uuid.UUID) -> AsyncIterator[None]:
    """The run's next event is written by another transaction, which in the end does not commit:
    until then who writes it, holding the run's lock, waits."""
    transaction = tx.transaction()
    await transaction.start()
    await tx.execute(
        "INSERT INTO event (scope_id, run_id, seq, type, payload, created_at)"
        " SELECT scope_id, run_id, last_seq + 1, 'none', '{}', now() FROM execution"
        " WHERE run_id = $1",
        run_id,
    )
    yield
    await transaction.rollback()


@pytest.mark.parametrize("ends_well", [True, False], ids=["is_stored", "is_undone"])
async def test_what_an_owner_writes_is_there_once_although_the_server_is_still_at_it(
    make_bench: MakeBench, tmp_path: Path, ends_well: bool
) -> None:
    """The connection is lost, and the statement still runs: what became of it is awaited."""
    app, begun, go_on = App("writes"), asyncio.Event(), asyncio.Event()

    @app.run("writes", max_attempts=1)
    async def writes(ctx: Context, value: None) -> None:
        begun.set()
        await go_on.wait()
        await asyncio.gather(ctx.step("one", int), ctx.emit("it.began", {}), ctx.progress(1))
        await asyncio.gather(ctx.step("other", int), ctx.progress(2))

    bench, looking = make_bench(app), make_bench(app)
    async with (
        Wire(looking.engine.database.url, tmp_path) as wire,
        Database(wire.url, settings={"lock_timeout": "10s"}) as wired,
    ):
        bench.engine.database = wired
        run_id = await bench.submit("writes")
        draining = asyncio.create_task(bench.drain())
        await begun.wait()
        holder = await looking.engine.database.connect()
        async with inserted_and_undone(holder, run_id):
            go_on.set()
            await looking.wait_for_lock_waiters()
            writer = await holder.fetchval("SELECT pid FROM pg_locks WHERE NOT granted")
            await wire.cut()
            await wire.let_through()
            await looking.wait_until_true(
                "SELECT count(*) > 0 FROM pg_stat_activity WHERE state = 'idle'"
                " AND backend_start > (SELECT max(a.query_start) FROM pg_stat_activity a"
                f" WHERE a.pid = {writer}) AND query ~ 'owner tokens|COMMIT'"
            )
            if not ends_well:
                await holder.execute("SELECT pg_terminate_backend($1)", writer)
        await holder.close()
        await draining
    told = await looking.told(run_id)
    counts = Counter(told)
    assert counts["step.completed"] == counts["run.progress"] == 2, told
    assert counts["it.began"] == 1
    assert await looking.outcomes(run_id) == ["succeeded"]


async def test_a_submit_with_a_key_whose_reply_was_lost_makes_one_run(
    make_bench: MakeBench, clock: ManualClock, at_points: AtPoints
) -> None:
    """P7: and is no replay of another request."""

    async def nothing(ctx: Context) -> None:
        pass

    bench = make_bench(work(nothing))
    at_points(Cut(bench.engine.database.url, "submit.after"))
    request = submitting.Request("work", 1, "order-17")
    first = await submitting.submit(bench.engine, SCOPE, MEMBER, request)
    second = await submitting.submit(bench.engine, SCOPE, MEMBER, request)
    assert first.run.run_id == second.run.run_id
    assert (first.replayed, second.replayed) == (False, True)
    assert await bench.value("SELECT count(*) FROM run") == 1


async def test_a_claim_whose_reply_was_lost_with_the_database_is_handed_back_when_it_is_there_again(
    make_bench: MakeBench, clock: ManualClock, at_points: AtPoints
) -> None:
    """P19, P23: it costs no attempt, and nobody waits for the lease to end."""

    async def handler(ctx: Context) -> int:
        return ctx.attempt

    bench = make_bench(work(handler, max_attempts=1))
    run_id = await bench.submit("work")
    database = bench.engine.database
    database.patience = 0
    at_points(Cut(database.url, "claim.after"))
    with pytest.raises(DatabaseUnavailable):
        await bench.drain()
    database.patience = 5
    await bench.drain()
    run = await bench.find(run_id)
    assert (run.status, run.output, run.failures) == ("succeeded", 2, 0)


async def test_a_signal_whose_reply_was_lost_counts_once(
    make_bench: MakeBench, clock: ManualClock, at_points: AtPoints
) -> None:
    """P25: although its sender gave no key."""

    async def handler(ctx: Context) -> None:
        await ctx.wait_signal("go")

    bench = make_bench(work(handler))
    run_id = (await bench.done("work")).run_id
    at_points(Cut(bench.engine.database.url, "signal.after"))
    assert await bench.signal(run_id, "go") == 1
    assert await bench.value("SELECT count(*) FROM signal") == 1


async def test_many_submits_in_one_commit_whose_reply_was_lost_are_there_once(
    make_bench: MakeBench, clock: ManualClock, at_points: AtPoints
) -> None:
    """P7."""

    async def nothing(ctx: Context) -> None:
        pass

    bench = make_bench(work(nothing))
    at_points(Cut(bench.engine.database.url, "submit.after"))
    run_ids = await submitting.submit_many(bench.engine, SCOPE, MEMBER, "work", [1, 2, 3])
    assert len(set(run_ids)) == 3
    assert await bench.value("SELECT count(*) FROM run") == 3


async def test_what_was_doubted_while_the_reply_of_its_begin_was_lost_is_not_sent(
    make_bench: MakeBench, clock: ManualClock, at_points: AtPoints
) -> None:
    """P2: the process was cut off, others took its run over, and a person may have settled it."""
    provider = Provider()
    bench = make_bench(shop(provider))
    run_id = await bench.submit("buy", {"by": "hold"})
    cut = Cut(bench.engine.database.url, "begin.after")

    async def take_over() -> None:
        async with Database(bench.engine.database.url) as database:
            other = Engine(database)
            dead = [bench.engine.instance.instance_id]
            key = (SCOPE, run_id)
            await database.promise("reap", lambda tx: reaping.lose(other, tx, key, dead))

    def cut_off(point: str) -> None:
        if point in cut.left:
            thread = threading.Thread(target=lambda: asyncio.run(take_over()))
            thread.start()
            thread.join(20)
        cut(point)

    at_points(cut_off)
    await bench.drain()
    assert not cut.left
    assert provider.calls == []
    assert await bench.status(run_id) == "unknown"
    operation = await bench.operation(run_id)
    assert (operation.state, await bench.moves(operation)) == (
        "unknown", ["reserve", "begin", "doubt"],
    )  # fmt: skip
