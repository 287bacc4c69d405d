"""`earnest bench`: what it prints, and that it leaves nobody's data and no data of its own."""

from __future__ import annotations

import asyncpg
import pytest

from earnest.apps.bench.figures import FIGURES, NAMES
from earnest.apps.bench.processes import NotStarted, running
from tests.doors.cli.program import Program


async def tables(url: str) -> int:
    connection = await asyncpg.connect(url)
    try:
        found: int = await connection.fetchval(
            "SELECT count(*) FROM pg_tables WHERE schemaname NOT IN ('pg_catalog', "
            "'information_schema')"
        )
        return found
    finally:
        await connection.close()


@pytest.fixture
async def empty_url(database_url: str) -> str:
    connection = await asyncpg.connect(database_url)
    await connection.execute("DROP SCHEMA earnest CASCADE")
    await connection.close()
    return database_url


@pytest.fixture
def bench(program: Program, empty_url: str) -> Program:
    return program.on(EARNEST_DATABASE_URL=empty_url).outside


async def test_figures_that_were_asked_for_are_measured_and_the_rest_is_null(
    bench: Program, empty_url: str
) -> None:
    asked = ("--only", "submit_per_s", "--only", "import_s")
    found = bench.good("bench", "--quick", "--json", *asked).json
    assert tuple(found) == NAMES
    measured = {name for name, value in found.items() if value is not None}
    assert measured == {"raw_insert_per_s", "submit_per_s", "bulk_submit_per_s", "import_s"}
    assert all(found[name] > 0 for name in measured)
    assert await tables(empty_url) == 0, "it leaves the database as it was"


def test_the_table_says_how_a_figure_stands_to_the_one_beside_it(bench: Program) -> None:
    told = bench.good("bench", "--quick", "--only", "bulk_submit_per_s")
    rows = {line.split()[0]: line.split() for line in told.out.splitlines()[1:]}
    assert set(rows) == {"raw_insert_per_s", "submit_per_s", "bulk_submit_per_s"}
    assert rows["submit_per_s"][4] == "raw_insert_per_s"
    assert float(rows["submit_per_s"][3]) > 0
    assert "round 3 of 3" in told.err


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_figure_is_measured_on_a_database_of_its_own(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.doors.cli.program.SECONDS", 600)
    found = program.outside.good("bench", "--quick", "--json").json
    assert tuple(found) == NAMES
    for figure in FIGURES:
        value = found[figure.name]
        parts = value.values() if isinstance(value, dict) else [value]
        assert all(part > 0 for part in parts), (figure.name, value)
    assert found["start_latency_ms"].keys() == {"p50", "p99"}
    assert found["stream_fanout_ms"].keys() == {"p50", "p99"}


async def test_a_database_that_holds_something_is_refused_and_stays(
    program: Program, database_url: str
) -> None:
    before = await tables(database_url)
    here = program.on(EARNEST_DATABASE_URL=database_url).outside
    assert "holds something already" in here.refused(2, "bench", "--quick")
    assert await tables(database_url) == before > 0


def test_a_figure_that_does_not_exist_is_refused_with_those_that_do(program: Program) -> None:
    assert "there are: raw_insert_per_s" in program.refused(2, "bench", "--only", "fastest")


async def test_a_process_that_does_not_start_says_why() -> None:
    words = ("worker", "--database-url", "postgresql:/nowhere", "--app", "nowhere:app", "--json")
    with pytest.raises(NotStarted, match="the app 'nowhere:app' cannot be imported"):
        async with running("earnest", *words):
            pass
