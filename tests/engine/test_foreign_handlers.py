"""What handlers, steps and effects raise ends what they were called for, and nobody else's work."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
import structlog

from earnest import App, Call, Context, PlainContext
from earnest.engine.process.logs import get_logger
from earnest.testing.clock import ManualClock
from tests.engine.bench import Bench
from tests.engine.conftest import MakeBench
from tests.engine.handlers import plain_work, work
from tests.engine.provider import Order, Provider, Receipt, shop

SECRET = "4111-1111-1111-1111"


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("it says nothing")

    __repr__ = __str__


class OddOne(BaseException):
    pass


ODD = [SystemExit(0), KeyboardInterrupt(), Mute(), OddOne("x")]
EXITS = {"SystemExit: 0": SystemExit(0), "KeyboardInterrupt: ": KeyboardInterrupt()}


def leave() -> None:
    sys.exit(0)


async def leave_async() -> None:
    sys.exit(0)


async def _itself(ctx: Context) -> None:
    leave()


async def _in_a_step(ctx: Context) -> None:
    await ctx.step("leave", leave_async)


async def _in_a_plain_step(ctx: Context) -> None:
    await ctx.step("leave", leave)


async def _in_branches(ctx: Context) -> None:
    await asyncio.gather(
        ctx.keyed_step("leave", "a", leave_async), ctx.keyed_step("leave", "b", leave)
    )


def _plainly(ctx: PlainContext) -> None:
    leave()


def _in_a_plain_handlers_step(ctx: PlainContext) -> None:
    ctx.step("leave", leave)


async def with_neighbour(bench: Bench, app: App) -> str:
    """Runs `work` beside a neighbour that is in the middle of its own work; what became of `work`'s
    run is told in its error."""
    ended = asyncio.Event()

    @app.run("neighbour")
    async def neighbour(ctx: Context, value: Any) -> str:
        await ended.wait()
        return "done"

    beside = await bench.submit("neighbour")
    run_id = await bench.submit("work")
    draining = asyncio.create_task(bench.drain())
    async with asyncio.timeout(10):
        await bench.until(run_id, "failed")
        ended.set()
        await draining
    assert (await bench.find(beside)).output == "done"
    assert await bench.outcomes(beside) == ["succeeded"]
    error = (await bench.find(run_id)).error
    assert error is not None, "it failed"
    return str(error["detail"])


@pytest.mark.parametrize(
    "handler", [_itself, _in_a_step, _in_a_plain_step, _in_branches], ids=lambda one: one.__name__
)
async def test_a_handler_that_exits_fails_its_attempt_and_no_neighbours(
    make_bench: MakeBench, handler: Callable[[Context], Awaitable[None]]
) -> None:
    """P4, P5: the worker lives, and so does what runs beside it."""
    app = work(handler, max_attempts=1)
    assert await with_neighbour(make_bench(app), app) == "SystemExit: 0"


@pytest.mark.parametrize(
    "handler", [_plainly, _in_a_plain_handlers_step], ids=lambda one: one.__name__
)
async def test_a_plain_handler_that_exits_fails_its_attempt_and_no_neighbours(
    make_bench: MakeBench, handler: Callable[[PlainContext], None]
) -> None:
    """P4, P5: its thread too."""
    app = plain_work(handler, max_attempts=1)
    assert await with_neighbour(make_bench(app), app) == "SystemExit: 0"


@pytest.mark.parametrize("shown", EXITS)
async def test_what_is_raised_to_end_a_process_is_told_with_the_run(
    make_bench: MakeBench, shown: str
) -> None:
    async def handler(ctx: Context) -> None:
        raise EXITS[shown]

    app = work(handler, max_attempts=1)
    assert await with_neighbour(make_bench(app), app) == shown


async def test_an_error_whose_text_cannot_be_made_fails_the_attempt(make_bench: MakeBench) -> None:
    """P5: at once, and not when the lease lapses."""

    async def handler(ctx: Context) -> None:
        raise Mute

    run = await make_bench(work(handler, max_attempts=1)).done("work")
    assert run.error is not None
    assert (run.status, run.failures) == ("failed", 1)
    assert run.error["detail"] == "Mute: (its text cannot be made: RuntimeError)"


# ---- effects -----------------------------------------------------------------------------------


@pytest.fixture
def provider() -> Provider:
    return Provider()


@pytest.mark.parametrize("error", ODD, ids=lambda error: type(error).__name__)
async def test_a_call_that_exits_is_in_doubt(
    make_bench: MakeBench, provider: Provider, error: BaseException
) -> None:
    """P3: nobody knows whether it was sent; the worker lives, and the doubt is on the desk."""
    bench = make_bench(shop(provider, max_attempts=1))
    provider.next(raises=error)
    run = await bench.done("buy", {"by": "hold"})
    operation = await bench.operation(run.run_id)
    assert (run.status, operation.state) == ("unknown", "unknown")
    last = (await bench.history(operation))[-1]
    assert last.detail["why"].startswith(type(error).__name__)


@pytest.mark.parametrize("error", ODD, ids=lambda error: type(error).__name__)
async def test_a_look_before_the_call_that_exits_fails_the_attempt_and_sends_nothing(
    make_bench: MakeBench, provider: Provider, error: BaseException
) -> None:
    async def on_prepare(order: Order) -> None:
        raise error

    bench = make_bench(shop(provider, max_attempts=1))
    provider.on_prepare = on_prepare
    run = await bench.done("buy", {"by": "hold"})
    assert (run.status, provider.calls) == ("failed", [])


@pytest.mark.parametrize("error", ODD, ids=lambda error: type(error).__name__)
async def test_a_look_up_that_exits_is_inconclusive(
    make_bench: MakeBench, provider: Provider, clock: ManualClock, error: BaseException
) -> None:
    """P3: it settles nothing, and is asked again."""
    bench = make_bench(shop(provider, max_attempts=1))
    provider.drops(does=True)
    provider.answers.append(error)
    run = await bench.done("buy", {"by": "lookup"})
    await clock.advance(seconds=60)
    await bench.drain()
    operation = await bench.operation(run.run_id)
    asked = await bench.lookups(operation)
    assert [one.answer for one in asked] == ["inconclusive", "found"]
    assert asked[0].detail.startswith(type(error).__name__)
    assert operation.state == "submitted"


@pytest.mark.parametrize("error", ODD, ids=lambda error: type(error).__name__)
async def test_a_record_that_exits_keeps_the_receipt_as_evidence(
    make_bench: MakeBench, provider: Provider, error: BaseException
) -> None:
    """P4: the receipt and the app's own rows in one commit, or a doubt that holds the receipt."""

    async def on_record(tx: object, call: Call, receipt: Receipt) -> None:
        raise error

    bench = make_bench(shop(provider, max_attempts=1))
    provider.on_record = on_record
    run = await bench.done("buy", {"by": "hold"})
    operation = await bench.operation(run.run_id)
    assert (run.status, operation.state) == ("unknown", "unknown")
    last = (await bench.history(operation))[-1]
    assert last.detail["receipt"]["id"].startswith("receipt of op_")


