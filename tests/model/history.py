"""Who owned a run, when: seen from outside, step by step, and from the attempts that are stored.

At no time has a run two owners: each claim has its own token and the next number, an attempt begins
only after the one before it has ended, and a lease that was seen was over when the next one began,
unless its holder's process was seen to be gone.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime

import asyncpg

ATTEMPTS = """
SELECT run_id, fence, instance_id, started_at, ended_at, outcome FROM attempt
WHERE scope_id = $1 ORDER BY run_id, fence
"""


@dataclass(frozen=True)
class Ownership:
    """One owner of a run as it was last seen."""

    fence: int
    token: uuid.UUID
    instance: uuid.UUID
    lease_until: datetime


@dataclass
class History:
    """Every owner that was seen of every run, in the order in which they were seen."""

    owners: dict[uuid.UUID, dict[int, Ownership]] = field(default_factory=dict)
    gone: set[uuid.UUID] = field(default_factory=set)

    def see(self, runs: Iterable[asyncpg.Record]) -> None:
        for row in runs:
            if row["status"] == "running":
                self._see(row)

    def _see(self, row: asyncpg.Record) -> None:
        seen = self.owners.setdefault(row["run_id"], {})
        before = seen.get(row["fence"])
        assert before is None or before.token == row["owner_token"], "one fence has one owner"
        assert row["fence"] >= max(seen, default=0), "a fence that was left came back"
        seen[row["fence"]] = Ownership(
            row["fence"], row["owner_token"], row["instance_id"], row["lease_until"]
        )

    def check(self, attempts: Iterable[asyncpg.Record]) -> None:
        """Compares what was seen with the attempts as they are stored."""
        tokens = [owner.token for seen in self.owners.values() for owner in seen.values()]
        assert len(set(tokens)) == len(tokens), "two claims have one token"
        last: asyncpg.Record | None = None
        for row in attempts:
            if last is not None and last["run_id"] == row["run_id"]:
                self._check_handover(last, row)
            else:
                assert row["fence"] == 1, "a run's first attempt has another number"
            last = row

    def _check_handover(self, last: asyncpg.Record, row: asyncpg.Record) -> None:
        assert row["fence"] == last["fence"] + 1, "fences grow by one"
        assert last["ended_at"] is not None, "an attempt began beside an open one"
        assert last["ended_at"] <= row["started_at"], "an attempt began before the last one ended"
        owner = self.owners.get(row["run_id"], {}).get(last["fence"])
        if owner is not None and last["outcome"] == "lost" and owner.instance not in self.gone:
            assert owner.lease_until <= last["ended_at"], "a valid lease was taken away"
