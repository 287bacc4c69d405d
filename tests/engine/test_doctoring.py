"""What a doctor says of a database and of the work in it."""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from earnest import App, Context
from earnest.engine.inspection import server_checks, work_checks
from earnest.engine.inspection.doctoring import Finding, Patient, diagnose, name_of, size, well
from earnest.engine.inspection.server_checks import SERVER_CHECKS
from earnest.engine.inspection.work_checks import WORK_CHECKS
from earnest.engine.process.engine import Engine
from earnest.store.database import Database, Tx
from earnest.store.statements import sql
from earnest.testing.clock import ManualClock
from tests.engine.bench import Bench
from tests.engine.conftest import MakeBench
from tests.engine.handlers import work
from tests.engine.pooler import PROGRAM, pooled
from tests.engine.provider import Provider, shop
from tests.engine.test_explaining import living, nothing


class Told(Patient):
    """A patient whose server answers as it is told to: for what no test may do to a server that it
    shares."""

    def __init__(self, engine: Engine, **answers: list[dict[str, Any]]) -> None:
        super().__init__(engine)
        self._answers = answers

    async def rows(self, statement: str, *arguments: Any) -> list[Any]:
        return self._answers.get(statement) or await super().rows(statement, *arguments)


async def look(bench: Bench, check: Callable[[Patient], Awaitable[Finding]]) -> Finding:
    return await check(Patient(bench.engine))


async def test_an_empty_database_is_well_but_for_its_missing_worker(make_bench: MakeBench) -> None:
    """The servers of tests write without fsync, and the doctor says so."""
    found = await diagnose(Patient(make_bench(App("none")).engine), [*SERVER_CHECKS, *WORK_CHECKS])
    told = {one.check: one.finding for one in found}
    assert {name: one.level for name, one in told.items() if one.level != "ok"} == {
        "durability": "bad",
        "workers": "warn",
    }
    assert "fsync=off" in told["durability"].detail
    assert [one for one in told.values() if one.level != "ok" and not one.advice] == []
    assert [name_of(check) for check in (*SERVER_CHECKS, *WORK_CHECKS)] == list(told)


async def test_a_check_that_fails_or_hangs_is_a_finding_too(make_bench: MakeBench) -> None:
    async def hangs(patient: Patient) -> Finding:
        await asyncio.Event().wait()
        return well("never")

    async def fails(patient: Patient) -> Finding:
        await patient.rows("no such statement")
        return well("never")

    async def looks_well(patient: Patient) -> Finding:
        return well("as it should be")

    patient = Patient(make_bench(App("none")).engine)
    found = await diagnose(patient, [hangs, fails, looks_well], seconds=0.05)
    assert [(one.check, one.finding.level) for one in found] == [
        ("hangs", "bad"),
        ("fails", "bad"),
        ("looks well", "ok"),
    ]
    assert "longer than 0.05 s" in found[0].finding.detail


async def test_a_replaced_clock_is_bad(make_bench: MakeBench, clock: ManualClock) -> None:
    found = await look(make_bench(App("none")), server_checks.clocks)
    assert found.level == "bad"
    assert "clock() is" in found.detail


async def test_a_missing_migration_is_bad(make_bench: MakeBench) -> None:
    bench = make_bench(App("none"))
    await bench.execute("UPDATE migration SET number = 1003 WHERE number = 3")
    try:
        found = await look(bench, server_checks.migrations)
    finally:
        await bench.execute("UPDATE migration SET number = 3 WHERE number = 1003")
    assert found.level == "bad"
    assert "0003_what_instances_serve" in found.detail


@pytest.mark.parametrize(
    ("drop", "named"),
    [
        ("DROP INDEX run_due", "the index run_due of engine/0001_engine"),
        ("DROP VIEW last_pass", "the view last_pass of engine/0005_feed"),
        ("DROP TABLE text_quota", "the table text_quota of engine/0004_text"),
        ("ALTER FUNCTION submit RENAME TO gone", "the function submit of engine/0002_sql_submit"),
    ],
)
async def test_what_the_migrations_made_and_is_gone_is_named(
    make_bench: MakeBench, drop: str, named: str
) -> None:
    bench = make_bench(App("none"))
    async with bench.engine.database.connection() as tx, undone(tx):
        await tx.execute(drop)
        rows = await tx.fetch(sql("schema_parts"))
    patient = Told(bench.engine, schema_parts=[dict(row) for row in rows])
    found = await server_checks.migrations(patient)
    assert (found.level, found.detail) == ("bad", f"the database lacks {named}")
    assert "earnest migrate --sql" in found.advice


