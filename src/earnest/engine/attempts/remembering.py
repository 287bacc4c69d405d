"""Remembering: what an attempt leaves for the next one, written under its fence.

Facts of all runs of a process go in groups, like settles, each under its own fence (`fencing.py`).
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from pydantic import TypeAdapter
from pydantic_core import to_jsonable_python

from earnest.domain import canonical
from earnest.domain.errors import FencedOut
from earnest.domain.operation import Operation
from earnest.domain.run import Step
from earnest.engine.attempts.logging import Logs
from earnest.engine.attempts.texting import Texts
from earnest.engine.process.engine import Engine
from earnest.engine.process.typed_json import in_order
from earnest.engine.runs.fencing import OwnersGroup
from earnest.engine.runs.leasing import Leases
from earnest.store import executions, facts, operations
from earnest.store.database import Database, Tx
from earnest.store.executions import Claimed, Unwritten
from earnest.store.facts import Fact, Signal, Written


@dataclass(slots=True)
class Memory:
    """What a run has behind it: steps by name, operations by id, signals by (name, number), and the
    database's clock when it was read."""

    now: datetime
    steps: dict[str, Step] = field(default_factory=dict)
    operations: dict[uuid.UUID, Operation] = field(default_factory=dict)
    signals: dict[tuple[str, int], Signal] = field(default_factory=dict)

    @staticmethod
    def empty() -> Memory:
        return Memory(now=datetime.fromtimestamp(0, UTC))

    @staticmethod
    async def read(database: Database, scope_id: str, run_id: uuid.UUID) -> Memory:
        return await database.promise("remember", lambda tx: Memory.read_in(tx, scope_id, run_id))

    @staticmethod
    async def read_in(tx: Tx, scope_id: str, run_id: uuid.UUID) -> Memory:
        return Memory(
            now=await tx.fetchval("SELECT clock()"),
            steps={step.name: step for step in await facts.steps(tx, scope_id, run_id)},
            operations={
                operation.operation_id: operation
                for operation in await operations.of_run(tx, scope_id, run_id)
            },
            signals={
                (signal.name, signal.number): signal
                for signal in await facts.signals(tx, scope_id, run_id)
            },
        )


class Rememberer:
    """Writes facts for one process."""

    def __init__(self, engine: Engine, leases: Leases) -> None:
        self._engine = engine
        self.texts = Texts(engine, leases)
        self.logs = Logs(engine, leases)
        self._group: OwnersGroup[Fact, Written] = OwnersGroup(leases, self._store)
        # Marks of facts that may be stored although nobody heard of it.
        self._doubtful: set[int] = set()

    async def write(
        self,
        claimed: Claimed,
        type: str,
        payload: bytes,
        name: str | None = None,
        kind: str | None = None,
        digest: bytes | None = None,
        result: bytes | None = None,
    ) -> None:
        """Stores an event, with a remembered step where there is a `name`. Raises `FencedOut`."""
        fact = Fact(
            claimed.scope_id, claimed.run_id, claimed.fence, claimed.owner_token, type, payload,
            name, kind, digest, result,
        )  # fmt: skip
        try:
            await self._group.put(fact)
        finally:
            self._doubtful.discard(fact.mark)

    async def start_timer(
        self, claimed: Claimed, name: str, digest: bytes, span: timedelta
    ) -> Step:
        """Fixes an instant by the database's clock, once. Raises `FencedOut`."""

        async def work(tx: Tx) -> Step:
            locked = await executions.lock(tx, claimed.scope_id, [claimed.run_id])
            row = locked.get(claimed.run_id)
            if row is None or not row.owned_by(claimed.fence, claimed.owner_token):
                raise FencedOut(f"attempt {claimed.fence} no longer owns the run")
            await facts.put_timer(
                tx, claimed.scope_id, claimed.run_id, name, digest, span, claimed.fence
            )
            steps = await facts.steps(tx, claimed.scope_id, claimed.run_id)
            return next(step for step in steps if step.name == name)

        return await self._engine.database.promise("step", work)

    async def _store(self, batch: Sequence[Fact]) -> list[Written | Unwritten]:
        """A fact whose reply was lost may be there already when it is written again: it is looked
        for before, and then counts as written. It is in doubt until it is known which."""
        lease = self._engine.settings.lease
        marks = [fact.mark for fact in batch]
        doubtful = not self._doubtful.isdisjoint(marks)

        async def work(tx: Tx) -> list[Written | Unwritten]:
            nonlocal doubtful
            if doubtful:
                self._doubtful.update(marks)
                return await facts.write_again(tx, batch, lease)
            doubtful = True
            return await facts.write(tx, batch, lease)

        name = "step" if any(fact.kind == "step" for fact in batch) else "emit"
        written = await self._engine.database.promise(name, work, one_statement=True)
        self._engine.bells.moved(
            *(
                fact.run_id
                for fact, answer in zip(batch, written, strict=True)
                if isinstance(answer, Written)
            )
        )
        return written


_SCALARS = frozenset({str, int, bool, type(None)})
_ANYTHING: TypeAdapter[Any] = TypeAdapter(Any)


def digest_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
    """What a step was called with. Things that are no data (a client, a session) count as their
    type, so that they may be passed along."""
    called = (args, kwargs)
    if all(type(value) in _SCALARS for value in (*args, *kwargs.values())):
        return canonical.digest(canonical.encode(called))  # as below, without the way around
    plain = to_jsonable_python(called, fallback=lambda thing: f"<{type(thing).__name__}>")
    return canonical.digest(canonical.encode(in_order(plain, _ANYTHING.dump_python(called))))
