"""Errors as problem documents (RFC 9457), the one form in which anything is refused.

`code` is out of a closed list; where the engine's error is finer, its own code is the member
`reason`. What may not be seen and what is not there give the same document, and what broke inside
gives no details.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

import msgspec
from fastapi.exceptions import RequestValidationError
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import Scope

from earnest.domain.errors import (
    Busy,
    DatabaseUnavailable,
    EarnestError,
    InvalidRequest,
    NotFound,
    PayloadTooLarge,
    QuotaExceeded,
    StorageUnavailable,
    Unauthenticated,
)
from earnest.doors.api import headers, sse
from earnest.doors.api.codes import BY_STATUS, CODES, type_of

MEDIA_TYPE = "application/problem+json"
RETRY_AFTER = 2  # seconds
STREAMS = ("/events", "-events")
"""How the paths of streams end."""

# The server's words for a lock or an answer that took too long, and for no more connections.
_OVERLOADED = frozenset({"55P03", "57014", "53300"})


class UnsupportedMediaType(EarnestError):
    """The body's media type is not taken here."""

    code, status = "unsupported_media_type", 415


class MethodNotAllowed(EarnestError):
    """The path does not know this method."""

    code, status = "method_not_allowed", 405


class _Broken(EarnestError):
    """Something went wrong inside; it has been logged."""

    code = "internal_error"


def answer(error: Exception, scope: Scope) -> Response:
    """The problem document for an error that ended a request; where a stream was asked for that
    cannot be given now, a stream that says so."""
    told = _told(error)
    if isinstance(told, Busy) and _asks_for_stream(scope):
        return sse.busy_answer()
    status, code = told.status, code_of(told)
    body = {
        "type": type_of(code),
        "title": CODES[code].title,
        "status": status,
        "detail": told.detail,
        "instance": quote(scope["path"]),
        "code": code,
        "request_id": scope["state"]["request_id"],
    }
    body |= {name: value for name, value in _members(told).items() if name not in body}
    return Response(msgspec.json.encode(body), status, _headers(error, told), MEDIA_TYPE)


def code_of(error: EarnestError | type[EarnestError]) -> str:
    """The code out of the closed list: the error's own, its nearest ancestor's, its status's."""
    for ancestor in (error if isinstance(error, type) else type(error)).__mro__:
        code = getattr(ancestor, "code", "")
        if code in CODES:
            return str(code)
    return BY_STATUS.get(error.status, "internal_error")


def is_broken(error: Exception) -> bool:
    """Whether the fault is on our side and must be logged."""
    return isinstance(_told(error), _Broken)


def is_busy(error: Exception) -> bool:
    """Whether it is worth while to come again later."""
    return isinstance(_told(error), Busy)


def _asks_for_stream(scope: Scope) -> bool:
    at_stream = scope["method"] == "GET" and scope["path"].endswith(STREAMS)
    return at_stream and headers.wants_stream(Headers(scope=scope))


def _told(error: Exception) -> EarnestError:
    """What the outside hears."""
    if isinstance(error, NotFound):
        return NotFound("there is no such thing here, or it is not yours to see")
    if isinstance(error, DatabaseUnavailable):
        # Its own words name the server's address.
        return Busy("the database cannot be reached; try again, with the same key")
    if isinstance(error, StorageUnavailable):
        # Its own words name folders and hosts.
        return StorageUnavailable(
            "the place where artifacts are kept cannot be used now; nothing was stored, try again"
        )
    if isinstance(error, EarnestError) and (error.status < 500 or isinstance(error, Busy)):
        return error
    if isinstance(error, RequestValidationError):
        return _invalid(error.errors())
    if isinstance(error, HTTPException):
        return _of_status(error.status_code)
    if getattr(error, "sqlstate", None) in _OVERLOADED:
        return Busy("the database is too busy for this now; try again")
    return _Broken("this is our fault and has been logged under the request's id")


def _invalid(errors: Sequence[Any]) -> EarnestError:
    shown = [_one_error(error) for error in errors]
    places = [f"{one['in']} {one['pointer'] or 'as a whole'}: {one['detail']}" for one in shown]
    more = f"; and {len(shown) - 3} more" if len(shown) > 3 else ""
    return InvalidRequest("; ".join(places[:3]) + more, fields={"errors": shown})


def _one_error(error: Mapping[str, Any]) -> dict[str, str]:
    """Where it is (a JSON pointer into that part of the request) and what is wrong there. The value
    itself is not repeated: it may be a secret."""
    part, *rest = error["loc"]
    pointer = "".join(f"/{_escaped(str(piece))}" for piece in rest)
    return {"in": str(part), "pointer": pointer, "detail": error["msg"], "code": error["type"]}


def _escaped(piece: str) -> str:
    return piece.replace("~", "~0").replace("/", "~1")


def _of_status(status: int) -> EarnestError:
    """What the framework refuses by itself."""
    if status == NotFound.status:
        return NotFound("there is no such path")
    for known in (InvalidRequest, MethodNotAllowed, PayloadTooLarge):
        if known.status == status:
            return known(HTTPStatus(status).phrase.lower())
    return _Broken("this is our fault and has been logged under the request's id")


def _members(error: EarnestError) -> dict[str, Any]:
    members = dict(error.fields)
    if "errors" in members:
        members["errors"] = [{"in": "body", **one} for one in members["errors"]]
    if error.code != code_of(error):
        members["reason"] = error.code
    return members


def _headers(error: Exception, told: EarnestError) -> dict[str, str]:
    headers = dict(error.headers or {}) if isinstance(error, HTTPException) else {}
    if isinstance(told, Unauthenticated):
        headers["WWW-Authenticate"] = 'Bearer realm="earnest"'
    if isinstance(told, Busy | QuotaExceeded):
        headers["Retry-After"] = str(told.fields.get("retry_after", RETRY_AFTER))
    if told.status == 413:
        # What is left of the body is not read.
        headers["Connection"] = "close"
    return headers
