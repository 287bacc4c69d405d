"""What a handler writes for people: kept with its attempt, bounded, fenced, and for some days."""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from earnest import App, Context, PlainContext
from earnest.domain.log_line import KEPT, MAX_LINES, LogLine
from earnest.engine.attempts import logging
from earnest.engine.attempts.logging import Logs, LogWriter, make_line, prune_logs
from earnest.engine.runs.leasing import Leases, boot_seconds
from earnest.store import logs
from earnest.store.visible import Sight
from earnest.testing.clock import ManualClock
from tests.engine.bench import SCOPE, Bench
from tests.engine.conftest import MakeBench
from tests.engine.test_lost_replies import AtPoints, Cut


def app_of(handler: Callable[..., Any], **terms: Any) -> App:
    app = App("logs")
    app.run("write", retry_first="0s", **terms)(handler)
    return app


async def read(bench: Bench, run_id: uuid.UUID, attempt: int | None = None) -> list[LogLine]:
    sight = Sight(SCOPE, run_id, None)
    return await logs.visible(bench.engine.database, sight, (0, 0), attempt, 10_000)


async def left_out(bench: Bench, run_id: uuid.UUID) -> int:
    return await logs.left_out(bench.engine.database, SCOPE, run_id, None)


@pytest.fixture
def never_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is stored because time passes."""
    monkeypatch.setattr(logging, "GATHER", 3600.0)


@pytest.mark.usefixtures("never_by_itself")
async def test_lines_are_there_when_their_attempt_has_ended(make_bench: MakeBench) -> None:
    """Whatever it ends with, and each with its attempt."""

    async def write(ctx: Context, value: None) -> None:
        ctx.log("begins", order=17, parts=[1, 2])
        if ctx.attempt == 1:
            raise RuntimeError("again")
        if ctx.attempt == 2:
            ctx.log("sleeps")
            await ctx.sleep("1h")

    bench = make_bench(app_of(write))
    before = datetime.now(UTC)
    run = await bench.done("write")
    found = await read(bench, run.run_id)
    assert [(one.attempt, one.number, one.message) for one in found] == [
        (1, 1, "begins"), (2, 1, "begins"), (2, 2, "sleeps"),
    ]  # fmt: skip
    assert found[0].fields == {"order": 17, "parts": [1, 2]}
    assert before < found[0].created_at < found[1].created_at < datetime.now(UTC)
    assert await read(bench, run.run_id, attempt=1) == found[:1]


async def test_lines_of_a_long_attempt_are_stored_meanwhile(make_bench: MakeBench) -> None:
    goes_on = asyncio.Event()

    async def write(ctx: Context, value: None) -> None:
        ctx.log("once")
        await goes_on.wait()

    bench = make_bench(app_of(write))
    async with bench.at_work():
        run_id = await bench.submit("write")
        await bench.wait_until_true("SELECT count(*) = 1 FROM log_line")
        goes_on.set()
        await bench.until(run_id, "succeeded")


@pytest.mark.usefixtures("never_by_itself")
async def test_plain_handlers_and_their_threads_log_too(make_bench: MakeBench) -> None:
    def write(ctx: PlainContext, value: None) -> None:
        fields: dict[str, Any] = {"n": 1}
        ctx.log("from the handler", **fields)
        fields["n"] = 2
        thread = threading.Thread(target=lambda: ctx.log("from its thread"))
        thread.start()
        thread.join()

    bench = make_bench(app_of(write))
    run = await bench.done("write")
    found = await read(bench, run.run_id)
    assert [(one.message, one.fields) for one in found] == [
        ("from the handler", {"n": 1}), ("from its thread", {}),
    ]  # fmt: skip


async def test_a_thread_of_a_coroutine_logs_too(make_bench: MakeBench) -> None:
    async def write(ctx: Context, value: None) -> None:
        await asyncio.to_thread(ctx.log, "from a thread")

    bench = make_bench(app_of(write))
    run = await bench.done("write")
    assert [one.message for one in await read(bench, run.run_id)] == ["from a thread"]


async def test_lines_beyond_what_is_kept_are_counted(make_bench: MakeBench) -> None:
    """P10."""

    async def write(ctx: Context, value: None) -> None:
        for number in range(MAX_LINES + 7):
            ctx.log(f"line {number}")
        await asyncio.sleep(0)
        ctx.log("one more")

    bench = make_bench(app_of(write))
    run = await bench.done("write")
    found = await read(bench, run.run_id)
    assert [one.number for one in found] == list(range(1, MAX_LINES + 1))
    assert await left_out(bench, run.run_id) == 8


class Odd:
    def __str__(self) -> str:
        raise RuntimeError("no text")


ODD_LINES: dict[str, tuple[object, dict[str, Any]]] = {
    "long": ("x" * 100_000, {}),
    "lines": ("one\ntwo\x00\x1b[31m\ud800", {}),
    "large": ("m", {f"f{number}": "x" * 1000 for number in range(50)}),
    "odd": (Odd(), {"odd": Odd(), "nan": float("nan"), "event": 1, "self_": {1: {2: {3: {}}}}}),
    "error": ("m", {"exc_info": ValueError("secret " * 1000)}),
}


@pytest.mark.parametrize("odd", ODD_LINES)
async def test_no_line_breaks_an_attempt_or_its_neighbours(make_bench: MakeBench, odd: str) -> None:
    message, fields = ODD_LINES[odd]

    async def write(ctx: Context, value: None) -> None:
        ctx.log(message, **fields)  # type: ignore[arg-type]
        ctx.log("after")

    bench = make_bench(app_of(write))
    run = await bench.done("write")
    assert run.status == "succeeded"
    first, second = await read(bench, run.run_id)
    assert second.message == "after"
    assert len(first.message) <= 2001
    assert first.message.isprintable()


async def test_an_attempt_that_lost_its_lease_stores_no_line(make_bench: MakeBench) -> None:
    """P5."""

    async def idle(ctx: Context, value: None) -> None:
        pass

    bench = make_bench(app_of(idle))
    run_id = await bench.submit("write")
    (claimed,) = await bench.claim()
    leases = Leases(bench.engine.settings.lease)
    lease = leases.hold(claimed, boot_seconds(), lambda: None, lambda: None)
    writer = LogWriter(Logs(bench.engine, leases), claimed, lease)
    writer.add(make_line("mine", {}))
    await writer.flush()
    await bench.execute("UPDATE execution SET fence = fence + 1, owner_token = gen_random_uuid()")
    writer.add(make_line("late", {}))
    await writer.flush()
    assert [one.message for one in await read(bench, run_id)] == ["mine"]
    assert not lease.valid()


@pytest.mark.parametrize("point", ["log.before", "log.after"])
async def test_a_line_whose_reply_was_lost_is_stored_once(
    make_bench: MakeBench, at_points: AtPoints, point: str
) -> None:
    """P23."""

    async def write(ctx: Context, value: None) -> None:
        ctx.log("one")
        await ctx.flush_logs()
        ctx.log("two")

    bench = make_bench(app_of(write))
    cut = Cut(bench.engine.database.url, point)
    at_points(cut)
    run = await bench.done("write")
    assert not cut.left
    assert [one.message for one in await read(bench, run.run_id)] == ["one", "two"]


async def test_lines_of_many_runs_go_together(make_bench: MakeBench) -> None:
    """Not on the hot path: one statement for all that end in a moment."""
    both = asyncio.Barrier(20)

    async def write(ctx: Context, value: None) -> None:
        ctx.log("one of many")
        await both.wait()

    bench = make_bench(app_of(write))
    statements = 0
    store = Logs._store

    async def counted(self: Logs, batch: Any) -> Any:
        nonlocal statements
        statements += 1
        return await store(self, batch)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Logs, "_store", counted)
        for _ in range(20):
            await bench.submit("write")
        await bench.drain()
    assert await bench.value("SELECT count(*) FROM log_line") == 20
    assert statements <= 4


async def test_lines_are_kept_for_some_days(make_bench: MakeBench, clock: ManualClock) -> None:
    async def write(ctx: Context, value: None) -> None:
        ctx.log("one")

    bench = make_bench(app_of(write))
    for _ in range(3):
        await bench.submit("write")
    await bench.drain()
    await clock.advance(seconds=KEPT.total_seconds())
    assert await prune_logs(bench.engine) == 0
    await clock.advance(seconds=1)
    assert [await prune_logs(bench.engine, limit=2) for _ in range(3)] == [2, 1, 0]
    assert await bench.value("SELECT count(*) FROM log_line") == 0


async def test_lines_whose_time_is_over_are_pruned_by_whoever_minds(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    async def write(ctx: Context, value: None) -> None:
        ctx.log("one")

    bench = make_bench(app_of(write))
    await bench.done("write")
    await clock.advance(seconds=2 * KEPT.total_seconds())
    async with bench.at_work():
        await bench.wait_until_true("SELECT count(*) = 0 FROM log_line")