@asynccontextmanager
async def undone(tx: Tx) -> AsyncIterator[None]:
    """Whatever is done is rolled back: the database is shared."""
    transaction = tx.transaction()
    await transaction.start()
    try:
        yield
    finally:
        await transaction.rollback()


async def test_a_migration_that_this_program_does_not_know_is_worth_a_look(
    make_bench: MakeBench,
) -> None:
    bench = make_bench(App("none"))
    row = "INSERT INTO migration (part, number, name, checksum) VALUES ('engine', 9001, 'new', '')"
    await bench.execute(row)
    try:
        found = await look(bench, server_checks.migrations)
    finally:
        await bench.execute("DELETE FROM migration WHERE number = 9001")
    assert (found.level, found.detail) == (
        "warn",
        "applied is what this program does not know: new",
    )


async def test_a_table_that_is_never_cleaned_up_is_bad(make_bench: MakeBench) -> None:
    bench = make_bench(App("none"))
    await bench.execute("ALTER TABLE execution SET (autovacuum_enabled = false)")
    found = await look(bench, server_checks.autovacuum)
    await bench.execute("ALTER TABLE execution RESET (autovacuum_enabled)")
    assert (found.level, found.detail) == ("bad", "it is forbidden for execution")
    off = Told(bench.engine, autovacuum_settings=[{"name": "autovacuum", "setting": "off"}])
    assert (await server_checks.autovacuum(off)).detail == "autovacuum is off"


async def test_many_dead_rows_are_worth_a_look(make_bench: MakeBench) -> None:
    table = {"name": "event", "live": 100, "dead": 20_000, "bytes": 5 * 1024**2}
    patient = Told(make_bench(App("none")).engine, tables_kept=[table])
    found = await server_checks.dead_rows(patient)
    assert found.level == "warn"
    assert "event: 20000 beside 100 (5120 KiB)" in found.detail


async def test_an_open_transaction_is_named_by_its_process(make_bench: MakeBench) -> None:
    bench = make_bench(App("none"))
    async with bench.holding(uuid.uuid4()) as connection:
        pid = await connection.fetchval("SELECT pg_backend_pid()")
        rows = await Patient(bench.engine).rows("long_transactions", timedelta(0))
        assert f"process {pid} (holder)" in [row["who"] for row in rows]
    long = {"who": f"process {pid} (holder)", "state": "idle in transaction", "seconds": 7200.0}
    found = await server_checks.long_transactions(Told(bench.engine, long_transactions=[long]))
    assert (found.level, found.detail) == (
        "bad", f"process {pid} (holder): idle in transaction for 2 hours"
    )  # fmt: skip


@pytest.mark.parametrize(("used", "level"), [(10, "ok"), (85, "warn"), (96, "bad")])
async def test_connections_near_their_end_are_told(
    make_bench: MakeBench, used: int, level: str
) -> None:
    answers = [{"used": used, "most": 100}]
    patient = Told(make_bench(App("none")).engine, connections_used=answers)
    assert (await server_checks.connections(patient)).level == level


async def test_a_standby_and_old_rows_are_bad(make_bench: MakeBench) -> None:
    row = {"version": "18.4", "standby": False, "bytes": 1, "age": 1_500_000_000}
    bench = make_bench(App("none"))
    old = await server_checks.server(Told(bench.engine, server_version=[row]))
    assert "1500000000 transactions old" in old.detail
    standby = {**row, "standby": True}
    found = await server_checks.server(Told(bench.engine, server_version=[standby]))
    assert (found.level, found.advice) == ("bad", "connect to the primary")


