"""The database server is ended again and again while workers and a client are at work.

Fast: it rolls back what is open and closes every connection. Immediate: it is torn down as if the
machine had lost power, and recovers from its log. Nobody but the processes that use it brings it
back. What counts is that no accepted run is lost, no refund made twice, and how soon after the end
of the server something is committed again.
"""

from __future__ import annotations

import asyncio
import os
import select
import signal
import time
import uuid
from collections import Counter
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from earnest.assembly import Assembly, Config
from earnest.domain import ids
from earnest.engine.process.doorbells import MOVED
from earnest.engine.process.engine import Engine
from earnest.engine.runs import submitting
from earnest.engine.runs.submitting import Request
from earnest.store import operations, runs
from earnest.testing.simulator import Simulator
from tests.faults.invariants import read_tables, violations
from tests.faults.plan import BANKS
from tests.faults.processes import Processes
from tests.faults.roles import quick_settings
from tests.faults.verbs import PRINCIPAL, Caller, Verb
from tests.faults.workload import BOOK, close_app, make_app

SCOPE = "restarts"
SETTINGS = {"lease": 6.0, "renew_every": 2.0, "concurrency": 20, "claim_batch": 20}
PACE = 0.04  # seconds between two submits
EVERY = 2.0  # seconds between two restarts
PATIENCE = 60.0


@dataclass
class Restarts:
    """What came of it. `recoveries` in seconds, from the end of the server's process to the first
    commit that was asked for after it."""

    recoveries: list[float] = field(default_factory=list)
    accepted: int = 0
    refunds: int = 0
    lost: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)


@dataclass
class _Load:
    """A client that asks for one thing after the other and knows what was accepted."""

    engine: Engine
    accepted: dict[str, uuid.UUID] = field(default_factory=dict)
    commits: list[tuple[float, float]] = field(default_factory=list)
    stopped: bool = False

    async def run(self) -> None:
        while not self.stopped:
            await self._ask(len(self.accepted))
            await asyncio.sleep(PACE)

    async def _ask(self, number: int) -> None:
        key = f"{SCOPE}-{number}"
        order = {"order_id": key, "bank": BANKS[number // 2 % len(BANKS)]}
        request = Request("echo", key, key) if number % 2 else Request("refund", order, key)
        asked_at = time.monotonic()
        submitted = await submitting.submit(self.engine, SCOPE, PRINCIPAL, request)
        self.commits.append((asked_at, time.monotonic()))
        self.accepted[key] = submitted.run.run_id

    def first_commit_after(self, moment: float) -> float | None:
        """When the first submit that was begun after `moment` was committed."""
        return next((done for asked, done in self.commits if asked > moment), None)


async def restart_under_load(
    home: Path, simulator: Simulator, processes: Processes, count: int
) -> Restarts:
    """Restarts the server of a new home `count` times, fast and immediate in turn."""
    app = make_app(simulator.url)
    config = Config(home=home, apps=[app], settings=quick_settings(**SETTINGS))
    found = Restarts()
    async with Assembly(config) as assembly:
        async with assembly.engine.database.connection() as tx:
            await tx.execute(BOOK)
        workers = [
            processes.start(
                "worker_at_home", home=str(home), simulator_url=simulator.url, settings=SETTINGS
            )
            for _ in range(2)
        ]
        load = _Load(assembly.engine)
        loading = asyncio.create_task(load.run())
        for number in range(count):
            await asyncio.sleep(EVERY)
            found.recoveries.append(await _restart(home, load, fast=number % 2 == 0))
        load.stopped = True
        await loading
        await _until_all_have_ended(Caller(assembly.engine, simulator, SCOPE), load)
        for worker in workers:
            os.kill(worker.pid, signal.SIGTERM)
        for worker in workers:
            code = await asyncio.to_thread(worker.wait)
            found.broken += [f"a worker ended with {code}; see {worker.log}"] if code else []
        await _judge(assembly.engine, simulator, load, found)
    await close_app(app)
    return found


async def _restart(home: Path, load: _Load, *, fast: bool) -> float:
    await asyncio.to_thread(end_server, home, signal.SIGINT if fast else signal.SIGQUIT)
    down = time.monotonic()
    while (first := load.first_commit_after(down)) is None:
        assert time.monotonic() < down + PATIENCE, f"nothing was committed in {PATIENCE} s"
        await asyncio.sleep(0.005)
    return first - down


def end_server(home: Path, how: signal.Signals) -> None:
    """Ends the server and waits until its process is gone."""
    (lock,) = home.rglob("postmaster.pid")
    server = os.pidfd_open(int(lock.read_text().splitlines()[0]))
    try:
        signal.pidfd_send_signal(server, how)
        ended, _, _ = select.select([server], [], [], PATIENCE)
        assert ended, f"the server did not end in {PATIENCE} s"
    finally:
        os.close(server)


async def _until_all_have_ended(caller: Caller, load: _Load) -> None:
    """A refund at the opaque bank may be in doubt; then a person looks into the bank's books."""
    database, until = caller.engine.database, time.monotonic() + PATIENCE
    while True:
        counted = Counter(await runs.counts(database, SCOPE))
        if counted["succeeded"] >= len(load.accepted) or time.monotonic() > until:
            return
        for operation in await operations.listed(database, SCOPE, "unknown", None, 100):
            if operation.recovery == "hold":
                await caller.perform(Verb("resolve", str(operation.operation_id)))
        await caller.engine.bells.wait(MOVED, timedelta(milliseconds=100))


async def _judge(engine: Engine, simulator: Simulator, load: _Load, found: Restarts) -> None:
    tables = await read_tables(engine.database, SCOPE)
    status = {row["run_id"]: row["status"] for row in tables.executions}
    truth = await asyncio.to_thread(simulator.truth, "bank")
    deeds = Counter(str(deed["operation_id"]) for deed in truth)
    found.accepted = len(load.accepted)
    for key, run_id in load.accepted.items():
        if status.pop(run_id, None) != "succeeded":
            found.lost.append(f"{key} is not there, or has not succeeded")
    found.doubled += [f"run {run_id} was made beside those accepted" for run_id in status]
    for operation in tables.operations:
        done = deeds[ids.show("op", operation["operation_id"])]
        found.refunds += done
        if done != (operation["state"] == "submitted"):
            found.doubled.append(f"{operation['state']} and done {done} times")
    found.broken += violations(tables)
