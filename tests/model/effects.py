"""Effects whose provider is the test: a call stays on the wire until the test answers it.

`perform` runs as it does in production; only the far end is held in the hand. What an effect writes
beside a receipt or a release goes to a table of its own, so that the test can count it.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, ClassVar

import asyncpg
from pydantic import BaseModel

from earnest.domain.errors import Inconclusive, NotSent, Refused
from earnest.engine.process.effects import Call, Effect
from tests.model.reference_operations import Terms

TABLE = """
CREATE TABLE earnest.model_record (
    scope_id text NOT NULL, operation_id uuid NOT NULL, what text NOT NULL
)
"""


class Request(BaseModel):
    amount: int


class Receipt(BaseModel):
    id: int


@dataclass(eq=False)
class Wire:
    """One task's way to the provider. `turn` is done when the task needs the test: it waits at its
    look, at its call or for another's call (`waits_at`), or it has ended."""

    pauses: bool = False
    waits_at: str | None = None
    turn: asyncio.Future[None] = field(init=False)
    answer: asyncio.Future[str] = field(init=False)

    def __post_init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        loop = asyncio.get_running_loop()
        self.turn, self.answer, self.waits_at = loop.create_future(), loop.create_future(), None

    async def wait_at(self, place: str) -> str:
        self.waits_at = place
        self.ended()
        return await self.answer

    def ended(self, _: object = None) -> None:
        if not self.turn.done():
            self.turn.set_result(None)


@dataclass
class Provider:
    """What every effect of the model is connected to."""

    wires: dict[asyncio.Task[Any], Wire] = field(default_factory=dict)
    calls: list[tuple[Call, int]] = field(default_factory=list)
    receipt: int = 0
    answer: str = "doubt"
    lookup: str = "inconclusive"
    record_fails: bool = False

    def wire(self) -> Wire | None:
        task = asyncio.current_task()
        return None if task is None else self.wires.get(task)


class ModelEffect(Effect[Request, Receipt]):
    provider_: ClassVar[Provider] = Provider()

    async def prepare(self, request: Request) -> None:
        wire = self.provider_.wire()
        if wire is not None and wire.pauses:
            wire.pauses = False
            if await wire.wait_at("look") == "refused":
                raise Refused("too dear")

    async def submit(self, call: Call, request: Request) -> Receipt:
        self.provider_.calls.append((call, request.amount))
        wire = self.provider_.wire()
        answer = self.provider_.answer if wire is None else await wire.wait_at("call")
        match answer:
            case "receipt" | "record fails":
                return Receipt(id=self.provider_.receipt)
            case "bad receipt":
                return "no receipt at all"  # type: ignore[return-value]
            case "refused":
                raise Refused("no such account")
            case "not_sent":
                raise NotSent("connection refused")
        raise TimeoutError("no answer")

    async def lookup(self, call: Call) -> Receipt | None:
        match self.provider_.lookup:
            case "found":
                return Receipt(id=self.provider_.receipt)
            case "mismatched":
                return Receipt(id=-1)
            case "absent":
                return None
        raise Inconclusive("the provider is away")

    def matches(self, request: Request, receipt: Receipt) -> bool:
        return receipt.id != -1

    async def record(self, tx: asyncpg.Connection, call: Call, receipt: Receipt) -> None:
        await _write(tx, call, "recorded")
        if self.provider_.record_fails:
            raise ValueError("the app's own table is gone")

    async def released(self, tx: asyncpg.Connection, call: Call, reason: str) -> None:
        await _write(tx, call, reason)


async def _write(tx: asyncpg.Connection, call: Call, what: str) -> None:
    statement = "INSERT INTO earnest.model_record VALUES ($1, $2, $3)"
    await tx.execute(statement, call.scope_id, call.operation_id, what)


class Resent(ModelEffect):
    kind, recovery, window = "model.resent", "resend", "5m"


class Asked(ModelEffect):
    kind, recovery, dedupes, absent_after = "model.asked", "lookup", True, "60s"


class AskedOnly(ModelEffect):
    """Its provider does not recognise a repeated id: an absence proves little."""

    kind, recovery, absent_after = "model.asked_only", "lookup", "60s"


class Held(ModelEffect):
    kind, recovery, keeps_resource = "model.held", "hold", False


EFFECTS: tuple[type[ModelEffect], ...] = (Resent, Asked, AskedOnly, Held)

_MINUTE = timedelta(minutes=1)
TERMS = {
    "model.resent": Terms("model.resent", "resend", window=5 * _MINUTE),
    "model.asked": Terms("model.asked", "lookup", dedupes=True, absent_after=_MINUTE),
    "model.asked_only": Terms("model.asked_only", "lookup", absent_after=_MINUTE),
    "model.held": Terms("model.held", "hold", keeps_resource=False),
}
