"""JSON bodies, in and out: read strictly, so that whatever passes can be stored; written fast."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import accumulate
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from earnest.domain import canonical
from earnest.domain.errors import InvalidRequest
from earnest.doors.api.problems import UnsupportedMediaType

MAX_DEPTH = 100

# A string, or the unfinished rest of the text: every byte is looked at once.
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
_STEPS = dict(zip(b"[]{}", (1, -1, 1, -1), strict=True))
_NO_BRACKETS = bytes(set(range(256)) - set(_STEPS))

_encoder = msgspec.json.Encoder()


class JsonRequest(Request):
    """A request whose body has been read and checked; `value` is what the client sent."""

    value: Any = None

    async def json(self) -> Any:
        return self.value


async def read_json(request: Request) -> JsonRequest:
    """Reads the whole body. Raises `UnsupportedMediaType`, `InvalidRequest` for what is not JSON or
    cannot be stored, and `PayloadTooLarge` from the gate."""
    read = JsonRequest(request.scope, request.receive)
    body = await read.body()
    if body:
        if not _is_json(request.headers.get("content-type", "")):
            raise UnsupportedMediaType("the body must be JSON: send Content-Type: application/json")
        read.value = _checked(body)
    return read


def json_answer(body: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(_encoder.encode(body), status, headers, "application/json")


def _is_json(content_type: str) -> bool:
    essence = content_type.partition(";")[0].strip().lower()
    return essence == "application/json" or (
        essence.startswith("application/") and essence.endswith("+json")
    )


def _checked(body: bytes) -> Any:
    # Nesting costs brackets; only a body with many of them can be nested deeply.
    if body.count(b"[") + body.count(b"{") > MAX_DEPTH and _is_too_deep(body):
        raise InvalidRequest(f"the body is nested more than {MAX_DEPTH} levels deep")
    try:
        value = canonical.decode(body)
        canonical.encode(value)
    except canonical.NotJson as error:
        raise InvalidRequest(f"the body cannot be taken: {error}") from error
    return value


def _is_too_deep(body: bytes) -> bool:
    brackets = _STRING.sub(b"", body).translate(None, _NO_BRACKETS)
    return max(accumulate(map(_STEPS.__getitem__, brackets)), default=0) > MAX_DEPTH
