"""The gate that every request passes, whatever route it wants.

On the way in: a request id, the body's size, and, under the private paths, who asks; nothing is
read of a body before that. On the way out: the headers that every answer has, and one problem
document for whatever went wrong. Plain ASGI, so that a stream is passed on as it is.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import traceback
from dataclasses import replace
from functools import partial

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from earnest.domain.errors import Busy, InvalidRequest, PayloadTooLarge, Unauthenticated
from earnest.doors.api import problems
from earnest.doors.api.incoming import UPLOADS
from earnest.engine.process.access import Doorkeeper
from earnest.engine.process.logs import get_logger

log = get_logger("earnest.api")

MAX_BODY_BYTES = 1024 * 1024
PRIVATE = ("/v1/", "/api/")
SIGNED = "/v1/inbox/"
"""What carries a signature instead of a token; its handler verifies it."""

_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")


class Gate:
    """Wraps the application; `doorkeeper` says who asks."""

    def __init__(self, app: ASGIApp, doorkeeper: Doorkeeper) -> None:
        self._app = app
        self._doorkeeper = doorkeeper

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        scope["state"] = {**scope.get("state", {}), "request_id": _request_id(headers)}
        leaving = _Leaving(scope, send)
        try:
            path = scope["path"]
            if path.startswith(PRIVATE) and not path.startswith(SIGNED):
                await self._admit(scope, _token(headers))
            if (scope["method"], scope["path"]) not in UPLOADS:
                _refuse_announced_size(headers)
                receive = _bounded(receive)
            await self._app(scope, receive, leaving.send)
        except ClientDisconnect:
            log.debug("request.abandoned", request_id=scope["state"]["request_id"])
        except asyncio.CancelledError:
            # The server has stopped waiting for this answer.
            if not leaving.started:
                await leaving.answer(Busy("this process is stopping; ask again"), receive)
            raise
        except Exception as error:
            await leaving.answer(error, receive)

    async def _admit(self, scope: Scope, token: str) -> None:
        """Who asks, and how to ask again who that is: a stream does while it goes on."""
        scope["state"]["admit"] = partial(self._doorkeeper.admit, token)
        actor = await self._doorkeeper.admit(token)
        scope["state"]["actor"] = replace(actor, request_id=scope["state"]["request_id"])


class _Leaving:
    """The way out of one request."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self._scope = scope
        self._send = send
        self.started = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.started = True
            headers = MutableHeaders(scope=message)
            headers["X-Request-Id"] = self._scope["state"]["request_id"]
            headers["X-Content-Type-Options"] = "nosniff"
            headers.setdefault("Cache-Control", "no-store")
        await self._send(message)

    async def answer(self, error: Exception, receive: Receive) -> None:
        """Tells what went wrong; if the answer has begun, only a broken connection can tell it."""
        if problems.is_broken(error):
            _log_broken(error, self._scope)
        if self.started:
            raise error
        await problems.answer(error, self._scope)(self._scope, receive, self.send)


def _request_id(headers: Headers) -> str:
    """The caller's own, where it is sane: it ends up in logs."""
    given = headers.get("x-request-id", "")
    return given if _REQUEST_ID.fullmatch(given) else secrets.token_hex(16)


def _token(headers: Headers) -> str:
    given = headers.getlist("authorization")
    scheme, _, text = given[0].partition(" ") if len(given) == 1 else ("", "", "")
    if scheme.lower() != "bearer":
        raise Unauthenticated("no valid token; send `Authorization: Bearer ern_…`")
    return text.strip()


def _refuse_announced_size(headers: Headers) -> None:
    announced = headers.get("content-length")
    if announced is None:
        return
    if not (announced.isascii() and announced.isdigit()):
        raise InvalidRequest("Content-Length is a number of bytes")
    if int(announced) > MAX_BODY_BYTES:
        raise _too_large()


def _bounded(receive: Receive) -> Receive:
    """The same messages; too many bytes of body end the request, announced or not."""
    total = 0

    async def counted() -> Message:
        nonlocal total
        message = await receive()
        total += len(message.get("body", b""))
        if total > MAX_BODY_BYTES:
            raise _too_large()
        return message

    return counted


def _too_large() -> PayloadTooLarge:
    return PayloadTooLarge(
        f"a body has at most {MAX_BODY_BYTES} bytes; store larger things as artifacts"
    )


def _log_broken(error: Exception, scope: Scope) -> None:
    """Where it broke, without the error's own words: they may quote what the caller sent."""
    places = [
        f"{at.filename}:{at.lineno} {at.name}" for at in traceback.extract_tb(error.__traceback__)
    ]
    log.error(
        "request.broken",
        request_id=scope["state"]["request_id"],
        method=scope["method"],
        path=scope["path"],
        error=type(error).__name__,
        places=places[-8:],
    )
