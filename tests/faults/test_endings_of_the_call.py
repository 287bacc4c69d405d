"""However the caller ends while its call is on the way, the call ends as confirmed or in doubt and
never in silence (P3, P5, P20): cancelled, out of time, without its lease, with a save that fails,
without a database. With a real bank at the other end, and every refund counted there.
"""

from __future__ import annotations

import asyncio
import signal
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from earnest.domain.operation import Operation, OperationState
from earnest.domain.run import AttemptOutcome, Run, RunStatus
from earnest.engine.attempts.working import Worker
from earnest.engine.process.doorbells import MOVED
from earnest.engine.process.engine import Engine
from earnest.engine.runs import cancelling, submitting
from earnest.engine.runs.submitting import Request
from earnest.store import operations, runs
from earnest.store.database import Database
from earnest.store.embedded import EmbeddedPostgres
from earnest.store.migrate import migrate
from earnest.testing.simulator import Simulator
from tests.faults.driving import new_scope
from tests.faults.invariants import read_tables, violations
from tests.faults.plan import BANKS
from tests.faults.restarting import end_server
from tests.faults.roles import open_engine, quick_settings
from tests.faults.verbs import PRINCIPAL, Caller, Verb
from tests.faults.workload import BOOK, Bank, close_app, make_app

pytestmark = pytest.mark.fault

LOOK = timedelta(milliseconds=20)
PATIENCE = 20.0
WAITS, GIVES_UP = 20.0, 0.2  # seconds that a caller waits for the database
CALL_MS = 500  # how long the bank takes; the attempt's time-out of `hurried` is shorter


@dataclass
class Case:
    """One refund that a bank takes its time over."""

    engine: Engine
    simulator: Simulator
    bank: Bank
    answered: bool = True
    scope: str = field(default_factory=new_scope)
    run_id: uuid.UUID = field(default_factory=uuid.uuid4)

    async def start(self, kind: str = "refund") -> None:
        """Submits, and returns once the call is on its way."""
        order_id = f"{self.scope}-order"
        mode = "slow" if self.answered else "accept_then_drop"
        self.simulator.put_fault("bank", mode, delay_ms=CALL_MS, match=order_id)
        order = {"order_id": order_id, "bank": self.bank}
        submitted = await submitting.submit(
            self.engine, self.scope, PRINCIPAL, Request(kind, order)
        )
        self.run_id = submitted.run.run_id
        await self.until(self._has_arrived)

    async def run(self) -> Run:
        found = await runs.find(self.engine.database, self.scope, self.run_id)
        assert found is not None, "submitted"
        return found

    async def operation(self) -> Operation:
        (found,) = await operations.of_run(self.engine.database, self.scope, self.run_id)
        return found

    async def settle(self, *, person: bool) -> None:
        """Waits until nothing is in doubt: the answer comes late, the bank is asked, it is called
        again, or, where no answer will come, a `person` looks into its books."""

        async def is_settled() -> bool:
            operation, run = await self.operation(), await self.run()
            by_hand = operation.recovery == "hold" or run.cancel_requested
            if by_hand and person and run.status is RunStatus.UNKNOWN:
                await self._caller().perform(Verb("resolve", str(operation.operation_id)))
            return not operation.in_doubt and run.final

        await self.until(is_settled)

    async def refunds(self) -> int:
        return await self._caller().refunds_of((await self.operation()).operation_id)

    async def until(self, is_so: Callable[[], Awaitable[bool]]) -> None:
        until = time.monotonic() + PATIENCE
        while not await is_so():
            assert time.monotonic() < until, f"{is_so.__name__} is not so after {PATIENCE} s"
            await self.engine.bells.wait(MOVED, LOOK)

    def _caller(self) -> Caller:
        return Caller(self.engine, self.simulator, self.scope)

    async def _has_arrived(self) -> bool:
        rules = await asyncio.to_thread(self.simulator.faults)
        return not any((rule["match"] or "").startswith(self.scope) for rule in rules)


@asynccontextmanager
async def working(engine: Engine) -> AsyncIterator[Worker]:
    worker = Worker(engine)
    task = asyncio.create_task(worker.run())
    try:
        yield worker
    finally:
        worker.stop()
        await task


@pytest.fixture
async def engine(database_url: str, simulator: Simulator) -> AsyncIterator[Engine]:
    settings = quick_settings(lease=5, renew_every=0.2)
    async with open_engine(database_url, simulator.url, settings) as opened:
        async with opened.database.connection() as tx:
            await tx.execute(BOOK)
        yield opened


every_ending = pytest.mark.parametrize(("answered", "bank"), list(product((True, False), BANKS)))


@every_ending
async def test_a_call_whose_run_is_cancelled_meanwhile(
    answered: bool, bank: Bank, engine: Engine, simulator: Simulator
) -> None:
    """It is let finish; the run is cancelled once it is known what the call did."""
    case = Case(engine, simulator, bank, answered)
    async with working(engine):
        await case.start()
        answer = await cancelling.cancel(engine, case.scope, case.run_id, PRINCIPAL)
        assert answer.outcome == "requested"
        await case.settle(person=not answered)
    await _assert_done_once(case, RunStatus.CANCELLED)
    assert (await case.operation()).send_count == 1


