"""Absurd: durable workflows in PostgreSQL functions. It has no bulk submit: all are spawned in one
transaction, through psycopg's pipeline."""

from __future__ import annotations

from typing import Any

import psycopg
from absurd_sdk import Absurd
from absurdctl import BUNDLED_SCHEMA_SQL
from work import PAYLOAD, STEPS, URL, asked, note_start, setting, timed


def register(absurd: Absurd) -> Absurd:
    @absurd.register_task(name="noop")
    def noop(params: Any, ctx: Any) -> dict[str, bool]:
        note_start()
        return {"ok": True}

    @absurd.register_task(name="five")
    def five(params: Any, ctx: Any) -> dict[str, int]:
        note_start()
        last = 0
        for number in range(STEPS):
            last = ctx.step(f"step {number}", lambda number=number: number)
        return {"ok": last}

    return absurd


def setup() -> None:
    with psycopg.connect(URL, autocommit=True) as connection:
        connection.execute(BUNDLED_SCHEMA_SQL)
    Absurd(URL).create_queue("default")


def submit(count: int) -> None:
    absurd = register(Absurd(URL))
    for _ in range(count):
        absurd.spawn("noop", PAYLOAD)


def bulk(task: str, count: int) -> None:
    with psycopg.connect(URL) as connection, connection.pipeline():
        absurd = register(Absurd(connection))
        for _ in range(count):
            absurd.spawn(task, PAYLOAD)


def main() -> None:
    command, count = asked()
    if command == "setup":
        setup()
    elif command == "worker":
        batch = int(setting("BATCH", "0")) or None
        worker = register(Absurd(URL))
        worker.start_worker(concurrency=int(setting("CONCURRENCY", "1")), batch_size=batch)
    elif command == "submit":
        timed(count, lambda: submit(count))
    else:
        timed(count, lambda: bulk("five" if command == "steps" else "noop", count))


main()
