"""One request by somebody: what a handler is given, and how it reads as that somebody."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Annotated, Any

from fastapi import Depends, Request
from starlette.datastructures import Headers

from earnest.domain import canonical, ids
from earnest.domain.access import RequestKey
from earnest.domain.errors import Unauthenticated
from earnest.domain.operation import Operation
from earnest.domain.run import Run
from earnest.doors.api import headers
from earnest.doors.api.cursors import Cursors
from earnest.doors.api.json_bodies import JsonRequest
from earnest.doors.api.rules import Rule
from earnest.engine.inspection.readiness import Readiness
from earnest.engine.process.actors import Actor
from earnest.engine.process.engine import Engine
from earnest.engine.runs import reading
from earnest.store.visible import Sight


@dataclass(frozen=True, slots=True)
class Visit:
    """The engine, who asks, the request's headers, its JSON body as it was sent, and how to ask
    again who asks."""

    engine: Engine
    actor: Actor
    cursors: Cursors
    headers: Headers
    sent: Any
    admit: Callable[[], Awaitable[Actor]]

    async def again(self) -> Visit:
        """The same visit with what the actor is and may do by now. Raises `Unauthenticated`."""
        return replace(self, actor=await self.admit())

    def key_of(self, what: str) -> RequestKey | None:
        """The request's idempotency key, where it has one, with the digest of what was sent;
        `what` tells apart requests of which the bodies may be the same."""
        key = headers.idempotency_key(self.headers)
        if key is None:
            return None
        sent = canonical.digest(canonical.encode([what, self.sent]))
        return RequestKey(key, sent)

    async def run(self, text: str) -> Run:
        """The run of that id as the actor may see it. Raises `NotFound` for any other text."""
        return await reading.find_run(self.engine, self.actor, ids.read("run", text))

    async def operation(self, text: str) -> Operation:
        """The operation of that id as the actor may see it. Raises `NotFound`."""
        return await reading.find_operation(self.engine, self.actor, ids.read("op", text))

    def sight(self, run: Run) -> Sight:
        return reading.sight(self.actor, run.run_id)


@dataclass(frozen=True, slots=True)
class Api:
    """What the handlers of one application share; kept in its state. `ready` tells what the process
    says of itself."""

    engine: Engine
    cursors: Cursors
    ready: Callable[[], Readiness]


async def visit_of(request: Request) -> Visit:
    api: Api = request.app.state.api
    sent = request.value if isinstance(request, JsonRequest) else None
    actor, admit = actor_of(request), request.state.admit
    return Visit(api.engine, actor, api.cursors, request.headers, sent, admit)


Visiting = Annotated[Visit, Depends(visit_of)]


def admission(rule: Rule) -> Callable[[Request], Awaitable[None]]:
    """Lets pass whom the rule admits."""

    async def admit(request: Request) -> None:
        rule.admit(actor_of(request))

    return admit


def actor_of(request: Request) -> Actor:
    """Whom the gate let in; nobody, if it did not look."""
    actor: Actor | None = getattr(request.state, "actor", None)
    if actor is None:
        raise Unauthenticated("no valid token; send `Authorization: Bearer ern_…`")
    return actor
