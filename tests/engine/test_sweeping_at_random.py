"""Sweeps beside everything else: what was planted is found, and nothing else, whatever goes on; a
sweeper that is killed is taken over from."""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from earnest.domain import ids
from earnest.engine.operations import reconciling
from earnest.engine.process.actors import local
from earnest.engine.process.scopes import ensure_scope
from earnest.engine.sweeping import requesting
from earnest.engine.sweeping.sweeping import SweepSettings, take_and_sweep
from earnest.store import operations
from earnest.store.database import Database
from earnest.store.sweeps import DifferenceFilter
from earnest.testing.simulator import Simulator, running_simulator
from tests.engine.bench import SCOPE, Bench
from tests.engine.conftest import MakeBench
from tests.engine.listing_bank import ABSENT_IS_PROOF, EFFECTS, Bank, listing_shop

ROOT = Path(__file__).resolve().parents[2]
ME = local(SCOPE, "olga")
QUICK = SweepSettings(lag=timedelta(0), page=7)


async def sweep(bench: Bench, effect: str, since: datetime) -> None:
    asked = (await requesting.request(bench.engine, ME, effect, since)).sweep
    await take_and_sweep(bench.engine, QUICK, asked)
    done = await requesting.find_sweep(bench.engine, ME, asked.sweep_id)
    assert (done.state, done.why) == ("complete", None)


async def found(bench: Bench, state: str | None) -> set[tuple[str, str]]:
    only = DifferenceFilter(state)
    listed = await requesting.list_differences(bench.engine, ME, only, None, 10_000)
    return {(one.found.why.value, one.found.subject) for one in listed}


@dataclass
class Market:
    """Banks that lose a third of their answers, half of those before anything was done; and what a
    test has planted there."""

    bench: Bench
    banks: dict[str, Bank]
    dice: random.Random
    since: datetime
    planted: set[tuple[str, str]] = field(default_factory=set)
    wrong: set[tuple[str, str]] = field(default_factory=set)

    def plant(self) -> None:
        """What nobody asked for: with an id of ours, a foreign one or none."""
        bank = self.banks[self.dice.choice([*self.banks])]
        told = self.dice.choice([None, "op_foreign", ids.show("op", ids.new_id())])
        self.planted.add(("no_operation", bank.do(told, self.dice.randrange(5)).id))

    async def buy(self, count: int) -> None:
        for number in range(count):
            by = self.dice.choice([*self.banks])
            await self.bench.submit("buy", {"by": by, "number": number % 5})
            if self.dice.random() < 0.5:
                self.plant()
            await asyncio.sleep(0)

    async def sweep(self) -> set[tuple[str, str]]:
        """Looks at all banks; returns what is open then."""
        for by in self.banks:
            await sweep(self.bench, f"listed.{by}", self.since)
        return await found(self.bench, "open")

    async def sweep_beside(self, work: asyncio.Task[None]) -> None:
        while not work.done() or len(self.planted) < 20:
            await self.sweep()
            self.wrong |= await found(self.bench, None) - self.planted

    async def settle_doubts(self) -> int:
        """A person does it by what the bank knows; returns how many had been done."""
        done = {deed.operation_id for deed in self.banks["hold"].deeds}
        async with self.bench.engine.database.connection() as tx:
            rows = await tx.fetch("SELECT operation_id FROM operation WHERE state = 'unknown'")
        for row in rows:
            doubted = await operations.find(self.bench.engine.database, SCOPE, row["operation_id"])
            assert doubted is not None
            await self.bench.resolve(doubted, "released")
        return len([row for row in rows if ids.show("op", row["operation_id"]) in done])


@pytest.mark.timeout(240)
@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_all_that_was_planted_is_found_and_nothing_else_while_runs_go_on(
    make_bench: MakeBench, seed: int
) -> None:
    """P2, P3: calls whose answers are lost, look-ups, sends again and retries beside the sweeps."""
    random.seed(seed)
    banks = {by: Bank(trouble=0.3) for by in EFFECTS}
    bench = make_bench(
        listing_shop(banks),
        first_question=timedelta(milliseconds=20),
        longest_question_wait=timedelta(milliseconds=200),
        resend_waits=(timedelta(milliseconds=5),) * 8,
    )
    await ensure_scope(bench.engine, SCOPE, by="olga")
    since = datetime.now(UTC) - timedelta(minutes=1)
    market = Market(bench, banks, random.Random(seed), since)
    async with bench.at_work():
        bought = asyncio.create_task(market.buy(60))
        await asyncio.gather(bought, market.sweep_beside(bought))
        await bench.wait_until_true(
            "SELECT count(*) = 0 FROM execution WHERE status IN ('queued', 'running') "
            "OR status = 'unknown' AND (SELECT kind <> 'listed.hold' FROM operation o "
            "WHERE o.run_id = execution.run_id)"
        )
        await market.sweep()
        assert await market.settle_doubts() == 0, "what had been done was settled by the lists"
        assert await market.sweep() == market.planted
        assert market.wrong == set()
        missing = await _plant_missing(bench, banks, market.dice)
        await bench.wait_until_true(ABSENT_IS_PROOF)
        assert await market.sweep() == market.planted | missing


