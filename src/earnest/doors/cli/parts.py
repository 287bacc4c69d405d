"""What the command line is given by whoever puts the program together.

A door knows neither the assembly nor another door. These protocols say what it needs of them; the
implementation comes from `__main__` and imports nothing heavy before it is asked to.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from earnest.domain.access import Principal, Scope, Token
    from earnest.domain.approval import Approval
    from earnest.domain.artifact import Artifact, Room
    from earnest.domain.audit import AuditEntry
    from earnest.domain.event import Event
    from earnest.domain.explanation import Explanation
    from earnest.domain.operation import Lookup, Operation, OperationMove
    from earnest.domain.run import Attempt, Run
    from earnest.domain.sweep import Difference, DifferenceKind, Sweep
    from earnest.domain.text import TextDelta
    from earnest.engine.attempts.working import Worker
    from earnest.engine.inspection.readiness import Readiness
    from earnest.engine.process.engine import Engine
    from earnest.store.inbox import Source
    from earnest.store.messages import Delivery
    from earnest.store.sinks import Sink


@dataclass(frozen=True, slots=True)
class Told:
    """What was told about database and code. `makes`: a missing database is made and an older
    schema is brought up to date; without it both are refused. `None` leaves a value as it is."""

    home: Path
    database_url: str | None = None
    apps: tuple[str, ...] = ()
    makes: bool = False
    concurrency: int | None = None
    drain_seconds: float | None = None


class Server(Protocol):
    """An API on a port that was taken."""

    url: str
    started: asyncio.Event

    async def run(self) -> None:
        """Answers requests until `stop`, then lets those that are on their way end."""

    def stop(self) -> None:
        """Asks the server to end. Harmless when repeated."""


class Opened(Protocol):
    """Database and engine of this process."""

    @property
    def engine(self) -> Engine: ...

    def worker(self) -> Worker: ...


class Shown(Protocol):
    """Values as JSON objects, the same as the API's."""

    def show_run(self, found: Run, /) -> Mapping[str, Any]: ...

    def show_run_summary(self, found: Run, /) -> Mapping[str, Any]: ...

    def show_event(self, told: Event, /) -> Mapping[str, Any]: ...

    def show_delta(self, delta: TextDelta, /) -> Mapping[str, Any]: ...

    def show_attempt(self, made: Attempt, /) -> Mapping[str, Any]: ...

    def show_operation_summary(self, found: Operation, /) -> Mapping[str, Any]: ...

    def show_operation(self, found: Operation, asked: Sequence[Lookup], /) -> Mapping[str, Any]: ...

    def show_artifact(self, found: Artifact, /) -> Mapping[str, Any]: ...

    def show_room(self, scope_id: str, room: Room, /) -> Mapping[str, Any]: ...

    def show_explanation(self, found: Explanation, /) -> Mapping[str, Any]: ...

    def show_webhook(self, found: Sink, /) -> Mapping[str, Any]: ...

    def show_delivery(self, found: Delivery, /) -> Mapping[str, Any]: ...

    def show_source(self, found: Source, /) -> Mapping[str, Any]: ...

    def show_move(self, made: OperationMove, /) -> Mapping[str, Any]: ...

    def show_sweep(self, found: Sweep, /) -> Mapping[str, Any]: ...

    def show_sweep_detail(
        self, found: Sweep, open_: Mapping[DifferenceKind, int], /
    ) -> Mapping[str, Any]: ...

    def show_difference(self, found: Difference, /) -> Mapping[str, Any]: ...

    def show_approval(self, found: Approval, /) -> Mapping[str, Any]: ...

    def show_scope(self, found: Scope, /) -> Mapping[str, Any]: ...

    def show_principal(self, found: Principal, /) -> Mapping[str, Any]: ...

    def show_token(self, found: Token, /) -> Mapping[str, Any]: ...

    def show_audit_entry(self, found: AuditEntry, /) -> Mapping[str, Any]: ...


class Parts(Protocol):
    """The rest of the program, as the command line sees it."""

    @property
    def version(self) -> str: ...

    @property
    def shown(self) -> Shown: ...

    def open(self, told: Told) -> AbstractAsyncContextManager[Opened]:
        """Opens the database and makes an engine on it. Raises `HomeUnusable`,
        `DatabaseUnavailable`, `SchemaMismatch`, `SettingInvalid`."""

    def listen(self, host: str, port: int) -> socket.socket:
        """Takes a port; 0 takes a free one. Raises `SettingInvalid` when it cannot be had."""

    def serve(
        self, engine: Engine, listener: socket.socket, ready: Callable[[], Readiness]
    ) -> Server:
        """The API of this engine; `ready` says whether it may be sent work."""

    def serve_metrics(
        self, engine: Engine, listener: socket.socket, ready: Callable[[], Readiness]
    ) -> Server:
        """`/metrics`, `/livez` and `/readyz` of this engine's process, and nothing else."""

    def migrations(self) -> str:
        """All migrations as one script."""

    async def migrate(self, told: Told, *, check_only: bool) -> Sequence[str]:
        """Applies what is missing, or with `check_only` changes nothing; returns the names."""
