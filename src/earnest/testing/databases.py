"""Throwaway databases for tests: one embedded server, one migrated template, a copy per test.

A copy of a template takes some tens of milliseconds; migrating afresh takes longer and tests
nothing new. `fsync` is off unless the test is about durability.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping
from pathlib import Path

import asyncpg

from earnest.store.embedded import EmbeddedPostgres
from earnest.store.migrate import Migration, migrate

TEMPLATE = "earnest_template"
FAST = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}


class ThrowawayCluster:
    """A server of one's own under `home`; `start`, take copies, `stop`."""

    def __init__(self, home: Path, *, settings: Mapping[str, str] = FAST, major: int = 18) -> None:
        self._server = EmbeddedPostgres(home, settings=settings, major=major)
        self._numbers = itertools.count(1)
        self._url = ""

    def start(self, migrations: list[Migration] | None = None) -> ThrowawayCluster:
        self._url = self._server.start().url
        asyncio.run(self._make_template(migrations))
        return self

    def stop(self) -> None:
        self._server.stop()

    @property
    def template_url(self) -> str:
        """The template's address. What is made there is in every copy taken after; no connection
        may be left open, since PostgreSQL copies only what nobody uses."""
        return self.url_of(TEMPLATE)

    async def copy(self) -> str:
        """The address of a new database, migrated and empty."""
        name = f"copy_{next(self._numbers)}"
        await self._command(f"CREATE DATABASE {name} TEMPLATE {TEMPLATE} STRATEGY file_copy")
        return self.url_of(name)

    async def drop(self, url: str) -> None:
        name = url.split("@", 1)[1].split("?", maxsplit=1)[0].strip("/")
        await self._command(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")

    def url_of(self, name: str) -> str:
        head, _, query = self._url.partition("?")
        return f"{head.rsplit('/', 1)[0]}/{name}?{query}"

    async def _make_template(self, migrations: list[Migration] | None) -> None:
        await self._command(f"CREATE DATABASE {TEMPLATE}")
        await migrate(self.url_of(TEMPLATE), migrations)

    async def _command(self, statement: str) -> None:
        connection = await asyncpg.connect(self._url)
        try:
            await connection.execute(statement)
        finally:
            await connection.close()
