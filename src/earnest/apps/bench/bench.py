"""What a measurement has in its hands: a database, an engine on it, and how much to do."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from earnest.apps.bench.app import PAYLOAD, app
from earnest.apps.bench.database import BenchDatabase
from earnest.doors.cli.parts import Parts, Told
from earnest.engine.process import announcing, binding, principals, scopes
from earnest.engine.process.actors import Role

if TYPE_CHECKING:
    from earnest.engine.process.engine import Engine
    from earnest.engine.process.kinds import RunKind

APP = "earnest.apps.bench.app:app"
SCOPE = "bench"
PRINCIPAL = "bench"
TOGETHER = 1_000
"""How many runs one call of `submit_many` takes."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much each measurement does in one round."""

    inserts: int = 5_000
    bulk: int = 20_000
    drained: int = 10_000
    stepped: int = 1_000
    started: int = 200
    gets: int = 4_000
    readers: int = 1_000
    signals: int = 10


QUICK = Sizes(
    inserts=30, bulk=1_000, drained=200, stepped=20, started=5, gets=40, readers=40, signals=2
)
"""So little that the figures mean nothing; that all of it works is seen."""


@dataclass(frozen=True, slots=True)
class Bench:
    parts: Parts
    database: BenchDatabase
    sizes: Sizes

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Engine]:
        """An engine on the migrated, empty database, to which `app.submit` goes."""
        await self.database.empty()
        told = Told(Path(), self.database.url, (APP,), makes=True)
        async with self.parts.open(told) as opened:
            engine = opened.engine
            await scopes.ensure_scope(engine, SCOPE)
            await principals.ensure_principal(engine, SCOPE, PRINCIPAL, [Role.MEMBER])
            await announcing.announce(engine)
            await engine.bells.start()
            bound = binding.Binding(engine, SCOPE, PRINCIPAL)
            binding.bind(bound)
            try:
                yield engine
            finally:
                binding.unbind(bound)
                await engine.bells.stop()


async def fill(kind: RunKind[dict[str, str], Any], count: int) -> None:
    """Submits so many runs in bulk."""
    for size in _parts(count, TOGETHER):
        await app.submit_many(kind, [PAYLOAD] * size)


def _parts(count: int, most: int) -> Iterator[int]:
    while count > 0:
        yield min(count, most)
        count -= most
