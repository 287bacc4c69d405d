"""DBOS: durable workflows inside the process, their state in PostgreSQL. It has no bulk submit: all
are enqueued in one transaction."""

from __future__ import annotations

import time
from typing import Any

from dbos import DBOS, DBOSClient
from work import PAYLOAD, STEPS, URL, asked, note_start, setting, timed

ADDRESS = URL.replace("postgresql://", "postgresql+psycopg://")
OPTIONS = {"queue_name": "q", "workflow_name": "noop", "app_version": "v1"}


@DBOS.workflow(name="noop")
def noop(given: dict[str, str]) -> dict[str, bool]:
    note_start()
    return {"ok": True}


@DBOS.step()
def same(number: int) -> int:
    return number


@DBOS.workflow(name="five")
def five(given: dict[str, str]) -> dict[str, int]:
    note_start()
    last = 0
    for number in range(STEPS):
        last = same(number)
    return {"ok": last}


def launch() -> None:
    config: dict[str, Any] = {
        "name": "bench",
        "system_database_url": ADDRESS,
        "application_version": "v1",
        "log_level": "ERROR",
        "executor_id": setting("WORKER", "w0"),
        "sys_db_pool_size": int(setting("POOL", "20")),
        "max_executor_threads": int(setting("THREADS", "4")),
    }
    DBOS(config=config)
    DBOS.launch()
    limit = int(setting("CONCURRENCY", "0"))
    poll = float(setting("POLL", "1.0"))
    DBOS.register_queue("q", polling_interval_sec=poll, worker_concurrency=limit or None)


def work() -> None:
    launch()
    while True:
        time.sleep(1)


def setup() -> None:
    launch()
    DBOS.destroy()


def submit(client: DBOSClient, count: int) -> None:
    for _ in range(count):
        client.enqueue(OPTIONS, PAYLOAD)


def bulk(client: DBOSClient, workflow: str, count: int) -> None:
    options = {**OPTIONS, "workflow_name": workflow}
    with client._sys_db.engine.begin() as connection:
        for _ in range(count):
            client.enqueue_in_transaction(connection, options, PAYLOAD)


def main() -> None:
    command, count = asked()
    if command == "setup":
        setup()
    elif command == "worker":
        work()
    else:
        client = DBOSClient(system_database_url=ADDRESS)
        if command == "submit":
            timed(count, lambda: submit(client, count))
        else:
            workflow = "five" if command == "steps" else "noop"
            timed(count, lambda: bulk(client, workflow, count))


main()
