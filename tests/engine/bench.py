"""What a test of the engine has in its hands: one engine, one worker, one tenant, and questions."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import asyncpg

from earnest.domain.event import Event
from earnest.domain.operation import Lookup, Operation, OperationMove
from earnest.domain.run import Attempt, Run, RunStatus
from earnest.engine.attempts.minding import ripen
from earnest.engine.attempts.settling import Ending, Settled, Wish, settle_alone
from earnest.engine.attempts.working import Worker
from earnest.engine.operations import reconciling
from earnest.engine.operations.reconciling import Verdict
from earnest.engine.process.doorbells import MOVED, WORK
from earnest.engine.process.engine import Engine
from earnest.engine.runs import cancelling, retrying, signalling, submitting
from earnest.engine.runs.cancelling import Cancelled
from earnest.engine.runs.submitting import Request
from earnest.store import executions, facts, operations, runs
from earnest.store.database import Tx
from earnest.store.executions import Claimed

SCOPE = "demo"
MEMBER = "member"
LONGEST_WAIT = 10.0


@dataclass
class Bench:
    """One process's engine with a worker that the test drives."""

    engine: Engine
    worker: Worker

    # ---- verbs -----------------------------------------------------------------------------

    async def submit(self, kind: str, input: Any = None, **more: Any) -> uuid.UUID:
        request = Request(kind, input, **more)
        return (await submitting.submit(self.engine, SCOPE, MEMBER, request)).run.run_id

    async def drain(self) -> int:
        """Runs what is due; returns how many attempts that took."""
        return await self.worker.drain_once()

    async def done(self, kind: str, input: Any = None, **more: Any) -> Run:
        """Submits, drains, and reads how it stands then."""
        run_id = await self.submit(kind, input, **more)
        await self.drain()
        return await self.find(run_id)

    async def claim(self, limit: int = 10, lane: str = "default") -> list[Claimed]:
        """Claims without a worker; the test is the owner."""

        async def work(tx: Tx) -> list[Claimed]:
            settings, instance = self.engine.settings, self.engine.instance
            kinds = list(self.engine.kinds)
            return await executions.claim(
                tx, lane, kinds, instance.instance_id, settings.lease, limit
            )

        return await self.engine.database.promise("claim", work)

    async def ripen(self) -> None:
        """Delayed runs whose time has come join the queue, as a worker makes them."""
        await ripen(self.engine)

    async def settle(self, claimed: Claimed, wish: Wish, **ending: Any) -> Settled:
        return await settle_alone(self.engine, claimed, Ending(wish, **ending))

    async def cancel(self, run_id: uuid.UUID) -> Cancelled:
        return await cancelling.cancel(self.engine, SCOPE, run_id, MEMBER)

    async def retry(
        self, run_id: uuid.UUID, key: str | None = None, *, repeat: bool = False
    ) -> Run:
        made = await retrying.retry(
            self.engine, SCOPE, run_id, by=MEMBER, key=key, repeat_submitted=repeat
        )
        return made.run

    async def signal(self, run_id: uuid.UUID, name: str, payload: Any = None) -> int:
        return await signalling.signal(self.engine, SCOPE, run_id, name, payload, by=MEMBER)

    async def look_up(self, operation: Operation) -> Operation:
        return await reconciling.look_up(self.engine, SCOPE, operation.operation_id)

    async def resolve(
        self, operation: Operation, outcome: str, receipt: Any = None, **more: Any
    ) -> Operation:
        """A person's resolution of the operation as it was last read."""
        verdict = Verdict(outcome, "the bank's statement", receipt=receipt)
        more = {"version": operation.version, "by": MEMBER, **more}
        return await reconciling.resolve(
            self.engine, SCOPE, operation.operation_id, verdict, **more
        )

    # ---- questions -------------------------------------------------------------------------

    async def find(self, run_id: uuid.UUID) -> Run:
        run = await runs.find(self.engine.database, SCOPE, run_id)
        assert run is not None, "it was submitted"
        return run

    async def status(self, run_id: uuid.UUID) -> str:
        return (await self.find(run_id)).status.value

    async def events(self, run_id: uuid.UUID, type: str | None = None) -> list[Event]:
        found = await facts.events(self.engine.database, SCOPE, run_id, 0, 10_000)
        return [event for event in found if type in (None, event.type)]

    async def told(self, run_id: uuid.UUID) -> list[str]:
        """The types of the run's events, in order."""
        return [event.type for event in await self.events(run_id)]

    async def attempts(self, run_id: uuid.UUID) -> list[Attempt]:
        return await runs.attempts(self.engine.database, SCOPE, run_id)

    async def outcomes(self, run_id: uuid.UUID) -> list[str | None]:
        return [one.outcome and one.outcome.value for one in await self.attempts(run_id)]

    async def operations(self, run_id: uuid.UUID) -> list[Operation]:
        return await operations.of_run(self.engine.database, SCOPE, run_id)

    async def operation(self, run_id: uuid.UUID) -> Operation:
        """The run's only operation."""
        (found,) = await self.operations(run_id)
        return found

    async def again(self, operation: Operation) -> Operation:
        """The operation as it stands now."""
        found = await operations.find(self.engine.database, SCOPE, operation.operation_id)
        assert found is not None, "operations are not removed"
        return found

    async def history(self, operation: Operation) -> list[OperationMove]:
        return await operations.moves(self.engine.database, SCOPE, operation.operation_id)

    async def moves(self, operation: Operation) -> list[str]:
        """What was made of the operation, in order."""
        return [move.move for move in await self.history(operation)]

    async def lookups(self, operation: Operation) -> list[Lookup]:
        return await operations.lookups(self.engine.database, SCOPE, operation.operation_id)

    async def findings(self, operation: Operation) -> list[dict[str, Any]]:
        return await operations.findings(self.engine.database, SCOPE, operation.operation_id)

    async def until(self, run_id: uuid.UUID, *wanted: str) -> Run:
        """Waits until the run stands as wanted; the bell of moves is listened to."""
        async with asyncio.timeout(LONGEST_WAIT):
            while True:
                run = await self.find(run_id)
                if run.status in {RunStatus(word) for word in wanted}:
                    return run
                await self.engine.bells.wait(MOVED, timedelta(milliseconds=50))

    @asynccontextmanager
    async def at_work(self) -> AsyncIterator[Worker]:
        """The worker with all its loops, drained and ended on leaving."""
        task = asyncio.create_task(self.worker.run())
        ready = asyncio.create_task(self.worker.ready.wait())
        await asyncio.wait({task, ready}, return_when=asyncio.FIRST_COMPLETED)
        try:
            yield self.worker
        finally:
            ready.cancel()
            self.worker.stop()
            await task

    async def execute(self, statement: str, *arguments: Any) -> str:
        """Something done behind the engine's back."""
        async with self.engine.database.connection() as connection:
            return await connection.execute(statement, *arguments)

    async def value(self, statement: str, *arguments: Any) -> Any:
        async with self.engine.database.connection() as connection:
            return await connection.fetchval(statement, *arguments)

    async def lease_until(self, run_id: uuid.UUID) -> datetime | None:
        found: datetime | None = await self.value(
            "SELECT lease_until FROM execution WHERE run_id = $1", run_id
        )
        return found

    async def wait_for_lock_waiters(self, count: int = 1) -> None:
        """Returns once that many statements in this database wait for a row's lock."""
        await self.wait_until_true(
            f"SELECT count(*) >= {count} FROM pg_stat_activity"
            " WHERE datname = current_database() AND wait_event_type = 'Lock'"
        )

    async def idle(self, bell: str = WORK) -> None:
        """Returns once a loop of the worker waits for that bell."""
        async with asyncio.timeout(LONGEST_WAIT):
            while not self.engine.bells._waiters.get(bell):  # noqa: ASYNC110
                await asyncio.sleep(0)

    async def has_no_room(self) -> None:
        """Returns once the worker waits for room, and every handler that it began is over."""
        async with asyncio.timeout(LONGEST_WAIT):
            while self.worker._handlers or not self.worker._room._waiters:  # noqa: ASYNC110
                await asyncio.sleep(0)

    async def claims_no_more(self) -> None:
        """Returns once the loop that claims has ended, after it was idle."""
        while self.engine.bells._waiters.get(WORK):  # noqa: ASYNC110
            await asyncio.sleep(0)

    async def wait_until_true(self, question: str) -> None:
        """Asks the database again and again until the answer is yes."""
        async with asyncio.timeout(LONGEST_WAIT):
            while not await self.value(question):  # noqa: ASYNC110
                await asyncio.sleep(0)

    async def cut_connections(self) -> None:
        """Ends every connection to this database but the one that says so."""
        connection = await asyncpg.connect(self.engine.database.url)
        await connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        await connection.close()

    @asynccontextmanager
    async def holding(self, run_id: uuid.UUID) -> AsyncIterator[asyncpg.Connection]:
        """Another transaction that holds the lock of the run's execution until the end."""
        connection = await self.engine.database.connect(application_name="holder")
        try:
            async with connection.transaction():
                await connection.execute(
                    "SELECT FROM execution WHERE scope_id = $1 AND run_id = $2 FOR UPDATE",
                    SCOPE, run_id,
                )  # fmt: skip
                yield connection
        finally:
            await connection.close()
