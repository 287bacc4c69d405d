"""Inboxes: an app's code for messages that come from outside, and what it may say of them.

    @app.inbox("bank")
    async def bank(tx, message):
        told = message.payload
        return Settles(told["operation_id"], told["receipt"])

It is called in the transaction in which the message is noted as handled, and may write rows of its
own there. What it returns is done in the same transaction.
"""

from __future__ import annotations

import inspect
import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from earnest.domain.errors import SettingInvalid
from earnest.engine.process.kinds import check_name
from earnest.store.database import Tx


@dataclass(frozen=True, slots=True)
class InboxMessage:
    """A message whose signature was right. `id` is the sender's, the same when it is sent again;
    `payload` is its body as JSON, `None` where that is none."""

    scope_id: str
    source: str
    id: str
    payload: Any
    body: bytes = field(repr=False)
    run_id: uuid.UUID | None = None


@dataclass(frozen=True, slots=True)
class Settles:
    """The operation `op_…` was done: the provider says so, with this receipt."""

    operation_id: str
    receipt: Any

    def __post_init__(self) -> None:
        _require_texts(self, "operation_id")


@dataclass(frozen=True, slots=True)
class Refutes:
    """The operation `op_…` was not done and will not be: the provider says so. What waits for it
    hears `Refused` with this evidence."""

    operation_id: str
    evidence: str

    def __post_init__(self) -> None:
        _require_texts(self, "operation_id", "evidence")


@dataclass(frozen=True, slots=True)
class Signals:
    """A signal for the run `run_…`."""

    run_id: str
    name: str
    payload: Any = None

    def __post_init__(self) -> None:
        _require_texts(self, "run_id", "name")


def _require_texts(said: object, *names: str) -> None:
    """A provider may send null where an id is expected: who reads it hears so at once."""
    for name in names:
        value = getattr(said, name)
        if not isinstance(value, str):
            raise TypeError(f"{type(said).__name__}: {name} is a text, not {type(value).__name__}")


Said = Settles | Refutes | Signals
InboxHandler = Callable[[Tx, InboxMessage], Awaitable[Said | Sequence[Said] | None]]


class Inboxes(dict[str, InboxHandler]):
    """The handlers of a process by name."""

    def add(self, name: str, handler: InboxHandler) -> None:
        """Raises `SettingInvalid` for a name that is taken or impossible, and for a handler that
        cannot be awaited."""
        check_name("an inbox", name)
        if not inspect.iscoroutinefunction(handler):
            raise SettingInvalid(f"the inbox {name} needs an `async def` with (tx, message)")
        if self.setdefault(name, handler) is not handler:
            raise SettingInvalid(f"the inbox {name} is registered twice; give one another name")
