"""A process that sweeps at a database until it is killed: `python -m tests.engine.sweeping_process
DATABASE SIMULATOR`."""

from __future__ import annotations

import asyncio
import sys
from datetime import timedelta

from earnest.apps.demo.handlers import make_demo
from earnest.engine.process.engine import Engine
from earnest.engine.sweeping.sweeper import Sweeper
from earnest.engine.sweeping.sweeping import SweepSettings
from earnest.store.database import Database

SETTINGS = SweepSettings(
    lag=timedelta(0), lease=timedelta(seconds=1), poll=timedelta(milliseconds=50), page=20
)


async def main(database_url: str, simulator_url: str) -> None:
    async with Database(database_url) as database:
        engine = Engine(database)
        app = make_demo(simulator_url)
        engine.effects.update(app.effects)
        await Sweeper(engine, SETTINGS).run()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