@pytest.mark.parametrize("error", ODD, ids=lambda error: type(error).__name__)
async def test_a_hook_that_exits_when_told_of_a_release_leaves_a_doubt(
    make_bench: MakeBench, provider: Provider, error: BaseException
) -> None:
    async def on_released(tx: object, call: Call, reason: str) -> None:
        raise error

    bench = make_bench(shop(provider, max_attempts=1))
    provider.refuses()
    provider.on_released = on_released
    run = await bench.done("buy", {"by": "hold"})
    assert (run.status, (await bench.operation(run.run_id)).state) == ("unknown", "unknown")


# ---- what is logged of it ----------------------------------------------------------------------


@pytest.fixture
def unconfigured() -> Iterator[None]:
    """As in a program that never heard of `structlog`."""
    before = structlog.get_config()
    structlog.reset_defaults()
    yield
    structlog.configure(**before)


@pytest.mark.usefixtures("unconfigured")
@pytest.mark.timeout(30)
@pytest.mark.parametrize("message", ["a\0b\x1b[31m\ud800\nall is well", "z" * 300_000])
async def test_what_is_logged_of_a_failed_handler_has_places_and_no_values(
    make_bench: MakeBench, capfd: pytest.CaptureFixture[str], message: str
) -> None:
    """P21: in a program of one's own too, whose logs nobody has configured."""

    async def handler(ctx: Context) -> None:
        card_number = SECRET
        raise ValueError(message) from KeyError(len(card_number))

    bench = make_bench(work(handler, max_attempts=1))
    run_id = await bench.submit("work", {"card": SECRET})
    await bench.drain()
    assert await bench.outcomes(run_id) == ["failed"]
    logged = "".join(capfd.readouterr())
    assert SECRET not in logged
    assert "test_foreign_handlers.py:" in logged
    assert "after KeyError: " in logged
    assert len(logged) < 10_000
    assert all(letter.isprintable() for letter in logged.replace("\n", ""))


class Broken:
    def msg(self, text: str) -> None:
        raise OSError("the disk is full")

    debug = info = warning = error = msg


@pytest.mark.usefixtures("unconfigured")
@pytest.mark.parametrize(
    "said",
    [
        {"message": "\ud800"},
        {"message": "odd", "event": "mine", "run_id": "another"},
        {"message": "odd", "value": Mute(), "exc_info": Mute()},
        {"message": "deep", "value": [[[[[[[[1]]]]]]]]},
    ],
)
@pytest.mark.parametrize("broken", [False, True])
async def test_no_log_breaks_an_attempt(
    make_bench: MakeBench, said: dict[str, Any], broken: bool
) -> None:
    """P5: what cannot be logged is lost, and not the work."""
    if broken:
        structlog.configure(logger_factory=lambda *_: Broken())

    async def handler(ctx: Context) -> int:
        ctx.log(**said)
        return 1

    bench = make_bench(work(handler, max_attempts=1))
    run = await bench.done("work")
    assert (run.status, run.output) == ("succeeded", 1)


def test_a_log_of_what_is_being_handled_shows_where_it_came_from() -> None:
    with structlog.testing.capture_logs() as logged:
        try:
            raise ValueError("x")
        except ValueError:
            get_logger("earnest.test").exception("it.failed", number=1)
    (line,) = logged
    assert line["exception"].startswith("ValueError: x\n")
    assert (line["event"], line["number"], line["log_level"]) == ("it.failed", 1, "error")
    assert "exc_info" not in line
