"""A provider in the test's own process: what it really did, and how its next answers go wrong."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import asyncpg
from pydantic import BaseModel

from earnest import App, Call, Context, Effect, NotSent, Refused

RecordHook = Callable[[asyncpg.Connection, Call, "Receipt"], Awaitable[None]]
ReleasedHook = Callable[[asyncpg.Connection, Call, str], Awaitable[None]]


class Order(BaseModel):
    number: int
    amount: str = "20.00"


class Receipt(BaseModel):
    id: str


@dataclass
class Turn:
    """How the provider treats one call. `raises` is what its caller sees, `answers` what it gets
    instead of the receipt; with a `gate` it answers only when that is opened."""

    does: bool = True
    raises: BaseException | None = None
    answers: Any = None
    gate: Gate | None = None


@dataclass
class Gate:
    """A place to stop at: the test waits for `arrived` and opens."""

    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    opened: asyncio.Event = field(default_factory=asyncio.Event)

    async def reached(self) -> None:
        await asyncio.wait_for(self.arrived.wait(), 10)

    def open(self) -> None:
        self.opened.set()

    async def pass_through(self) -> None:
        self.arrived.set()
        await asyncio.wait_for(self.opened.wait(), 10)


@dataclass
class Provider:
    """`done` holds the id of each real effect in order, `asked` those of the look-ups. `dedupes`:
    it recognises a repeated id and does nothing again."""

    dedupes: bool = False
    done: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    calls: list[tuple[Call, Order]] = field(default_factory=list)
    turns: deque[Turn] = field(default_factory=deque)
    answers: deque[Any] = field(default_factory=deque)
    on_record: RecordHook | None = None
    on_released: ReleasedHook | None = None
    on_prepare: Callable[[Order], Awaitable[None]] | None = None

    def next(self, **turn: Any) -> None:
        """How the next call that has no turn yet is treated."""
        self.turns.append(Turn(**turn))

    def drops(self, *, does: bool) -> None:
        """The connection breaks during the call, after doing it or before."""
        self.next(does=does, raises=ConnectionError("the line broke"))

    def refuses(self, detail: str = "no such order") -> None:
        self.next(does=False, raises=Refused(detail))

    def is_not_reached(self) -> None:
        self.next(does=False, raises=NotSent("nobody listens"))

    def holds(self, **turn: Any) -> Gate:
        """The next call stays on its way until the gate is opened."""
        gate = Gate()
        self.next(gate=gate, **turn)
        return gate

    async def call(self, call: Call, order: Order) -> Any:
        self.calls.append((call, order))
        turn = self.turns.popleft() if self.turns else Turn()
        if turn.does and not (self.dedupes and call.id in self.done):
            self.done.append(call.id)
        if turn.gate is not None:
            await turn.gate.pass_through()
        if turn.raises is not None:
            raise turn.raises
        return turn.answers if turn.answers is not None else receipt_of(call)

    async def look_up(self, call: Call) -> Any:
        self.asked.append(call.id)
        if self.answers:
            answer = self.answers.popleft()
            if isinstance(answer, BaseException):
                raise answer
            return answer
        return receipt_of(call) if call.id in self.done else None


def receipt_of(call: Call) -> Receipt:
    return Receipt(id=f"receipt of {call.id}")


class _Pay(Effect[Order, Receipt]):
    """What the effects below have in common."""

    def __init__(self, far_end: Provider) -> None:
        self.far_end = far_end

    async def prepare(self, request: Order) -> object:
        if self.far_end.on_prepare is not None:
            await self.far_end.on_prepare(request)
        return None

    async def submit(self, call: Call, request: Order) -> Receipt:
        return await self.far_end.call(call, request)

    async def record(self, tx: asyncpg.Connection, call: Call, receipt: Receipt) -> None:
        if self.far_end.on_record is not None:
            await self.far_end.on_record(tx, call, receipt)

    async def released(self, tx: asyncpg.Connection, call: Call, reason: str) -> None:
        if self.far_end.on_released is not None:
            await self.far_end.on_released(tx, call, reason)


class Hold(_Pay):
    kind = "test.hold"
    recovery = "hold"


class Resend(_Pay):
    kind = "test.resend"
    recovery = "resend"
    window = "1h"


class Lookup(_Pay):
    """Absence counts after five minutes, if the sender provably ended."""

    kind = "test.lookup"
    recovery = "lookup"
    absent_after: ClassVar[str | None] = "5m"

    async def lookup(self, call: Call) -> Receipt | None:
        return await self.far_end.look_up(call)

    def matches(self, request: Order, receipt: Receipt) -> bool:
        return "another" not in receipt.id


class LookupDedupes(Lookup):
    """As `Lookup`, and a repeated id is recognised: absence counts after five minutes."""

    kind = "test.lookup.dedupes"
    dedupes = True


class LookupNever(Lookup):
    """Absence is never taken as proof."""

    kind = "test.lookup.never"
    dedupes = True
    absent_after = None


class Passing(_Pay):
    """Gives its resource key free when it is done."""

    kind = "test.passing"
    recovery = "hold"
    keeps_resource = False


EFFECTS: dict[str, type[_Pay]] = {
    "hold": Hold,
    "resend": Resend,
    "lookup": Lookup,
    "dedupes": LookupDedupes,
    "never": LookupNever,
    "passing": Passing,
}


class Purchase(BaseModel):
    by: str
    number: int = 17
    resource: str | None = None


def shop(provider: Provider, **terms: Any) -> App:
    """An app with all the effects, and `buy`, which does one of them."""
    app = App("shop")
    for effect in EFFECTS.values():
        app.effect(effect(provider))

    @app.run("buy", **terms)
    async def buy(ctx: Context, asked: Purchase) -> Receipt:
        order = Order(number=asked.number)
        return await ctx.operation("pay", EFFECTS[asked.by], order, resource_key=asked.resource)

    return app
