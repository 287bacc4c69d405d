"""The pytest plugin of Earnest: an engine on a database of the test's own, and what a test needs to
let work happen, to count what was done outside, and to kill a process in the middle.

It is loaded by every pytest run of a project that has Earnest installed, so nothing but pytest is
imported before a fixture is asked for; `-p no:earnest` leaves it out. All fixtures are plain: they
serve async tests, whoever runs those (pytest-asyncio, anyio), and plain ones (`earnest_run`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from earnest.engine.app import App
    from earnest.engine.process.engine import Engine
    from earnest.engine.process.settings import EngineSettings
    from earnest.testing.any_loop import AnyLoopDatabase
    from earnest.testing.clock import HeldClock
    from earnest.testing.databases import ThrowawayCluster
    from earnest.testing.simulator import Simulator
    from earnest.testing.verbs import AssertSubmitted, CrashAt, Decide, Drain, RunNow

pytest.register_assert_rewrite("earnest.testing.conformance", "earnest.testing.trial")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini("earnest_app", "the App under test, such as shop:app", default="")


# ---- the app and its engine --------------------------------------------------------------------


@pytest.fixture
def earnest_app(pytestconfig: pytest.Config) -> App:
    """The app under test: the one that the ini option `earnest_app` names. Override the fixture to
    choose it otherwise."""
    from earnest.domain.errors import SettingInvalid
    from earnest.engine.loading import load_app

    named = pytestconfig.getini("earnest_app")
    if not named:
        raise pytest.UsageError(
            "say which app is under test: set `earnest_app = shop:app` in pytest's ini file, or "
            "define a fixture `earnest_app` that returns it"
        )
    try:
        return load_app(named)
    except SettingInvalid as error:
        raise pytest.UsageError(f"earnest_app: {error.detail}") from error


@pytest.fixture
def earnest_settings() -> EngineSettings:
    """The engine's settings; a call that is sent again is sent again at once. Override to change
    them."""
    from datetime import timedelta

    from earnest.engine.process.settings import EngineSettings

    return EngineSettings(resend_waits=(timedelta(0),) * 3)


@pytest.fixture
def earnest_engine(
    earnest_app: App,
    earnest_database: AnyLoopDatabase,
    earnest_clock: HeldClock,
    earnest_settings: EngineSettings,
) -> Iterator[Engine]:
    """An engine that knows the app, bound: `app.submit` and `earnest.operation` act through it, in
    the scope `default`. Nothing works by itself; see `drain`. Time stands still; see
    `earnest_clock`."""
    from earnest.testing.engines import bound_engine

    with bound_engine(earnest_app, earnest_database, earnest_settings) as engine:
        yield engine


# ---- the database ------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def earnest_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ThrowawayCluster]:
    """An embedded PostgreSQL of this session (of this worker of pytest-xdist), without fsync, with
    a migrated template."""
    from earnest.testing.any_loop import in_a_thread
    from earnest.testing.databases import ThrowawayCluster

    home: Path = tmp_path_factory.mktemp("earnest")
    cluster = ThrowawayCluster(home)
    in_a_thread(cluster.start)
    yield cluster
    cluster.stop()
    _remove(home)


def _remove(home: Path) -> None:
    """Some tens of megabytes, of which pytest would keep those of three runs."""
    import shutil

    shutil.rmtree(home, ignore_errors=True)


@pytest.fixture(scope="session")
def earnest_template_url(earnest_cluster: ThrowawayCluster) -> str:
    """The database that those of the tests are copied from. Leave no connection open there."""
    return earnest_cluster.template_url


@pytest.fixture(scope="session")
def earnest_tables() -> None:
    """Override it to make your program's own tables, once, in `earnest_template_url`."""


@pytest.fixture
def earnest_database_url(
    earnest_cluster: ThrowawayCluster, earnest_tables: None, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """A migrated, empty database of this test alone. `EARNEST_DATABASE_URL` names it meanwhile, so
    a program that opens Earnest by itself opens it too."""
    from earnest.testing.any_loop import on_a_loop_aside

    url = on_a_loop_aside(earnest_cluster.copy)
    monkeypatch.setenv("EARNEST_DATABASE_URL", url)
    yield url
    on_a_loop_aside(lambda: earnest_cluster.drop(url))


@pytest.fixture
def earnest_database(earnest_database_url: str) -> AnyLoopDatabase:
    """The database as the engine uses it, on any event loop."""
    from earnest.testing.any_loop import AnyLoopDatabase

    return AnyLoopDatabase(earnest_database_url)


@pytest.fixture
def earnest_clock(earnest_database: AnyLoopDatabase) -> HeldClock:
    """The database's clock, stopped at the time at which the test began. `advance("5m")` moves it;
    there is nothing to await."""
    from earnest.testing.engines import stop_clock

    return stop_clock(earnest_database)


# ---- letting things happen ---------------------------------------------------------------------


@pytest.fixture
def earnest_run() -> Iterator[RunNow]:
    """For tests that are not async: `earnest_run(drain())`. Runs what would be awaited, on one
    event loop for the whole test."""
    from earnest.testing.engines import Runner

    with Runner() as runner:
        yield runner.run


@pytest.fixture
def drain(earnest_engine: Engine, earnest_clock: HeldClock) -> Iterator[Drain]:
    """`await drain()` runs all that is due until nothing moves; `ahead="1h"` moves the clock to
    what is due later; `to_the_end=True` fails if something has not ended. See `draining.drain`."""
    from earnest.testing.draining import drain
    from earnest.testing.engines import awaited

    with awaited(drain, earnest_engine, earnest_clock) as call:
        yield call


@pytest.fixture
def crash_at(earnest_engine: Engine) -> Iterator[CrashAt]:
    """`await crash_at("begin.after")`: another process, a copy of this one, does what is due and is
    killed there. See `dying.crash_at`."""
    from earnest.testing.dying import crash_at
    from earnest.testing.engines import awaited

    with awaited(crash_at, earnest_engine) as call:
        yield call


@pytest.fixture
def approve(earnest_engine: Engine) -> Iterator[Decide]:
    """`await approve(run_id)`: somebody with the role approves what the run waits for. See
    `approving.approve`."""
    from earnest.testing.approving import approve
    from earnest.testing.engines import awaited

    with awaited(approve, earnest_engine) as call:
        yield call


@pytest.fixture
def reject(earnest_engine: Engine) -> Iterator[Decide]:
    """`await reject(run_id)`: as `approve`, and nothing of it is sent."""
    from earnest.testing.approving import reject
    from earnest.testing.engines import awaited

    with awaited(reject, earnest_engine) as call:
        yield call


# ---- asking what happened ----------------------------------------------------------------------


@pytest.fixture
def assert_submitted(earnest_engine: Engine) -> AssertSubmitted:
    """`assert_submitted(refund, input=Order(id=17), key="order-17")`: there is such a run. Nothing
    to await. See `submitted.assert_submitted`."""
    from functools import partial

    from earnest.testing.submitted import assert_submitted

    return partial(assert_submitted, earnest_engine)


@pytest.fixture(scope="session")
def earnest_simulator_process() -> Iterator[Simulator]:
    """The simulator of this session, in a process of its own."""
    from earnest.testing.simulator.process import running_simulator

    with running_simulator() as simulator:
        yield simulator


@pytest.fixture
def earnest_simulator(earnest_simulator_process: Simulator) -> Simulator:
    """Banks over real sockets at `.url`, as new for this test: `.truth("bank")` is what they really
    did, `.put_fault("bank", "accept_then_drop")` how the next call goes wrong."""
    earnest_simulator_process.forget()
    return earnest_simulator_process
