"""Migrations: numbered files, each applied once in one transaction, under an advisory lock.

A file that was applied is never changed: its checksum is stored and compared. Apps bring their own
files under their own name; the engine's come first. Old code keeps working on a newer schema for
one release, so `check` refuses only a schema that lacks something.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable

import asyncpg

from earnest.domain.errors import SchemaMismatch

# The lock is per database; the number is the first eight bytes of sha256('earnest.migrate').
_LOCK = int.from_bytes(hashlib.sha256(b"earnest.migrate").digest()[:8], "big", signed=True)
_FILE = re.compile(r"(\d{4})_[a-z0-9_]+\.sql")
OLDEST_SERVER = 150000

_PREAMBLE = """
CREATE SCHEMA IF NOT EXISTS earnest;
CREATE TABLE IF NOT EXISTS earnest.migration (
    part text NOT NULL,
    number integer NOT NULL,
    name text NOT NULL,
    checksum text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (part, number)
);
"""


# PostgreSQL looks first into the schema that has the user's own name. For a user `earnest`, such as
# the embedded server's, that is ours. One who has chosen a search path is left alone.
_FALLS_INTO_OURS = """
SELECT session_user = 'earnest' AND NOT EXISTS (
    SELECT FROM pg_db_role_setting, unnest(setconfig) AS setting
    WHERE setrole = session_user::regrole AND setting LIKE 'search_path=%'
      AND setdatabase IN (0, (SELECT oid FROM pg_database WHERE datname = current_database())))
"""
_INTO_PUBLIC = """
DO $$ BEGIN
    EXECUTE format('ALTER ROLE earnest IN DATABASE %I SET search_path = public',
                   current_database());
END $$
"""


@dataclass(frozen=True, slots=True)
class Migration:
    """One file: the part it belongs to (`engine` or an app), its number, name and text."""

    part: str
    number: int
    name: str
    text: str

    @property
    def checksum(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()

    def __str__(self) -> str:
        return f"{self.part}/{self.name}"


def read_migrations(part: str, folder: Traversable) -> list[Migration]:
    """The migrations of a folder in order. Raises `SchemaMismatch` on a gap or a double number."""
    found = []
    for file in folder.iterdir():
        match = _FILE.fullmatch(file.name)
        if match:
            text = file.read_text(encoding="utf-8")
            found.append(Migration(part, int(match[1]), file.name.removesuffix(".sql"), text))
    found.sort(key=lambda migration: migration.number)
    numbers = [migration.number for migration in found]
    if numbers != list(range(1, len(numbers) + 1)):
        raise SchemaMismatch(f"the migrations of {part} are numbered {numbers}; close the gap")
    return found


def engine_migrations() -> list[Migration]:
    return read_migrations("engine", resources.files("earnest.store") / "migrations")


async def migrate(url: str, migrations: Sequence[Migration] | None = None) -> list[Migration]:
    """Applies what is missing and returns it. Several at once wait for each other; each file is
    applied once. Raises `SchemaMismatch` for an old server, a changed or an unknown-to-us file that
    would stand before ours."""
    wanted = engine_migrations() if migrations is None else list(migrations)
    connection = await asyncpg.connect(url, timeout=10)
    try:
        _refuse_old_server(connection)
        await connection.execute("SELECT pg_advisory_lock($1::bigint)", _LOCK)
        await connection.execute(_PREAMBLE)
        missing = _missing(wanted, await _applied(connection))
        for migration in missing:
            await _apply(connection, migration)
        await _keep_schema_apart(connection)
        return missing
    finally:
        await connection.close()


async def _keep_schema_apart(connection: asyncpg.Connection) -> None:
    """From its next session on, a user `earnest` who names no schema means `public`: its own tables
    do not come to stand among ours. (What runs here names the schema when it connects.)"""
    if await connection.fetchval(_FALLS_INTO_OURS):
        await connection.execute(_INTO_PUBLIC)


async def pending(url: str, migrations: Sequence[Migration] | None = None) -> list[Migration]:
    """What `migrate` would apply; changes nothing. Raises `SchemaMismatch` as `migrate` does."""
    wanted = engine_migrations() if migrations is None else list(migrations)
    connection = await asyncpg.connect(url, timeout=10)
    try:
        _refuse_old_server(connection)
        known = await connection.fetchval("SELECT to_regclass('earnest.migration') IS NOT NULL")
        return _missing(wanted, await _applied(connection) if known else {})
    finally:
        await connection.close()


async def check(url: str, migrations: Sequence[Migration] | None = None) -> None:
    """Raises `SchemaMismatch` unless everything this program needs is applied."""
    missing = await pending(url, migrations)
    if missing:
        names = ", ".join(str(migration) for migration in missing)
        raise SchemaMismatch(f"the database lacks {names}; run `earnest migrate` first")


def as_script(migrations: Iterable[Migration]) -> str:
    """The SQL that a database administrator may run by hand instead of `migrate`."""
    parts = [_PREAMBLE.strip(), ""]
    for migration in migrations:
        parts += [
            f"-- {migration}",
            "BEGIN;",
            "SET LOCAL search_path = earnest;",
            migration.text.strip(),
            _applied_as_sql(migration),
            "COMMIT;",
            "",
        ]
    return "\n".join(parts)


def _applied_as_sql(migration: Migration) -> str:
    # Names come from files of this package and its apps, held to [a-z0-9_] when they are read.
    values = (migration.part, str(migration.number), migration.name, migration.checksum)
    listed = ", ".join(f"'{value}'" for value in values)
    return f"INSERT INTO earnest.migration (part, number, name, checksum) VALUES ({listed});"  # noqa: S608


def _refuse_old_server(connection: asyncpg.Connection) -> None:
    version = connection.get_server_version()
    if version.major * 10000 < OLDEST_SERVER:
        raise SchemaMismatch(
            f"the server is PostgreSQL {version.major}.{version.minor}; "
            "Earnest needs 15 or later: point EARNEST_DATABASE_URL at a newer one"
        )


async def _applied(connection: asyncpg.Connection) -> dict[tuple[str, int], str]:
    rows = await connection.fetch("SELECT part, number, checksum FROM earnest.migration")
    return {(row["part"], row["number"]): row["checksum"] for row in rows}


def _missing(wanted: Sequence[Migration], applied: dict[tuple[str, int], str]) -> list[Migration]:
    missing = []
    for migration in wanted:
        checksum = applied.get((migration.part, migration.number))
        if checksum is None:
            missing.append(migration)
        elif checksum != migration.checksum:
            raise SchemaMismatch(
                f"{migration} was applied with another text; an applied migration is never "
                "changed: restore its file and add a new one"
            )
    return missing


async def _apply(connection: asyncpg.Connection, migration: Migration) -> None:
    async with connection.transaction():
        await connection.execute("SET LOCAL search_path = earnest")
        await connection.execute(migration.text)
        await connection.execute(
            "INSERT INTO earnest.migration (part, number, name, checksum) VALUES ($1, $2, $3, $4)",
            migration.part,
            migration.number,
            migration.name,
            migration.checksum,
        )
