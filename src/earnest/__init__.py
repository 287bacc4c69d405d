"""Earnest: work that costs money or cannot be taken back, done at most once.

What a user imports stands here; where it lives is nobody's business outside.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from earnest.domain.errors import (
    Blocked,
    ChildFailed,
    CodeChanged,
    EarnestError,
    Failed,
    FencedOut,
    Inconclusive,
    InDoubt,
    NotDone,
    NotSent,
    Refused,
    ResourceBusy,
    SignalTimedOut,
)
from earnest.engine.app import App
from earnest.engine.context import Child, Context
from earnest.engine.effects import Call, Effect
from earnest.engine.kinds import RunKind
from earnest.engine.plain import PlainContext
from earnest.engine.standing import operation

if TYPE_CHECKING:
    from earnest.assembly import open_app as open  # noqa: A004

__version__ = "0.1.0"

__all__ = [
    "App",
    "Blocked",
    "Call",
    "Child",
    "ChildFailed",
    "CodeChanged",
    "Context",
    "EarnestError",
    "Effect",
    "Failed",
    "FencedOut",
    "InDoubt",
    "Inconclusive",
    "NotDone",
    "NotSent",
    "PlainContext",
    "Refused",
    "ResourceBusy",
    "RunKind",
    "SignalTimedOut",
    "open",
    "operation",
]


def __getattr__(name: str) -> Any:
    # The assembly brings database, doors and apps with it: only who opens Earnest pays for them.
    if name == "open":
        from earnest.assembly import open_app

        return open_app
    raise AttributeError(f"module 'earnest' has no attribute {name!r}")
