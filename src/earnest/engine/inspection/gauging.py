"""Gauging: what the metrics say of the database, counted when somebody asks and kept for a moment.

However many ask, it is counted once in a few seconds. A database that does not answer is told as
such; what the process counts of its own work is told all the same.
"""

from __future__ import annotations

import asyncio
import time

import asyncpg

from earnest.domain.errors import EarnestError
from earnest.engine.process.engine import Engine
from earnest.engine.process.logs import get_logger
from earnest.engine.process.metrics import Named
from earnest.store import gauges
from earnest.store.database import LOST
from earnest.store.gauges import Gauge, Gauges

log = get_logger("earnest.metrics")

KEPT_SECONDS = 5.0
_PATIENCE = 5.0
MOST_SERIES = 200

DATABASE_UP = Named("earnest_database_up", "Whether the database answered, 1 or 0.")
STREAMS_OPEN = Named("earnest_streams_open", "Streams that this process has open.")
GAUGES: dict[str, Named] = {
    "unknown": Named(
        "earnest_operations_unknown",
        "Operations of which nobody knows whether they were done.",
        ("effect",),
    ),
    "unknown_oldest": Named(
        "earnest_operations_unknown_oldest_seconds",
        "How long the oldest of them has been in doubt.",
        ("effect",),
    ),
    "queued": Named("earnest_runs_queued", "Runs that are due and wait for a worker.", ("lane",)),
    "queued_oldest": Named(
        "earnest_runs_queued_oldest_seconds",
        "How long the one has waited whose turn it is.",
        ("lane",),
    ),
    "running": Named("earnest_runs_running", "Runs in the hands of workers.", ("lane",)),
    "approvals": Named("earnest_approvals_pending", "Decisions that runs wait for."),
    "dead_letters": Named("earnest_dead_letters", "Messages that could not be delivered."),
    "differences": Named(
        "earnest_sweep_differences_open",
        "Differences between providers and records that nobody has seen to.",
        ("effect", "kind"),
    ),
    "artifact_bytes": Named("earnest_artifact_bytes", "Bytes of artifacts that are stored."),
}


class Gauging:
    """Counts for one process, once in `kept` seconds."""

    def __init__(self, engine: Engine, kept: float = KEPT_SECONDS) -> None:
        self._engine = engine
        self._kept = kept
        self._lock = asyncio.Lock()
        self._until = 0.0
        self._known: Gauges | None = None

    async def read(self) -> Gauges | None:
        """`None` when the database does not answer."""
        async with self._lock:
            if time.monotonic() >= self._until:
                self._known = await self._count()
                self._until = time.monotonic() + self._kept
            return self._known

    async def _count(self) -> Gauges | None:
        try:
            async with asyncio.timeout(_PATIENCE):
                return await gauges.read(self._engine.database)
        except (EarnestError, asyncpg.PostgresError, TimeoutError, *LOST) as error:
            log.warning("metrics.no_database", error=f"{type(error).__name__}: {error}")
            return None


def bounded(found: list[Gauge]) -> list[Gauge]:
    """The largest ones: names of lanes come from whoever submits."""
    return sorted(found, key=lambda one: (-one.value, one.labels))[:MOST_SERIES]
