"""The real side: several simulated workers on one database whose clock the test moves.

A worker here has its own instance, session lock, leases and groups, but no loops: the test calls
what the loops would call. It may be cut off (its session lock is gone, its process goes on) or
killed (its calls never come back). One event loop serves all; every verb runs to its end, or until
a call is on the wire.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Coroutine
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, ClassVar, TypeVar

import asyncpg

from earnest.domain import crash_points
from earnest.engine.app import App
from earnest.engine.attempts.reaping import Reaper
from earnest.engine.attempts.remembering import Rememberer
from earnest.engine.attempts.settling import Settler
from earnest.engine.process.engine import Engine
from earnest.engine.process.instances import Instance
from earnest.engine.process.settings import EngineSettings
from earnest.engine.runs.leasing import HeldLease, Leases
from earnest.store import executions
from earnest.store.database import Database, Record, Tx
from earnest.store.executions import Claimed
from earnest.testing.clock import ManualClock
from tests.model.effects import EFFECTS, TABLE, ModelEffect, Provider, Wire
from tests.model.reference import GRACE, LEASE, KindTerms, Owner

T = TypeVar("T")

LANE = "default"
WORKERS = 3
KINDS = {
    terms.name: terms
    for terms in (
        KindTerms("plain"),
        KindTerms("fragile", max_attempts=2, fails_on_doubt=True),
        KindTerms("dated", deadline=timedelta(minutes=3)),
    )
}

_app = App("model")


async def _handler(ctx: object, input: str) -> str:
    """Never called: the test plays the handler."""
    return input


for _terms in KINDS.values():
    _app.run(
        _terms.name,
        max_attempts=_terms.max_attempts,
        deadline=_terms.deadline,
        on_unknown="fail" if _terms.fails_on_doubt else "wait",
    )(_handler)


class WatchedDatabase(Database):
    """Who waits for another's call looks how it stands when the test says so."""

    provider: ClassVar[Provider]

    async def fetchrow(self, statement: str, *arguments: Any) -> Record | None:
        wire = self.provider.wire() if statement == "watch_call" else None
        if wire is not None:
            await wire.wait_at("wait")
        return await super().fetchrow(statement, *arguments)


@dataclass(eq=False)
class Hand:
    """An attempt in somebody's hands: what the engine gave, and the owner it is in the model."""

    worker: Worker
    claimed: Claimed
    held: HeldLease
    owner: Owner
    heard: list[str]

    @property
    def run_id(self) -> uuid.UUID:
        return self.claimed.run_id


@dataclass(eq=False)
class Worker:
    """One process. `lock` is the connection that keeps its session lock."""

    database: Database
    lock: Tx
    engine: Engine = field(init=False)
    leases: Leases = field(init=False)
    rememberer: Rememberer = field(init=False)
    settler: Settler = field(init=False)
    reaper: Reaper = field(init=False)
    hands: list[Hand] = field(default_factory=list)

    @property
    def instance_id(self) -> uuid.UUID:
        return self.engine.instance.instance_id

    async def be_born(self) -> None:
        """A new process in this place."""
        settings = EngineSettings(
            lease=LEASE, call_grace=GRACE, resend_waits=(timedelta(0),), dead_after=timedelta(0)
        )
        effects = {effect.kind: effect() for effect in EFFECTS}
        self.engine = Engine(self.database, _app.kinds, effects, settings, Instance())  # type: ignore[arg-type]
        self.leases = Leases(settings.lease)
        self.rememberer = Rememberer(self.engine, self.leases)
        self.settler = Settler(self.engine)
        self.reaper = Reaper(self.engine)
        self.hands = []
        await self.engine.instance.enter(self.lock)

    async def cut_off(self) -> None:
        """The database no longer sees the process; the process does not know."""
        await self.lock.execute("SELECT pg_advisory_unlock_all()")

    async def die(self) -> uuid.UUID:
        """The process is gone, and its machine could tell. Returns what it was."""
        gone = self.instance_id
        await self.cut_off()
        await self.lock.execute(
            "UPDATE earnest.instance SET process = '1:0' WHERE instance_id = $1", gone
        )
        await self.be_born()
        return gone

    async def claim(self, limit: int) -> list[Claimed]:
        settings, instance_id = self.engine.settings, self.instance_id

        async def work(tx: Tx) -> list[Claimed]:
            return await executions.claim(tx, LANE, list(KINDS), instance_id, settings.lease, limit)

        return await self.database.promise("claim", work, one_statement=True)


