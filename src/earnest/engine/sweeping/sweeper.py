"""A sweeper: what in a process makes the sweeps that were asked for."""

from __future__ import annotations

import asyncio

import asyncpg

from earnest.domain.errors import EarnestError
from earnest.engine.process.engine import Engine
from earnest.engine.process.logs import get_logger
from earnest.engine.sweeping.requesting import SWEEP
from earnest.engine.sweeping.sweeping import SweepSettings, take_and_sweep
from earnest.store.database import LOST

log = get_logger("earnest.sweeper")


class Sweeper:
    """One process's part; any number of them sweep beside each other, each one sweep at a time."""

    def __init__(self, engine: Engine, settings: SweepSettings | None = None) -> None:
        self._engine = engine
        self._settings = settings or SweepSettings()

    async def run(self) -> None:
        """Until it is cancelled; a sweep that is under way is handed back then."""
        while True:
            if not await self._sweep_one():
                await self._engine.bells.wait(SWEEP, self._settings.poll)

    async def _sweep_one(self) -> bool:
        try:
            return await take_and_sweep(self._engine, self._settings)
        except (EarnestError, asyncpg.PostgresError, *LOST) as error:
            log.warning("sweeper.round_failed", error=str(error))
        except Exception:
            # A mistake of ours ends no worker. The sweep is begun anew, and given up in time.
            log.exception("sweeper.broken")
        await asyncio.sleep(self._engine.settings.poll.total_seconds())
        return False