async def test_the_disk_of_an_embedded_home_is_measured(
    make_bench: MakeBench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    patient = Patient(make_bench(App("none")).engine, tmp_path)
    assert str(tmp_path) in (await server_checks.disk(patient)).detail
    monkeypatch.setattr(server_checks, "_GIB", 2**60)
    assert (await server_checks.disk(patient)).level == "bad"


# ---- the work ------------------------------------------------------------------------------------


async def test_due_runs_without_a_worker_are_named_by_lane_and_kind(make_bench: MakeBench) -> None:
    bench = make_bench(work(nothing))
    await bench.submit("work")
    await bench.submit("work")
    async with living(bench, lanes=("mail",)):
        found = await look(bench, work_checks.due_runs)
        assert found.level == "bad"
        assert "no living worker takes up 2 of work in the lane default" in found.detail
        async with living(bench):
            assert (await look(bench, work_checks.due_runs)).level == "ok"


async def test_an_old_queue_is_worth_a_look(make_bench: MakeBench, clock: ManualClock) -> None:
    bench = make_bench(work(nothing))
    await bench.submit("work")
    assert (await look(bench, work_checks.oldest_queued)).level == "ok"
    await clock.advance(minutes=10)
    found = await look(bench, work_checks.oldest_queued)
    assert (found.level, found.detail) == ("warn", "a run of work is due for 10 minutes")


async def test_a_worker_that_lives_and_takes_up_nothing_is_asked_about(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """So stands a process that was stopped, or whose event loop is blocked."""
    bench = make_bench(work(nothing))
    await bench.submit("work")
    async with living(bench):
        assert (await look(bench, work_checks.idle_workers)).level == "ok"
        await clock.advance(seconds=76)
        found = await look(bench, work_checks.idle_workers)
    assert (found.level, found.detail) == (
        "warn",
        "a run of work is due for 76 seconds though a worker with free places lives: is it stuck?",
    )
    async with living(bench, kinds=("other",)):
        assert (await look(bench, work_checks.idle_workers)).level == "ok"


async def test_a_worker_that_is_busy_may_leave_due_runs_waiting(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    bench = make_bench(work(nothing))
    await bench.submit("work")
    await bench.claim()
    await bench.submit("work")
    await clock.advance(seconds=76)
    async with living(bench, slots=1, instance=bench.engine.instance):
        assert (await look(bench, work_checks.idle_workers)).level == "ok"


async def test_a_run_that_was_put_off_and_whose_time_came_unseen_is_told(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    bench = make_bench(work(nothing))
    await bench.submit("work", not_before=clock.now + timedelta(seconds=10))
    assert (await look(bench, work_checks.overdue_runs)).level == "ok"
    await clock.advance(seconds=30)
    found = await look(bench, work_checks.overdue_runs)
    assert (found.level, found.detail) == (
        "warn", "1 were put off and are past their time, the first for 20 seconds"
    )  # fmt: skip


async def test_a_worker_that_ended_without_a_word_is_told(make_bench: MakeBench) -> None:
    bench = make_bench(work(nothing))
    async with living(bench, lanes=(), kinds=(), slots=0):  # a program that only calls
        assert (await look(bench, work_checks.workers)).detail == "none lives"
    async with living(bench):
        assert (await look(bench, work_checks.workers)).level == "ok"
        async with living(bench):
            pass
        found = await look(bench, work_checks.workers)
    assert (found.level, found.detail) == (
        "warn", "1 live, with 0 of 10 places taken; 1 ended without a word"
    )  # fmt: skip


async def test_what_has_run_out_and_was_not_moved_on_is_bad_after_a_while(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    async def sleeps(ctx: Context) -> None:
        await ctx.sleep("1m")

    bench = make_bench(work(sleeps))
    await bench.done("work")
    await bench.submit("work")
    await bench.claim()
    assert (await look(bench, work_checks.overdue_runs)).level == "ok"
    await clock.advance(seconds=70)
    found = await look(bench, work_checks.overdue_runs)
    assert found.level == "warn"
    assert found.detail.split("; ") == [
        "1 run past their lease, the first for 25 seconds",
        "1 sleep past their time, the first for 10 seconds",
    ]
    await clock.advance(seconds=70)
    assert (await look(bench, work_checks.overdue_runs)).level == "bad"
    await bench.drain()
    assert (await look(bench, work_checks.overdue_runs)).level == "ok"


async def test_doubts_are_told_by_effect_with_their_age(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P3."""
    provider = Provider()
    bench = make_bench(shop(provider))
    assert (await look(bench, work_checks.doubts)).level == "ok"
    provider.drops(does=True)
    await bench.done("buy", {"by": "hold"})
    await clock.advance(hours=3)
    found = await look(bench, work_checks.doubts)
    assert (found.level, found.detail) == ("warn", "1 of test.hold (hold), the oldest for 3 hours")
    provider.drops(does=False)
    await bench.done("buy", {"by": "never"})
    found = await look(bench, work_checks.doubts)
    assert found.level == "bad"
    assert "no living worker can ask about test.lookup.never" in found.advice
    async with living(bench, effects=("test.lookup.never",)):
        assert (await look(bench, work_checks.doubts)).level == "warn"


async def test_a_call_that_nobody_looks_after_is_bad(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    provider = Provider()
    gate = provider.holds()
    bench = make_bench(shop(provider))
    await bench.submit("buy", {"by": "hold"})
    task = asyncio.create_task(bench.drain())
    await gate.reached()
    assert (await look(bench, work_checks.calls)).level == "ok"
    await clock.advance(minutes=5)
    found = await look(bench, work_checks.calls)
    assert (found.level, found.detail) == (
        "bad", "1 are on their way for longer than they may be"
    )  # fmt: skip
    gate.open()
    await task


async def test_kinds_of_runs_in_flight_that_nobody_announced_are_named(
    make_bench: MakeBench,
) -> None:
    bench = make_bench(work(nothing))
    await bench.submit("work")
    found = await look(bench, work_checks.kinds)
    assert (found.level, found.detail) == (
        "bad", "runs in flight are of kinds that nobody announced: work"
    )  # fmt: skip
    async with living(bench):
        assert (await look(bench, work_checks.kinds)).level == "ok"


def test_sizes_are_read_easily() -> None:
    assert [size(n) for n in (17, 20_000, 5 * 1024**2, 3 * 1024**3, 20 * 1024**3)] == [
        "17 bytes", "20 KiB", "5120 KiB", "3072 MiB", "20 GiB"
    ]  # fmt: skip


# ---- behind a pooler -----------------------------------------------------------------------------


@pytest.mark.skipif(not PROGRAM.exists(), reason="scripts/system-packages installs pgbouncer")
@pytest.mark.parametrize(
    ("mode", "sessions", "word"), [("transaction", "bad", "warn"), ("session", "ok", "ok")]
)
async def test_a_pooler_that_gives_each_transaction_another_session_is_told(
    database_url: str, tmp_path: Path, mode: str, sessions: str, word: str
) -> None:
    async with patient_behind(database_url, tmp_path, mode) as patient:
        lost = await server_checks.pooling(patient)
    assert lost.level == "bad"
    assert "the settings of a connection do not arrive" in lost.detail
    async with (
        settings_kept(database_url),
        patient_behind(database_url, tmp_path, mode) as patient,
    ):
        assert (await server_checks.pooling(patient)).level == sessions
        assert (await server_checks.notifying(patient)).level == word


async def test_a_doctor_who_gets_no_second_connection_gives_the_first_one_back(
    make_bench: MakeBench,
) -> None:
    bench, role = make_bench(App("empty")), f"single_{uuid.uuid4().hex[:12]}"
    await bench.execute(f"CREATE ROLE {role} LOGIN CONNECTION LIMIT 1")
    url = re.sub("//[^@/]*@", f"//{role}@", bench.engine.database.url)
    with pytest.raises(asyncpg.TooManyConnectionsError):
        await server_checks.pooling(Patient(Engine(Database(url))))
    await bench.wait_until_true(
        f"SELECT count(*) = 0 FROM pg_stat_activity WHERE usename = '{role}'"
    )


@asynccontextmanager
async def patient_behind(url: str, folder: Path, mode: str) -> AsyncIterator[Patient]:
    """The database behind a pooler that was just started."""
    with pooled(url, folder, mode=mode) as pooled_url:
        async with Database(pooled_url, size=2, patience=5) as database:
            yield Patient(Engine(database))


@asynccontextmanager
async def settings_kept(url: str) -> AsyncIterator[None]:
    """The database has the settings that connections cannot bring along through a pooler."""
    connection = await asyncpg.connect(url)
    name = await connection.fetchval("SELECT current_database()")
    try:
        await connection.execute(f"ALTER DATABASE {name} SET enable_seqscan = off")
        yield
    finally:
        await connection.execute(f"ALTER DATABASE {name} RESET enable_seqscan")
        await connection.close()
