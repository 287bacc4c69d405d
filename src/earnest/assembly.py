"""The one place where database, engine, apps and doors are put together.

`Assembly` is what a process of Earnest is made of. The doors get it handed in; nothing below
imports this module.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
    nullcontext,
)
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from urllib.parse import urlsplit

import asyncpg

from earnest.domain.errors import DatabaseUnavailable, HomeUnusable, SettingInvalid
from earnest.doors.cli.parts import Told
from earnest.engine.app import App
from earnest.engine.attempts.minding import Minder
from earnest.engine.attempts.working import Worker
from earnest.engine.blocking import Blocking
from earnest.engine.inspection.readiness import Readiness, examine
from earnest.engine.loading import load_app
from earnest.engine.messages.relaying import Relay
from earnest.engine.operations import operating
from earnest.engine.process import announcing, binding, instances
from earnest.engine.process.doorbells import Doorbells
from earnest.engine.process.engine import Engine
from earnest.engine.process.instances import Serves
from earnest.engine.process.logs import get_logger
from earnest.engine.process.sealing import Sealer
from earnest.engine.process.settings import EngineSettings
from earnest.engine.sweeping.sweeper import Sweeper
from earnest.store.blobs import open_blobs
from earnest.store.database import LOST, Database
from earnest.store.embedded import EmbeddedPostgres, Started, default_home
from earnest.store.migrate import check, migrate, pending
from earnest.store.schema import require_whole

log = get_logger("earnest")

MIND_EVERY = timedelta(seconds=5)


def bells_wanted() -> bool:
    """What `EARNEST_BELLS` says. Raises `SettingInvalid`."""
    said = os.environ.get("EARNEST_BELLS") or "on"
    if said not in ("on", "off"):
        raise SettingInvalid(f"EARNEST_BELLS is {said!r}; set it to on or to off")
    return said == "on"


@dataclass(frozen=True)
class Config:
    """What a process is told: where its facts are and what it can do. Without `database_url` an
    embedded PostgreSQL under `home` is used. `makes`: a missing database is made and an older
    schema brought up to date; without it both are refused. Without `bells` processes do not notify
    each other (behind a pooler they cannot): each looks from time to time. `artifacts`: where their
    bytes are, if not in a folder of the home; see `store/blobs.py`."""

    home: Path = field(default_factory=default_home)
    database_url: str | None = None
    apps: Sequence[App] = ()
    settings: EngineSettings = field(default_factory=EngineSettings)
    makes: bool = True
    patience: float = 30.0
    bells: bool = field(default_factory=bells_wanted)
    artifacts: str | None = field(default_factory=lambda: os.environ.get("EARNEST_ARTIFACTS"))


class Assembly:
    """Database and engine of one process, opened and closed as a context."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.alone = False
        self._embedded: EmbeddedPostgres | None = None
        self._stack = AsyncExitStack()
        self._engine: Engine | None = None

    @property
    def engine(self) -> Engine:
        if self._engine is None:
            raise SettingInvalid("the assembly is not open; use it as `async with Assembly(...)`")
        return self._engine

    def worker(self, lanes: list[str] | None = None) -> Worker:
        """A worker, with a relay of messages and a sweeper beside it."""
        beside = [Relay(self.engine).run, Sweeper(self.engine).run]
        return Worker(self.engine, lanes=lanes, alone=self.alone, beside=beside)

    async def __aenter__(self) -> Assembly:
        async with AsyncExitStack() as stack:
            url = await self._start_database(stack)
            await bring_schema(url, makes=self.config.makes)
            database = Database(url, patience=self.config.patience, revive=self._revive)
            await stack.enter_async_context(database)
            self._engine = _make_engine(database, self.config)
            stack.push_async_callback(operating.finish_calls)
            for warning in (await examine(self._engine, Readiness(ready=True))).warnings:
                log.warning("database.not_durable", warning=warning)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._stack.aclose()

    async def _start_database(self, stack: AsyncExitStack) -> str:
        if self.config.database_url is not None:
            return require_url(self.config.database_url)
        embedded = EmbeddedPostgres(self.config.home, say=_say)
        if not self.config.makes and embedded.is_new:
            raise HomeUnusable(
                f"there is no database in {self.config.home}; start `earnest serve` there first, "
                "or choose another home with --home or EARNEST_HOME"
            )
        self._embedded = embedded
        started: Started = await asyncio.to_thread(embedded.start)
        stack.push_async_callback(_stop, embedded)
        self.alone = started.alone
        log.info("database.ready", how=started.how, home=str(self.config.home))
        return started.url

    async def _revive(self) -> None:
        """Brings the embedded server back after it was killed."""
        if self._embedded is not None:
            await asyncio.to_thread(self._embedded.ensure_running)


