"""Whether the process lives and may be sent work; open to everybody, and without facts."""

from __future__ import annotations

from fastapi import Request
from starlette.responses import Response

from earnest.domain.errors import Busy
from earnest.doors.api import shapes
from earnest.doors.api.json_bodies import json_answer
from earnest.doors.api.routes import Answer, Routes
from earnest.doors.api.visit import Api
from earnest.engine.inspection.readiness import examine

routes = Routes("health")


@routes.public("/livez", Answer(shapes.Alive))
async def tell_alive() -> Response:
    """The process answers."""
    return json_answer({"status": "alive"})


@routes.public("/readyz", Answer(shapes.Ready), problems=(503,))
async def tell_ready(request: Request) -> Response:
    """The process has recovered, is not draining, and its database answers.

    `warnings` are loud: they are about settings under which accepted work can be lost.
    """
    api: Api = request.app.state.api
    found = await examine(api.engine, api.ready())
    if not found.ready:
        raise Busy(found.reason or "not ready yet", fields={"warnings": list(found.warnings)})
    return json_answer({"status": "ready", "warnings": list(found.warnings)})
