"""How a request may come in: how long its head may be, and how long it may take.

Below ASGI, because a request that is never complete never gets there. Whatever is not the content
of a body (heads, trailers, the sizes of chunks) is at most `HEAD_BYTES` at a time. Who is refused
here gets a problem document as everywhere; what it still sends is read past for a moment, so that
it finds the answer and not a broken connection.
"""

from __future__ import annotations

import asyncio
import secrets
from enum import Enum
from urllib.parse import quote

import msgspec
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from earnest.doors.api.codes import CODES, type_of

HEAD_BYTES = 32 * 1024
FIELDS = 100
ADDRESS_BYTES = 16 * 1024
HEAD_SECONDS = 10.0
"""From its first byte a head is complete within so long."""
PROGRESS_SECONDS = 10.0
"""A body does not stop for longer."""
BODY_SECONDS = 60.0
"""A body, of which there is at most 1 MiB, is there within so long; a file takes what it takes."""
LINGER_SECONDS = 1.0
UPLOADS = frozenset({("POST", "/v1/artifacts")})
"""What streams in and is bounded by who takes it."""

_CODE = "invalid_request"
_TOO_LONG = (431, f"the head of a request has at most {HEAD_BYTES} bytes")
_TOO_MANY = (431, f"a request has at most {FIELDS} header fields")
_ADDRESS_TOO_LONG = (414, f"the address of a request has at most {ADDRESS_BYTES} bytes")
_TOO_SLOW = (408, "the request did not come in time; send it again")
_MALFORMED = (400, "this is not HTTP as RFC 9112 has it")


class _Part(Enum):
    """Which part of a request is coming in."""

    NONE = 0
    HEAD = 1
    BODY = 2


class _Refused(Exception):
    """The parser is to stop here."""


class IncomingProtocol(HttpToolsProtocol):
    """The server's protocol with bounds."""

    _part = _Part.NONE
    _began = 0.0
    _not_body = 0  # bytes since the last content of a body
    _refusal = _MALFORMED
    _deaf = False
    _due: float | None = None
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._deaf = True
        if self._timer is not None:
            self._timer.cancel()

    def data_received(self, data: bytes) -> None:
        """In pieces, so that the parser has never gathered much more than is allowed."""
        for start in range(0, len(data), HEAD_BYTES):
            if self._deaf or self.transport.is_closing():
                return
            piece = data[start : start + HEAD_BYTES]
            self._not_body += len(piece)
            super().data_received(piece)
            if self._not_body > HEAD_BYTES:
                self._refuse(*_TOO_LONG)
        self._watch()

    # ---- what the parser finds ---------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._part, self._began = _Part.HEAD, self.loop.time()
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        if len(self.url) > ADDRESS_BYTES:
            self._stop(_ADDRESS_TOO_LONG)

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        if len(self.headers) > FIELDS:
            self._stop(_TOO_MANY)

    def on_headers_complete(self) -> None:
        if self._not_body > HEAD_BYTES:
            self._stop(_TOO_LONG)
        super().on_headers_complete()
        self._part, self._began, self._not_body = _Part.BODY, self.loop.time(), 0

    def on_body(self, body: bytes) -> None:
        self._not_body = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._part, self._not_body = _Part.NONE, 0
        super().on_message_complete()

    def _stop(self, refusal: tuple[int, str]) -> None:
        self._refusal = refusal
        raise _Refused

    def send_400_response(self, msg: str) -> None:
        """What the parser could not go on with, or was stopped at."""
        self._refuse(*self._refusal)

    # ---- time --------------------------------------------------------------------------------

    def _watch(self) -> None:
        """Notes until when something has to come. The timer is moved only forward: when it is up,
        it looks how long there is still time."""
        self._due = self._until()
        if self._due is None:
            return
        if self._timer is not None and self._timer.when() > self._due:
            self._timer.cancel()
            self._timer = None
        if self._timer is None:
            self._timer = self.loop.call_at(self._due, self._look)

    def _until(self) -> float | None:
        """`None` while it is our turn."""
        if self._deaf or (self._part is _Part.NONE and self._is_owed_an_answer()):
            return None
        now = self.loop.time()
        if self._part is _Part.NONE:
            return now + self.timeout_keep_alive
        if self._part is _Part.HEAD:
            return self._began + HEAD_SECONDS
        if (self.scope["method"], self.scope["path"]) in UPLOADS:
            return now + PROGRESS_SECONDS
        return min(now + PROGRESS_SECONDS, self._began + BODY_SECONDS)

    def _look(self) -> None:
        self._timer = None
        if self._due is None or self._deaf or self.transport.is_closing():
            return
        if self.loop.time() < self._due:
            self._timer = self.loop.call_at(self._due, self._look)
        elif self._part is _Part.NONE:
            self.transport.close()
        elif self._part is _Part.BODY and self._is_held():
            self._began = self.loop.time()
            self._watch()
        else:
            self._refuse(*_TOO_SLOW)

    def _is_owed_an_answer(self) -> bool:
        cycle: RequestResponseCycle | None = self.cycle  # the server's own word is that it is there
        return cycle is not None and not cycle.response_complete

    def _is_held(self) -> bool:
        """Whether it is we who do not read, or did not say yet that it may be sent."""
        waits_for_leave = self._is_owed_an_answer() and self.cycle.waiting_for_100_continue
        return waits_for_leave or self.flow.read_paused

    # ---- refusing ----------------------------------------------------------------------------

    def _refuse(self, status: int, detail: str) -> None:
        """Nothing more is taken from this connection. A request before this one gets its answer;
        an answer that has begun breaks off."""
        if self._deaf or self.transport.is_closing():
            return
        self._deaf = True
        if self._part is not _Part.BODY and self._is_owed_an_answer():
            self.cycle.keep_alive = False
            return
        began = self._part is _Part.BODY and self.cycle.response_started
        if self._is_owed_an_answer():
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if not began:
            self.transport.write(self._problem(status, detail))
        self._linger()

    def _linger(self) -> None:
        """Closed at once while bytes are unread, the peer would not get to see the answer."""
        self._unset_keepalive_if_required()
        self.flow.resume_reading()
        if self.transport.can_write_eof():
            self.transport.write_eof()
            self.loop.call_later(LINGER_SECONDS, self.transport.close)
        else:
            self.transport.close()

    def _problem(self, status: int, detail: str) -> bytes:
        request_id = secrets.token_hex(16)
        path = (getattr(self, "url", b"") or b"").partition(b"?")[0][:200]
        body = msgspec.json.encode(
            {
                "type": type_of(_CODE),
                "title": CODES[_CODE].title,
                "status": status,
                "detail": detail,
                "instance": quote(path),
                "code": _CODE,
                "request_id": request_id,
            }
        )
        lines = [
            "content-type: application/problem+json",
            f"content-length: {len(body)}",
            f"x-request-id: {request_id}",
            "x-content-type-options: nosniff",
            "cache-control: no-store",
            "connection: close",
        ]
        return STATUS_LINE[status] + "\r\n".join([*lines, "", ""]).encode() + body
