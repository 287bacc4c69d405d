"""The bytes of artifacts over HTTP: whole or a range, always as an attachment.

What somebody brought is never shown in our own origin: it is a download, in a sandbox, of the type
it was brought as. Each piece is checked before it leaves; a damaged one ends the connection, so
that a part is never taken for the whole.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from fastapi import Request
from starlette.responses import Response, StreamingResponse

from earnest.domain.artifact import Artifact
from earnest.domain.errors import EarnestError
from earnest.doors.api import file_headers, problems
from earnest.doors.api.artifacts import find_artifact
from earnest.doors.api.routes import MINE_OR_SCOPES, Answer, Routes, told_header
from earnest.doors.api.visit import Visit, Visiting
from earnest.engine.artifacts import reading

routes = Routes("artifacts")

_NAMED = ("ETag", "Content-Range", "Content-Disposition", "Repr-Digest", "Accept-Ranges")
_NOTHING_NEW = {304: "You have it already"}
_WHOLE = Answer(None, also={206: "The range"}, headers=_NAMED, file=True, bare=_NOTHING_NEW)
_ASKED = (
    told_header("Range", "One range of bytes, such as `bytes=0-1023`."),
    told_header("If-Range", "The `ETag` of which a range is wanted; of another, all is given."),
    told_header("If-None-Match", "The `ETag` that you have."),
)


class RangeNotSatisfiable(EarnestError):
    """No byte of the range is there."""

    code, status = "range_not_satisfiable", 416


@routes.get(
    "/v1/artifacts/{artifact_id}/content",
    _WHOLE,
    roles=MINE_OR_SCOPES,
    problems=(416,),
    takes=_ASKED,
)
async def read_artifact_content(visit: Visiting, request: Request, artifact_id: str) -> Response:
    """Download an artifact, or one range of it.

    The connection ends early if the stored bytes are found to be damaged: compare the length, or
    the `Repr-Digest`.
    """
    found = await find_artifact(visit, artifact_id)
    told = _headers(found)
    if file_headers.is_known(visit.headers, told["ETag"]):
        return Response(status_code=304, headers=told)
    try:
        part = file_headers.wanted_range(visit.headers, told["ETag"], found.size)
    except file_headers.Unsatisfiable:
        return _unsatisfiable(request, found)
    start, end = part or (0, found.size)
    body = await _begun(visit, found, start, end)
    told["Content-Length"] = str(end - start)
    if part is not None:
        told["Content-Range"] = f"bytes {start}-{end - 1}/{found.size}"
    status = 200 if part is None else 206
    return StreamingResponse(body, status, told, found.media_type)


@routes.head("/v1/artifacts/{artifact_id}/content", _WHOLE, roles=MINE_OR_SCOPES)
async def look_at_artifact_content(visit: Visiting, artifact_id: str) -> Response:
    """Ask for the headers of a download."""
    found = await find_artifact(visit, artifact_id)
    told = _headers(found)
    if file_headers.is_known(visit.headers, told["ETag"]):
        return Response(status_code=304, headers=told)
    told["Content-Length"] = str(found.size)
    return Response(headers=told, media_type=found.media_type)


async def _begun(visit: Visit, found: Artifact, start: int, end: int) -> AsyncIterator[bytes]:
    """The bytes. The first ones are read before the answer begins, so that what is missing is told
    as a problem."""
    opened = await reading.open_artifact(visit.engine, found)
    stream = opened.stream(start, end)
    first = await anext(stream, b"")

    async def body() -> AsyncIterator[bytes]:
        yield first
        async for piece in stream:
            yield piece

    return body()


def _headers(found: Artifact) -> dict[str, str]:
    return {
        "ETag": file_headers.tag_of(found.sha256),
        "Repr-Digest": file_headers.repr_digest(found.sha256),
        "Accept-Ranges": "bytes",
        "Content-Disposition": file_headers.attachment(found.name),
        "Content-Security-Policy": "sandbox",
        "Cache-Control": "private, no-cache",
    }


def _unsatisfiable(request: Request, found: Artifact) -> Response:
    error = RangeNotSatisfiable(f"the artifact has {found.size} bytes; ask for some of them")
    refused = problems.answer(error, request.scope)
    refused.headers["Content-Range"] = f"bytes */{found.size}"
    return refused