async def _stop(embedded: EmbeddedPostgres) -> None:
    """In a thread, or without one while the interpreter ends: then nobody can start any."""
    try:
        await asyncio.to_thread(embedded.stop)
    except RuntimeError:
        embedded.stop()


def _say(line: str) -> None:
    log.info("database.waiting", what=line)


# ---- the database's address and schema ---------------------------------------------------------


def require_url(url: str) -> str:
    """The URL itself. Raises `SettingInvalid`, without repeating it: it may hold a password."""
    try:
        parts = urlsplit(url)
        fits = parts.scheme in ("postgresql", "postgres") and (parts.port is None or parts.port > 0)
    except ValueError:
        fits = False
    if not fits:
        raise SettingInvalid(
            "EARNEST_DATABASE_URL (or --database-url) is not the address of a PostgreSQL; write "
            "postgresql://user:password@host:5432/name"
        )
    return url


async def bring_schema(url: str, *, makes: bool) -> list[str]:
    """The database as this program needs it; returns the names of what was applied. Raises
    `DatabaseUnavailable`, and `SchemaMismatch`."""
    with _reaching():
        if makes:
            return [str(migration) for migration in await migrate(url)]
        await check(url)
        return []


@contextmanager
def _reaching() -> Iterator[None]:
    """Says in one line why a database that was never reached cannot be used."""
    try:
        yield
    except (*LOST, OSError, ValueError) as error:
        raise DatabaseUnavailable(
            f"the database cannot be reached ({error or type(error).__name__}); look at "
            "EARNEST_DATABASE_URL and whether the server runs"
        ) from error
    except asyncpg.PostgresError as error:
        raise DatabaseUnavailable(
            f"the database refuses ({error}); look at EARNEST_DATABASE_URL and at the rights of "
            "its user"
        ) from error


async def migrate_as_told(told: Told, *, check_only: bool) -> list[str]:
    """Applies what is missing, or with `check_only` names it and changes nothing. Raises
    `SchemaMismatch` if what was applied is not all there any more."""
    assembly = Assembly(config_as_told(replace(told, makes=not check_only)))
    async with AsyncExitStack() as stack:
        url = await assembly._start_database(stack)
        with _reaching():
            found = await (pending(url) if check_only else migrate(url))
            if not (check_only and found):
                await require_whole(url)
        return [str(migration) for migration in found]


# ---- what is told on a command line ------------------------------------------------------------


def config_as_told(told: Told) -> Config:
    """Loads the apps and checks the settings. Raises `SettingInvalid`."""
    changed: dict[str, object] = {}
    if told.concurrency is not None:
        changed["concurrency"] = told.concurrency
    if told.drain_seconds is not None:
        changed["drain"] = timedelta(seconds=told.drain_seconds)
    return Config(
        home=told.home,
        database_url=told.database_url,
        apps=[load_app(path) for path in told.apps],
        settings=replace(EngineSettings(), **changed),  # type: ignore[arg-type]
        makes=told.makes,
        patience=30.0 if told.makes else 5.0,
    )


