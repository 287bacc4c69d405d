"""Attaching: what an artifact belongs to, and what is told there in the same transaction (P4)."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

from earnest.domain import canonical, ids
from earnest.domain.artifact import Artifact
from earnest.domain.errors import Conflict, FencedOut, NotFound
from earnest.domain.event import NewEvent
from earnest.store import artifacts, executions
from earnest.store.database import Tx
from earnest.store.executions import Claimed, Execution


class Into(Protocol):
    """Where an artifact goes."""

    @property
    def run_id(self) -> uuid.UUID | None: ...

    async def lock(self, tx: Tx) -> Execution | None:
        """First of all locks."""

    def judge(self, row: Execution | None) -> None:
        """Whether anything may be added there now; not asked of one that was added before."""

    async def tell(self, tx: Tx, row: Execution | None, made: Artifact) -> None:
        """In the transaction that makes it."""

    def waits(self) -> bool:
        """Whether a row on which somebody sits is waited for still."""


@dataclass(frozen=True, slots=True)
class Alone:
    """It belongs to who brought it."""

    run_id: uuid.UUID | None = None

    def waits(self) -> bool:
        return False

    async def lock(self, tx: Tx) -> None:
        return None

    def judge(self, row: Execution | None) -> None:
        pass

    async def tell(self, tx: Tx, row: Execution | None, made: Artifact) -> None:
        pass


@dataclass(frozen=True, slots=True)
class ToRun:
    """Somebody adds it to a run. Raises `Conflict` once the run has ended: what is finished does
    not change."""

    scope_id: str
    run_id: uuid.UUID

    async def lock(self, tx: Tx) -> Execution:
        locked = await executions.lock(tx, self.scope_id, [self.run_id])
        if self.run_id not in locked:
            raise NotFound(f"no such run: {ids.show('run', self.run_id)}")
        return locked[self.run_id]

    def judge(self, row: Execution | None) -> None:
        if row is not None and row.final:
            raise Conflict(f"the run is {row.status}; it takes no more artifacts")

    async def tell(self, tx: Tx, row: Execution | None, made: Artifact) -> None:
        await executions.touch(tx, self.scope_id, self.run_id, [created(made)])

    def waits(self) -> bool:
        return False


@dataclass(frozen=True, slots=True)
class ByAttempt:
    """A run's own handler makes it, under its fence (P5), and remembers it by name."""

    claimed: Claimed
    name: str
    digest: bytes
    lease: timedelta
    owns: Callable[[], bool]

    @property
    def run_id(self) -> uuid.UUID:
        return self.claimed.run_id

    async def lock(self, tx: Tx) -> Execution:
        scope_id, run_id = self.claimed.key
        row = (await executions.lock(tx, scope_id, [run_id])).get(run_id)
        if row is None or not row.owned_by(self.claimed.fence, self.claimed.owner_token):
            raise FencedOut(f"attempt {self.claimed.fence} no longer owns the run")
        return row

    def judge(self, row: Execution | None) -> None:
        pass

    async def tell(self, tx: Tx, row: Execution | None, made: Artifact) -> None:
        scope_id, run_id = self.claimed.key
        kept = canonical.encode(remembered(made))
        await artifacts.remember(
            tx, scope_id, run_id, self.name, self.digest, kept, self.claimed.fence
        )
        await executions.touch(tx, scope_id, run_id, [created(made)])
        assert row is not None, "locked by this transaction"
        await executions.renew(tx, row, self.lease)

    def waits(self) -> bool:
        return self.owns()


def created(made: Artifact) -> NewEvent:
    return NewEvent("artifact.created", remembered(made))


def remembered(made: Artifact) -> dict[str, str | int]:
    """What of an artifact is told in its run: by its id it is found."""
    return {
        "artifact_id": ids.show("art", made.artifact_id),
        "name": made.name,
        "media_type": made.media_type,
        "size": made.size,
        "sha256": made.sha256.hex(),
    }
