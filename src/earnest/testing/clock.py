"""A clock that a test moves by hand: the database's own, so every guard and every lease sees it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from earnest.store.database import Database

START = datetime(2030, 1, 1, 12, 0, tzinfo=UTC)

_STOP = """
CREATE TABLE IF NOT EXISTS earnest.manual_clock (now timestamptz NOT NULL);
TRUNCATE earnest.manual_clock;
INSERT INTO earnest.manual_clock VALUES ('{start}');
CREATE OR REPLACE FUNCTION earnest.clock() RETURNS timestamptz LANGUAGE sql VOLATILE
AS $$ SELECT now FROM earnest.manual_clock $$;
"""


class ManualClock:
    """Stops `clock()` of one database at `START`; `advance` moves it."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.now = START

    async def stop(self) -> ManualClock:
        async with self._database.connection() as connection:
            await connection.execute(_STOP.format(start=START.isoformat()))
        return self

    async def advance(self, **span: float) -> datetime:
        """Moves the clock by `timedelta(**span)`, such as `seconds=46`."""
        self.now += timedelta(**span)
        async with self._database.connection() as connection:
            await connection.execute("UPDATE earnest.manual_clock SET now = $1", self.now)
        return self.now
