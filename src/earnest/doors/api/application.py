"""Puts the API together: routes, the gate before them, and one form for every refusal."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Match

from earnest.domain.errors import EarnestError
from earnest.doors.api import (
    approvals,
    artifact_content,
    artifacts,
    audit,
    feed,
    health,
    inbox,
    logs,
    metrics,
    operations,
    outbox,
    principals,
    problems,
    reference,
    run_parts,
    runs,
    scopes,
    static_files,
    sweeps,
    texts,
    tokens,
    webhooks,
)
from earnest.doors.api.cursors import Cursors
from earnest.doors.api.gate import Gate
from earnest.doors.api.openapi import make_openapi
from earnest.doors.api.routes import require_rules
from earnest.doors.api.straight import StraightWay, answer_straight
from earnest.doors.api.streams import Streams, StreamSettings
from earnest.doors.api.visit import Api
from earnest.engine.inspection.readiness import Readiness
from earnest.engine.process.access import Doorkeeper
from earnest.engine.process.engine import Engine

ABOUT = (
    "Work that costs money or cannot be taken back, done at most once. Every refusal is a problem "
    "document (RFC 9457) with a stable `code`. Ids are TypeIDs, times RFC 3339 in UTC."
)

_NOUNS = (
    runs,
    run_parts,
    logs,
    texts,
    feed,
    artifacts,
    artifact_content,
    operations,
    sweeps,
    approvals,
    tokens,
    principals,
    scopes,
    audit,
    webhooks,
    outbox,
    inbox,
    health,
    metrics,
    reference,
    static_files,
)


def build_api(
    engine: Engine,
    *,
    ready: Callable[[], Readiness],
    doorkeeper: Doorkeeper | None = None,
    streams: StreamSettings | None = None,
) -> FastAPI:
    """The API on an engine whose database is open. `ready` is asked by `/readyz` what the process
    says of itself: not ready before its recovery is done and while it drains. Raises
    `SettingInvalid` for a route without a rule."""
    app = FastAPI(
        title="Earnest",
        version=version("earnest"),
        description=ABOUT,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        generate_unique_id_function=lambda route: route.name,
        exception_handlers=_handlers(),
    )
    app.state.api = Api(engine, Cursors(engine.database), ready)
    app.state.streams = Streams(engine, streams)
    for noun in _NOUNS:
        noun.routes.add_to(app)
    require_rules(app)
    app.openapi = lambda: _openapi_once(app)  # type: ignore[method-assign]
    doorkeeper = doorkeeper or Doorkeeper(engine)
    app.add_middleware(Gate, doorkeeper=doorkeeper)
    way = StraightWay(app.routes, app.build_middleware_stack())
    way.gate = Gate(answer_straight, doorkeeper)
    app.middleware_stack = way
    return app


def build_metrics(engine: Engine, *, ready: Callable[[], Readiness]) -> FastAPI:
    """An application that only says how the process is: for one that serves no API."""
    app = FastAPI(
        openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False,
        exception_handlers=_handlers(),
    )  # fmt: skip
    app.state.api = Api(engine, Cursors(engine.database), ready)
    for noun in (health, metrics):
        noun.routes.add_to(app)
    app.add_middleware(Gate, doorkeeper=Doorkeeper(engine))
    return app


def _handlers() -> dict[Any, Any]:
    """Refusals are told here, inside the framework; what breaks goes on to the gate."""
    return {
        EarnestError: _answer,
        RequestValidationError: _answer,
        HTTPException: _answer_framework,
    }


async def _answer(request: Request, error: Exception) -> Response:
    if problems.is_broken(error):
        raise error
    return problems.answer(error, request.scope)


async def _answer_framework(request: Request, error: HTTPException) -> Response:
    if error.status_code == 405:
        # The framework names the methods of one route of the path; all of them are true.
        error.headers = {"Allow": ", ".join(_methods_of(request))}
    return await _answer(request, error)


def _methods_of(request: Request) -> list[str]:
    app: FastAPI = request.app
    allowed: set[str] = set()
    for route in app.routes:
        found, _ = route.matches(dict(request.scope))
        if found is not Match.NONE:
            allowed |= getattr(route, "methods", None) or set()
    return sorted(allowed)


def _openapi_once(app: FastAPI) -> dict[str, Any]:
    if app.openapi_schema is None:
        app.openapi_schema = make_openapi(app)
    return app.openapi_schema
