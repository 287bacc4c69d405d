"""Live text: what a run writes for who watches it work. Progress, not a fact of business.

A delta is one piece as it was stored. Sequences go 1, 2, 3 … within a run and on across its
attempts; the text of an attempt replaces that of the one before it.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from earnest.domain.run import FINAL, RunStatus

MAX_DELTA_BYTES = 64 * 1024
MAX_DELTAS_OF_RUN = 4096
MAX_BYTES_OF_RUN = 2 * 1024 * 1024
MAX_BYTES_OF_PRINCIPAL = 64 * 1024 * 1024
"""The schema holds writers to the same bounds."""

KEPT_AFTER_SUCCESS = timedelta(hours=24)
KEPT_AFTER_FAILURE = timedelta(days=7)


@dataclass(frozen=True, slots=True)
class TextDelta:
    """One piece of a run's text. `resets`: it is the first of an attempt, and an earlier attempt
    had written text."""

    run_id: uuid.UUID
    sequence: int
    attempt: int
    content: str
    resets: bool
    created_at: datetime


@dataclass(frozen=True, slots=True)
class TextHead:
    """How far a run's text is: `last_sequence` and `bytes` count all attempts; the text of the
    newest `attempt` that wrote begins at `first_sequence`."""

    attempt: int = 0
    first_sequence: int = 1
    last_sequence: int = 0
    bytes: int = 0
    pruned_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Standing:
    """How a run stands, as who watches its text is told: its `status`, the last `run.progress` that
    its newest attempt told, and the last sequence of its text. `looked_at` is the number of the
    last event that is taken into account."""

    status: RunStatus
    attempt: int
    progress: dict[str, Any] | None
    last_sequence: int
    looked_at: int

    @property
    def final(self) -> bool:
        return self.status in FINAL

    def after(self, earlier: Standing) -> Standing:
        """This one, with the progress that was told before where none was told since."""
        if self.progress is None and self.attempt == earlier.attempt:
            return replace(self, progress=earlier.progress)
        return self

    @property
    def told(self) -> tuple[RunStatus, str | None, float | None]:
        """What of it is shown: two that are told alike need not be told twice."""
        return self.status, self.stage, self.share

    @property
    def stage(self) -> str | None:
        """What the handler said that it is at."""
        told = self.progress or {}
        return str(told.get("note") or "") or None

    @property
    def share(self) -> float | None:
        """How much of the work is done, from 0 to 1, where the handler said it."""
        told = self.progress or {}
        done, total = told.get("done"), told.get("total")
        if done is None or not total:
            return None
        return min(max(float(done) / float(total), 0.0), 1.0)
