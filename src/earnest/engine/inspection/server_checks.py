"""Checks of the server that the facts are in: is it fit to keep them, and does it have room?"""

from __future__ import annotations

import asyncio
import shutil
import time
from contextlib import AsyncExitStack
from datetime import timedelta

import asyncpg

from earnest.domain.ids import new_token
from earnest.engine.inspection.doctoring import Check, Finding, Patient, bad, size, span, warn, well
from earnest.engine.inspection.readiness import WEAK
from earnest.store.database import Tx
from earnest.store.migrate import engine_migrations, pending
from earnest.store.schema import MEND, lacking

_NOTIFIED = 2.0
_LONG = timedelta(minutes=5)
_VERY_LONG = 3600.0
_OLD_ROWS = 1_000_000_000  # transactions; the server stops at two thousand million
_GIB = 1024**3


async def server(patient: Patient) -> Finding:
    row = await patient.row("server_version")
    detail = f"PostgreSQL {row['version']}, database of {size(row['bytes'])}"
    if row["standby"]:
        return bad(f"{detail}, a standby that takes no writes", "connect to the primary")
    if row["age"] > _OLD_ROWS:
        advice = "find out why autovacuum does not freeze: long transactions, replication slots"
        return bad(f"{detail}; its oldest row is {row['age']} transactions old", advice)
    return well(detail)


async def durability(patient: Patient) -> Finding:
    """P23 stands on these settings."""
    rows = await patient.rows("durability")
    weak = [row["name"] for row in rows if WEAK[row["name"]] == row["setting"]]
    told = ", ".join(f"{row['name']}={row['setting']}" for row in rows)
    if weak:
        advice = f"turn {', '.join(weak)} on: a crash of the machine can lose accepted work"
        return bad(told, advice)
    return well(told)


async def migrations(patient: Patient) -> Finding:
    missing = await pending(patient.engine.database.url)
    if missing:
        names = ", ".join(str(one) for one in missing)
        return bad(f"the database lacks {names}", "run `earnest migrate`")
    known = engine_migrations()
    lost = lacking(await patient.rows("schema_parts"), known)
    if lost:
        return bad(f"the database lacks {', '.join(lost)}", MEND)
    later = [row["name"] for row in await patient.rows("later_migrations", known[-1].number)]
    if later:
        advice = "a newer Earnest works on this database: bring this program up to date as well"
        return warn(f"applied is what this program does not know: {', '.join(later)}", advice)
    return well(f"all {len(known)} are applied, and what they made is there")


async def clocks(patient: Patient) -> Finding:
    """The database's clock decides; logs, tokens of others and people go by this machine's."""
    before = time.time()
    row = await patient.row("database_clock")
    here = (before + time.time()) / 2
    replaced = abs((row["now"] - row["wall"]).total_seconds())
    if replaced > 1:
        advice = "a test has replaced the function clock(); restore it by the migration 0001"
        return bad(f"clock() is {span(replaced)} off the server's clock", advice)
    apart = abs(row["wall"].timestamp() - here)
    if apart > 1:
        level = bad if apart > 30 else warn
        detail = f"the server's clock and this machine's are {span(apart)} apart"
        return level(detail, "let both machines take their time from NTP")
    return well(f"{apart * 1000:.0f} ms apart")


async def pooling(patient: Patient) -> Finding:
    """Whether a session is ours alone: locks of a session and LISTEN stand on that."""
    async with AsyncExitStack() as ended:
        one, other = [await _connected(patient, ended) for _ in range(2)]
        try:
            if await one.fetchval("SELECT current_setting('enable_seqscan')") != "off":
                detail = "the settings of a connection do not arrive: a pooler leaves them out"
                advice = "connect to the server itself, or give the role these settings there"
                return bad(detail, advice)
            kept = await _keeps_sessions(one, other)
        except _OTHER_SESSION:
            kept = False
    if not kept:
        advice = "connect to the server itself, or let the pooler keep sessions (pool_mode=session)"
        return bad("a pooler gives each transaction another session", advice)
    return well("sessions are kept")


# What was prepared a moment ago is not there any more, or is there already.
_OTHER_SESSION = (
    asyncpg.InvalidSQLStatementNameError,
    asyncpg.DuplicatePreparedStatementError,
)


