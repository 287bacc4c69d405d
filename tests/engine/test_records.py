"""The app's own rows, `record` and `released`, commit with the outcome or not at all (P4)."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

import asyncpg
import pytest
from structlog.testing import capture_logs

from earnest import App, Call, Context, Effect
from earnest.domain.operation import Operation
from earnest.engine.runs import moving
from earnest.engine.runs.moving import HookNotHere
from earnest.testing.clock import ManualClock
from tests.engine.bench import Bench
from tests.engine.conftest import MakeBench
from tests.engine.provider import Order, Provider, Receipt, shop

HELD = {"by": "hold"}
FOUND = {"id": "from the statement"}


class Books:
    """The app's own table, written by its hooks; `fails` says how the next write goes wrong."""

    def __init__(self, provider: Provider, bench: Bench) -> None:
        self.bench = bench
        self.fails: list[Callable[[asyncpg.Connection], Awaitable[Any]]] = []
        provider.on_record = self.record
        provider.on_released = self.released

    async def open(self) -> Books:
        await self.bench.execute("CREATE TABLE book (operation text PRIMARY KEY, line text)")
        return self

    async def record(self, tx: asyncpg.Connection, call: Call, receipt: Receipt) -> None:
        await self.write(tx, call, receipt.id)

    async def released(self, tx: asyncpg.Connection, call: Call, reason: str) -> None:
        await self.write(tx, call, f"released: {reason}")

    async def write(self, tx: asyncpg.Connection, call: Call, line: str) -> None:
        await tx.execute("INSERT INTO book VALUES ($1, $2)", call.id, line)
        if self.fails:
            await self.fails.pop(0)(tx)

    async def lines(self) -> list[str]:
        async with self.bench.engine.database.connection() as connection:
            return [row["line"] for row in await connection.fetch("SELECT line FROM book")]


async def raises(tx: asyncpg.Connection) -> None:
    raise KeyError("the app's own mistake")


async def breaks_a_constraint(tx: asyncpg.Connection) -> None:
    await tx.execute("INSERT INTO book SELECT operation, line FROM book")


async def writes_nonsense(tx: asyncpg.Connection) -> None:
    await tx.execute("this is no SQL")


async def swallows_what_the_database_said(tx: asyncpg.Connection) -> None:
    """The transaction is lost by that; its next statement says so."""
    with contextlib.suppress(asyncpg.PostgresError):
        await writes_nonsense(tx)


async def is_chosen(tx: asyncpg.Connection) -> None:
    raise asyncpg.DeadlockDetectedError("deadlock detected")


async def opened(make_bench: MakeBench, provider: Provider, **terms: Any) -> tuple[Bench, Books]:
    bench = make_bench(shop(provider, **terms))
    return bench, await Books(provider, bench).open()


# ---- however the receipt was reached -----------------------------------------------------------


async def by_the_call(bench: Bench, provider: Provider, clock: ManualClock) -> uuid.UUID:
    return (await bench.done("buy", HELD)).run_id


async def by_a_look_up(bench: Bench, provider: Provider, clock: ManualClock) -> uuid.UUID:
    provider.drops(does=True)
    return (await bench.done("buy", {"by": "lookup"})).run_id


async def by_sending_again(bench: Bench, provider: Provider, clock: ManualClock) -> uuid.UUID:
    provider.drops(does=True)
    return (await bench.done("buy", {"by": "resend"})).run_id


async def by_a_person(bench: Bench, provider: Provider, clock: ManualClock) -> uuid.UUID:
    provider.drops(does=True)
    run = await bench.done("buy", HELD)
    operation = await bench.operation(run.run_id)
    receipt = {"id": f"receipt of {provider.done[0]}"}
    await bench.resolve(operation, "submitted", receipt)
    await bench.drain()
    return run.run_id


async def by_a_late_answer(bench: Bench, provider: Provider, clock: ManualClock) -> uuid.UUID:
    gate = provider.holds()
    run_id = await bench.submit("buy", HELD)
    task = asyncio.create_task(bench.drain())
    await gate.reached()
    await clock.advance(seconds=46)
    await bench.worker._reaper.look()
    assert (await bench.operation(run_id)).state == "unknown"
    gate.open()
    await task
    await bench.drain()
    return run_id


