"""Playing a case: submit a plan, let processes die where the case says, ask what has to be asked,
start successors until everything has ended, and read what is left."""

from __future__ import annotations

import asyncio
import random
import time
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta

from earnest.engine.process.doorbells import MOVED
from earnest.engine.process.engine import Engine
from earnest.store.database import Record
from earnest.testing.crashing import Crash
from earnest.testing.simulator import Simulator
from tests.faults.plan import Plan, Planned
from tests.faults.processes import Child, Processes
from tests.faults.roles import open_engine, quick_settings
from tests.faults.verbs import Caller, Verb
from tests.faults.workload import BOOK

LOOK = timedelta(milliseconds=50)
PATIENCE = 40.0

_RUNS = """
SELECT r.run_id, r.idempotency_key AS key, r.retry_of, r.parent_run_id, r.kind, e.status, e.output,
       e.error
FROM earnest.run r JOIN earnest.execution e USING (scope_id, run_id) WHERE scope_id = $1
"""
_DOUBTS = """
SELECT o.operation_id, o.state, o.recovery, r.idempotency_key AS key, e.status
FROM earnest.operation o JOIN earnest.run r USING (scope_id, run_id)
JOIN earnest.execution e USING (scope_id, run_id)
WHERE scope_id = $1 AND o.state IN ('submitting', 'unknown')
"""


@dataclass
class Stage:
    """Where cases are played: a database, a simulator and the fork server."""

    database_url: str
    simulator: Simulator
    processes: Processes
    engine: Engine

    def start_worker(
        self,
        crash: Crash | None = None,
        *,
        known_host: bool = True,
        settings: Mapping[str, float] | None = None,
    ) -> Child:
        return self.processes.start(
            "worker",
            crash=crash,
            database_url=self.database_url,
            simulator_url=self.simulator.url,
            known_host=known_host,
            settings=dict(settings or {}),
        )

    def start_client(self, scope: str, asked: list[Verb], crash: Crash | None = None) -> Child:
        return self.processes.start(
            "client",
            crash=crash,
            database_url=self.database_url,
            simulator_url=self.simulator.url,
            scope=scope,
            verbs=asked,
        )


@asynccontextmanager
async def open_stage(
    database_url: str, simulator: Simulator, processes: Processes
) -> AsyncIterator[Stage]:
    async with open_engine(database_url, simulator.url, quick_settings()) as engine:
        async with engine.database.connection() as tx:
            await tx.execute(BOOK.replace("TABLE", "TABLE IF NOT EXISTS"))
        await engine.bells.start()
        try:
            yield Stage(database_url, simulator, processes, engine)
        finally:
            await asyncio.to_thread(processes.kill_all)
            await engine.bells.stop()


