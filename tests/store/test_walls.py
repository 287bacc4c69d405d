"""The walls between scopes as the catalogue has them: whatever table is added, its key is led by
the scope, and no row of one scope can refer to anything of another (P12).

Nothing here knows a table by name. Each reference is tried with rows that are made up from the
columns' types, in a transaction that is taken back.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import asyncpg
import pytest

from earnest.store.database import Database, Tx

SCOPED = """
SELECT c.relname AS name,
       (SELECT k.conkey FROM pg_constraint k WHERE k.conrelid = c.oid AND k.contype = 'p') AS key,
       a.attnum AS scope
FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = 'scope_id'
WHERE c.relnamespace = 'earnest'::regnamespace AND c.relkind IN ('r', 'p')
ORDER BY c.relname
"""
REFERENCES = """
SELECT k.conname AS name, k.conrelid::regclass::text AS child,
       k.confrelid::regclass::text AS parent,
       (SELECT array_agg(a.attname::text ORDER BY o.n) FROM unnest(k.conkey) WITH ORDINALITY o(c, n)
        JOIN pg_attribute a ON a.attrelid = k.conrelid AND a.attnum = o.c) AS columns,
       (SELECT array_agg(a.attname::text ORDER BY o.n)
        FROM unnest(k.confkey) WITH ORDINALITY o(c, n)
        JOIN pg_attribute a ON a.attrelid = k.confrelid AND a.attnum = o.c) AS referred
FROM pg_constraint k
WHERE k.contype = 'f' AND k.connamespace = 'earnest'::regnamespace ORDER BY 2, 1
"""
COLUMNS = """
SELECT a.attname AS name,
       format_type(CASE t.typtype WHEN 'd' THEN t.typbasetype ELSE t.oid END, NULL) AS type
FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
WHERE a.attrelid = $1::text::regclass AND a.attnum > 0 AND NOT a.attisdropped
  AND a.attnotnull
"""
OTHERS = """
SELECT format('ALTER TABLE %s DROP CONSTRAINT %I', conrelid::regclass, conname) FROM pg_constraint
WHERE conrelid = ANY ($1::text[]::regclass[]) AND contype IN ('c', 'f') AND conname <> $2
UNION ALL
SELECT format('ALTER DOMAIN %s DROP CONSTRAINT %I', contypid::regtype, conname)
FROM pg_constraint WHERE contypid <> 0 AND connamespace = 'earnest'::regnamespace
UNION ALL
SELECT format('ALTER TABLE %s ALTER COLUMN %I DROP EXPRESSION', attrelid::regclass, attname)
FROM pg_attribute WHERE attrelid = ANY ($1::text[]::regclass[]) AND attgenerated = 's'
"""
MADE_UP = {
    "text": "'x{n}'",
    "uuid": "gen_random_uuid()",
    "integer": "{n}",
    "bigint": "{n}",
    "smallint": "1",
    "boolean": "false",
    "bytea": "'\\x0{n}'",
    "jsonb": "'{{}}'",
    "interval": "'1 s'",
    "timestamp with time zone": "now()",
    "date": "now()::date",
    "xid8": "'{n}'",
    "double precision": "1",
    "numeric": "1",
}
"""A value of each type; `n` tells one row from the next."""


@dataclass(frozen=True)
class Reference:
    name: str
    child: str
    parent: str
    columns: list[str]
    referred: list[str]


async def references(tx: Tx) -> list[Reference]:
    return [Reference(**dict(row)) for row in await tx.fetch(REFERENCES)]


async def test_the_key_of_each_table_with_a_scope_is_led_by_it(database: Database) -> None:
    async with database.connection() as tx:
        tables = await tx.fetch(SCOPED)
    assert len(tables) > 15
    assert [row["name"] for row in tables if (row["key"] or [0])[0] != row["scope"]] == []


async def test_each_reference_between_tables_with_a_scope_carries_it(database: Database) -> None:
    async with database.connection() as tx:
        scoped = {row["name"] for row in await tx.fetch(SCOPED)}
        found = [one for one in await references(tx) if {one.child, one.parent} <= scoped]
    assert len(found) > 10
    for one in found:
        pairs = dict(zip(one.columns, one.referred, strict=True))
        assert pairs.get("scope_id") == "scope_id", one


async def test_no_reference_leads_from_one_scope_into_another(database: Database) -> None:
    """Tried with every reference there is, each alone, with its other constraints away."""
    tried = 0
    async with database.connection() as tx:
        scoped = {row["name"] for row in await tx.fetch(SCOPED)} - {"scope"}
        for one in await references(tx):
            if {one.child, one.parent} <= scoped:
                async with _alone(tx, one):
                    await _try(tx, one)
                tried += 1
    assert tried > 10


async def _try(tx: Tx, one: Reference) -> None:
    """A row may hang on its own scope's, and on nobody else's."""
    numbers = itertools.count(1)
    there = await _make(tx, one.parent, next(numbers), {"scope_id": "'here'"})
    values = {
        column: f"'{there[referred]}'"
        for column, referred in zip(one.columns, one.referred, strict=True)
    }
    await _make(tx, one.child, next(numbers), values)
    with pytest.raises(asyncpg.ForeignKeyViolationError) as refusal:
        async with tx.transaction():
            await _make(tx, one.child, next(numbers), {**values, "scope_id": "'elsewhere'"})
    assert refusal.value.constraint_name == one.name


async def _make(tx: Tx, table: str, number: int, given: dict[str, str]) -> asyncpg.Record:
    """A row with these values, and something in whatever else must not be null."""
    values = {
        row["name"]: _made_up(row["type"], number) for row in await tx.fetch(COLUMNS, table)
    } | given
    row = await tx.fetchrow(
        f"INSERT INTO {table} ({', '.join(values)}) VALUES ({', '.join(values.values())}) "
        "RETURNING *"
    )
    assert row is not None
    return row


def _made_up(type: str, number: int) -> str:
    return "'{}'" if type.endswith("[]") else MADE_UP[type].format(n=number)


@asynccontextmanager
async def _alone(tx: Tx, one: Reference) -> AsyncIterator[None]:
    """Meanwhile this reference is the only constraint of its two tables, but for their keys."""
    taken_back = tx.transaction()
    await taken_back.start()
    try:
        for (statement,) in await tx.fetch(OTHERS, [one.child, one.parent], one.name):
            await tx.execute(statement)
        yield
    finally:
        await taken_back.rollback()


async def test_a_reference_that_leaves_the_scope_out_would_be_seen(database: Database) -> None:
    """The test of the test: a table whose reference does not carry the scope."""
    async with database.connection() as tx:
        taken_back = tx.transaction()
        await taken_back.start()
        await tx.execute(
            "ALTER TABLE token ADD CONSTRAINT leak "
            "FOREIGN KEY (replaces) REFERENCES token (token_id)"
        )
        (leak,) = [one for one in await references(tx) if one.name == "leak"]
        assert "scope_id" not in leak.columns
        async with _alone(tx, leak):
            with pytest.raises(pytest.fail.Exception):
                await _try(tx, leak)
        await taken_back.rollback()
