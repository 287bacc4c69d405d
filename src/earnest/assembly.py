"""The one place where database, engine, apps and doors are put together.

`Assembly` is what a process of Earnest is made of. The doors get it handed in; nothing below
imports this module.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

import structlog

from earnest.domain.errors import DatabaseUnavailable, SettingInvalid
from earnest.engine import binding, operating
from earnest.engine.app import App
from earnest.engine.engine import Engine
from earnest.engine.settings import EngineSettings
from earnest.engine.working import Worker
from earnest.store.database import LOST, Database
from earnest.store.embedded import EmbeddedPostgres, Started, default_home
from earnest.store.migrate import check, migrate

log = structlog.get_logger("earnest")

WEAK = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}


@dataclass(frozen=True)
class Config:
    """What a process is told: where its facts are and what it can do. Without `database_url` an
    embedded PostgreSQL under `home` is used."""

    home: Path = field(default_factory=default_home)
    database_url: str | None = None
    apps: Sequence[App] = ()
    settings: EngineSettings = field(default_factory=EngineSettings)
    migrates: bool = True
    patience: float = 30.0


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
        return Worker(self.engine, lanes=lanes, alone=self.alone)

    async def __aenter__(self) -> Assembly:
        async with AsyncExitStack() as stack:
            url = await self._start_database(stack)
            await self._bring_schema(url)
            database = Database(url, patience=self.config.patience, revive=self._revive)
            await stack.enter_async_context(database)
            self._engine = _make_engine(database, self.config)
            stack.push_async_callback(operating.finish_calls)
            await warn_of_weak_durability(database)
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
            return self.config.database_url
        self._embedded = EmbeddedPostgres(self.config.home)
        started: Started = await asyncio.to_thread(self._embedded.start)
        stack.push_async_callback(asyncio.to_thread, self._embedded.stop)
        self.alone = started.alone
        log.info("database.ready", how=started.how, home=str(self.config.home))
        return started.url

    async def _bring_schema(self, url: str) -> None:
        """Says in one line what is wrong with a database that cannot be used."""
        try:
            if self.config.migrates:
                await migrate(url)
            else:
                await check(url)
        except (*LOST, OSError) as error:
            raise DatabaseUnavailable(
                f"the database cannot be reached ({error}); look at EARNEST_DATABASE_URL and "
                "whether the server runs"
            ) from error

    async def _revive(self) -> None:
        """Brings the embedded server back after it was killed."""
        if self._embedded is not None:
            await asyncio.to_thread(self._embedded.ensure_running)


async def weak_durability(database: Database) -> list[str]:
    """Warnings about settings under which a commit may be lost; empty when all is well."""
    rows = await database.fetch("durability")
    return [
        f"{row['name']} is {row['setting']}: a crash of the machine can lose accepted work and "
        f"sent operations; turn it on"
        for row in rows
        if WEAK[row["name"]] == row["setting"]
    ]


async def warn_of_weak_durability(database: Database) -> None:
    for warning in await weak_durability(database):
        log.warning("database.not_durable", warning=warning)


def load_app(path: str) -> App:
    """The app at `module:attribute`. Raises `SettingInvalid` saying what is missing."""
    module_name, _, attribute = path.partition(":")
    try:
        found = getattr(importlib.import_module(module_name), attribute or "app")
    except ImportError as error:
        raise SettingInvalid(f"the app {path!r} cannot be imported: {error}") from error
    except AttributeError as error:
        raise SettingInvalid(f"the app {path!r} is not there: {error}") from error
    if not isinstance(found, App):
        raise SettingInvalid(f"{path!r} is a {type(found).__name__}, not an earnest.App")
    return found


def _make_engine(database: Database, config: Config) -> Engine:
    engine = Engine(database, settings=config.settings)
    for app in config.apps:
        for kind in app.kinds.values():
            engine.kinds.add(kind)
        engine.effects.update(app.effects)
    return engine


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
    it, in `scope` and as `principal`. With `worker`, this process also runs work."""
    config = Config(home or default_home(), database_url, [app])
    async with Assembly(config) as assembly:
        bound = binding.Binding(assembly.engine, scope, principal)
        binding.bind(bound)
        await assembly.engine.bells.start()
        working = asyncio.create_task(_work(assembly)) if worker else None
        try:
            yield assembly
        finally:
            if working is not None:
                working.cancel()
                await asyncio.gather(working, return_exceptions=True)
            await assembly.engine.bells.stop()
            binding.unbind(bound)


async def _work(assembly: Assembly) -> None:
    """Works until it is cancelled, and then drains."""
    worker = assembly.worker()
    running = asyncio.create_task(worker.run())
    try:
        await asyncio.shield(running)
    except asyncio.CancelledError:
        worker.stop()
        await running
        raise
