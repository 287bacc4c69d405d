"""Earnest: work that costs money or cannot be taken back, done at most once.

What a user imports stands here; where it lives is nobody's business outside. Each name is imported
when it is first used: who runs `earnest --help` does not wait for the database's driver.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any

    from earnest.assembly import blocking
    from earnest.assembly import open_app as open  # noqa: A004
    from earnest.client.client import Client
    from earnest.client.sync_client import SyncClient
    from earnest.domain.artifact import ArtifactRef
    from earnest.domain.errors import (
        ApprovalExpired,
        ApprovalRejected,
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
        QuotaExceeded,
        Refused,
        ResourceBusy,
        SignalTimedOut,
        StorageUnavailable,
    )
    from earnest.engine.app import App
    from earnest.engine.approvals.asking import Approved
    from earnest.engine.artifacts.reading import OpenArtifact
    from earnest.engine.attempts.context import Child, Context
    from earnest.engine.attempts.plain import PlainContext
    from earnest.engine.operations.standing import operation
    from earnest.engine.process.effects import Call, Effect, Listed
    from earnest.engine.process.inboxes import InboxMessage, Refutes, Settles, Signals
    from earnest.engine.process.kinds import RunKind
    from earnest.engine.runs.publishing import publish

__version__ = "0.1.0"

__all__ = [
    "App",
    "ApprovalExpired",
    "ApprovalRejected",
    "Approved",
    "ArtifactRef",
    "Blocked",
    "Call",
    "Child",
    "ChildFailed",
    "Client",
    "CodeChanged",
    "Context",
    "EarnestError",
    "Effect",
    "Failed",
    "FencedOut",
    "InDoubt",
    "InboxMessage",
    "Inconclusive",
    "Listed",
    "NotDone",
    "NotSent",
    "OpenArtifact",
    "PlainContext",
    "QuotaExceeded",
    "Refused",
    "Refutes",
    "ResourceBusy",
    "RunKind",
    "Settles",
    "SignalTimedOut",
    "Signals",
    "StorageUnavailable",
    "SyncClient",
    "blocking",
    "open",
    "operation",
    "publish",
]

_ELSEWHERE = {
    "App": "engine.app",
    "Approved": "engine.approvals.asking",
    "ArtifactRef": "domain.artifact",
    "Call": "engine.process.effects",
    "Child": "engine.attempts.context",
    "Client": "client.client",
    "Context": "engine.attempts.context",
    "Effect": "engine.process.effects",
    "InboxMessage": "engine.process.inboxes",
    "Listed": "engine.process.effects",
    "OpenArtifact": "engine.artifacts.reading",
    "PlainContext": "engine.attempts.plain",
    "Refutes": "engine.process.inboxes",
    "RunKind": "engine.process.kinds",
    "Settles": "engine.process.inboxes",
    "Signals": "engine.process.inboxes",
    "SyncClient": "client.sync_client",
    "blocking": "assembly:blocking",
    "open": "assembly:open_app",
    "operation": "engine.operations.standing",
    "publish": "engine.runs.publishing",
}
"""Where a name is defined, and as what; all others are errors."""

if not TYPE_CHECKING:  # a type checker would take any name for one of ours

    def __getattr__(name: str) -> Any:
        if name not in __all__:
            raise AttributeError(f"module 'earnest' has no attribute {name!r}")
        from importlib import import_module

        place, _, known_as = _ELSEWHERE.get(name, "domain.errors").partition(":")
        found = getattr(import_module(f"earnest.{place}"), known_as or name)
        globals()[name] = found
        return found

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
