"""An event: what happened, numbered 1, 2, 3 … within its run."""

from __future__ import annotations

import re
import uuid
from datetime import datetime
from typing import Any

from msgspec import Struct

ENGINE_TYPES = frozenset(
    """
    run.submitted attempt.started attempt.lost attempt.failed run.retry_scheduled run.resumed
    run.progress step.completed run.waiting run.woken run.unknown run.blocked run.cancel_requested
    run.succeeded run.failed run.cancelled operation.reserved operation.submitting
    operation.submitted operation.unknown operation.released operation.resolved
    approval.requested approval.decided approval.expired signal.received grant.acquired
    grant.committed grant.released artifact.created
    """.split()
)

FINAL_TYPES = frozenset({"run.succeeded", "run.failed", "run.cancelled", "run.blocked"})

MAX_PAYLOAD_BYTES = 16 * 1024

_APP_TYPE = re.compile(r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)+")


class Event(Struct, frozen=True):
    """One event as it is read back. `run_id` names the run whose sequence it belongs to."""

    run_id: uuid.UUID
    seq: int
    type: str
    payload: dict[str, Any]
    created_at: datetime

    @property
    def final(self) -> bool:
        return self.type in FINAL_TYPES


class NewEvent(Struct, frozen=True):
    """An event about to be appended; its number is given under the execution's row lock."""

    type: str
    payload: dict[str, Any]


def is_app_type(name: str) -> bool:
    """Whether an app may emit this type: dotted lower-case words, and not one of the engine's."""
    return name not in ENGINE_TYPES and len(name) <= 100 and bool(_APP_TYPE.fullmatch(name))