@every_ending
async def test_a_call_whose_attempt_runs_out_of_time(
    answered: bool, bank: Bank, engine: Engine, simulator: Simulator
) -> None:
    """The call outlives its attempt; the next one finds what it did."""
    case = Case(engine, simulator, bank, answered)
    async with working(engine):
        await case.start("hurried")
        await case.settle(person=not answered)
    await _assert_done_once(case, RunStatus.SUCCEEDED)
    first = (await runs.attempts(engine.database, case.scope, case.run_id))[0]
    # The bank may have been asked before the attempt was over.
    settled = {"keyed": {"timeout"}, "queryable": {"timeout", "doubted"}, "opaque": {"doubted"}}
    assert first.outcome in ({"timeout"} if answered else settled[bank])


@every_ending
async def test_a_call_whose_attempt_lost_its_lease(
    answered: bool, bank: Bank, engine: Engine, simulator: Simulator, database_url: str
) -> None:
    """Another worker takes the run; the late receipt of the first one settles the doubt."""
    case = Case(engine, simulator, bank, answered)
    async with (
        open_engine(database_url, simulator.url, engine.settings) as other,
        working(engine),
    ):
        await case.start()
        async with engine.database.connection() as tx:
            await tx.execute("UPDATE execution SET lease_until = clock() WHERE status = 'running'")
        async with working(other):
            await case.settle(person=not answered)
    await _assert_done_once(case, RunStatus.SUCCEEDED)
    attempts = await runs.attempts(engine.database, case.scope, case.run_id)
    assert attempts[0].outcome is AttemptOutcome.LOST


@pytest.mark.parametrize("bank", BANKS)
async def test_a_call_whose_receipt_cannot_be_saved(
    bank: Bank, engine: Engine, simulator: Simulator
) -> None:
    """The app's own table is missing: the receipt is kept as evidence of a doubt, and recorded with
    the app's row as soon as there is a table."""
    case = Case(engine, simulator, bank)
    async with engine.database.connection() as tx:
        await tx.execute("ALTER TABLE public.book RENAME TO mislaid")
    async with working(engine):
        await case.start()

        async def is_in_doubt() -> bool:
            return (await case.run()).status is RunStatus.UNKNOWN

        await case.until(is_in_doubt)
        moves = await operations.moves(
            engine.database, case.scope, (await case.operation()).operation_id
        )
        doubts = [move.detail for move in moves if move.move == "doubt"]
        for doubt in doubts:
            assert "record failed" in doubt["why"]
            assert doubt["receipt"]["id"]
        async with engine.database.connection() as tx:
            await tx.execute("ALTER TABLE public.mislaid RENAME TO book")
        await case.settle(person=True)
    await _assert_done_once(case, RunStatus.SUCCEEDED)


# ---- without a database ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("patience", "bank"),
    [
        (WAITS, "keyed"),
        pytest.param(WAITS, "queryable", marks=pytest.mark.slow),
        pytest.param(WAITS, "opaque", marks=pytest.mark.slow),
        pytest.param(GIVES_UP, "keyed", marks=pytest.mark.slow),
        (GIVES_UP, "queryable"),
        pytest.param(GIVES_UP, "opaque", marks=pytest.mark.slow),
    ],
)
async def test_a_call_whose_database_is_away_when_the_receipt_comes(
    patience: float, bank: Bank, tmp_path: Path, simulator: Simulator
) -> None:
    """Either the caller waits and stores the receipt, or it gives up and the doubt is found by
    those who come after it."""
    server, app = EmbeddedPostgres(tmp_path / "home"), make_app(simulator.url)
    await asyncio.to_thread(server.start)
    await migrate(server.url)
    settings = quick_settings(lease=1.5, renew_every=0.3)
    async with Database(server.url, size=6, patience=patience) as database:
        async with database.connection() as tx:
            await tx.execute(BOOK)
        engine = Engine(database, app.kinds, dict(app.effects), settings)
        case = Case(engine, simulator, bank)
        async with working(engine):
            await case.start()
            await _be_away(tmp_path / "home", server, 2 * CALL_MS / 1000)
            await case.settle(person=True)
        await _assert_done_once(case, RunStatus.SUCCEEDED)
    await asyncio.to_thread(server.stop)
    await close_app(app)


async def _be_away(home: Path, server: EmbeddedPostgres, seconds: float) -> None:
    """The server is torn down as by a loss of power, and comes back after the bank's answer."""
    end_server(home, signal.SIGQUIT)
    await asyncio.sleep(seconds)
    await asyncio.to_thread(server.ensure_running)


async def _assert_done_once(case: Case, status: RunStatus) -> None:
    operation: Operation = await case.operation()
    book: list[Any]
    async with case.engine.database.connection() as tx:
        book = await tx.fetch("SELECT said FROM public.book WHERE said NOT LIKE 'released:%'")
    assert (await case.run()).status is status
    assert operation.state is OperationState.SUBMITTED
    assert await case.refunds() == 1
    assert len(book) == 1
    assert violations(await read_tables(case.engine.database, case.scope)) == []