@pytest.mark.parametrize(
    "way", [by_the_call, by_a_look_up, by_sending_again, by_a_person, by_a_late_answer]
)
async def test_the_apps_record_is_written_once_however_the_receipt_was_reached(
    make_bench: MakeBench, clock: ManualClock, way: Callable[..., Awaitable[uuid.UUID]]
) -> None:
    """P4."""
    provider = Provider(dedupes=True)
    bench, books = await opened(make_bench, provider)
    run_id = await way(bench, provider, clock)
    assert await bench.status(run_id) == "succeeded"
    assert await books.lines() == [f"receipt of {provider.done[0]}"]
    assert len(provider.done) == 1


async def test_the_apps_record_may_wait_longer_for_a_row_than_the_engine_does(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P4: somebody works on a row of the app; no receipt ends in doubt because of that."""
    provider = Provider()
    bench, _ = await opened(make_bench, provider)
    limits: list[str] = []

    async def record(tx: asyncpg.Connection, call: Call, receipt: Receipt) -> None:
        limits.append(await tx.fetchval("SHOW lock_timeout"))

    provider.on_record = record
    await bench.done("buy", HELD)
    assert limits == ["10s"]
    async with bench.engine.database.connection() as connection:
        assert await connection.fetchval("SHOW lock_timeout") == "1s"


async def test_the_record_is_invisible_until_the_receipt_is_there(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P4: one commit; nobody sees the one without the other."""
    provider = Provider()
    bench, books = await opened(make_bench, provider)
    seen: list[tuple[str, list[str]]] = []

    async def look(tx: asyncpg.Connection) -> None:
        (operation,) = await bench.operations(run_id)
        seen.append((operation.state, await books.lines()))

    books.fails.append(look)
    run_id = await bench.submit("buy", HELD)
    await bench.drain()
    assert seen == [("submitting", [])]
    assert len(await books.lines()) == 1


# ---- a record that fails -----------------------------------------------------------------------


async def test_what_a_record_sets_in_its_session_does_not_stay_there(
    make_bench: MakeBench,
) -> None:
    bench, books = await opened(make_bench, Provider())

    async def changes_the_session(tx: asyncpg.Connection) -> None:
        await tx.execute("SET statement_timeout = '1h'")

    books.fails.append(changes_the_session)
    assert (await bench.done("buy", HELD)).status == "succeeded"
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(bench.engine.database.size):
            tx = await stack.enter_async_context(bench.engine.database.connection())
            assert await tx.fetchval("SHOW statement_timeout") == "30s"


async def takes_too_long(tx: asyncpg.Connection) -> None:
    await tx.execute("SELECT pg_sleep(60)")


@pytest.mark.parametrize(
    ("failure", "why"),
    [
        (raises, "test.hold.record failed"),
        (breaks_a_constraint, "test.hold.record failed"),
        (writes_nonsense, "test.hold.record failed"),
        (takes_too_long, "test.hold.record failed: TimeoutError"),
        (swallows_what_the_database_said, "current transaction is aborted"),
    ],
)
async def test_a_record_that_fails_stores_nothing_and_keeps_the_receipt_as_evidence(
    make_bench: MakeBench,
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
    failure: Callable[..., Awaitable[Any]],
    why: str,
) -> None:
    """P3, P4: it happened, so it is not done again; a person finds the receipt in the history."""
    provider = Provider()
    bench, books = await opened(make_bench, provider)
    books.fails.append(failure)
    with monkeypatch.context() as patch:
        if failure is takes_too_long:
            patch.setattr(moving, "HOOK_SECONDS", 0.2)
        run = await bench.done("buy", HELD)
    books.fails.clear()
    operation = await bench.operation(run.run_id)
    assert (run.status, operation.state, operation.receipt) == ("unknown", "unknown", None)
    assert await books.lines() == []
    (*_, doubt) = await bench.history(operation)
    assert doubt.move == "doubt"
    assert why in doubt.detail["why"]
    assert doubt.detail["receipt"] == {"id": f"receipt of {provider.done[0]}"}
    assert "operation.submitted" not in await bench.told(run.run_id)
    await bench.resolve(operation, "submitted", doubt.detail["receipt"])
    await bench.drain()
    assert await bench.status(run.run_id) == "succeeded"
    assert await books.lines() == [f"receipt of {provider.done[0]}"]
    assert len(provider.calls) == 1


async def test_a_record_that_fails_while_looking_up_settles_nothing(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P4: it is noted and asked again."""
    provider = Provider()
    bench, books = await opened(make_bench, provider)
    provider.drops(does=True)
    books.fails.append(raises)
    run = await bench.done("buy", {"by": "lookup"})
    operation = await bench.operation(run.run_id)
    assert (operation.state, await books.lines()) == ("unknown", [])
    (noted,) = await bench.lookups(operation)
    assert noted.answer == "inconclusive"
    assert "record failed" in noted.detail
    await clock.advance(seconds=1)
    await bench.drain()
    assert await bench.status(run.run_id) == "succeeded"


async def test_a_record_that_fails_refuses_a_persons_verdict(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P4: the person is told, and the doubt stays as it was."""
    provider = Provider()
    bench, books = await opened(make_bench, provider)
    provider.drops(does=True)
    run = await bench.done("buy", HELD)
    operation = await bench.operation(run.run_id)
    books.fails.append(raises)
    with pytest.raises(Exception, match=r"test\.hold\.record failed"):
        await bench.resolve(operation, "submitted", FOUND)
    assert await bench.again(operation) == operation
    assert await books.lines() == []


async def test_a_record_meets_a_deadlock_and_is_written_once_all_the_same(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P4: what the database takes back is done again as a whole."""
    provider = Provider()
    bench, books = await opened(make_bench, provider)
    books.fails.append(is_chosen)
    run = await bench.done("buy", HELD)
    assert run.status == "succeeded"
    assert await books.lines() == [f"receipt of {provider.done[0]}"]


async def test_a_receipt_that_others_never_let_be_stored_is_kept_as_evidence(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P3: whatever kept it from being stored."""
    provider = Provider()
    bench, books = await opened(make_bench, provider)
    bench.engine.database.patience = 0.1
    books.fails = [is_chosen] * 100
    run = await bench.done("buy", HELD)
    (*_, doubt) = await bench.history(await bench.operation(run.run_id))
    assert (run.status, doubt.move) == ("unknown", "doubt")
    assert "others were always first" in doubt.detail["why"]
    assert doubt.detail["receipt"] == {"id": f"receipt of {provider.done[0]}"}


# ---- released ----------------------------------------------------------------------------------


async def refused(bench: Bench, provider: Provider, clock: ManualClock) -> str:
    provider.refuses()
    await bench.done("buy", HELD)
    return "refused"


async def not_sent(bench: Bench, provider: Provider, clock: ManualClock) -> str:
    provider.is_not_reached()
    await bench.done("buy", HELD)
    return "not_sent"


async def absent(bench: Bench, provider: Provider, clock: ManualClock) -> str:
    provider.drops(does=False)
    run = await bench.done("buy", {"by": "dedupes"})
    await clock.advance(minutes=5)
    await bench.look_up(await bench.operation(run.run_id))
    return "absent"


async def a_persons(bench: Bench, provider: Provider, clock: ManualClock) -> str:
    provider.drops(does=False)
    run = await bench.done("buy", HELD)
    await bench.resolve(await bench.operation(run.run_id), "released")
    return "given_up"


async def reserved_when_the_run_ended(bench: Bench, provider: Provider, clock: ManualClock) -> str:
    async def fail(order: object) -> None:
        raise TimeoutError

    provider.on_prepare = fail
    run = await bench.done("buy", HELD)
    await bench.cancel(run.run_id)
    return "given_up"


RELEASES = [refused, not_sent, absent, a_persons, reserved_when_the_run_ended]


@pytest.mark.parametrize("way", RELEASES)
async def test_the_app_hears_in_the_same_commit_that_it_did_not_happen(
    make_bench: MakeBench, clock: ManualClock, way: Callable[..., Awaitable[str]]
) -> None:
    """P4: with the reason."""
    provider = Provider()
    bench, books = await opened(make_bench, provider)
    reason = await way(bench, provider, clock)
    assert await books.lines() == [f"released: {reason}"]
    assert await states(bench) == [("released", reason)]


async def states(bench: Bench) -> list[tuple[str, str | None]]:
    async with bench.engine.database.connection() as connection:
        rows = await connection.fetch("SELECT state, release_reason FROM operation")
    return [(row["state"], row["release_reason"]) for row in rows]


@pytest.mark.parametrize("way", [refused, not_sent])
async def test_a_released_hook_that_fails_releases_nothing_and_the_doubt_is_shown(
    make_bench: MakeBench, clock: ManualClock, way: Callable[..., Awaitable[str]]
) -> None:
    """P3, P4: the run does not end over it in silence."""
    provider = Provider()
    bench, books = await opened(make_bench, provider)
    books.fails.append(raises)
    await way(bench, provider, clock)
    assert await states(bench) == [("unknown", None)]
    assert await books.lines() == []
    assert await bench.value("SELECT status FROM execution") == "unknown"
    told = await bench.value("SELECT detail FROM operation_move WHERE move = 'doubt'")
    assert "test.hold.released failed" in told["why"]
    assert told["refusal"]["code"] in ("refused", "not_sent")


async def test_an_effect_without_hooks_needs_none(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P4."""
    provider = Provider()
    bench = make_bench(shop(provider))
    provider.refuses()
    assert (await bench.done("buy", HELD)).status == "failed"
    run = await bench.done("buy", HELD)
    operation: Operation = await bench.operation(run.run_id)
    assert operation.state == "submitted"


# ---- a process that does not know the effect ---------------------------------------------------


class Quiet(Effect[Order, Receipt]):
    """Has no hooks; no process makes it by itself."""

    kind = "test.quiet"

    def __init__(self, far_end: Provider) -> None:
        self.far_end = far_end

    async def prepare(self, request: Order) -> object:
        assert self.far_end.on_prepare is not None
        await self.far_end.on_prepare(request)
        return None

    async def submit(self, call: Call, request: Order) -> Receipt:
        return await self.far_end.call(call, request)


async def unreachable(order: Order) -> None:
    raise TimeoutError


async def reserved_only(bench: Bench, by: Any = HELD, kind: str = "buy") -> uuid.UUID:
    """A queued run whose operation was reserved, and never begun."""
    run_id = (await bench.done(kind, by)).run_id
    assert (await bench.status(run_id), (await bench.operation(run_id)).state) == (
        "queued", "reserved",
    )  # fmt: skip
    return run_id


def others(make_bench: MakeBench) -> Bench:
    """Another process, without the app."""
    return make_bench(App("other"))


async def test_a_verb_does_not_skip_the_released_hook_of_an_effect_that_its_process_knows_not(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P4: nothing is changed, and it is told what to do."""
    provider = Provider()
    provider.on_prepare = unreachable
    bench, books = await opened(make_bench, provider)
    run_id = await reserved_only(bench)
    with pytest.raises(
        HookNotHere, match=r"test\.hold is not known .* start it with the app"
    ) as told:
        await others(make_bench).cancel(run_id)
    assert told.value.status == 409
    assert (await bench.status(run_id), await books.lines()) == ("queued", [])
    await bench.cancel(run_id)
    assert (await bench.status(run_id), await books.lines()) == (
        "cancelled",
        ["released: given_up"],
    )


async def test_a_persons_verdict_does_not_skip_it_either(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P4."""
    provider = Provider()
    provider.drops(does=False)
    bench, books = await opened(make_bench, provider)
    operation = await bench.operation((await bench.done("buy", HELD)).run_id)
    with pytest.raises(HookNotHere):
        await others(make_bench).resolve(operation, "released")
    assert (await bench.again(operation)).state == "unknown"
    await bench.resolve(operation, "released")
    assert await books.lines() == ["released: given_up"]


async def test_a_reaper_leaves_what_needs_an_unknown_hook_to_a_process_that_knows_it(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P4, P23: and says so once."""
    provider = Provider()
    provider.on_prepare = unreachable
    bench, books = await opened(make_bench, provider, deadline="1h")
    run_ids = [await reserved_only(bench) for _ in range(2)]
    other = others(make_bench)
    await clock.advance(hours=1)
    with capture_logs() as told:
        for _ in range(2):
            await other.worker._reaper.look()
    assert [line["event"] for line in told] == ["reaper.left_to_others"]
    assert {await bench.status(run_id) for run_id in run_ids} == {"queued"}
    await bench.worker._reaper.look()
    assert {await bench.status(run_id) for run_id in run_ids} == {"failed"}
    assert await books.lines() == ["released: given_up"] * 2


async def test_an_effect_without_a_released_hook_is_released_by_any_process(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    provider = Provider()
    provider.on_prepare = unreachable
    app = App("quiet")
    quiet = Quiet(provider)
    app.effect(quiet)

    @app.run("pay")
    async def pay(ctx: Context, value: None) -> Receipt:
        return await ctx.operation("pay", quiet, Order(number=17))

    bench = make_bench(app)
    run_id = await reserved_only(bench, None, "pay")
    await others(make_bench).cancel(run_id)
    assert await bench.status(run_id) == "cancelled"
    assert (await bench.operation(run_id)).state == "released"
