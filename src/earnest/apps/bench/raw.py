"""What PostgreSQL does without Earnest, through the same driver: the limits that figures are held
against."""

from __future__ import annotations

import time

import asyncpg

from earnest.apps.bench.app import PAYLOAD
from earnest.apps.bench.database import BenchDatabase
from earnest.domain import canonical

_TABLE = """
CREATE SCHEMA earnest_bench;
CREATE TABLE earnest_bench.queue (
    id bigserial PRIMARY KEY, state smallint NOT NULL DEFAULT 0, payload jsonb NOT NULL,
    result jsonb, worker text, created_at timestamptz DEFAULT now(), done_at timestamptz);
CREATE INDEX ON earnest_bench.queue (id) WHERE state = 0;
"""
_INSERT = "INSERT INTO earnest_bench.queue (payload) VALUES ($1)"
_FILL = "INSERT INTO earnest_bench.queue (payload) SELECT $1 FROM generate_series(1, $2)"
_TAKE = """
UPDATE earnest_bench.queue SET state = 1, worker = 'one' WHERE id = ANY (ARRAY(
    SELECT id FROM earnest_bench.queue WHERE state = 0 ORDER BY id LIMIT $1 FOR UPDATE SKIP LOCKED))
RETURNING id, payload
"""
_FINISH = """
UPDATE earnest_bench.queue SET state = 2, result = $2, done_at = now() WHERE id = ANY ($1::bigint[])
"""
_PAYLOAD = canonical.encode(PAYLOAD).decode()
_RESULT = '{"ok": true}'
_BATCH = 100


async def insert_rate(database: BenchDatabase, count: int) -> float:
    """Rows a second, each in a commit of its own."""
    await database.empty()
    async with database.connection() as connection:
        await connection.execute(_TABLE)
        await connection.execute(_INSERT, _PAYLOAD)
        begun = time.perf_counter()
        for _ in range(count):
            await connection.execute(_INSERT, _PAYLOAD)
        return count / (time.perf_counter() - begun)


async def cycle_rate(database: BenchDatabase, count: int) -> float:
    """Rows a second that are taken and finished, a hundred in each of two commits."""
    await database.empty()
    async with database.connection() as connection:
        await connection.execute(_TABLE)
        await connection.execute(_FILL, _PAYLOAD, count)
        await database.look_over()
        begun = time.perf_counter()
        done = await _cycle(connection)
        return done / (time.perf_counter() - begun)


async def _cycle(connection: asyncpg.Connection) -> int:
    done = 0
    while rows := await connection.fetch(_TAKE, _BATCH):
        await connection.execute(_FINISH, [row["id"] for row in rows], _RESULT)
        done += len(rows)
    return done