class World:
    """The database, its clock, the workers and the provider; reset between examples."""

    def __init__(self, url: str) -> None:
        self.loop = asyncio.new_event_loop()
        self.provider = Provider()
        ModelEffect.provider_ = WatchedDatabase.provider = self.provider
        self.tasks: set[asyncio.Task[Any]] = set()
        self.workers: list[Worker] = []
        self._number = 0
        self.run(self._open(url))

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)

    async def _open(self, url: str) -> None:
        self.database = await WatchedDatabase(url, size=10, patience=10).open()
        self.observer: asyncpg.Connection = await self.database.connect()
        self.clock = await ManualClock(self.database).stop()
        await self.observer.execute(TABLE)
        for _ in range(WORKERS):
            worker = Worker(self.database, await self.database.connect())
            await worker.be_born()
            self.workers.append(worker)

    def close(self) -> None:
        self.run(self._close())
        self.loop.close()

    async def _close(self) -> None:
        await self.observer.close()
        for worker in self.workers:
            await worker.lock.close()
        await self.database.close()

    # ---- examples --------------------------------------------------------------------------

    def begin_example(self) -> str:
        """A scope of its own, with workers that have nothing in hand."""
        self._number += 1
        for worker in self.workers:
            self.run(worker.engine.instance.enter(worker.lock))
        return f"example-{self._number}"

    def end_example(self, scope_id: str) -> None:
        self.run(self._end_tasks())
        self.run(self.observer.execute(_forget(scope_id)))
        for worker in self.workers:
            worker.hands.clear()
            worker.leases = Leases(worker.engine.settings.lease)
            worker.rememberer = Rememberer(worker.engine, worker.leases)

    async def _end_tasks(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        self.tasks.clear()
        self.provider.wires.clear()
        self.provider.calls.clear()

    # ---- time ------------------------------------------------------------------------------

    @property
    def now(self) -> datetime:
        return self.clock.now

    # ---- verbs that may stop with a call on the wire ---------------------------------------

    def start(self, work: Coroutine[Any, Any, Any], pauses: bool = False) -> Performing:
        """Begins `work` and goes on until it needs the test or has ended."""
        return self.run(self._start(work, pauses))

    async def _start(self, work: Coroutine[Any, Any, Any], pauses: bool) -> Performing:
        task, wire = self.loop.create_task(work), Wire(pauses)
        self.tasks.add(task)
        self.provider.wires[task] = wire
        task.add_done_callback(lambda _: wire.ended())
        performing = Performing(task, wire)
        await wire.turn
        return performing

    def answer(self, performing: Performing, answer: str) -> None:
        """Lets the provider answer (or who waits look), and goes on to the next call or the end."""
        self.run(self._answer(performing.wire, answer))

    async def _answer(self, wire: Wire, answer: str) -> None:
        waiting = wire.answer
        wire.renew()
        waiting.set_result(answer)
        await wire.turn


@dataclass(eq=False)
class Performing:
    """A verb that is under way or has ended."""

    task: asyncio.Task[Any]
    wire: Wire

    def outcome(self) -> str:
        """Where it waits (`look`, `wait`, `call`), `done`, or the name of the error of the engine
        that it raised; any other error is raised here."""
        if not self.task.done():
            assert self.wire.waits_at is not None, "it waits for the test"
            return self.wire.waits_at
        error = self.task.exception()
        if error is not None and not type(error).__module__.startswith("earnest."):
            raise error
        return "done" if error is None else type(error).__name__


class LostReply:
    """Loses the reply of the n-th commit, or the connection just before it: whatever is passed as
    the `place`-th crash point of a promise, once."""

    def __init__(self, place: int | None) -> None:
        self.left = place

    def __enter__(self) -> None:
        if self.left is not None:
            crash_points.install(self._pass)

    def __exit__(self, *_: object) -> None:
        crash_points.install(None)

    def _pass(self, point: str) -> None:
        if self.left is None or point.startswith(("call.", "record.")):
            return
        self.left = self.left - 1 if self.left else None
        if self.left is None:
            raise ConnectionResetError(f"lost at {point}")


def _forget(scope_id: str) -> str:
    tables = (
        "model_record approval operation_lookup operation_move finding operation signal step event "
        "past_attempt execution run"
    ).split()
    return "".join(
        f"DELETE FROM earnest.{table} WHERE scope_id = '{scope_id}';" for table in tables
    )