@dataclass
class Play:
    """One case under way. `crashes` are for one worker after the other; `door` for the client that
    asks for `door.point`'s verb. `held_until_crash`: nothing is asked before a process has died."""

    stage: Stage
    scope: str
    plan: Plan
    crashes: list[Crash]
    door: Crash | None = None
    held_until_crash: bool = False
    known_host: bool = True
    settings: Mapping[str, float] = field(default_factory=dict)
    died: list[Child] = field(default_factory=list)
    _worker: Child | None = None
    _asked: set[tuple[str, str, str]] = field(default_factory=set)

    async def run(self) -> None:
        """Plays the case to its end. Raises `TimeoutError` with what is not final."""
        self._spoil_the_bank()
        await self._submit()
        until = time.monotonic() + PATIENCE
        try:
            while not await self._round():
                if time.monotonic() > until:
                    raise TimeoutError(await self._told())
                await self.stage.engine.bells.wait(MOVED, LOOK)
        finally:
            await self._end_worker()

    # ---- asking --------------------------------------------------------------------------------

    def _spoil_the_bank(self) -> None:
        for planned in self.plan.runs:
            if planned.fault is not None:
                mode, count = planned.fault
                match = planned.input["order_id"]
                self.stage.simulator.put_fault("bank", mode, count=count, match=match)

    async def _submit(self) -> None:
        asked = [
            Verb("submit", planned.key, (planned.kind, planned.input)) for planned in self.plan.runs
        ]
        if self.door is not None and self.door.point.startswith("submit."):
            await self._die_while_asking(asked)
            await self._look_at_half_a_submit(self.door)
        await self._ask_here(asked)

    async def _look_at_half_a_submit(self, crash: Crash) -> None:
        """What was committed is there, what was not is not, and nothing is there by half."""
        committed = crash.passing - crash.point.endswith(".before")
        there = {row["key"] for row in await self._runs()}
        wanted = {planned.key for planned in self.plan.runs[:committed]}
        assert there == wanted, f"after {crash} there are {there}, not {wanted}"

    async def _ask(self, due: list[Verb]) -> None:
        """Asks for what has become due: by a client that dies where this is a case of the door."""
        if self.door is not None:
            name = self.door.point.partition(".")[0]
            through_the_door = [verb for verb in due if verb.name == name]
            if len(through_the_door) >= self.door.passing and not self._door_has_been_hit():
                await self._die_while_asking(through_the_door)
            elif not self._door_has_been_hit():
                due = [verb for verb in due if verb.name != name]
        await self._ask_here(due)

    def _door_has_been_hit(self) -> bool:
        return any(child.crash is self.door for child in self.died)

    async def _die_while_asking(self, asked: list[Verb]) -> None:
        child = self.stage.start_client(self.scope, asked, self.door)
        await asyncio.to_thread(child.wait)
        self.died.append(child)
        assert child.crashed(), f"the client ended with {child.code}, not at {self.door}"

    async def _ask_here(self, asked: list[Verb]) -> None:
        caller = Caller(self.stage.engine, self.stage.simulator, self.scope)
        for verb in asked:
            if await caller.perform(verb):
                self._asked.add(_mark(verb))

    # ---- one look ------------------------------------------------------------------------------

    async def _round(self) -> bool:
        """Replaces a dead worker, asks for what is due; says whether everything has ended."""
        await self._keep_a_worker()
        if self.held_until_crash and self.crashes and not self.died:
            return False
        found, doubts = await self._runs(), await self._doubts()
        due = [verb for row in found for verb in self._due_of(row)]
        due += [verb for row in doubts for verb in self._due_about(row)]
        await self._ask([verb for verb in due if not self._is_asked(verb)])
        return not due and not doubts and all(row["status"] in _FINAL for row in found)

    def _is_asked(self, verb: Verb) -> bool:
        return _mark(verb) in self._asked

    def _due_of(self, row: Record) -> list[Verb]:
        """What is to be asked of this run now that it stands so."""
        if row["parent_run_id"] is not None or row["retry_of"] is not None:
            return []
        planned, due = self.plan.of(row["key"]), []
        for name, statuses, detail in planned.asks:
            verb = Verb(name, str(row["run_id"]), detail)
            if self._is_asked(verb):
                continue
            if row["status"] not in statuses:
                break
            if name == "retry":
                self._mend(planned)
            due.append(verb)
        return due

    def _mend(self, planned: Planned) -> None:
        """The bank refuses this order no longer."""
        self.stage.simulator.put_fault("bank", "none", match=planned.input["order_id"])

    def _due_about(self, row: Record) -> list[Verb]:
        """A doubt that only a person can settle, settled as the bank's books say."""
        planned = None if row["key"] is None else self._planned(row["key"])
        by_hand = row["recovery"] == "hold" or (planned is not None and planned.person_decides)
        if not by_hand or row["state"] != "unknown":
            return []
        if planned is not None and planned.status == "cancelled" and row["status"] not in _FINAL:
            return []  # first it is cancelled
        return [Verb("resolve", str(row["operation_id"]))]

    def _planned(self, key: str) -> Planned | None:
        return next((planned for planned in self.plan.runs if planned.key == key), None)

    async def _runs(self) -> list[Record]:
        async with self.stage.engine.database.connection() as tx:
            return await tx.fetch(_RUNS, self.scope)

    async def _doubts(self) -> list[Record]:
        async with self.stage.engine.database.connection() as tx:
            return await tx.fetch(_DOUBTS, self.scope)

    # ---- workers -------------------------------------------------------------------------------

    async def _keep_a_worker(self) -> None:
        if self._worker is not None and self._worker.code is not None:
            self.died.append(self._worker)
            assert self._worker.crashed(), (
                f"a worker ended with {self._worker.code}, not at {self._worker.crash}; "
                f"see {self._worker.log}"
            )
            self._worker = None
        if self._worker is None:
            crash = self.crashes[len(self._dead_workers())] if self._more_crashes() else None
            self._worker = self.stage.start_worker(
                crash, known_host=self.known_host, settings=self.settings
            )

    def _dead_workers(self) -> list[Child]:
        return [child for child in self.died if child.crash is not self.door]

    def _more_crashes(self) -> bool:
        return len(self._dead_workers()) < len(self.crashes)

    async def _end_worker(self) -> None:
        if self._worker is not None:
            self._worker.kill()
            await asyncio.to_thread(self._worker.wait)

    async def _told(self) -> str:
        rows = [f"{row['kind']} {row['key']}: {row['status']}" for row in await self._runs()]
        doubts = [f"{row['key']}: {row['state']}" for row in await self._doubts()]
        return f"not at an end after {PATIENCE} s: {rows}, in doubt: {doubts}"


def _mark(verb: Verb) -> tuple[str, str, str]:
    return (verb.name, verb.subject, str(verb.detail))


_FINAL = frozenset({"succeeded", "failed", "cancelled", "blocked"})


def new_scope() -> str:
    return f"case-{uuid.uuid4().hex[:12]}"


def seeded(*parts: object) -> random.Random:
    return random.Random(":".join(map(str, parts)))