def _make_engine(database: Database, config: Config) -> Engine:
    engine = Engine(database, settings=config.settings, sealer=Sealer(config.home))
    engine.bells = Doorbells(database, across=config.bells)
    engine.blobs = open_blobs(config.artifacts, config.home)
    for app in config.apps:
        for kind in app.kinds.values():
            engine.kinds.add(kind)
        engine.effects.update(app.effects)
        for name, handler in app.inboxes.items():
            engine.inboxes.add(name, handler)
    return engine


# ---- inside somebody's program -----------------------------------------------------------------


@asynccontextmanager
async def open_app(
    app: App,
    *,
    scope: str = "default",
    principal: str = "app",
    home: Path | None = None,
    database_url: str | None = None,
    worker: bool = False,
) -> AsyncIterator[Assembly]:
    """Opens Earnest inside a program of one's own: `app.submit` and `earnest.operation` act through
    it, in `scope` and as `principal`. Home and database are those that the environment names, where
    none are given. With `worker`, this process also runs work; without one it still minds what ran
    out, and asks providers about doubts. In code without `await`, use `blocking`."""
    async with _assembled(app, home, database_url, worker=worker) as assembly:
        bound = await binding.make(assembly.engine, scope, principal)
        binding.bind(bound)
        try:
            yield assembly
        finally:
            binding.unbind(bound)


def blocking(
    app: App,
    *,
    scope: str = "default",
    principal: str = "app",
    home: Path | None = None,
    database_url: str | None = None,
    worker: bool = False,
) -> Blocking:
    """The app for callers that block: Celery tasks, Django views, scripts. Takes what `open_app`
    takes. Nothing is opened before the first use, and then for each process by itself, so it may be
    made at import and before a fork."""

    @asynccontextmanager
    async def opening() -> AsyncIterator[binding.Binding]:
        async with _assembled(app, home, database_url, worker=worker) as assembly:
            yield await binding.make(assembly.engine, scope, principal)

    return Blocking(app, opening)


@asynccontextmanager
async def _assembled(
    app: App, home: Path | None, database_url: str | None, *, worker: bool
) -> AsyncIterator[Assembly]:
    """With what goes on beside the program: a worker, or somebody who minds what ran out."""
    binding.require_allowed()
    _require_app(app)
    url = database_url or os.environ.get("EARNEST_DATABASE_URL") or None
    async with Assembly(Config(home or default_home(), url, [app])) as assembly:
        await announcing.announce(assembly.engine)
        await assembly.engine.bells.start()
        beside = asyncio.create_task(_work(assembly) if worker else _mind(assembly))
        try:
            async with nullcontext() if worker else _known(assembly.engine):
                yield assembly
                await operating.finish_calls()
        finally:
            beside.cancel()
            await asyncio.gather(beside, return_exceptions=True)
            await assembly.engine.bells.stop()


def _known(engine: Engine) -> AbstractAsyncContextManager[None]:
    """It takes up no runs; doubts of its effects it asks about."""
    return instances.known(
        engine.instance, engine.database, Serves(effects=tuple(engine.effect_kinds()))
    )


def _require_app(app: object) -> None:
    """It is easily taken for that of a web framework."""
    if not isinstance(app, App):
        raise SettingInvalid(f"{type(app).__module__}.{type(app).__name__} is no earnest.App")


async def _mind(assembly: Assembly) -> None:
    """Looks less often than a worker: there may be many programs, and workers beside them."""
    await Minder(assembly.engine, MIND_EVERY).run()


async def _work(assembly: Assembly) -> None:
    """Works until it is cancelled, and then drains. A worker that fails is told at once: the
    program around it goes on without one."""
    worker = assembly.worker()
    running = asyncio.create_task(worker.run())
    try:
        await asyncio.shield(running)
    except asyncio.CancelledError:
        worker.stop()
        await running
        raise
    except Exception:
        log.exception("worker.failed")
        raise