async def _plant_missing(
    bench: Bench, banks: dict[str, Bank], dice: random.Random
) -> set[tuple[str, str]]:
    """Some effects are gone there, and some records are of what never was."""
    async with bench.engine.database.connection() as tx:
        rows = await tx.fetch(
            "SELECT operation_id, kind FROM operation WHERE state = 'submitted' ORDER BY 1"
        )
    gone = dice.sample(rows, 10)
    for row in gone:
        banks[row["kind"].removeprefix("listed.")].forget(ids.show("op", row["operation_id"]))
    invented = [await _invent(bench, by) for by in banks for _ in range(3)]
    return {("not_listed", str(one)) for one in (*(row["operation_id"] for row in gone), *invented)}


async def _invent(bench: Bench, by: str) -> object:
    """A record by SQL."""
    operation_id = ids.new_id()
    await bench.execute(
        "INSERT INTO operation (scope_id, operation_id, principal_id, name, kind, state, recovery, "
        "provider, keeps_resource, live, request, digest, fence, dedupes, timeout, first_begun_at, "
        "submitted_at, receipt, external_ref, created_at) VALUES ($1, $2, 'olga', 'made up', $3, "
        "'submitted', 'hold', 'bank', true, true, $4, '', 0, false, '30 s', "
        "clock() - interval '10 s', clock() - interval '9 s', $5, $6, clock())",
        SCOPE, operation_id, f"listed.{by}", b'{"number": 1}', b'{"id": "x", "number": 1}',
        f"x-{operation_id}",
    )  # fmt: skip
    return operation_id


# ---- killed ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def own_simulator() -> Iterator[Simulator]:
    """A simulator of which everything is known."""
    with running_simulator() as own:
        yield own


@pytest.mark.fault
@pytest.mark.timeout(240)
async def test_a_sweeper_that_is_killed_is_taken_over_from(
    make_bench: MakeBench, database: Database, own_simulator: Simulator
) -> None:
    """P23: in the middle of its list, again and again; the next one finds everything, once."""
    from earnest.apps.demo.handlers import make_demo

    demo = make_demo(own_simulator.url)
    bench = make_bench(demo)
    await ensure_scope(bench.engine, SCOPE, by="olga")
    count = 600
    await _plant_at(own_simulator, count)
    asked = (await requesting.request(bench.engine, ME, "bank.keyed.refund")).sweep
    for killed in range(1, 4):
        sweeper = await _start(database.url, own_simulator.url)
        await bench.wait_until_true(
            f"SELECT takes = {killed} AND listed >= {40 * killed} FROM sweep"
        )
        sweeper.kill()
        await sweeper.wait()
        now = await requesting.find_sweep(bench.engine, ME, asked.sweep_id)
        assert now.state == "running", "killed in the middle"
        assert 0 < len(await found(bench, "open")) < count
    sweeper = await _start(database.url, own_simulator.url)
    await bench.wait_until_true("SELECT state IN ('complete', 'incomplete') FROM sweep")
    sweeper.kill()
    await sweeper.wait()
    done = await requesting.find_sweep(bench.engine, ME, asked.sweep_id)
    assert (done.state, done.takes, done.counts.listed) == ("complete", 4, count)
    assert len(await found(bench, "open")) == count
    assert await bench.value("SELECT count(*) FROM sweep_difference") == count
    assert await bench.value("SELECT count(*) FROM sweep_seen") == 0


async def _plant_at(simulator: Simulator, count: int) -> None:
    """Refunds that no operation of ours asked for."""
    import httpx2

    async with httpx2.AsyncClient(base_url=simulator.url) as client:
        for number in range(count):
            body = {"operation_id": f"planted-{number}", "order_id": number + 1, "amount": "1.00"}
            answer = await client.post("/bank/keyed/refunds", json=body)
            assert answer.status_code == 200


async def _start(database_url: str, simulator_url: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.engine.sweeping_process", database_url, simulator_url,
        cwd=ROOT,
    )  # fmt: skip


async def test_operations_in_doubt_are_settled_by_look_ups_and_sweeps_at_once(
    make_bench: MakeBench,
) -> None:
    """P2, P4: whoever is first; the app's record is written once."""
    bank = Bank(trouble=0.0)
    bench = make_bench(listing_shop({"lookup": bank}))
    await ensure_scope(bench.engine, SCOPE, by="olga")
    bank.cannot_be_asked = True
    for _ in range(20):
        bank.drops.append(True)
        await bench.submit("buy", {"by": "lookup"})
    await bench.drain()
    bank.cannot_be_asked = False
    since = datetime.now(UTC) - timedelta(minutes=1)
    async with bench.engine.database.connection() as tx:
        rows = await tx.fetch("SELECT operation_id FROM operation WHERE state = 'unknown'")
    assert len(rows) == 20
    await asyncio.gather(
        sweep(bench, "listed.lookup", since),
        *(reconciling.ask(bench.engine, SCOPE, row["operation_id"]) for row in rows),
    )
    assert await bench.value("SELECT count(*) FROM operation WHERE state = 'submitted'") == 20
    assert sorted(bank.recorded) == sorted({ids.show("op", row["operation_id"]) for row in rows})
    assert await found(bench, None) == set()
