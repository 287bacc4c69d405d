"""The simulator's application: the providers' routes beside truth and faults.

* `GET /truth?provider=bank`: `{"items": [...]}` in the order in which it was really done; the
  things of all providers without `provider`.
* `GET /truth?at_least=N&wait_ms=M`: the same, as soon as there are N items, or after M
  milliseconds with what there is.
* `DELETE /truth`: a simulator with an empty memory takes over: no truth, no rules, no receipts.
  Calls that are on their way end in the old one. Answers 204.
* `PUT /faults`: sets one rule (see `faults`) and answers the rules in force.
* `GET /faults`: `{"items": [...]}`, the rules in force with the calls they are still good for.
* `DELETE /faults`: takes all rules away, answers 204.

A request that cannot be understood is answered 400 with `{"error": one line}`; nothing was done.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from earnest.testing.simulator.asking import Misasked, json_object, known_provider, query_number
from earnest.testing.simulator.banks import Banks
from earnest.testing.simulator.connections import Connections
from earnest.testing.simulator.effects import Effects
from earnest.testing.simulator.faults import FaultRules, Rule
from earnest.testing.simulator.truth import TruthLog

LONGEST_WAIT_MS = 600_000

PROVIDER_ROUTES: tuple[Callable[[Effects], Sequence[BaseRoute]], ...] = (
    lambda effects: Banks(effects).routes(),
)
"""Each provider's routes, made anew for each application so that nothing is shared."""


class Forgetful:
    """A simulator that can forget: an application with an empty memory takes the other's place."""

    def __init__(self, connections: Connections | None = None) -> None:
        self._connections = connections
        self.forget()

    def forget(self) -> None:
        self._app = build_app(self._connections)
        self._app.state.forget = self.forget

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)


def build_app(connections: Connections | None = None) -> Starlette:
    """A simulator with an empty memory. Dropping a connection needs the server's `connections`."""
    effects = Effects(TruthLog(), FaultRules())
    app = Starlette(
        routes=[
            Route("/truth", _show_truth, methods=["GET"]),
            Route("/truth", _forget, methods=["DELETE"]),
            Route("/faults", _put_fault, methods=["PUT"]),
            Route("/faults", _show_faults, methods=["GET"]),
            Route("/faults", _clear_faults, methods=["DELETE"]),
            *(route for routes in PROVIDER_ROUTES for route in routes(effects)),
        ],
        exception_handlers={Misasked: _answer_misasked, ClientDisconnect: _answer_nobody},
    )
    app.state.effects = effects
    app.state.connections = connections
    return app


async def _show_truth(request: Request) -> Response:
    query = request.query_params
    provider = known_provider(query["provider"]) if "provider" in query else None
    at_least = query_number("at_least", query.get("at_least", "0"), least=0, most=10**9)
    wait_ms = query_number("wait_ms", query.get("wait_ms", "0"), least=0, most=LONGEST_WAIT_MS)
    truth = _effects(request).truth
    deeds = await truth.deeds_when(provider, at_least, wait_ms / 1000)
    return JSONResponse({"items": [deed.as_json() for deed in deeds]})


async def _forget(request: Request) -> Response:
    request.app.state.forget()
    return Response(status_code=204)


async def _put_fault(request: Request) -> Response:
    rule = Rule.from_json(json_object(await request.body()))
    _effects(request).faults.put(rule)
    return await _show_faults(request)


async def _show_faults(request: Request) -> Response:
    rules = _effects(request).faults.rules()
    return JSONResponse({"items": [rule.as_json() for rule in rules]})


async def _clear_faults(request: Request) -> Response:
    _effects(request).faults.clear()
    return Response(status_code=204)


def _effects(request: Request) -> Effects:
    effects: Effects = request.app.state.effects
    return effects


async def _answer_misasked(request: Request, error: Exception) -> Response:
    return JSONResponse({"error": str(error)}, 400)


async def _answer_nobody(request: Request, error: Exception) -> Response:
    """The caller went away before its request was complete: nothing was asked."""
    return Response(status_code=400)