async def _connected(patient: Patient, ended: AsyncExitStack) -> Tx:
    connection = await patient.engine.database.connect()
    ended.callback(connection.terminate)
    return connection


async def _keeps_sessions(one: Tx, other: Tx) -> bool:
    """A transaction of the other one gets in between: where sessions are shared, it takes ours."""
    first = await one.fetchval("SELECT pg_backend_pid()")
    async with other.transaction():
        between = await other.fetchval("SELECT pg_backend_pid()")
        return bool(first != between and first == await one.fetchval("SELECT pg_backend_pid()"))


async def notifying(patient: Patient) -> Finding:
    """Whether a NOTIFY reaches who listens."""
    channel, heard = f"earnest_doctor_{new_token().hex}", asyncio.Event()
    listener = await patient.engine.database.connect()
    try:
        await listener.add_listener(channel, lambda *_: heard.set())
        began = time.monotonic()
        async with patient.engine.database.connection() as tx:
            await tx.execute("SELECT pg_notify($1, '')", channel)
        async with asyncio.timeout(_NOTIFIED):
            await heard.wait()
    except TimeoutError:
        advice = "nothing is lost: processes look by themselves; set EARNEST_BELLS=off, or connect"
        return warn(f"no word within {_NOTIFIED:g} s", f"{advice} to the server itself")
    finally:
        listener.terminate()
    return well(f"heard after {(time.monotonic() - began) * 1000:.0f} ms")


async def connections(patient: Patient) -> Finding:
    row = await patient.row("connections_used")
    detail = f"{row['used']} of {row['most']} are used"
    if row["used"] >= 0.8 * row["most"]:
        level = bad if row["used"] >= 0.95 * row["most"] else warn
        return level(detail, "raise max_connections, or find out who opens so many")
    return well(detail)


async def autovacuum(patient: Patient) -> Finding:
    off = [row["name"] for row in await patient.rows("autovacuum_settings")
           if row["setting"] == "off"]  # fmt: skip
    forbidden = [row["name"] for row in await patient.rows("tables_kept") if row["forbidden"]]
    if off:
        return bad(f"{', '.join(off)} is off", "turn it on, or the tables grow without bound")
    if forbidden:
        return bad(f"it is forbidden for {', '.join(forbidden)}", "reset autovacuum_enabled there")
    return well("on")


async def dead_rows(patient: Patient) -> Finding:
    rows = await patient.rows("tables_kept")
    thick = [row for row in rows if row["dead"] > 10_000 and row["dead"] > 0.5 * row["live"]]
    if thick:
        told = ", ".join(
            f"{row['name']}: {row['dead']} beside {row['live']} ({size(row['bytes'])})"
            for row in thick
        )
        advice = "see `long transactions`; then `VACUUM (VERBOSE)` these tables"
        return warn(f"more dead rows than are good: {told}", advice)
    return well(f"{sum(row['dead'] for row in rows)} beside {sum(row['live'] for row in rows)}")


async def long_transactions(patient: Patient) -> Finding:
    rows = await patient.rows("long_transactions", _LONG)
    if not rows:
        return well(f"none is open for more than {span(_LONG.total_seconds())}")
    told = ", ".join(f"{row['who']}: {row['state']} for {span(row['seconds'])}" for row in rows)
    level = bad if rows[0]["seconds"] > _VERY_LONG else warn
    advice = "end them; as long as one is open, nothing that died since can be cleaned up"
    return level(told, advice)


async def disk(patient: Patient) -> Finding:
    if patient.home is None:
        return well("the server's own; look at it there")
    usage = await asyncio.to_thread(shutil.disk_usage, patient.home)
    detail = f"{size(usage.free)} free of {size(usage.total)} at {patient.home}"
    if usage.free < _GIB or usage.free < 0.05 * usage.total:
        level = bad if usage.free < _GIB / 4 else warn
        return level(detail, "make room: a full disk stops every commit")
    return well(detail)


SERVER_CHECKS: tuple[Check, ...] = (
    server,
    migrations,
    durability,
    clocks,
    pooling,
    notifying,
    connections,
    disk,
    autovacuum,
    dead_rows,
    long_transactions,
)
