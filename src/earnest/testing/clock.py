"""A clock that a test moves by hand: the database's own, so every guard and every lease sees it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from earnest.domain.duration import Duration, duration
from earnest.store.database import Database
from earnest.testing.any_loop import on_a_loop_aside

START = datetime(2030, 1, 1, 12, 0, tzinfo=UTC)

_STOP = """
CREATE TABLE IF NOT EXISTS earnest.manual_clock (now timestamptz NOT NULL);
TRUNCATE earnest.manual_clock;
INSERT INTO earnest.manual_clock VALUES ('{start}');
CREATE OR REPLACE FUNCTION earnest.clock() RETURNS timestamptz LANGUAGE sql VOLATILE
AS $$ SELECT now FROM earnest.manual_clock $$;
"""


class ManualClock:
    """Stops `clock()` of one database at `start`; `advance` moves it."""

    def __init__(self, database: Database, start: datetime = START) -> None:
        self._database = database
        self.now = start

    async def stop(self) -> ManualClock:
        async with self._database.connection() as connection:
            await connection.execute(_STOP.format(start=self.now.isoformat()))
        return self

    async def advance(self, **span: float) -> datetime:
        """Moves the clock by `timedelta(**span)`, such as `seconds=46`."""
        return await self.move_to(self.now + timedelta(**span))

    async def move_to(self, instant: datetime) -> datetime:
        self.now = instant
        async with self._database.connection() as connection:
            await connection.execute("UPDATE earnest.manual_clock SET now = $1", self.now)
        return self.now


class HeldClock:
    """The manual clock as a test has it in hand: nothing to await, so nothing to forget."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock

    @property
    def now(self) -> datetime:
        """The time at which the database stands."""
        return self._clock.now

    def advance(self, span: Duration = 0, **parts: float) -> datetime:
        """Moves the clock on by `span` (`"5m"`, a `timedelta`, seconds), or by the parts of a
        `timedelta`: `advance(hours=1)`. Raises `SettingInvalid` for what is no duration."""
        return self.move_to(self.now + duration(span) + timedelta(**parts))

    def move_to(self, instant: datetime) -> datetime:
        """Sets the clock, forward or back."""
        return on_a_loop_aside(lambda: self._clock.move_to(instant))
