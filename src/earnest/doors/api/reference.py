"""The API's own description: the OpenAPI document, and a page for people made from it.

Both are open: they hold the contract and no facts. The page loads nothing from anywhere.
"""

from __future__ import annotations

from typing import Any

from fastapi import Request
from starlette.responses import HTMLResponse, Response

from earnest.doors.api.json_bodies import json_answer
from earnest.doors.api.reference_page import CONTENT_POLICY, render
from earnest.doors.api.routes import Answer, Routes

routes = Routes("reference")

_PUBLIC = {"Cache-Control": "public, max-age=300"}


@routes.public("/openapi.json", Answer(dict[str, Any]))
async def show_openapi(request: Request) -> Response:
    """This API as an OpenAPI 3.1 document."""
    return json_answer(request.app.openapi(), headers=_PUBLIC)


@routes.public("/docs", Answer(None))
async def show_docs(request: Request) -> Response:
    """This API as a page for people."""
    page = render(request.app.openapi())
    return HTMLResponse(page, headers={**_PUBLIC, "Content-Security-Policy": CONTENT_POLICY})
