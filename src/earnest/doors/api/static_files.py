"""What a page loads from here: the client that follows events in a browser.

Open to everybody: it holds no facts. It is one file without dependencies, and runs under a content
policy without inline scripts and without `eval`.
"""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

from fastapi import Request
from starlette.responses import Response

from earnest.doors.api import file_headers
from earnest.doors.api.routes import Answer, Routes

routes = Routes("reference")

_FOLDER = Path(__file__).parent / "static"
_SCRIPT = Answer(None, headers=("ETag",), file=True, bare={304: "You have it already"})


@routes.public("/static/earnest-events.js", _SCRIPT)
async def show_events_client(request: Request) -> Response:
    """The client for browsers, a module of JavaScript: it follows a run's events, or a scope's."""
    body, tag = _file("earnest-events.js")
    told = {"ETag": tag, "Cache-Control": "public, max-age=300"}
    if file_headers.is_known(request.headers, tag):
        return Response(status_code=304, headers=told)
    return Response(body, headers=told, media_type="text/javascript")


@cache
def _file(name: str) -> tuple[bytes, str]:
    body = (_FOLDER / name).read_bytes()
    return body, file_headers.tag_of(hashlib.sha256(body).digest())
