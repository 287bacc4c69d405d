"""`/metrics`: what Prometheus reads. It tells kinds, lanes, effects and numbers, and nothing of any
tenant; whoever should not know those either is kept out by `EARNEST_METRICS_TOKEN`."""

from __future__ import annotations

import hmac
import os

from fastapi import FastAPI, Request
from starlette.responses import Response

from earnest.domain.errors import Unauthenticated
from earnest.doors.api.routes import Answer, Routes
from earnest.doors.api.streams import Streams
from earnest.doors.api.visit import Api
from earnest.engine.inspection.exposing import MEDIA_TYPE, expose
from earnest.engine.inspection.gauging import Gauging

routes = Routes("health")

TOKEN = "EARNEST_METRICS_TOKEN"  # noqa: S105 - the variable's name


@routes.public("/metrics", Answer(None, file=True), problems=(401,))
async def tell_metrics(request: Request) -> Response:
    """The process's metrics in the text form of Prometheus.

    Open to everybody, unless the deployment has set a token for it; then send it as
    `Authorization: Bearer …`.
    """
    _require_token(request.headers.get("authorization", ""))
    state = request.app.state
    api: Api = state.api
    streams: Streams | None = getattr(state, "streams", None)
    open_ = None if streams is None else streams.places.open
    told = await expose(api.engine.metrics, _gauging(request.app, api), open_)
    return Response(told, headers={"Content-Type": MEDIA_TYPE})


def _gauging(app: FastAPI, api: Api) -> Gauging:
    """The application's own: however many ask, it counts once in a while."""
    if not hasattr(app.state, "gauging"):
        app.state.gauging = Gauging(api.engine)
    found: Gauging = app.state.gauging
    return found


def _require_token(given: str) -> None:
    wanted = os.environ.get(TOKEN, "")
    expected = f"Bearer {wanted}".encode()
    if wanted and not hmac.compare_digest(given.encode(), expected):
        raise Unauthenticated(f"send the token of {TOKEN} as `Authorization: Bearer …`")
